"""The timeout manager: delays for transports that have none, with a store and two plain queues."""

from sqsdelay.ports.queues import Delivery, TimeoutTransport
from sqsdelay.timeouts.arrivals import TimeoutSettings
from sqsdelay.timeouts.manager import TimeoutManager

__all__ = ["Delivery", "TimeoutManager", "TimeoutSettings", "TimeoutTransport"]
