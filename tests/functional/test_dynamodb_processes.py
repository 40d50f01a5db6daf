"""Processes that share a DynamoDB table: it is made anew under them, or of another version; amendments."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import boto3
import pytest
from moto import mock_aws

from sqsdelay.core.stored_message import AMENDMENT_LIFETIME_SECONDS, Amendment
from sqsdelay.errors import SchemaMismatch, StoreMissing, StoreUnavailable
from sqsdelay.stores import DynamoDbStore
from sqsdelay.stores.dynamodb.table import LOOKED_AT_MS
from sqsdelay.stores.shared import VERSION
from sqsdelay.testing import ManualClock
from tests.functional.test_schema_versions import CALLS
from tests.messages import a_message

TABLE = "orders.parked"
MANY_SHARDS = 8
HOUR_MS = 3_600_000
COPIES = [f"copy {n}" for n in range(10)]

Make = Callable[..., DynamoDbStore]


@pytest.fixture
def make(clock: ManualClock) -> Iterator[Make]:
    """Makes processes' stores on one table."""
    made: list[DynamoDbStore] = []

    def make(endpoint: str = "orders", shards: int = 1) -> DynamoDbStore:
        client = boto3.client("dynamodb", region_name="us-east-1")
        made.append(
            DynamoDbStore(TABLE, endpoint=endpoint, client=client, clock=clock, shards=shards)
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
    messages = [a_message(each, due_ms) for each in ids]
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
    writer, dispatcher = make(shards=MANY_SHARDS), make(shards=1)
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
    writer, dispatcher = make(shards=4), make(shards=4)
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
    old = make(shards=4)
    ids = parked(old, clock, 3, HOUR_MS)
    (mark,) = old._table.get([old._table.format])
    assert mark["v"] == {"N": str(VERSION)}
    old._table.put({**mark, "v": {"N": str(VERSION + 1)}})
    clock.advance(LOOKED_AT_MS / 1000)
    for call in CALLS:
        for store in (old, make(shards=4)):
            with pytest.raises(SchemaMismatch, match=rf"version {VERSION + 1}.*name another table"):
                call(store)
    old._table.put(mark)
    clock.advance(2 * 3600)
    assert released(old, clock) == ids


def keys_of(store: DynamoDbStore) -> list[list[str]]:
    """The partition keys that each call from now on reads or writes."""
    seen: list[list[str]] = []

    def note(params: dict[str, Any], **_: Any) -> None:
        if "RequestItems" in params:
            (request,) = params["RequestItems"].values()
            seen.append([key["p"]["S"] for key in request["Keys"]])
        elif "Item" in params:
            seen.append([params["Item"]["p"]["S"]])

    store._table.client.meta.events.register("provide-client-params.dynamodb", note)
    return seen


def amendment(clock: ManualClock, message_id: str = "copy 3") -> Amendment:
    return Amendment(message_id=message_id, at_ms=clock.now_ms())


def test_a_batch_of_copies_costs_one_read_where_nobody_cancels(make: Make) -> None:
    """Each time: that there are none may change at any moment."""
    store = make()
    keys = keys_of(store)
    assert [store.amendments(COPIES), store.amendments(COPIES)] == [{}, {}]
    assert keys == [["orders/marks", "orders/leases"], ["orders/marks"]], "and the version once"


def test_where_somebody_cancels_each_copy_is_asked_about(make: Make, clock: ManualClock) -> None:
    """By every process, and in one call."""
    reader, left = make(), amendment(clock)
    assert reader.amendments(COPIES) == {}
    make().amend([left])
    keys = keys_of(reader)
    assert reader.amendments(COPIES) == {"copy 3": left}
    assert reader.amendments(["copy 4"]) == {}
    assert [len(each) for each in keys] == [1, len(COPIES), 1]


def test_nothing_is_left_before_it_is_said(make: Make, clock: ManualClock) -> None:
    """Once a day for each process; and not at all where that fails."""
    store = make()
    keys = keys_of(store)
    for _ in range(3):
        store.amend([amendment(clock), amendment(clock, "copy 5")])
    assert keys[:2] == [["orders/marks", "orders/leases"], ["orders/marks"]]
    assert sum(key == ["orders/marks"] for key in keys) == 1
    clock.advance(24 * 3600 + 1)
    keys.clear()
    store.amend([amendment(clock)])
    assert keys == [["orders/marks", "orders/leases"], ["orders/marks"], ["orders/mark/copy 3"]]

    denied = make("others")
    put = denied._table.client.put_item

    def refuse(**call: Any) -> Any:
        if call["Item"]["p"]["S"].endswith("/marks"):
            raise StoreUnavailable("broken on purpose")
        return put(**call)

    denied._table.client.put_item = refuse
    with pytest.raises(StoreUnavailable):
        denied.amend([amendment(clock)])
    assert denied._table.get([denied._table.amendment("copy 3")]) == []


def test_it_is_said_for_as_long_as_the_longest(make: Make, clock: ManualClock) -> None:
    """Two processes: the one whose amendment ends sooner takes nothing back, and what DynamoDB forgets
    after that is nobody's."""
    early, late = make(), make()
    soon = amendment(clock)
    clock.advance(3 * 24 * 3600)
    late.amend([amendment(clock, "copy 5")])
    early.amend([soon])
    (said,) = early._table.get([early._table.amended])
    assert int(said["t"]["N"]) * 1000 > clock.now_ms() + AMENDMENT_LIFETIME_SECONDS * 1000
    assert make().amendments(["copy 3", "copy 5"]).keys() == {"copy 3", "copy 5"}


def test_endpoints_are_told_apart(make: Make, clock: ManualClock) -> None:
    """What one endpoint cancels makes another's batches no dearer."""
    make("invoices").amend([amendment(clock)])
    store = make()
    keys = keys_of(store)
    assert store.amendments(COPIES) == {}
    assert keys == [["orders/marks", "orders/leases"]]
