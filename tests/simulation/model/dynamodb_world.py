"""DynamoDB stores in a world that breaks, on one table of moto's.

The only clock they have is the date of DynamoDB's answers, which wavers; what dispatchers take for the
broker's time is up to an hour wrong.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from email.utils import formatdate
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import boto3
from botocore.config import Config
from botocore.exceptions import ClientError, ReadTimeoutError

from sqsdelay.stores import DynamoDbStore
from tests.simulation.model.store_world import AHEAD_MS, HOUR_MS, LEASE_SECONDS, Known, StoreWorld

SHARDS = 3
FAULTS = ("throttled", "answer lost", "killed", "frozen", "meanwhile")
ERRORS_MS = (0, HOUR_MS, -HOUR_MS, 7)
"""Of what the dispatcher of each store takes for the broker's time."""


@contextmanager
def seeded(chance: random.Random, now_ms: Callable[[], int]) -> Iterator[None]:
    """All that the store and the ids of messages leave to chance, so that a seed replays to the
    letter. The machine's own clock, which counts until DynamoDB has answered, is a day slow."""
    names = SimpleNamespace(
        randbits=chance.getrandbits, token_hex=lambda count: chance.randbytes(count).hex()
    )
    owners = SimpleNamespace(uuid4=lambda: uuid.UUID(int=chance.getrandbits(128)))
    clock = SimpleNamespace(time_ns=lambda: (now_ms() - 24 * HOUR_MS) * 1_000_000)
    leases = "sqsdelay.stores.dynamodb.leases"
    with ExitStack() as patches:
        patches.enter_context(patch("sqsdelay.core.message.secrets", names))
        patches.enter_context(patch(f"{leases}.secrets", names))
        patches.enter_context(patch(f"{leases}.random", chance))
        patches.enter_context(patch(f"{leases}.uuid", owners))
        patches.enter_context(patch("sqsdelay.stores.calls.time", clock))
        yield


class DynamoDbWorld(StoreWorld):
    """Its stores go by the dates of answers.

    Args:
        only_at: it breaks once, at this point of those before and after calls; None is by chance.
    """

    apart_ms = 3000
    own_ids = True

    def __init__(
        self,
        seed: int,
        *,
        fault_share: float = 0.03,
        kinds: Sequence[str] = FAULTS,
        only_at: int | None = None,
    ) -> None:
        super().__init__(seed, fault_share=0.0, kinds=kinds)
        self.only_at = only_at
        self.points = 0
        self._seeded = ExitStack()
        self._seeded.enter_context(seeded(random.Random(seed), self.now_ms))
        self._stores = [self._store() for _ in range(4)]
        self._stores[0].set_up()
        self.fault_share = fault_share

    @property
    def stores(self) -> list[DynamoDbStore]:
        return self._stores

    def _store(self) -> DynamoDbStore:
        make: Any = boto3.client
        client: Any = make(
            "dynamodb", region_name="us-east-1", config=Config(parameter_validation=False)
        )
        client.meta.events.register("before-call.dynamodb", self._before)
        client.meta.events.register("after-call.dynamodb", self._after)
        store = DynamoDbStore(
            "parked", endpoint="orders", client=client, shards=SHARDS, lease_seconds=LEASE_SECONDS
        )
        table: Any = store._table
        # One after the other, so that a seed replays.
        table.each = lambda do, items: [do(item) for item in items]
        table.clock.monotonic = self.monotonic
        return store

    def close(self) -> None:
        super().close()
        self._seeded.close()

    def _before(self, **_: Any) -> None:
        self.pass_ms(self.chance.randrange(30))
        if self._fault("throttled", "killed", "frozen", "meanwhile") == "throttled":
            raise ClientError({"Error": {"Code": "ThrottlingException", "Message": "no"}}, "Call")

    def _after(self, parsed: Any, **_: Any) -> None:
        wavers = self.chance.randrange(-200, 200)
        date = formatdate((self._now_ms + wavers) // 1000, usegmt=True)
        parsed["ResponseMetadata"]["HTTPHeaders"]["date"] = date
        if self._fault("answer lost", "killed", "frozen", "meanwhile") == "answer lost":
            raise ReadTimeoutError(endpoint_url="dynamodb")

    def _breaks_here(self) -> bool:
        if not self.fault_share:
            return False
        self.points += 1
        return super()._breaks_here() if self.only_at is None else self.points == self.only_at

    def _may(self, kind: str) -> bool:
        # While a store registers its shards, its other threads would wait; here is only one.
        locked = any(store._table._lock.locked() for store in self._stores)
        return kind != "meanwhile" or not locked

    def _due_by_ms(self, n: int) -> int:
        return self._now_ms + ERRORS_MS[n] + AHEAD_MS

    def _last(self, known: Known, changes: int) -> bool:
        # Of two moves at once either may be the last: who asked cannot tell by the answers.
        return known.changing == 1 and super()._last(known, changes)
