"""For tests, sqsdelay's own and yours: a clock moved by hand, a local AWS; queues, stores and a ledger
in memory.

``sqsdelay.testing.store_contract`` (which needs pytest) tests a delayed message store of your own.
"""

from sqsdelay.testing.in_memory_ledger import InMemoryLedger
from sqsdelay.testing.in_memory_outbox import InMemoryOutbox
from sqsdelay.testing.in_memory_queues import InMemoryQueues
from sqsdelay.testing.in_memory_store import InMemoryStore
from sqsdelay.testing.local_aws import LocalAws
from sqsdelay.testing.manual_clock import ManualClock

__all__ = [
    "InMemoryLedger",
    "InMemoryOutbox",
    "InMemoryQueues",
    "InMemoryStore",
    "LocalAws",
    "ManualClock",
]
