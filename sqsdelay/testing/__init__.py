"""For tests, sqsdelay's own and yours: a clock moved by hand, a local AWS; queues, stores and a ledger
in memory.

``sqsdelay.testing.store_contract`` (which needs pytest) tests a delayed message store of your own.
"""

from sqsdelay.testing.clock import ManualClock
from sqsdelay.testing.ledger import InMemoryLedger
from sqsdelay.testing.local_aws import LocalAws
from sqsdelay.testing.outbox import InMemoryOutbox
from sqsdelay.testing.queues import InMemoryQueues
from sqsdelay.testing.store import InMemoryStore

__all__ = [
    "InMemoryLedger",
    "InMemoryOutbox",
    "InMemoryQueues",
    "InMemoryStore",
    "LocalAws",
    "ManualClock",
]
