"""For tests, sqsdelay's own and yours: endpoints under virtual time, a clock moved by hand, a local AWS;
queues, stores and a ledger in memory.

pytest has the fixture `virtual_sqs`, a `VirtualSqs`. `StoreContract`, `OutboxContract` and `SenderContract`
(which need pytest, too) test a delayed message store and a broker of your own.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from sqsdelay.testing.in_memory_queues import InMemoryQueues, ManualClock
from sqsdelay.testing.in_memory_store import InMemoryLedger, InMemoryOutbox, InMemoryStore
from sqsdelay.testing.local_aws import LocalAws

if TYPE_CHECKING:
    from sqsdelay.testing.broker_contract import OutboxContract, SenderContract
    from sqsdelay.testing.store_contract import ParkingContract, StoreContract
    from sqsdelay.testing.virtual_time import Arrival, VirtualSqs

__all__ = [
    "Arrival",
    "InMemoryLedger",
    "InMemoryOutbox",
    "InMemoryQueues",
    "InMemoryStore",
    "LocalAws",
    "ManualClock",
    "OutboxContract",
    "ParkingContract",
    "SenderContract",
    "StoreContract",
    "VirtualSqs",
]

_HOMES = {
    "Arrival": "sqsdelay.testing.virtual_time",
    "VirtualSqs": "sqsdelay.testing.virtual_time",
    "OutboxContract": "sqsdelay.testing.broker_contract",
    "ParkingContract": "sqsdelay.testing.store_contract",
    "SenderContract": "sqsdelay.testing.broker_contract",
    "StoreContract": "sqsdelay.testing.store_contract",
}


def __getattr__(name: str) -> Any:
    """Load on first use: contracts need pytest, `VirtualSqs` botocore."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
