"""Sending: the checks, the route, the first send."""

from sqsdelay.parking.parking import ParkingSettings
from sqsdelay.ports.queues import Sender, SentMessage
from sqsdelay.sending.router import SenderSettings
from sqsdelay.sending.sender import QueueSender, SendResult

__all__ = [
    "ParkingSettings",
    "QueueSender",
    "SendResult",
    "Sender",
    "SenderSettings",
    "SentMessage",
]
