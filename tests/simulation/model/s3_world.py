"""S3 stores in a world that breaks: dispatchers split and merge as they go, on one bucket in memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from botocore.exceptions import ClientError, ReadTimeoutError

from sqsdelay.stores import S3Store
from tests.services.in_memory_s3 import InMemoryS3
from tests.simulation.model.store_world import LEASE_SECONDS, StoreWorld

FAULTS = ("503", "answer lost", "killed", "frozen", "meanwhile")
SLOTS = (6 * 3600, 3600, 900)


class S3World(StoreWorld):
    """Its stores have one clock."""

    apart_ms = 0

    def __init__(
        self, seed: int, *, fault_share: float = 0.03, kinds: Sequence[str] = FAULTS
    ) -> None:
        super().__init__(seed, fault_share=fault_share, kinds=kinds)
        self.objects: dict[str, bytes] = {}
        self.own_ids = seed % 2 == 1
        self._stores = [self._store() for _ in range(4)]

    @property
    def stores(self) -> list[S3Store]:
        return self._stores

    def _store(self) -> S3Store:
        client: Any = InMemoryS3(self.objects, around=self._broken, page=50)
        store = S3Store(
            "parked",
            endpoint="orders",
            client=client,
            slots=SLOTS,
            lookup=self.own_ids,
            lease_seconds=LEASE_SECONDS,
            clock=self,
        )
        store._turner.split_messages = 8
        bucket: Any = store._bucket
        # One after the other, so that a seed replays.
        bucket.pause = lambda _: self.pass_ms(10)
        bucket.each = lambda do, items: [do(item) for item in items]
        return store

    def _broken(self, name: str, call: Callable[[], Any]) -> Any:
        self.pass_ms(self.chance.randrange(30))
        if self._fault("503", "killed", "frozen", "meanwhile") == "503":
            raise ClientError({"Error": {"Code": "SlowDown", "Message": "no"}}, name)
        answer = call()
        if self._fault("answer lost", "killed", "frozen", "meanwhile") == "answer lost":
            # As botocore does: it asks again, once; what was written is there already.
            if self.chance.random() < 0.5:
                return call()
            raise ReadTimeoutError(endpoint_url="s3")
        return answer

    def _excused(self, name: str) -> bool:
        return super()._excused(name) or name in self.in_hand
