"""For tests, sqsdelay's own and yours: a clock moved by hand, a local AWS; queues, stores and a ledger
in memory.

`StoreContract`, `OutboxContract` and `SenderContract` (which need pytest) test a delayed message store
and a broker of your own.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from sqsdelay.testing.in_memory_ledger import InMemoryLedger
from sqsdelay.testing.in_memory_outbox import InMemoryOutbox
from sqsdelay.testing.in_memory_queues import InMemoryQueues
from sqsdelay.testing.in_memory_store import InMemoryStore
from sqsdelay.testing.local_aws import LocalAws
from sqsdelay.testing.manual_clock import ManualClock

if TYPE_CHECKING:
    from sqsdelay.testing.broker_contract import OutboxContract, SenderContract
    from sqsdelay.testing.in_memory_scheduler import InMemoryScheduler
    from sqsdelay.testing.parking_contract import ParkingContract
    from sqsdelay.testing.store_contract import StoreContract

__all__ = [
    "InMemoryLedger",
    "InMemoryOutbox",
    "InMemoryQueues",
    "InMemoryScheduler",
    "InMemoryStore",
    "LocalAws",
    "ManualClock",
    "OutboxContract",
    "ParkingContract",
    "SenderContract",
    "StoreContract",
]

_HOMES = {
    "InMemoryScheduler": "sqsdelay.testing.in_memory_scheduler",
    "OutboxContract": "sqsdelay.testing.broker_contract",
    "ParkingContract": "sqsdelay.testing.parking_contract",
    "SenderContract": "sqsdelay.testing.broker_contract",
    "StoreContract": "sqsdelay.testing.store_contract",
}


def __getattr__(name: str) -> Any:
    """Load on first use: the contracts need pytest, the scheduler botocore."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
