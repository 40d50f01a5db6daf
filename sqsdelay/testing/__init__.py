"""Fakes for tests, sqsdelay's own and yours: a clock moved by hand, queues in memory."""

from sqsdelay.testing.clock import ManualClock
from sqsdelay.testing.queues import InMemoryQueues

__all__ = ["InMemoryQueues", "ManualClock"]
