"""The timeout manager: delays for transports that have none, with a store and two plain queues."""

from sqsdelay.ports.queues import Delivery, TimeoutTransport
from sqsdelay.timeouts.manager import TimeoutManager
from sqsdelay.timeouts.sender import SentTimeout, TimeoutSender
from sqsdelay.timeouts.settings import TimeoutSettings

__all__ = [
    "Delivery",
    "SentTimeout",
    "TimeoutManager",
    "TimeoutSender",
    "TimeoutSettings",
    "TimeoutTransport",
]
