"""The timeout manager: delays for transports that have none, with a store and two plain queues."""

from sqsdelay.ports.queues import Delivery, TimeoutTransport
from sqsdelay.timeouts.manager import TimeoutManager, TimeoutSettings
from sqsdelay.timeouts.sender import SentTimeout, TimeoutSender

__all__ = [
    "Delivery",
    "SentTimeout",
    "TimeoutManager",
    "TimeoutSender",
    "TimeoutSettings",
    "TimeoutTransport",
]
