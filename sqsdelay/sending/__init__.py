"""Sending: the checks, the route, the first send."""

from sqsdelay.ports.senders import Sender, SentMessage
from sqsdelay.sending.sender import QueueSender, SendResult

__all__ = ["QueueSender", "SendResult", "Sender", "SentMessage"]
