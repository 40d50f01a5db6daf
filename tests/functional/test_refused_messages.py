"""20,000 messages that are refused, and healthy ones: counted in claims and calls, not in time."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from sqsdelay.core.stored_message import StoredMessage
from sqsdelay.dispatching.dispatcher import Dispatcher, DispatchSettings
from sqsdelay.errors import DeliveryFailed, QueueMissing
from sqsdelay.ports.queues import Failure
from sqsdelay.ports.stores import DelayedMessageStore
from sqsdelay.stores import sql
from sqsdelay.stores.postgres import postgres_store
from sqsdelay.stores.postgres.postgres_store import PostgresStore
from sqsdelay.stores.sqlite.sqlite_store import SqliteStore
from sqsdelay.testing import InMemoryOutbox, ManualClock
from tests.messages import a_message

RETRIED = 5_000
HEALTHY = 50
RETRIES = 2


class Counted:
    """A store whose claims count what is asked of them."""

    def __init__(self, store: DelayedMessageStore) -> None:
        self._store = store
        self.calls: Counter[str] = Counter()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    @contextmanager
    def claim(self, limit: int, **given: Any) -> Iterator[Any]:
        self.calls["claim"] += 1
        with self._store.claim(limit, **given) as claim:
            count_failures = claim.count_failures

            def counting(*given: Any, **more: Any) -> list[bool]:
                self.calls["count_failures"] += 1
                return count_failures(*given, **more)

            claim.count_failures = counting  # type: ignore[method-assign]
            yield claim


@pytest.fixture(params=["sqlite", "postgres"])
def store(
    request: pytest.FixtureRequest, tmp_path: Path, clock: ManualClock
) -> Iterator[DelayedMessageStore]:
    made: SqliteStore | PostgresStore
    if request.param == "sqlite":
        made = SqliteStore(tmp_path / "store.db", endpoint="orders", clock=clock)
    else:
        table = f"orders_{uuid.uuid4().hex[:12]}"
        url = request.getfixturevalue("postgres")
        made = PostgresStore(url, endpoint="orders", table=table, clock=clock)
    with closing(made):
        made.set_up()
        yield made


def put(store: DelayedMessageStore, to: str, count: int, due_ms: int, body: bytes = b"x") -> None:
    names = [f"{to}-{uuid.uuid4().hex}" for _ in range(count)]
    for start in range(0, count, 1000):
        store.store(
            [a_message(name, due_ms, to=to, body=body) for name in names[start : start + 1000]]
        )


@pytest.mark.parametrize(
    ("store", "refused"),
    [
        ("sqlite", 20_000),
        ("postgres", 5_000),
        pytest.param("postgres", 20_000, marks=pytest.mark.nightly),
    ],
    indirect=["store"],
)
def test_messages_for_a_missing_queue_hold_up_nobody(
    store: DelayedMessageStore, clock: ManualClock, refused: int
) -> None:
    """Healthy ones leave with the next claim, whenever they come. What is refused is counted in one call a
    claim, with one send for all of it, and ends in the error queue."""
    put(store, "gone", refused, clock.now_ms() - 60_000)
    gone = Failure("QueueMissing", QueueMissing("there is no queue gone"), transient=True)
    outbox = InMemoryOutbox(clock)
    tried: Counter[str] = Counter()

    def fail(message: StoredMessage) -> Failure | None:
        tried[message.destination] += 1
        return gone if message.destination == "gone" else None

    outbox.fail = fail
    counted: Any = Counted(store)
    settings = DispatchSettings(number_of_retries=RETRIES)
    dispatcher = Dispatcher(counted, outbox, settings=settings, clock=clock)
    put(store, "well", HEALTHY, clock.now_ms())
    dispatcher.dispatch()
    dispatcher.dispatch()
    assert (len(outbox.sent), counted.calls["claim"]) == (HEALTHY, 2)
    while len(outbox.rejected) < refused:
        if not dispatcher.dispatch().claimed:
            clock.advance(4)
            # Now that thousands may be tried again: the next claim is for the healthy ones all the same.
            put(store, "well", HEALTHY, clock.now_ms())
            assert len(dispatcher.dispatch().released) == HEALTHY
    assert store.pending_count() == 0
    claims = refused // settings.batch_size
    assert counted.calls["count_failures"] <= RETRIES * claims + 10
    assert tried["gone"] <= settings.batch_size + (RETRIES + 1) * claims + 10


def test_what_is_tried_again_goes_behind_what_is_new(
    store: DelayedMessageStore, clock: ManualClock
) -> None:
    """In the store, whatever pauses a dispatcher makes: retries that were due before are no obstacle."""
    put(store, "picky", RETRIED, clock.now_ms() - 60_000)

    def claimed(count: int, *, fail: bool) -> set[tuple[str, int]]:
        with store.claim(count, due_by_ms=clock.now_ms()) as claim:
            ids = [message.message_id for message in claim.messages]
            if fail:
                claim.count_failures(ids, retry_after_seconds=0)
            else:
                claim.remove(ids)
            return {(message.destination, message.failures) for message in claim.messages}

    for _ in range(RETRIED // 1000):
        assert claimed(1000, fail=True) == {("picky", 0)}
    put(store, "well", HEALTHY, clock.now_ms())
    assert claimed(HEALTHY, fail=False) == {("well", 0)}
    assert claimed(HEALTHY, fail=False) == {("picky", 1)}


def test_messages_that_a_queue_refuses_one_by_one_hold_up_nobody(
    store: DelayedMessageStore, clock: ManualClock
) -> None:
    """From its first claim on, a queue in reach that takes none of them goes behind others."""
    put(store, "picky", RETRIED, clock.now_ms() - 60_000)
    refused = Failure("No", DeliveryFailed("not now"), transient=True)
    outbox = InMemoryOutbox(clock)
    outbox.fail = lambda message: refused if message.message_id.startswith("picky") else None
    counted: Any = Counted(store)
    settings = DispatchSettings(number_of_retries=RETRIES)
    dispatcher = Dispatcher(counted, outbox, settings=settings, clock=clock)
    dispatcher.dispatch()
    for sent in range(0, 5 * HEALTHY, HEALTHY):
        # Whether its pause lasts or not: at most one claim is between.
        put(store, "well", HEALTHY, clock.now_ms())
        dispatcher.dispatch()
        dispatcher.dispatch()
        assert len(outbox.sent) == sent + HEALTHY
        clock.advance(1)
    dispatcher.dispatch()
    assert 5 <= counted.calls["count_failures"] < counted.calls["claim"]


@pytest.fixture(params=[1 << 14, pytest.param(1 << 20, marks=pytest.mark.nightly)])
def size(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Of a body; claims take 64 of them, by day as if there were less memory."""
    size: int = request.param
    fitting = postgres_store._FITTING.replace(b"%d" % (64 << 20), b"%d" % (64 * size))
    monkeypatch.setattr(postgres_store, "_FITTING", fitting)
    monkeypatch.setattr(sql, "CLAIM_BYTES", 64 * size)
    return size


def test_large_bodies_are_claimed_64_mib_at_a_time(
    size: int, store: Any, clock: ManualClock
) -> None:
    """New, passed over, held, or by ids: 500 of 1 MiB would take a gigabyte. The rest comes at once, from the
    same destinations."""
    for to, count in (("a", 30), ("b", 50)):
        put(store, to, count, clock.now_ms(), bytes(size))
    ids = [message.message_id for message in store.pending(100)]
    everything = {"due_by_ms": clock.now_ms()}
    for except_destinations in ((), ("c",)):
        with store.claim(500, **everything, except_destinations=except_destinations) as claim:
            assert len(claim.messages) == 64
            with store.claim_ids(ids) as other:
                assert len(other.messages) + len(other.busy) == 80
    with store.claim_ids(ids) as claim:
        assert (len(claim.messages), len(claim.busy)) == (64, 16)
        claim.hold([message.message_id for message in claim.messages], seconds=0)
    with store.claim(500, **everything) as claim:
        assert len(claim.messages) == 80  # 16 are new
        claim.hold(ids, seconds=0)
    with store.claim(500, **everything) as claim:
        assert len(claim.messages) == 64


def test_claims_by_ids(store: Any, clock: ManualClock) -> None:
    """2,000 in one query, due or held or not; what another has, or was taken, is left out; holds stay."""
    put(store, "well", 2_000, clock.now_ms() + 1)
    names = [message.message_id for message in store.pending(2_000)]
    with store.claim_ids([*names, "unknown"]) as claim:
        assert {message.message_id for message in claim.messages} == set(names)
        assert claim.busy == frozenset()
        with store.claim_ids(names) as other:
            assert (other.messages, other.busy) == ([], frozenset(names))
        assert store.cancel(names[:1]) == [False]
        assert claim.hold(names[:10], seconds=60) == [True] * 10
        assert claim.remove(names[20:]) == [True] * 1_980
    assert store.pending_count() == 20
    clock.advance(1)
    with store.claim(100, due_by_ms=clock.now_ms()) as claim:
        assert {message.message_id for message in claim.messages} == set(names[10:20])
        assert claim.again == frozenset()
    with store.claim_ids(names[:10]) as claim:
        assert len(claim.messages) == 10
    with store.claim(100, due_by_ms=clock.now_ms()) as claim:
        assert len(claim.messages) == 10
    clock.advance(60)
    with store.claim(100, due_by_ms=clock.now_ms()) as claim:
        assert len(claim.messages) == 20
        assert claim.again == set(names[:10])
    taken = store.take(1, due_from_ms=0)
    with store.claim_ids(names) as claim:
        assert len(claim.messages) == 19
        assert taken[0].message_id not in {message.message_id for message in claim.messages}
