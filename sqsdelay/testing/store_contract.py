"""The contract every delayed message store keeps, as tests. Subclass and say how to make a store::

class TestMyStore(StoreContract):
    @pytest.fixture
    def make_store(self, tmp_path):
        return lambda clock: MyStore(tmp_path / "messages", clock=clock)
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import ClassVar, Final

import pytest

from sqsdelay.core.amendments import Amendment
from sqsdelay.core.clock import Clock
from sqsdelay.core.stored_message import StoredMessage
from sqsdelay.errors import ConfigurationError
from sqsdelay.ports.stores import DelayedMessageStore, TransactionMode
from sqsdelay.testing.manual_clock import ManualClock
from sqsdelay.testing.parking_contract import MakePlace, ParkingContract, ids, message

_PATIENCE_SECONDS: Final = 120
"""Ends a hang, also on a busy machine."""

MakeStore = Callable[[Clock], DelayedMessageStore]


class StoreContract(ParkingContract):
    """What holds for every store, beside what holds for every place. Each test gets an empty one."""

    claims_shards: ClassVar[bool] = False
    """True for a store whose claims lease more than the messages they hold: others come to the rest
    when the claim has ended."""

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

    def test_set_up_twice_is_harmless(self, store: DelayedMessageStore, clock: Clock) -> None:
        """Every process may set up at its start; what is stored stays."""
        store.store([message("a", clock.now_ms())])
        store.set_up()
        assert self.claimed(store, clock) == ["a"]

    def test_a_message_comes_back_intact(self, store: DelayedMessageStore, clock: Clock) -> None:
        """Body bytes, attributes of every type, group and trace header survive the wait."""
        kept = StoredMessage(
            message_id="a'\"; -- \N{SNOWMAN}",
            destination="arn:aws:sqs:eu-west-1:123456789012:orders",
            due_ms=clock.now_ms(),
            body=bytes(range(256)),
            attributes={
                "Text": {"DataType": "String.kind", "StringValue": "\N{SNOWMAN} grün"},
                "Count": {"DataType": "Number", "StringValue": "1.50"},
                "Raw": {"DataType": "Binary", "BinaryValue": b"\x00\xff"},
            },
            group_id="customer-7",
            trace_header="Root=1-5759e988-bd862e3fe1be46a994272793",
            failures=3,
        )
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
                assert self.claimed(other, clock) in (
                    [["c"], []] if self.claims_shards else [["c"]]
                )
            assert self.claimed(other, clock) == ["a", "b", "c"]
        finally:
            if other is not store:
                other.close()

    def test_claimants_side_by_side_get_each_message_once(
        self, store: DelayedMessageStore, clock: Clock
    ) -> None:
        """Four threads empty the store without a duplicate and without a loss."""
        names = [f"m{n:03}" for n in range(200)]
        store.store([message(name, clock.now_ms()) for name in names])
        taken: list[str] = []

        def empty(_: int) -> None:
            while store.pending_count():
                with store.claim(7, due_by_ms=clock.now_ms()) as claim:
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

    def test_finding_one(self, store: DelayedMessageStore, clock: Clock) -> None:
        """By its id, held or not, as it was stored; what is not there is None."""
        kept = message("a", clock.now_ms(), body=b"1")
        store.store([kept, message("b", clock.now_ms())])
        assert store.find("a") == kept
        with store.claim(1, due_by_ms=clock.now_ms()) as claim:
            claim.hold(["a"], seconds=600)
        assert store.find("a") == kept
        assert store.find("unknown") is None

    def test_a_held_message_can_be_cancelled(
        self, store: DelayedMessageStore, clock: Clock
    ) -> None:
        """Held is not being released: nobody is sending it at this moment."""
        store.store([message("a", clock.now_ms())])
        with store.claim(1, due_by_ms=clock.now_ms()) as claim:
            claim.hold(["a"], seconds=600)
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
        """They may be of messages stored elsewhere, or here, and touch neither."""
        store.store([message("a", clock.now_ms())])
        store.amend([Amendment(message_id=n, at_ms=clock.now_ms()) for n in ("a", "b")])
        assert store.pending_count() == 1
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
