"""A DynamoDB table that is deleted and made anew under living processes, and one of another version."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import boto3
import pytest
from moto import mock_aws

from sqsdelay.core.stored_message import Amendment, StoredMessage
from sqsdelay.errors import SchemaMismatch, StoreMissing
from sqsdelay.ports.stores import TransactionMode
from sqsdelay.stores.dynamodb import DynamoDbStore
from sqsdelay.stores.dynamodb.leases import LOOKED_AT_MS
from sqsdelay.stores.schema import VERSION
from sqsdelay.testing import ManualClock

TABLE = "orders.parked"
MANY_SHARDS = 8
HOUR_MS = 3_600_000

Make = Callable[..., DynamoDbStore]


@pytest.fixture
def make(clock: ManualClock) -> Iterator[Make]:
    """Makes processes' stores on one table."""
    made: list[DynamoDbStore] = []

    def make(shards: int = 1) -> DynamoDbStore:
        client = boto3.client("dynamodb", region_name="us-east-1")
        made.append(
            DynamoDbStore(TABLE, endpoint="orders", client=client, clock=clock, shards=shards)
        )
        return made[-1]

    with mock_aws():
        make().set_up()
        yield make
        for store in made:
            store.close()


def remake() -> None:
    """The table is deleted, and made anew at once: nobody meets its absence."""
    boto3.client("dynamodb", region_name="us-east-1").delete_table(TableName=TABLE)
    with_client = DynamoDbStore(
        TABLE, endpoint="orders", client=boto3.client("dynamodb", region_name="us-east-1")
    )
    with_client.set_up()
    with_client.close()


def parked(store: DynamoDbStore, clock: ManualClock, count: int, in_ms: int) -> list[str]:
    """Messages of many shards, due then."""
    due_ms = clock.now_ms() + in_ms
    ids = [f"{in_ms}-{n}" for n in range(count)]
    messages = [
        StoredMessage(message_id=each, destination="orders", due_ms=due_ms, body=b"x")
        for each in ids
    ]
    assert all(store.store(messages))
    return ids


def released(store: DynamoDbStore, clock: ManualClock) -> list[str]:
    """What a dispatcher gets until nothing is due, and that it is due."""
    found: list[str] = []
    while True:
        with store.claim(100, due_by_ms=clock.now_ms()) as claim:
            if not claim.messages:
                return sorted(found)
            assert all(m.due_ms <= clock.now_ms() for m in claim.messages), "early"
            ids = [m.message_id for m in claim.messages]
            assert all(claim.remove(ids))
            found += ids


@pytest.mark.parametrize("met", [False, True])
def test_a_living_writer_registers_its_shards_again(
    make: Make, clock: ManualClock, met: bool
) -> None:
    """A dispatcher that counts on fewer shards, and comes when all is overdue, finds all that was parked
    since. The writer need not have met the table's absence."""
    writer, dispatcher = make(MANY_SHARDS), make(1)
    parked(writer, clock, 3, HOUR_MS)
    if met:
        client = boto3.client("dynamodb", region_name="us-east-1")
        client.delete_table(TableName=TABLE)
        with pytest.raises(StoreMissing):
            parked(writer, clock, 1, HOUR_MS)
        make().set_up()
    else:
        remake()
        clock.advance(LOOKED_AT_MS / 1000)
    ids = parked(writer, clock, 12, 2 * HOUR_MS)
    assert sorted(m.message_id for m in dispatcher.pending(99)) == sorted(ids)
    clock.advance(3 * 3600)
    assert released(dispatcher, clock) == sorted(ids)


def test_a_living_dispatcher_begins_anew(make: Make, clock: ManualClock) -> None:
    """It remembers no cursor and no lease; what it had in hand it cannot settle any more."""
    writer, dispatcher = make(4), make(4)
    parked(writer, clock, 5, 2000_000)
    clock.advance(2001)
    with dispatcher.claim(9, due_by_ms=clock.now_ms()) as claim:
        in_hand = [m.message_id for m in claim.messages]
        remake()
        assert not any(claim.remove(in_hand))
    clock.advance(LOOKED_AT_MS / 1000)
    ids = parked(writer, clock, 5, 3000_000)
    assert released(dispatcher, clock) == []
    clock.advance(3001)
    assert released(dispatcher, clock) == sorted(ids)


def test_a_cancellation_is_heeded_in_the_new_table(make: Make, clock: ManualClock) -> None:
    """Whoever left amendments in the old one says in the new one that there are some."""
    canceller, consumer = make(), make()
    canceller.amend([Amendment(message_id="a", at_ms=clock.now_ms())])
    assert consumer.amendments(["a"])
    remake()
    clock.advance(LOOKED_AT_MS / 1000)
    assert consumer.amendments(["a"]) == {}
    canceller.amend([Amendment(message_id="b", at_ms=clock.now_ms())])
    assert make().amendments(["b"]).keys() == {"b"}
    assert consumer.amendments(["b"]).keys() == {"b"}


def test_another_version_is_refused_by_whatever_opens_it(make: Make, clock: ManualClock) -> None:
    """By a process that starts at once, by one that lives on within ten seconds: neither writes nor
    releases. Once the version is as they know it, all is there."""
    old = make(4)
    ids = parked(old, clock, 3, HOUR_MS)
    (mark,) = old._table.get([old._layout.format])
    assert mark["v"] == {"N": str(VERSION)}
    old._table.put({**mark, "v": {"N": str(VERSION + 1)}})
    clock.advance(LOOKED_AT_MS / 1000)
    acts: list[Callable[[DynamoDbStore], object]] = [
        lambda store: store.set_up(),
        lambda store: store.initialize(TransactionMode.AT_LEAST_ONCE),
        lambda store: parked(store, clock, 1, HOUR_MS),
        lambda store: store.claim(9, due_by_ms=clock.now_ms()).__enter__(),
        lambda store: store.next_due_ms(),
        lambda store: store.pending_count(),
        lambda store: store.pending(9),
        lambda store: store.find(ids[0]),
        lambda store: store.cancel(ids),
        lambda store: store.reschedule(ids[0], clock.now_ms()),
        lambda store: store.amend([Amendment(message_id="a", at_ms=clock.now_ms())]),
        lambda store: store.amendments(ids),
    ]
    for act in acts:
        for store in (old, make(4)):
            with pytest.raises(SchemaMismatch, match=rf"version {VERSION + 1}.*name another table"):
                act(store)
    old._table.put(mark)
    clock.advance(2 * 3600)
    assert released(old, clock) == ids
