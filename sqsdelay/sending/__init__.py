"""Sending: the checks, the route, the first send."""

from sqsdelay.sending.sender import Sender, SendResult

__all__ = ["SendResult", "Sender"]
