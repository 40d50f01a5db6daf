"""What only DynamoDB shows: keys, limits, several endpoints in one table, the far lane and its cursors."""

from __future__ import annotations

import os
import random
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from email.utils import formatdate
from types import SimpleNamespace
from typing import Any

import pytest

from sqsdelay.core.limits import MAX_DYNAMODB_ITEM_BYTES
from sqsdelay.core.message import new_message_id
from sqsdelay.core.stored_message import Amendment, StoredMessage
from sqsdelay.dispatching.dispatcher import Dispatcher
from sqsdelay.errors import (
    ConfigurationError,
    MessageConflict,
    MessageTooLarge,
    StoreError,
    StoreMissing,
    StoreUnavailable,
)
from sqsdelay.parking.parking import Parking
from sqsdelay.ports.stores import TransactionMode
from sqsdelay.stores import DynamoDbStore
from sqsdelay.stores.dynamodb.layout import FAR_FROM_MS, FAR_MS, HOUR_MS
from sqsdelay.testing import InMemoryOutbox, ManualClock
from sqsdelay.testing.local_aws import LocalAws
from tests.messages import a_message

Make = Callable[..., DynamoDbStore]
DAY_MS = 86_400_000
AHEAD_MS = 900_000


@pytest.fixture
def table() -> str:
    return f"store-{uuid.uuid4().hex[:12]}"


@pytest.fixture
def make(local_aws: LocalAws, clock: ManualClock, table: str) -> Iterator[Make]:
    """Makes stores on one table, with a client each, and three shards."""
    made: list[DynamoDbStore] = []

    def make(endpoint: str = "orders", **arguments: Any) -> DynamoDbStore:
        client = local_aws.client("dynamodb")
        given = {"client": client, "clock": clock, "shards": 3, **arguments}
        made.append(DynamoDbStore(table, endpoint=endpoint, **given))
        return made[-1]

    yield make
    for store in made:
        store.close()


@pytest.fixture
def store(make: Make) -> DynamoDbStore:
    store = make()
    store.set_up()
    return store


def made_up(due_ms: int) -> StoredMessage:
    return a_message(new_message_id(due_ms), due_ms)


def released(store: DynamoDbStore, clock: ManualClock, limit: int = 100) -> list[str]:
    """What one claim, 900 s ahead, gets and settles."""
    with store.claim(limit, due_by_ms=clock.now_ms() + AHEAD_MS) as claim:
        got = [m.message_id for m in claim.messages]
        assert all(claim.remove(got))
    return got


def items(store: DynamoDbStore) -> list[Any]:
    pages = store._table.client.get_paginator("scan").paginate(TableName=store._table.name)
    return [item for page in pages for item in page["Items"]]


def calls_of(store: DynamoDbStore) -> Counter[str]:
    """Calls made from now on."""
    calls: Counter[str] = Counter()
    events = store._table.client.meta.events
    events.register("before-call.dynamodb", lambda model, **_: calls.update([model.name]))
    return calls


@pytest.mark.parametrize("count", [160, pytest.param(400, marks=pytest.mark.nightly)])
def test_a_hot_hour_is_spread(make: Make, clock: ManualClock, count: int) -> None:
    """Messages due at the same instant lie on all shards, about evenly."""
    store = make(shards=8)
    store.set_up()
    due_ms = clock.now_ms() + DAY_MS
    store.store([made_up(due_ms) for _ in range(count)])
    counts = Counter(i["p"]["S"] for i in items(store) if i["p"]["S"].count("/") == 2)
    assert len(counts) == 8
    assert min(counts.values()) > count / 8 / 3


@pytest.mark.parametrize("count", [60, pytest.param(200, marks=pytest.mark.nightly)])
def test_far_messages_are_released_without_a_write_each(
    store: DynamoDbStore, clock: ManualClock, count: int
) -> None:
    """Put once, left to time to live: a batch costs two writes a shard, whatever its size."""
    due_ms = clock.now_ms() + DAY_MS
    messages = [made_up(due_ms + n) for n in range(count)]
    calls = calls_of(store)
    store.store(messages)
    # Its shards, the hour, and one write each.
    assert calls == {"PutItem": count + 2, "BatchGetItem": 1}
    clock.advance(DAY_MS / 1000 - 890)
    calls.clear()
    assert released(store, clock, limit=300) == [m.message_id for m in messages]
    assert {n: calls[n] for n in ("PutItem", "DeleteItem")} == {"PutItem": 6, "DeleteItem": 0}
    assert released(store, clock) == []
    assert (store.pending_count(), store.pending(10), store.next_due_ms()) == (0, [], None)
    assert store.find(messages[7].message_id) is None
    assert store.cancel([messages[7].message_id]) == [False]
    assert store.reschedule(messages[7].message_id, due_ms + DAY_MS) is False


@pytest.mark.parametrize("count", [30, pytest.param(120, marks=pytest.mark.nightly)])
def test_batches_follow_one_another_over_hours(
    store: DynamoDbStore, clock: ManualClock, count: int
) -> None:
    """Cursors go from hour to hour, over empty ones too, and pass nothing that is not released."""
    chance = random.Random(7)
    dues = [clock.now_ms() + HOUR_MS + chance.randrange(15 * HOUR_MS) for _ in range(count)]
    messages = sorted((made_up(due) for due in dues), key=lambda m: (m.due_ms, m.message_id))
    store.store(messages)
    got: list[str] = []
    while len(got) < len(messages):
        clock.advance(chance.choice([600, 1800, 4 * 3600]))
        while batch := released(store, clock, limit=7):
            got += batch
        assert clock.now_ms() < max(dues) + DAY_MS, "something was passed over"
        waiting = [m.message_id for m in messages if m.due_ms > clock.now_ms() + AHEAD_MS]
        assert [m.message_id for m in store.pending(1000)] == waiting
        assert store.pending_count() == len(waiting)
    assert sorted(got) == sorted(m.message_id for m in messages)


def test_a_far_message_comes_back_intact(store: DynamoDbStore, clock: ManualClock) -> None:
    """Deflated or not, with everything it has, and by the page."""
    kept = a_message(
        "a'\"; -- \N{SNOWMAN}",
        clock.now_ms() + DAY_MS,
        to="arn:aws:sqs:eu-west-1:123456789012:orders",
        body=b"again and " * 1000,
        attributes={"Raw": {"DataType": "Binary", "BinaryValue": b"\x00\xff"}},
        group_id="customer-7",
        trace_header="Root=1-5759e988-bd862e3fe1be46a994272793",
    )
    store.store([kept])
    assert store.find(kept.message_id) == kept
    assert store.pending(5) == [kept]
    assert store.next_due_ms() == kept.due_ms
    clock.advance(DAY_MS / 1000)
    with store.claim(1, due_by_ms=clock.now_ms()) as claim:
        assert list(claim.messages) == [kept]


def test_what_a_far_message_stores(store: DynamoDbStore, clock: ManualClock) -> None:
    """204 bytes that do not deflate take an item of 270 bytes, which the price is reckoned with."""
    from sqsdelay.stores.dynamodb.layout import item_bytes

    body = random.Random(1).randbytes(204)
    due_ms = clock.now_ms() + DAY_MS
    store.store([a_message(new_message_id(due_ms), due_ms, body=body)])
    [item] = [i for i in items(store) if "b" in i]
    assert item_bytes(item) <= 270


@pytest.mark.parametrize("own", ["order-7", None])
def test_far_messages_by_their_id(store: DynamoDbStore, clock: ManualClock, own: str) -> None:
    """One's own or made up here: found, moved and cancelled, wherever they are moved; stored once."""
    due_ms = clock.now_ms() + DAY_MS
    kept = a_message(own or new_message_id(due_ms), due_ms)
    assert store.store([kept]) == [True]
    assert store.store([kept]) == [False]
    for moved_ms in (due_ms + 30 * DAY_MS, due_ms - DAY_MS + 60_000, due_ms + 5000, due_ms):
        assert store.reschedule(kept.message_id, moved_ms) is True
        found = store.find(kept.message_id)
        assert found is not None
        assert found.due_ms == moved_ms
        assert [m.due_ms for m in store.pending(10)] == [moved_ms]
    assert store.cancel([kept.message_id]) == [True]
    assert store.cancel([kept.message_id]) == [False]
    assert store.pending_count() == 0
    clock.advance(2 * DAY_MS / 1000)
    assert released(store, clock) == []


def test_a_relayed_message_is_found_by_its_id(store: DynamoDbStore, clock: ManualClock) -> None:
    """It is due some milliseconds after what its id says; over an hour's end, too."""
    told_ms = (clock.now_ms() // HOUR_MS + 20) * HOUR_MS - 1
    kept = a_message(new_message_id(told_ms), told_ms + 800)
    store.store([kept])
    assert not [item for item in items(store) if "/id/" in item["p"]["S"]]
    assert store.find(kept.message_id) == kept
    assert store.cancel([kept.message_id]) == [True]


def test_without_look_ups(make: Make, store: DynamoDbStore, clock: ManualClock) -> None:
    """One write unit for an id of one's own as well; asked by it, the store says what it cannot."""
    plain = make(lookup=False)
    due_ms = clock.now_ms() + DAY_MS
    plain.store([a_message("order-7", due_ms), made := made_up(due_ms)])
    assert not [item for item in items(store) if "/id/" in item["p"]["S"]]
    with pytest.raises(ConfigurationError, match=r"order-7.*lookup=off"):
        plain.cancel(["order-7"])
    assert plain.cancel([made.message_id]) == [True]
    clock.advance(DAY_MS / 1000)
    assert released(plain, clock) == ["order-7"]


def test_without_look_ups_a_message_parked_again_is_the_same(
    make: Make, store: DynamoDbStore, clock: ManualClock
) -> None:
    """Its copy came back because a delete was lost: neither it nor those of its batch may fail."""
    parking = Parking(make(lookup=False), after_seconds=900)
    mine = a_message("order-7", clock.now_ms() + DAY_MS)
    assert parking.park([mine]) == [True]
    other = a_message("order-7", mine.due_ms, body=b"other")
    *outcomes, conflict = parking.park([mine, made_up(mine.due_ms), other])
    assert outcomes == [False, True]
    assert isinstance(conflict, MessageConflict)
    assert store.pending_count() == 2
    soon = a_message("order-8", clock.now_ms() + 60_000)
    assert parking.park([soon, soon]) == [True, False]
    assert parking.park([soon]) == [False]


def test_without_look_ups_a_message_moved_before_it_was_parked_is_found(
    make: Make, store: DynamoDbStore, clock: ManualClock
) -> None:
    """Its id, made up by sqsdelay, tells the former due time."""
    plain = make(lookup=False)
    moved = a_message(new_message_id(clock.now_ms() + DAY_MS), clock.now_ms() + 2 * DAY_MS)
    plain.store([moved])
    assert plain.find(moved.message_id) == moved
    assert plain.cancel([moved.message_id]) == [True]
    assert store.pending_count() == 0


def test_failing_far_messages_stop_no_cursor(store: DynamoDbStore, clock: ManualClock) -> None:
    """Held and failed ones wait among the near ones, with their due time; those behind are released."""
    messages = [made_up(clock.now_ms() + DAY_MS + n) for n in range(30)]
    messages.append(a_message("mine", clock.now_ms() + DAY_MS + 30))
    store.store(messages)
    clock.advance(DAY_MS / 1000)
    bad, held = [m.message_id for m in messages[:3]] + ["mine"], [messages[9].message_id]
    with store.claim(100, due_by_ms=clock.now_ms() + 1000) as claim:
        assert len(claim.messages) == 31
        rest = [m.message_id for m in claim.messages if m.message_id not in (*bad, *held)]
        assert claim.remove(rest) == [True] * 26
        assert claim.hold(held, seconds=5) == [True]
        assert claim.count_failures(bad, retry_after_seconds=9) == [True] * 4
    assert released(store, clock) == []
    assert {m.message_id for m in store.pending(100)} == {*bad, *held}
    assert store.find(bad[0]) is not None
    assert store.cancel([bad[1], "mine"]) == [True, True]
    clock.advance(5)
    assert released(store, clock) == held
    clock.advance(4)
    with store.claim(10, due_by_ms=clock.now_ms()) as claim:
        got = [(m.message_id, m.failures, m.due_ms) for m in claim.messages]
        assert sorted(got) == sorted(
            (m.message_id, 1, m.due_ms) for m in (messages[0], messages[2])
        )
        claim.remove([m.message_id for m in claim.messages])
    assert store.pending_count() == 0


def test_what_a_claim_leaves_open_is_free_again(store: DynamoDbStore, clock: ManualClock) -> None:
    """A batch cut short by an error: the middle was removed, the rest comes again, nothing else."""
    messages = [made_up(clock.now_ms() + DAY_MS + n) for n in range(40)]
    store.store(messages)
    clock.advance(DAY_MS / 1000)
    names = [m.message_id for m in messages]
    with store.claim(100, due_by_ms=clock.now_ms() + 1000) as claim:
        claim.remove(names[10:20])
    assert sorted(released(store, clock)) == sorted(names[:10] + names[20:])
    assert released(store, clock) == []


def test_excluded_destinations_stop_no_cursor(store: DynamoDbStore, clock: ManualClock) -> None:
    """Messages to a destination that is left out wait, also when they fill whole batches."""
    due_ms = clock.now_ms() + DAY_MS
    blocked = [a_message(new_message_id(due_ms), due_ms, to="blocked") for _ in range(60)]
    store.store([*blocked, last := made_up(due_ms + 1000)])
    clock.advance(DAY_MS / 1000)
    except_ = {"except_destinations": ("blocked",)}
    with store.claim(10, due_by_ms=clock.now_ms() + 2000, **except_) as claim:
        assert [m.message_id for m in claim.messages] == [last.message_id]
        claim.remove([last.message_id])
    assert store.next_due_ms(except_destinations=("blocked",)) is None
    assert store.next_due_ms() == due_ms
    assert len(released(store, clock)) == 60


def test_a_writer_that_stops_for_hours_loses_nothing(
    make: Make, store: DynamoDbStore, clock: ManualClock
) -> None:
    """Between the decision and the write the cursor went past: it is written as a near message."""
    due_ms = clock.now_ms() + 3 * HOUR_MS
    late = make()
    stopped: list[float] = [4 * 3600]

    def stop(params: Any, **_: Any) -> None:
        if b'"b"' in params["body"] and stopped:
            clock.advance(stopped.pop())
            # Meanwhile a dispatcher passes the due time.
            store.store([other := made_up(due_ms + 1000)])
            assert other.message_id in released(store, clock)
            assert released(store, clock) == []

    late._table.client.meta.events.register("before-call.dynamodb.PutItem", stop)
    store.store([made_up(due_ms - 1000)])
    assert late.store([kept := made_up(due_ms)]) == [True]
    assert kept.message_id in released(store, clock)
    assert store.pending_count() == 0


def test_a_writer_that_dies_behind_the_cursor_stores_again(
    make: Make, store: DynamoDbStore, clock: ManualClock
) -> None:
    """It wrote too late and died before it noticed; the same message stored again is not lost."""
    due_ms = clock.now_ms() + 3 * HOUR_MS
    kept = made_up(due_ms)
    dying = make()

    def stop(params: Any, **_: Any) -> None:
        if b'"b"' in params["body"]:
            clock.advance(4 * 3600)
            store.store([other := made_up(clock.now_ms() + 1000)])
            assert other.message_id in released(store, clock)
            assert released(store, clock) == []

    def die(http_response: Any, model: Any, **_: Any) -> None:
        del http_response, model
        raise KeyboardInterrupt

    events = dying._table.client.meta.events
    store.store([made_up(due_ms - 1000)])
    events.register("before-call.dynamodb.PutItem", stop)
    events.register("after-call.dynamodb.PutItem", die)
    dying._prepare([])
    [entry] = dying._entries([kept])
    with pytest.raises(KeyboardInterrupt):
        dying._put(entry)
    assert kept.message_id not in released(store, clock)
    assert store.store([kept]) == [True]
    assert kept.message_id in released(store, clock)


@pytest.fixture
def make_dated(make: Make, local_aws: LocalAws, clock: ManualClock) -> Make:
    """Makes stores without a clock of their own: DynamoDB's dates, here virtual, are all they go by."""

    def dated(parsed: Any, **_: Any) -> None:
        date = formatdate(clock.now_ms() // 1000, usegmt=True)
        parsed["ResponseMetadata"]["HTTPHeaders"]["date"] = date

    def make_dated() -> DynamoDbStore:
        client = local_aws.client("dynamodb")
        client.meta.events.register("after-call.dynamodb", dated)
        return make(client=client, clock=None, shards=2)

    return make_dated


def test_dates_of_answers_decide_not_a_wrong_clock(make_dated: Make, clock: ManualClock) -> None:
    """A dispatcher whose clock is an hour fast passes nothing that a parker still writes."""
    parker, dispatcher = make_dated(), make_dated()
    parker.set_up()
    far = made_up(clock.now_ms() + FAR_FROM_MS + 5000)
    parker.store([far])
    # A dispatcher whose clock is an hour ahead claims no more than message timers hold.
    with dispatcher.claim(10, due_by_ms=clock.now_ms() + HOUR_MS) as claim:
        assert claim.messages == []
    parker.store([between := made_up(clock.now_ms() + FAR_MS + 3000)])
    clock.advance(200)
    with dispatcher.claim(10, due_by_ms=clock.now_ms() + HOUR_MS) as claim:
        got = [m.message_id for m in claim.messages]
        assert sorted(got) == sorted([far.message_id, between.message_id])
        claim.remove(got)
    assert parker.pending_count() == 0


def test_a_process_with_a_slow_clock_asks_dynamodb_before_it_writes(
    make_dated: Make, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its first message is due soon, and released at once by another process: once.

    Were it written as a far message until the answer's date shows that it is late, a dispatcher
    could release it in between, and again as the near one that takes its place.
    """
    slow = SimpleNamespace(time_ns=lambda: (clock.now_ms() - HOUR_MS) * 1_000_000)
    monkeypatch.setattr("sqsdelay.stores.calls.time", slow)
    dispatcher, parker = make_dated(), make_dated()
    dispatcher.set_up()
    got: list[str] = []

    def dispatch(**_: Any) -> None:
        got.extend(released(dispatcher, clock))

    parker._table.client.meta.events.register("after-call.dynamodb.PutItem", dispatch)
    parker.store([soon := made_up(clock.now_ms() + 60_000)])
    dispatch()
    assert got == [soon.message_id]


def test_moved_to_where_it_lies_while_it_is_released(
    make: Make, store: DynamoDbStore, clock: ManualClock
) -> None:
    """A move to the due time it has brings nothing back that is released in the meantime."""
    mover = make()
    store.store([soon := made_up(clock.now_ms() + 60_000)])
    got: list[str] = []

    def dispatch(**_: Any) -> None:
        got.extend(released(store, clock))

    mover._table.client.meta.events.register("before-call.dynamodb.TransactWriteItems", dispatch)
    assert mover.reschedule(soon.message_id, soon.due_ms) is False
    assert got == [soon.message_id]
    assert store.pending_count() == 0


def test_shards_grow_while_messages_wait(make: Make, clock: ManualClock) -> None:
    """Those stored before are released, found and moved; dispatchers learn of the new shards."""
    few, many = make(shards=2), make(shards=9)
    few.set_up()
    due_ms = clock.now_ms() + DAY_MS
    before = [made_up(due_ms + n) for n in range(20)]
    few.store([*before, a_message("mine", due_ms)])
    after = [made_up(due_ms + n) for n in range(20)]
    many.store(after)
    assert many.find(before[3].message_id) == before[3]
    assert many.reschedule(before[4].message_id, due_ms + 7) is True
    assert few.cancel([after[5].message_id, "mine"]) == [True, True]
    assert len(few.pending(100)) == 39
    clock.advance(DAY_MS / 1000)
    assert len(released(few, clock)) == 39
    assert many.pending_count() == 0


def test_a_body_above_the_item_limit_is_refused(store: DynamoDbStore, clock: ManualClock) -> None:
    """With the limit and what to do, and nothing of the call is stored; by what it would store: a body that
    deflates well fits."""
    noise = random.Random(2).randbytes(MAX_DYNAMODB_ITEM_BYTES)
    large = a_message("large", clock.now_ms(), body=noise)
    with pytest.raises(MessageTooLarge, match="409600; shorten it, store the body elsewhere"):
        store.store([a_message("small", clock.now_ms()), large])
    assert store.pending_count() == 0
    store.store(
        [a_message("fits", clock.now_ms(), body=noise[:-500]), a_message("z", 1, body=b"x" * 10**6)]
    )
    assert store.pending_count() == 2
    due_ms = clock.now_ms() + DAY_MS
    assert store.too_large(a_message("m", due_ms, body=os.urandom(401 * 1024)))
    assert not store.too_large(a_message("m", due_ms, body=b"x" * 900_000))
    assert not store.too_large(a_message("m", due_ms, body=os.urandom(398 * 1024)))


def test_endpoints_share_a_table(store: DynamoDbStore, make: Make, clock: ManualClock) -> None:
    """The same id in two endpoints is two messages."""
    invoices = make("invoices")
    for due_ms in (clock.now_ms(), clock.now_ms() + DAY_MS):
        assert store.store([a_message(f"a{due_ms}", due_ms)]) == [True]
        assert invoices.store([a_message(f"a{due_ms}", due_ms)]) == [True]
        assert invoices.cancel([f"a{due_ms}"]) == [True]
    assert (store.pending_count(), invoices.pending_count()) == (2, 0)


def test_a_dead_dispatchers_lease_runs_out(
    store: DynamoDbStore, make: Make, clock: ManualClock
) -> None:
    """Its messages are free after the lease, not before, and it cannot settle them any more."""
    store.store([a_message("near", clock.now_ms()), far := made_up(clock.now_ms() + DAY_MS)])
    for name, wait in (("near", 0.0), (far.message_id, DAY_MS / 1000)):
        clock.advance(wait)
        dead = store.claim(1, due_by_ms=clock.now_ms())
        claim = dead.__enter__()
        clock.advance(59.999)
        assert store.next_due_ms() != clock.now_ms()
        assert store.cancel([name]) == [False]
        clock.advance(0.001)
        with make().claim(1, due_by_ms=clock.now_ms()) as successor:
            assert [m.message_id for m in successor.messages] == [name]
            assert claim.remove([name]) == [False]
            dead.__exit__(None, None, None)
            assert successor.remove([name]) == [True]
    assert store.pending_count() == 0


@pytest.mark.parametrize("count", [80, pytest.param(400, marks=pytest.mark.nightly)])
def test_dispatchers_share_the_shards(make: Make, clock: ManualClock, count: int) -> None:
    """One that finds all shards taken is left room for; the others keep what they had."""
    stores = [make(shards=8) for _ in range(3)]
    stores[0].set_up()
    due_ms = clock.now_ms() + DAY_MS
    stores[0].store([made_up(due_ms + n) for n in range(count)])
    clock.advance(DAY_MS / 1000)
    taken: list[set[int]] = []
    for turn in range(3):
        claims = [store.claim(count // 10, due_by_ms=clock.now_ms() + 1000) for store in stores]
        inside = [claim.__enter__() for claim in claims]
        taken = [{b._lease.shard for b in c._batches if b._lease} for c in inside]  # type: ignore[attr-defined]
        assert sum(map(len, taken)) == len(set().union(*taken)), "a shard is leased twice"
        for claim, got in zip(claims, inside, strict=True):
            got.remove([m.message_id for m in got.messages])
            claim.__exit__(None, None, None)
        assert turn == 0 or all(taken), f"turn {turn}: {taken}"


@pytest.mark.parametrize("days", [0, 1])
def test_an_item_written_by_hand_goes_aside(
    store: DynamoDbStore, clock: ManualClock, days: int
) -> None:
    """With nothing but its keys it is found, and told what it lacks; the messages beside it go on."""
    due_ms = clock.now_ms() + days * DAY_MS
    store.store([a_message("odd", due_ms), a_message("good", due_ms)])
    (odd,) = [item for item in items(store) if item["s"]["S"].endswith("odd")]
    odd |= {"b": {"S": "no bytes"}, "d": {"N": "7"}, "f": {"S": "x"}, "r": {"S": "x"}}
    store._table.put(odd)
    clock.advance(days * DAY_MS / 1000)
    assert [m.unreadable is None for m in store.pending(9)] == [True, False]
    outbox = InMemoryOutbox(clock)
    done = Dispatcher(store, outbox, clock=clock).dispatch()
    assert [m.message_id for m in done.released] == ["good"]
    (rejected,) = done.rejected
    assert rejected.message_id == "odd"
    assert "destination None is empty" in (rejected.unreadable or "")
    assert store.pending_count() == 0


def test_an_amendment_that_cannot_be_read_is_not_none(
    store: DynamoDbStore, clock: ManualClock
) -> None:
    """Written by hand, or by another version: the message waits, and no other with it."""
    store.amend([Amendment(message_id=n, at_ms=clock.now_ms()) for n in "ab"])
    (item,) = [each for each in items(store) if each["p"]["S"].endswith("mark/a")]
    store._table.client.put_item(TableName=store._table.name, Item={**item, "a": {"S": "soon"}})
    with pytest.raises(StoreError, match="amendments of a are not as this sqsdelay writes them"):
        store.amendments(["a"])
    assert set(store.amendments(["b"])) == {"b"}


def test_an_item_written_by_hand_stays_as_it_is(store: DynamoDbStore, clock: ManualClock) -> None:
    """Held, let go of and moved, it does not become a message: what it holds is not made up."""
    store.store([a_message("odd", clock.now_ms() + DAY_MS)])
    (odd,) = [item for item in items(store) if item["s"]["S"].endswith("odd")]
    store._table.put(odd | {"h": {"S": "[]"}, "z": {"B": b"not deflated"}})
    clock.advance(DAY_MS / 1000)
    with store.claim(1, due_by_ms=clock.now_ms()) as claim:
        assert claim.count_failures(["odd"], retry_after_seconds=60) == [True]
    assert store.reschedule("odd", clock.now_ms() + DAY_MS)
    found = store.find("odd")
    assert found is not None
    assert (found.unreadable is not None, found.failures) == (True, 1)
    # One that the cursor has passed is left to time to live.
    kept = [item for item in items(store) if item["s"]["S"].endswith("odd")]
    assert [(i["h"]["S"], i["z"]["B"]) for i in kept] == [("[]", b"not deflated")] * 2


def test_other_tables_and_modes_are_refused(make: Make, store: DynamoDbStore) -> None:
    """At the start, by name."""
    store.initialize(TransactionMode.AT_LEAST_ONCE)
    with pytest.raises(ConfigurationError, match="cannot give exactly-once"):
        store.initialize(TransactionMode.EXACTLY_ONCE)
    with pytest.raises(ConfigurationError, match="shards=0; use 1 to 1000"):
        make(shards=0)
    with pytest.raises(ConfigurationError, match="lease_seconds=0; use more than 0"):
        make(lease_seconds=0)
    with pytest.raises(ConfigurationError, match="table_class='cheap'; use STANDARD or"):
        make(table_class="cheap")
    with pytest.raises(ConfigurationError, match="use a name without '/'"):
        make("a/b")


def test_a_table_of_other_keys_is_no_store(local_aws: LocalAws) -> None:
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
    for start in (store.set_up, lambda: store.initialize(TransactionMode.AT_LEAST_ONCE)):
        with pytest.raises(StoreMissing, match="not a message store"):
            start()
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
