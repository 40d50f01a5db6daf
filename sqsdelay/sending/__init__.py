"""Sending: the checks, the route, the first send."""

from sqsdelay.sending.sender import QueueSender, SendResult

__all__ = ["SendResult", "QueueSender"]
