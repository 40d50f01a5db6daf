"""The contract every place to park in keeps, as tests. Subclass and say how to make one::

class TestMyPlace(ParkingContract):
    @pytest.fixture
    def make_place(self, tmp_path):
        return lambda clock: MyPlace(tmp_path / "messages", clock=clock)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Final

import pytest

from sqsdelay.core.amendments import AMENDMENT_LIFETIME_SECONDS, Amendment
from sqsdelay.core.clock import Clock
from sqsdelay.core.stored_message import StoredMessage
from sqsdelay.errors import InvalidMessage
from sqsdelay.ports.stores import ParkingPlace
from sqsdelay.testing.manual_clock import ManualClock

MakePlace = Callable[[Clock], ParkingPlace]

_FAR_MS: Final = 24 * 3600 * 1000
"""Messages are due a day ahead and later: farther than any place asks for."""


def message(
    message_id: str, due_ms: int, *, body: bytes = b"body", to: str = "orders"
) -> StoredMessage:
    """A message for ``orders``, or another destination."""
    return StoredMessage(message_id=message_id, destination=to, due_ms=due_ms, body=body)


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
        kept = StoredMessage(
            message_id="!order'42\";--~",
            destination="orders",
            due_ms=clock.now_ms() + _FAR_MS + 7,
            body="\N{SNOWMAN} grün <aws.scheduler.scheduled-time> \\u003c".encode(),
            attributes={
                "Text": {"DataType": "String.kind", "StringValue": "\N{SNOWMAN} <aws.scheduler.x>"},
                "Count": {"DataType": "Number", "StringValue": "1.50"},
                "Raw": {"DataType": "Binary", "BinaryValue": b"\x00\xff"},
            },
            group_id="customer-7",
            trace_header="Root=1-5759e988-bd862e3fe1be46a994272793",
        )
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
