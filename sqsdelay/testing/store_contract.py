"""The contract every delayed message store keeps, as tests. Subclass and say how to make a store::

class TestMyStore(StoreContract):
    @pytest.fixture
    def make_store(self, tmp_path):
        return lambda clock: MyStore(tmp_path / "messages", clock=clock)
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from typing import ClassVar, Final

import pytest

from sqsdelay.core.delay import Clock
from sqsdelay.core.stored_message import AMENDMENT_LIFETIME_SECONDS, Amendment, StoredMessage
from sqsdelay.errors import ConfigurationError, InvalidMessage
from sqsdelay.ports.stores import DelayedMessageStore, ParkingPlace, TransactionMode
from sqsdelay.testing.in_memory import ManualClock

MakePlace = Callable[[Clock], ParkingPlace]

_FAR_MS: Final = 24 * 3600 * 1000
"""Messages are due a day ahead and later: farther than any place asks for."""


def message(
    message_id: str, due_ms: int, *, body: bytes = b"body", to: str = "orders"
) -> StoredMessage:
    """A message for ``orders``, or another destination."""
    return StoredMessage(message_id=message_id, destination=to, due_ms=due_ms, body=body)


def full_message(message_id: str, destination: str, due_ms: int, body: bytes) -> StoredMessage:
    """One with attributes of every type, a group and a trace header."""
    return StoredMessage(
        message_id=message_id,
        destination=destination,
        due_ms=due_ms,
        body=body,
        attributes={
            "Text": {
                "DataType": "String.kind",
                "StringValue": "\N{SNOWMAN} <aws.scheduler.x> grün",
            },
            "Count": {"DataType": "Number", "StringValue": "1.50"},
            "Raw": {"DataType": "Binary", "BinaryValue": b"\x00\xff"},
        },
        group_id="customer-7",
        trace_header="Root=1-5759e988-bd862e3fe1be46a994272793",
    )


def ids(messages: Sequence[StoredMessage]) -> list[str]:
    return [message.message_id for message in messages]


class ParkingContract:
    """What holds for every place to park in. Each test gets an empty one, of the endpoint ``orders``."""

    @pytest.fixture
    def make_place(self) -> MakePlace:
        """Overridden: makes a place for this test's messages. Called twice, the places share them."""
        raise NotImplementedError("override the fixture make_place")

    @pytest.fixture
    def clock(self) -> ManualClock:
        return ManualClock()

    @pytest.fixture
    def place(self, make_place: MakePlace, clock: ManualClock) -> Iterator[ParkingPlace]:
        place = make_place(clock)
        place.set_up()
        yield place
        place.close()

    def test_set_up_again_is_harmless(self, place: ParkingPlace, clock: Clock) -> None:
        """Every process may set up at its start; what is stored stays."""
        place.store([message("a", clock.now_ms() + _FAR_MS)])
        place.set_up()
        assert ids(place.pending(10)) == ["a"]

    def test_a_message_waits_intact(self, place: ParkingPlace, clock: Clock) -> None:
        """Text, attributes of every type, group and trace header survive the wait."""
        body = "\N{SNOWMAN} grün <aws.scheduler.scheduled-time> \\u003c".encode()
        kept = full_message("!order'42\";--~", "orders", clock.now_ms() + _FAR_MS + 7, body)
        place.store([kept])
        assert place.pending(1) == [kept]
        assert place.find(kept.message_id) == kept

    def test_the_id_is_the_key(self, place: ParkingPlace, clock: Clock) -> None:
        """A message stored again (its storer crashed before it knew) is one message, the first."""
        due = clock.now_ms() + _FAR_MS
        assert place.store([message("a", due, body=b"first")]) == [True]
        again = [message("a", due, body=b"second"), message("b", due)]
        assert place.store([*again, message("b", due)]) == [False, True, False]
        assert place.store([]) == []
        assert place.pending_count() == 2
        assert {m.message_id: m.body for m in place.pending(10)} == {"a": b"first", "b": b"body"}

    def test_pending_is_paged(self, place: ParkingPlace, clock: Clock) -> None:
        """Pages neither repeat nor skip messages that are due at the same instant."""
        now = clock.now_ms() + _FAR_MS
        place.store([message(f"m{n}", now + (n // 4) * 1000) for n in range(10)])
        listed: list[StoredMessage] = []
        after = None
        while page := place.pending(3, after=after):
            listed += page
            after = (page[-1].due_ms, page[-1].message_id)
        assert ids(listed) == [f"m{n}" for n in range(10)]
        assert place.pending_count() == 10

    def test_pending_within_a_time(self, place: ParkingPlace, clock: Clock) -> None:
        """From an instant on and before another, in pages too; a cursor outside widens nothing."""
        now = clock.now_ms() + _FAR_MS
        place.store([message(f"m{n}", now + (n // 2) * 1000) for n in range(10)])
        start, end = now + 1000, now + 4000
        assert ids(place.pending(99, due_from_ms=start)) == [f"m{n}" for n in range(2, 10)]
        assert ids(place.pending(99, due_from_ms=start + 1)) == [f"m{n}" for n in range(4, 10)]
        assert ids(place.pending(99, due_before_ms=end)) == [f"m{n}" for n in range(8)]
        assert ids(place.pending(99, due_before_ms=end + 1)) == [f"m{n}" for n in range(10)]
        assert ids(place.pending(3, due_from_ms=start, due_before_ms=end)) == ["m2", "m3", "m4"]
        between = {"due_from_ms": start, "due_before_ms": end}
        assert ids(place.pending(99, after=(now + 2000, "m4"), **between)) == ["m5", "m6", "m7"]
        assert ids(place.pending(99, after=(now, "m0"), **between)) == [
            f"m{n}" for n in range(2, 8)
        ]
        assert place.pending(99, after=(now + 9000, "m9"), **between) == []
        assert place.pending(99, due_from_ms=end, due_before_ms=start) == []
        assert place.pending(99, due_before_ms=0) == []

    def test_cancelling(self, place: ParkingPlace, clock: Clock) -> None:
        """A cancelled message is gone; what is unknown is answered honestly."""
        due = clock.now_ms() + _FAR_MS
        place.store([message("a", due), message("b", due + 1)])
        assert place.cancel(["a", "unknown"]) == [True, False]
        assert place.cancel(["a"]) == [False]
        assert ids(place.pending(10)) == ["b"]

    def test_a_due_time_no_clock_shows_is_refused(self, place: ParkingPlace, clock: Clock) -> None:
        """Nothing is parked where it could never be found."""
        place.store([message("a", clock.now_ms() + _FAR_MS)])
        with pytest.raises(InvalidMessage, match="1970 to 9999"):
            place.reschedule("a", 10**15)
        assert ids(place.pending(10)) == ["a"]

    def test_finding_and_moving(self, place: ParkingPlace, clock: Clock) -> None:
        """A message is found by its id and moves both ways, keeping all else; unknown is unknown."""
        due = clock.now_ms() + _FAR_MS
        place.store([message("a", due + 5), message("b", due)])
        assert place.find("a") == message("a", due + 5)
        assert place.reschedule("a", due - 7_000) is True
        assert place.reschedule("b", due + 1) is True
        assert place.reschedule("unknown", due) is False
        assert place.pending(9) == [message("a", due - 7_000), message("b", due + 1)]
        assert place.find("unknown") is None

    def test_amendments_are_kept_until_they_expire(
        self, place: ParkingPlace, make_place: MakePlace, clock: ManualClock
    ) -> None:
        """A delay consumer elsewhere reads what a sender left; the last amendment of a message counts."""
        now_ms = clock.now_ms()
        cancelled = Amendment(message_id="a", at_ms=now_ms)
        place.amend([cancelled, Amendment(message_id="b", at_ms=now_ms, due_ms=2)])
        moved = Amendment(message_id="b", at_ms=now_ms + 7, due_ms=now_ms + 5)
        other = make_place(clock)
        try:
            other.amend([Amendment(message_id="b", at_ms=now_ms, due_ms=1), moved])
            asked = ["a", "b", "unknown", "a", *(f"m{n}" for n in range(150))]
            assert other.amendments(asked) == {"a": cancelled, "b": moved}
            assert other.amendments(["unknown"]) == {}
        finally:
            if other is not place:
                other.close()
        clock.advance(AMENDMENT_LIFETIME_SECONDS + 1)
        assert place.amendments(["a", "b"]) == {}

    def test_what_was_cancelled_is_not_moved_any_more(
        self, place: ParkingPlace, clock: ManualClock
    ) -> None:
        """A cancellation holds for what was sent before it, whatever is wished of a message that was
        sent since under the same id; a new cancellation takes the place of both."""
        now_ms = clock.now_ms()
        moved = Amendment(message_id="a", at_ms=now_ms, due_ms=1)
        place.amend([moved])
        assert place.amendments(["a"]) == {"a": moved}
        gone = [Amendment(message_id=n, at_ms=now_ms + 1) for n in ("a", "b")]
        again = [Amendment(message_id=n, at_ms=now_ms + 2, due_ms=2) for n in ("a", "b")]
        place.amend([*gone, again[1]])
        place.amend([again[0]])
        both = {m.message_id: replace(m, cancelled_ms=now_ms + 1) for m in again}
        assert place.amendments(["a", "b"]) == both
        once_more = Amendment(message_id="a", at_ms=now_ms + 3, due_ms=3)
        place.amend([once_more])
        assert place.amendments(["a"]) == {"a": replace(once_more, cancelled_ms=now_ms + 1)}
        place.amend([replace(gone[0], at_ms=now_ms + 4)])
        assert place.amendments(["a"]) == {"a": replace(gone[0], at_ms=now_ms + 4)}
        clock.advance(AMENDMENT_LIFETIME_SECONDS + 1)
        late = replace(moved, at_ms=clock.now_ms())
        place.amend([late])
        assert place.amendments(["a"]) == {"a": late}

    def test_amendments_are_not_pending(self, place: ParkingPlace, clock: Clock) -> None:
        """They may be of messages kept elsewhere, or here, and touch neither."""
        place.store([message("a", clock.now_ms() + _FAR_MS)])
        place.amend([Amendment(message_id=n, at_ms=clock.now_ms()) for n in ("a", "b")])
        assert place.pending_count() == 1
        assert ids(place.pending(10)) == ["a"]


_PATIENCE_SECONDS: Final = 120
"""Ends a hang, also on a busy machine."""

MakeStore = Callable[[Clock], DelayedMessageStore]


class StoreContract(ParkingContract):
    """What holds for every store, beside what holds for every place. Each test gets an empty one."""

    claims_shards: ClassVar[bool] = False
    """True for a store whose claims lease more than the messages they hold: others come to the rest
    when the claim has ended."""
    contended: ClassVar[int] = 100
    """Messages that four threads claim at once."""

    @pytest.fixture
    def make_store(self) -> MakeStore:
        """Overridden: makes a store on this test's messages. Called twice, the stores share them."""
        raise NotImplementedError("override the fixture make_store")

    @pytest.fixture
    def make_place(self, make_store: MakeStore) -> MakePlace:
        return make_store

    @pytest.fixture
    def store(self, make_store: MakeStore, clock: ManualClock) -> Iterator[DelayedMessageStore]:
        store = make_store(clock)
        store.set_up()
        store.initialize(TransactionMode.AT_LEAST_ONCE)
        yield store
        store.close()

    def claimed(self, store: DelayedMessageStore, clock: Clock, limit: int = 100) -> list[str]:
        """The ids of one claim, let go again."""
        with store.claim(limit, due_by_ms=clock.now_ms()) as claim:
            return ids(claim.messages)

    def test_a_message_comes_back_intact(self, store: DelayedMessageStore, clock: Clock) -> None:
        """Body bytes, attributes of every type, group and trace header survive the wait."""
        arn, body = "arn:aws:sqs:eu-west-1:123456789012:orders", bytes(range(256))
        kept = replace(full_message("a'\"; -- \N{SNOWMAN}", arn, clock.now_ms(), body), failures=3)
        store.store([kept])
        with store.claim(1, due_by_ms=clock.now_ms()) as claim:
            assert list(claim.messages) == [kept]
        assert store.pending(1) == [kept]

    def test_claims_what_is_due_earliest_first(
        self, store: DelayedMessageStore, clock: Clock
    ) -> None:
        """Due at this millisecond is due; a millisecond later is not."""
        now = clock.now_ms()
        dues = {"later": now + 1, "now": now, "past": now - 5000, "older": now - 9000}
        store.store([message(message_id, due_ms) for message_id, due_ms in dues.items()])
        assert self.claimed(store, clock) == ["older", "past", "now"]
        assert self.claimed(store, clock, limit=2) == ["older", "past"]
        with store.claim(10, due_by_ms=now + 1) as claim:
            assert ids(claim.messages) == ["older", "past", "now", "later"]

    def test_destinations_out_of_reach_are_passed_over(
        self, store: DelayedMessageStore, clock: Clock
    ) -> None:
        """However many wait for them in front, the others are claimed, up to the limit."""
        now = clock.now_ms()
        store.store([message(f"full{n:03}", now - 900 + n, to="full") for n in range(120)])
        store.store([message(f"it's{n}", now - 100 + n, to='it\'s ["odd"]') for n in range(3)])
        store.store([message(f"well{n}", now - 50 + n) for n in range(3)])
        away = frozenset({"full", 'it\'s ["odd"]', "unknown"})
        with store.claim(2, due_by_ms=now, except_destinations=away) as claim:
            assert ids(claim.messages) == ["well0", "well1"]
        assert store.next_due_ms(away) == now - 50
        assert store.next_due_ms(except_destinations=["full"]) == now - 100
        with store.claim(100, due_by_ms=now, except_destinations=[*away, "orders"]) as claim:
            assert list(claim.messages) == []
        assert store.next_due_ms([*away, "orders"]) is None
        with store.claim(60, due_by_ms=now, except_destinations=["unknown", "orders"]) as claim:
            assert {m.destination for m in claim.messages} <= {"full", 'it\'s ["odd"]'}
            assert 0 < len(claim.messages) <= 60
            assert [m.due_ms for m in claim.messages] == sorted(m.due_ms for m in claim.messages)
        assert len(self.claimed(store, clock, limit=200)) == 126

    def test_a_claim_excludes_others(
        self, store: DelayedMessageStore, make_store: MakeStore, clock: Clock
    ) -> None:
        """Two dispatchers share the work; neither sees what the other holds."""
        store.store([message(name, clock.now_ms() - 9 + n) for n, name in enumerate("abc")])
        other = make_store(clock)
        try:
            other.initialize(TransactionMode.AT_LEAST_ONCE)
            with store.claim(2, due_by_ms=clock.now_ms()) as claim:
                assert ids(claim.messages) == ["a", "b"]
                left = [["c"], []] if self.claims_shards else [["c"]]
                assert self.claimed(other, clock) in left
            assert self.claimed(other, clock) == ["a", "b", "c"]
        finally:
            if other is not store:
                other.close()

    def test_claimants_side_by_side_get_each_message_once(
        self, store: DelayedMessageStore, clock: Clock
    ) -> None:
        """Four threads empty the store without a duplicate and without a loss."""
        names = [f"m{n:03}" for n in range(self.contended)]
        store.store([message(name, clock.now_ms()) for name in names])
        taken: list[str] = []

        def empty(_: int) -> None:
            while store.pending_count():
                with store.claim(3, due_by_ms=clock.now_ms()) as claim:
                    mine = ids(claim.messages)
                    assert all(claim.remove(mine))
                    taken.extend(mine)

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(empty, range(4)))
        assert sorted(taken) == names

    def test_removing_tells_what_was_there(self, store: DelayedMessageStore, clock: Clock) -> None:
        """Removal answers per message, so that a duplicate can be noticed."""
        store.store([message("a", clock.now_ms()), message("b", clock.now_ms())])
        with store.claim(10, due_by_ms=clock.now_ms()) as claim:
            assert claim.remove(["a", "unknown"]) == [True, False]
            assert claim.remove(["a"]) == [False]
        assert self.claimed(store, clock) == ["b"]

    def test_a_claim_left_by_an_error_is_free_again(
        self, store: DelayedMessageStore, clock: Clock
    ) -> None:
        """A dispatcher's own bug loses nothing."""
        store.store([message("a", clock.now_ms())])
        with suppress(ZeroDivisionError), store.claim(1, due_by_ms=clock.now_ms()):
            raise ZeroDivisionError
        assert self.claimed(store, clock) == ["a"]

    def test_a_counted_failure_waits_for_its_retry(
        self, store: DelayedMessageStore, clock: ManualClock
    ) -> None:
        """A failing message does not hold up those behind it."""
        store.store([message("bad", clock.now_ms() - 1), message("good", clock.now_ms())])
        with store.claim(1, due_by_ms=clock.now_ms()) as claim:
            assert claim.count_failures(["bad", "unknown"], retry_after_seconds=5) == [True, False]
        assert self.claimed(store, clock) == ["good"]
        assert store.next_due_ms() == clock.now_ms()
        clock.advance(5)
        with store.claim(2, due_by_ms=clock.now_ms()) as claim:
            assert {m.message_id: m.failures for m in claim.messages} == {"bad": 1, "good": 0}

    def test_holding_counts_nothing(self, store: DelayedMessageStore, clock: ManualClock) -> None:
        """An outage of the destination is not the message's failure."""
        store.store([message("a", clock.now_ms())])
        with store.claim(1, due_by_ms=clock.now_ms()) as claim:
            assert claim.hold(["a"], seconds=2.5) == [True]
        assert (self.claimed(store, clock), store.next_due_ms()) == ([], None)
        clock.advance(2.5)
        assert [m.failures for m in store.pending(1)] == [0]
        assert self.claimed(store, clock) == ["a"]

    def test_next_is_the_earliest(self, store: DelayedMessageStore, clock: Clock) -> None:
        """The dispatcher sleeps until then."""
        assert store.next_due_ms() is None
        store.store([message("b", clock.now_ms() + 9000), message("a", clock.now_ms() + 4000)])
        assert store.next_due_ms() == clock.now_ms() + 4000

    def test_a_held_message_is_found_and_can_be_cancelled(
        self, store: DelayedMessageStore, clock: Clock
    ) -> None:
        """Held is not being released: nobody is sending it at this moment."""
        store.store([message("a", clock.now_ms())])
        with store.claim(1, due_by_ms=clock.now_ms()) as claim:
            claim.hold(["a"], seconds=600)
        assert store.find("a") == message("a", clock.now_ms())
        assert store.cancel(["a"]) == [True]
        assert store.pending_count() == 0

    def test_a_message_being_released_cannot_be_cancelled_or_moved(
        self, store: DelayedMessageStore, clock: Clock
    ) -> None:
        """The answer "cancelled" is never given for a message that was sent."""
        store.store([message("a", clock.now_ms()), message("b", clock.now_ms())])
        with ThreadPoolExecutor(2) as pool:
            with store.claim(10, due_by_ms=clock.now_ms()) as claim:
                cancelled = pool.submit(store.cancel, ["a"])
                moved = pool.submit(store.reschedule, "b", clock.now_ms() + 60_000)
                claim.remove(["a", "b"])
            assert cancelled.result(timeout=_PATIENCE_SECONDS) == [False]
            assert moved.result(timeout=_PATIENCE_SECONDS) is False

    def test_rescheduling(self, store: DelayedMessageStore, clock: Clock) -> None:
        """A message moves both ways, and keeps all else."""
        now = clock.now_ms()
        store.store([message("a", now + 60_000), message("b", now)])
        assert store.reschedule("a", now - 1) is True
        assert store.reschedule("b", now + 1) is True
        assert store.reschedule("unknown", now) is False
        assert store.next_due_ms() == now - 1
        assert self.claimed(store, clock) == ["a"]
        assert store.pending(1) == [message("a", now - 1)]

    def test_amendments_are_no_messages(self, store: DelayedMessageStore, clock: Clock) -> None:
        """Neither of messages stored elsewhere, nor of those here, which are claimed all the same."""
        store.store([message("a", clock.now_ms())])
        store.amend([Amendment(message_id=n, at_ms=clock.now_ms()) for n in ("a", "b")])
        assert self.claimed(store, clock) == ["a"]

    def test_an_earlier_message_wakes(self, store: DelayedMessageStore, clock: Clock) -> None:
        """A sleeping dispatcher hears of a message due before all others, stored or moved."""
        store.store([message("a", clock.now_ms() + 60_000), message("b", clock.now_ms() + 90_000)])
        woken = threading.Event()
        with store.watch(woken.set):
            woken.clear()
            store.store([message("c", clock.now_ms() + 30_000)])
            assert woken.wait(_PATIENCE_SECONDS)
            woken.clear()
            store.reschedule("b", clock.now_ms() + 1000)
            assert woken.wait(_PATIENCE_SECONDS)

    def test_a_mode_is_given_or_refused_at_the_start(
        self, store: DelayedMessageStore, clock: Clock
    ) -> None:
        """Exactly once is never promised and then not kept."""
        if TransactionMode.EXACTLY_ONCE not in store.modes:
            with pytest.raises(ConfigurationError, match="cannot give"):
                store.initialize(TransactionMode.EXACTLY_ONCE)
            with pytest.raises(ConfigurationError, match="transaction"):
                store.store([message("a", clock.now_ms())], transaction=object())
            return
        store.initialize(TransactionMode.EXACTLY_ONCE)
        store.store([message("a", clock.now_ms()), message("b", clock.now_ms())])
        with store.claim(10, due_by_ms=clock.now_ms()) as claim:
            assert claim.transaction is not None
            with suppress(ZeroDivisionError), claim.attempt():
                claim.remove(["a"])
                raise ZeroDivisionError
            claim.remove(["b"])
        assert self.claimed(store, clock) == ["a"]
        with suppress(ZeroDivisionError), store.claim(10, due_by_ms=clock.now_ms()) as claim:
            claim.remove(["a"])
            raise ZeroDivisionError
        assert self.claimed(store, clock) == ["a"]
