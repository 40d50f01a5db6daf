"""One contract over all stores, on real databases."""

from __future__ import annotations

import sqlite3
import uuid
from contextlib import closing
from functools import cache
from pathlib import Path
from runpy import run_path
from typing import Any, cast

import pytest
from botocore.config import Config

from sqsdelay.dispatching.dispatcher import Dispatcher
from sqsdelay.errors import ConfigurationError
from sqsdelay.ports.stores import DelayedMessageStore, TransactionMode
from sqsdelay.stores import DynamoDbStore, S3Store, SchedulerStore
from sqsdelay.stores.postgres.postgres_store import PostgresStore
from sqsdelay.stores.sqlite.sqlite_store import SqliteStore
from sqsdelay.testing import InMemoryOutbox, InMemoryQueues, InMemoryStore, ManualClock
from sqsdelay.testing.local_aws import LocalAws
from sqsdelay.testing.store_contract import (
    MakePlace,
    MakeStore,
    ParkingContract,
    StoreContract,
    message,
)
from tests.guides.page import ROOT
from tests.services.in_memory_s3 import InMemoryS3
from tests.services.in_memory_scheduler import InMemoryScheduler

DOCUMENTED = str(ROOT / "docs/custom_store.py")
ROLE = "arn:aws:iam::123456789012:role/scheduler"


class TestInMemory(StoreContract):
    @pytest.fixture
    def make_store(self) -> MakeStore:
        return cast(MakeStore, cache(InMemoryStore))

    def test_its_only_transaction_is_its_own(
        self, store: DelayedMessageStore, clock: ManualClock
    ) -> None:
        """What a handler stores commits with the message it handles; nothing else reaches memory."""
        store.initialize(TransactionMode.EXACTLY_ONCE)
        store.store([message("a", clock.now_ms())])
        with store.claim(1, due_by_ms=clock.now_ms()) as claim:
            more = [message("b", clock.now_ms())]
            assert store.store(more, transaction=claim.transaction) == [True]
            claim.remove(["a"])
        assert [m.message_id for m in store.pending(9)] == ["b"]
        with (
            closing(sqlite3.connect(":memory:")) as other,
            pytest.raises(ConfigurationError, match=r"give claim\.transaction"),
        ):
            store.store([message("c", clock.now_ms())], transaction=other)


class TestSqlite(StoreContract):
    @pytest.fixture
    def make_store(self, tmp_path: Path) -> MakeStore:
        return lambda clock: SqliteStore(tmp_path / "store.db", endpoint="orders", clock=clock)


class TestPostgres(StoreContract):
    @pytest.fixture
    def make_store(self, postgres: str) -> MakeStore:
        # A name that would break out of any quoting done by hand.
        table = f"o\"r'd;--%s {{x}}.{uuid.uuid4().hex[:12]}"
        return lambda clock: PostgresStore(
            postgres, endpoint="orders", table=table, clock=clock, connections=6
        )


class TestScheduler(ParkingContract):
    @pytest.fixture
    def make_place(self, clock: ManualClock) -> MakePlace:
        scheduler = InMemoryScheduler(clock, InMemoryQueues(clock))
        return lambda clock: SchedulerStore(
            "orders", role_arn=ROLE, endpoint="orders", client=scheduler, clock=clock
        )


class TestDynamoDb(StoreContract):
    claims_shards = True

    @pytest.fixture
    def make_store(self, local_aws: LocalAws) -> MakeStore:
        table = f"messages-{uuid.uuid4().hex[:12]}"
        client = local_aws.client("dynamodb", config=Config(max_pool_connections=16))
        return lambda clock: DynamoDbStore(
            table, endpoint="orders", client=client, shards=3, clock=clock
        )


class TestS3InMemory(StoreContract):
    claims_shards = True

    @pytest.fixture
    def make_store(self) -> MakeStore:
        client: Any = InMemoryS3(page=7)
        return lambda clock: S3Store(
            "messages", endpoint="orders", client=client, lookup=True, clock=clock
        )


class TestS3(StoreContract):
    claims_shards = True

    @pytest.fixture
    def make_store(self, local_aws: LocalAws) -> MakeStore:
        bucket = f"messages-{uuid.uuid4().hex[:12]}"
        client = local_aws.client("s3", config=Config(max_pool_connections=16))
        return lambda clock: S3Store(
            bucket, endpoint="orders", client=client, lookup=True, clock=clock
        )


class TestCustomStore(StoreContract):
    @pytest.fixture
    def make_store(self, tmp_path: Path) -> MakeStore:
        store = run_path(DOCUMENTED)["JsonFileStore"]
        return lambda clock: store(tmp_path / "messages.json", clock=clock)


def test_a_dispatcher_empties_it(tmp_path: Path) -> None:
    """The protocol is all that the dispatcher needs."""
    clock = ManualClock()
    store = run_path(DOCUMENTED)["JsonFileStore"](tmp_path / "messages.json", clock=clock)
    store.set_up()
    store.store([message("a", clock.now_ms()), message("b", clock.now_ms() + 1)])
    outbox = InMemoryOutbox(clock)
    dispatcher = Dispatcher(store, outbox, clock=clock)
    dispatcher.start()
    assert len(dispatcher.dispatch().released) == 1
    assert [m.message_id for m in outbox.sent] == ["a"]
