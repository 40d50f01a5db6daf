"""What only DynamoDB shows: keys, limits, leases, several endpoints in one table."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from sqsdelay.core.stored_message import StoredMessage
from sqsdelay.dispatching.dispatcher import Dispatcher
from sqsdelay.errors import ConfigurationError, MessageTooLarge, StoreMissing, StoreUnavailable
from sqsdelay.limits import MAX_DYNAMODB_ITEM_BYTES
from sqsdelay.ports.stores import TransactionMode
from sqsdelay.stores.dynamodb import DynamoDbStore
from sqsdelay.testing import InMemoryOutbox, ManualClock
from sqsdelay.testing.local_aws import LocalAws

Make = Callable[..., DynamoDbStore]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def make(local_aws: LocalAws, clock: ManualClock) -> Iterator[Make]:
    """Makes stores on one table, with a client each."""
    table = f"store-{uuid.uuid4().hex[:12]}"
    made: list[DynamoDbStore] = []

    def make(endpoint: str = "orders", **arguments: Any) -> DynamoDbStore:
        client = local_aws.client("dynamodb")
        made.append(
            DynamoDbStore(table, endpoint=endpoint, client=client, clock=clock, **arguments)
        )
        return made[-1]

    yield make
    for store in made:
        store.close()


@pytest.fixture
def store(make: Make) -> DynamoDbStore:
    store = make()
    store.set_up()
    return store


def message(message_id: str, due_ms: int, body: bytes = b"x") -> StoredMessage:
    return StoredMessage(message_id=message_id, destination="orders", due_ms=due_ms, body=body)


def test_a_hot_due_minute_is_spread(store: DynamoDbStore, clock: ManualClock) -> None:
    """Messages due at the same instant lie on all shards, about evenly."""
    store.store([message(f"m{n}", clock.now_ms()) for n in range(400)])
    items: list[Any] = []
    for page in store._client.get_paginator("scan").paginate(TableName=store._table.name):
        items += page["Items"]
    counts = Counter(item["store_shard"]["S"] for item in items)
    assert len(counts) == 8
    assert min(counts.values()) > 400 / 8 / 2


def test_only_what_is_due_is_read(store: DynamoDbStore, clock: ManualClock) -> None:
    """The queries' conditions are on keys: what is due later costs nothing."""
    store.store([message(f"later{n}", clock.now_ms() + 1) for n in range(50)])
    store.store([message(f"due{n}", clock.now_ms()) for n in range(3)])
    scanned: list[int] = []

    def count(parsed: Any, **_: Any) -> None:
        scanned.append(parsed["ScannedCount"])

    store._client.meta.events.register("after-call.dynamodb.Query", count)
    with store.claim(100, due_by_ms=clock.now_ms()) as claim:
        assert len(claim.messages) == 3
    assert sum(scanned) == 3


def test_a_body_above_the_item_limit_is_refused(store: DynamoDbStore, clock: ManualClock) -> None:
    """With the limit and what to do; and nothing of the call is stored."""
    large = message("large", clock.now_ms(), b"x" * MAX_DYNAMODB_ITEM_BYTES)
    with pytest.raises(MessageTooLarge, match="409600; shorten it, store the body elsewhere"):
        store.store([message("small", clock.now_ms()), large])
    assert store.pending_count() == 0
    store.store([message("fits", clock.now_ms(), b"x" * (MAX_DYNAMODB_ITEM_BYTES - 500))])
    assert store.pending_count() == 1


def test_endpoints_share_a_table(store: DynamoDbStore, make: Make, clock: ManualClock) -> None:
    """The same id in two endpoints is two messages."""
    invoices = make("invoices")
    assert store.store([message("a", clock.now_ms())]) == [True]
    assert invoices.store([message("a", clock.now_ms())]) == [True]
    assert invoices.cancel(["a"]) == [True]
    assert store.pending_count() == 1


def test_a_dead_dispatchers_lease_runs_out(
    store: DynamoDbStore, make: Make, clock: ManualClock
) -> None:
    """Its messages are free after the lease, not before, and it cannot settle them any more."""
    store.store([message("a", clock.now_ms())])
    dead = store.claim(1, due_by_ms=clock.now_ms())
    claim = dead.__enter__()
    clock.advance(59.999)
    assert store.next_due_ms() is None
    clock.advance(0.001)
    with make().claim(1, due_by_ms=clock.now_ms()) as successor:
        assert [m.message_id for m in successor.messages] == ["a"]
        assert claim.remove(["a"]) == [False]
        dead.__exit__(None, None, None)
        assert successor.remove(["a"]) == [True]


def test_an_item_written_by_hand_goes_aside(store: DynamoDbStore, clock: ManualClock) -> None:
    """With nothing but its keys it is found, and told what it lacks; the messages beside it go on."""
    store.store([message("odd", clock.now_ms()), message("good", clock.now_ms())])
    store._client.update_item(
        TableName=store._table.name,
        Key=store._table.key("odd"),
        UpdateExpression="SET body = :text REMOVE destination, failures, message_id",
        ExpressionAttributeValues={":text": {"S": "no bytes"}},
    )
    outbox = InMemoryOutbox(clock)
    done = Dispatcher(store, outbox, clock=clock).dispatch()
    assert [m.message_id for m in done.released] == ["good"]
    (rejected,) = done.rejected
    assert rejected.message_id == "odd"
    assert "destination None is empty" in (rejected.unreadable or "")
    assert store.pending_count() == 0


def test_a_message_moved_meanwhile_is_not_taken(store: DynamoDbStore, clock: ManualClock) -> None:
    """The index is read first and may be behind: the lease is conditional on the due time seen."""
    store.store([message("a", clock.now_ms())])
    (entry,) = store._table.earliest(1)
    store.reschedule("a", clock.now_ms() + 60_000)
    assert store._take(entry, "token") is None


def test_other_tables_and_modes_are_refused(make: Make, store: DynamoDbStore) -> None:
    """At the start, by name."""
    store.initialize(TransactionMode.AT_LEAST_ONCE)
    with pytest.raises(ConfigurationError, match="cannot give exactly-once"):
        store.initialize(TransactionMode.EXACTLY_ONCE)
    with pytest.raises(ConfigurationError, match="shards=0; use 1 or more"):
        make(shards=0)
    with pytest.raises(ConfigurationError, match="lease_seconds=0; use more than 0"):
        make(lease_seconds=0)


def test_a_table_without_the_index_is_no_store(local_aws: LocalAws) -> None:
    """A wrong table name is not mistaken for an empty store."""
    client = local_aws.client("dynamodb")
    name = f"other-{uuid.uuid4().hex[:12]}"
    client.create_table(
        TableName=name,
        KeySchema=[{"AttributeName": "id", "KeyType": "HASH"}],
        AttributeDefinitions=[{"AttributeName": "id", "AttributeType": "S"}],
        BillingMode="PAY_PER_REQUEST",
    )
    store = DynamoDbStore(name, endpoint="orders", client=client)
    with pytest.raises(StoreMissing, match="not a message store"):
        store.initialize(TransactionMode.AT_LEAST_ONCE)
    store.close()


def test_an_outage_is_told_as_one(clock: ManualClock) -> None:
    """DynamoDB out of reach is StoreUnavailable, for breakers to count."""
    import boto3
    from botocore.config import Config

    client = boto3.client(
        "dynamodb",
        endpoint_url="http://127.0.0.1:9",
        region_name="eu-west-1",
        config=Config(retries={"total_max_attempts": 1}),
    )
    store = DynamoDbStore("store", endpoint="orders", client=client, clock=clock)
    with pytest.raises(StoreUnavailable, match="cannot be used now"):
        store.next_due_ms()
    store.close()
