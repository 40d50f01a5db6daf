"""For tests, sqsdelay's own and yours: a clock moved by hand, queues in memory, a local AWS."""

from sqsdelay.testing.clock import ManualClock
from sqsdelay.testing.local_aws import LocalAws
from sqsdelay.testing.queues import InMemoryQueues

__all__ = ["InMemoryQueues", "LocalAws", "ManualClock"]
