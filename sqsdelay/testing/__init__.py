"""For tests, sqsdelay's own and yours: endpoints under virtual time, a clock moved by hand, a local AWS;
queues, stores and a ledger in memory.

pytest has the fixture `virtual_sqs`, a `VirtualSqs`. `StoreContract`, `OutboxContract` and `SenderContract`
(which need pytest, too) test a delayed message store and a broker of your own.
"""

from typing import TYPE_CHECKING

from sqsdelay.core import on_first_use
from sqsdelay.testing.local_aws import LocalAws

if TYPE_CHECKING:
    from sqsdelay.testing.broker_contract import OutboxContract, SenderContract
    from sqsdelay.testing.in_memory import (
        InMemoryLedger,
        InMemoryOutbox,
        InMemoryQueues,
        InMemoryStore,
        ManualClock,
    )
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

# Load on first use: contracts need pytest, `VirtualSqs` botocore, what is in memory sqlite3.
__getattr__ = on_first_use(
    __name__,
    {
        "sqsdelay.testing.virtual_time": "Arrival VirtualSqs",
        "sqsdelay.testing.broker_contract": "OutboxContract SenderContract",
        "sqsdelay.testing.in_memory": (
            "InMemoryLedger InMemoryOutbox InMemoryQueues InMemoryStore ManualClock"
        ),
        "sqsdelay.testing.store_contract": "ParkingContract StoreContract",
    },
)
