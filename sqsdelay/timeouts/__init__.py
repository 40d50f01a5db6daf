"""The timeout manager: delays for transports that have none, with a store and two plain queues."""

from sqsdelay.timeouts.manager import TimeoutManager
from sqsdelay.timeouts.settings import TimeoutSettings

__all__ = ["TimeoutManager", "TimeoutSettings"]
