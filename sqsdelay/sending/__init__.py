"""Sending: the checks, the route, the first send."""

from sqsdelay.parking.settings import ParkingSettings
from sqsdelay.ports.senders import Sender, SentMessage
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
