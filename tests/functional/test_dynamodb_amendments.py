"""Amendments on DynamoDB: one item says whether there are any, and never too late."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import boto3
import pytest
from moto import mock_aws

from sqsdelay.core.stored_message import AMENDMENT_LIFETIME_SECONDS, Amendment
from sqsdelay.errors import StoreUnavailable
from sqsdelay.stores.dynamodb import DynamoDbStore
from sqsdelay.testing import ManualClock

TABLE = "orders.parked"
COPIES = [f"copy {n}" for n in range(10)]

Make = Callable[..., DynamoDbStore]


@pytest.fixture
def make(clock: ManualClock) -> Iterator[Make]:
    """Makes processes' stores on one table."""
    made: list[DynamoDbStore] = []

    def make(endpoint: str = "orders") -> DynamoDbStore:
        client = boto3.client("dynamodb", region_name="us-east-1")
        made.append(DynamoDbStore(TABLE, endpoint=endpoint, client=client, clock=clock))
        return made[-1]

    with mock_aws():
        make().set_up()
        yield make
        for store in made:
            store.close()


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
    assert keys[:2] == [["orders/leases"], ["orders/marks"]]
    assert sum(key == ["orders/marks"] for key in keys) == 1
    clock.advance(24 * 3600 + 1)
    keys.clear()
    store.amend([amendment(clock)])
    assert keys == [["orders/leases"], ["orders/marks"], ["orders/mark/copy 3"]]

    denied = make("others")
    put = denied._table.client.put_item

    def refuse(**call: Any) -> Any:
        if call["Item"]["p"]["S"].endswith("/marks"):
            raise StoreUnavailable("broken on purpose")
        return put(**call)

    denied._table.client.put_item = refuse  # type: ignore[method-assign]
    with pytest.raises(StoreUnavailable):
        denied.amend([amendment(clock)])
    assert denied._table.get([denied._layout.amendment("copy 3")]) == []


def test_it_is_said_for_as_long_as_the_longest(make: Make, clock: ManualClock) -> None:
    """Two processes: the one whose amendment ends sooner takes nothing back, and what DynamoDB forgets
    after that is nobody's."""
    early, late = make(), make()
    soon = amendment(clock)
    clock.advance(3 * 24 * 3600)
    late.amend([amendment(clock, "copy 5")])
    early.amend([soon])
    (said,) = early._table.get([early._layout.amended])
    assert int(said["t"]["N"]) * 1000 > clock.now_ms() + AMENDMENT_LIFETIME_SECONDS * 1000
    assert make().amendments(["copy 3", "copy 5"]).keys() == {"copy 3", "copy 5"}


def test_endpoints_are_told_apart(make: Make, clock: ManualClock) -> None:
    """What one endpoint cancels makes another's batches no dearer."""
    make("invoices").amend([amendment(clock)])
    store = make()
    keys = keys_of(store)
    assert store.amendments(COPIES) == {}
    assert keys == [["orders/marks", "orders/leases"]]
