"""Sending: the checks, the route, the first send."""

from sqsdelay.parking.parking import ParkingSettings
from sqsdelay.ports.queues import Sender, SentMessage
from sqsdelay.sending.sender import QueueSender, SendResult
from sqsdelay.sending.settings import SenderSettings

__all__ = [
    "ParkingSettings",
    "QueueSender",
    "SendResult",
    "Sender",
    "SenderSettings",
    "SentMessage",
]
