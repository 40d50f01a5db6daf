"""An id that is used again begins another life: checked against histories whose end is known."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from sqsdelay.core.message import Route
from sqsdelay.ledger.events import Event, EventKind
from sqsdelay.spark import reconcile
from sqsdelay.spark.report.messages import gathered, judged
from sqsdelay.spark.report.read import read_ledger
from tests.functional.spark import told

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BEHIND_MS: Final = 4000
"""Of a receiver's clock, where no time of the broker's is known."""
END_MS: Final = told.T0 + 4000 * told.HOUR

Lives = list[tuple[str, int | None, bool]]
"""Status, due time and whether it is early, of each life in order."""


def lives_of(spark: SparkSession, folder: Path, events: list[Event]) -> dict[str, Lives]:
    rows = gathered(read_ledger(spark, told.written(folder, events)).events)
    known = judged(rows, as_of_ms=END_MS, grace_ms=told.HOUR).collect()
    found: dict[str, Lives] = {}
    for row in sorted(known, key=lambda row: row.life):
        lives = found.setdefault(f"{row.endpoint}/{row.message_id}", [])
        lives.append((row.status, row.due_ms, row.early))
    return found


def by_its_own_clock(of: Event, *, behind_ms: int = BEHIND_MS, late_ms: int = 30) -> Event:
    """A reception told by a receiver that has nothing but a clock that is behind."""
    seen = told.received(of, late_ms=late_ms - behind_ms)
    return replace(seen, late_ms=None)


def test_a_life_begins_with_a_send_after_the_last_has_ended(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Cancelled, sent anew and never arrived: lost. A monthly id whose second send is lost: lost, and
    nothing is early. What is sent again while it is on its way is still the same."""
    stopped = told.sent("stopped", route=Route.STORE)
    anew = told.sent("stopped", after=200)
    june, july = told.sent("monthly"), told.sent("monthly", after=8000)
    refused, mended = told.sent("refused"), told.sent("refused", after=1000)
    lost = told.sent("replayed")
    again = replace(told.sent("replayed", after=9000, route=Route.DIRECT), due_ms=lost.due_ms)
    slow = told.sent("slow")
    clock, soon_after = told.sent("clock"), told.sent("clock", after=8000, delay=1)
    at_once, next_one = told.sent("at once"), told.sent("at once", after=1901)
    delays = (90_000, 120_000)  # Neither first sent, first due, nor the other way round.
    dropped = [told.sent("dropped", after=310 * n, delay=delays[n % 2]) for n in range(14)]
    # The sender's due time is an estimate.
    exact = [replace(each, due_ms=(each.due_ms or 0) + 400) for each in dropped]
    twice = told.sent("twice")
    wrong = told.sent("wrong", sqs_message_id="1")
    far, near = told.sent("near", delay=90_000), told.sent("near", after=2000, route=Route.STORE)
    moved = replace(near, due_ms=(far.due_ms or 0) + 60_000)
    back, back_again = told.sent("back"), told.sent("back", after=4000, delay=2_500_000)
    soon = replace(back_again, due_ms=told.T0 + 400_000_000)
    events = [
        stopped, told.by_sender(stopped, EventKind.CANCELLED, after=100), anew, told.hop(anew),
        june, told.handed_over(june), told.received(june), july, told.hop(july),
        refused, told.consumed(refused, EventKind.REJECTED, after=900, reason="no queue"),
        mended, told.handed_over(mended), told.received(mended),
        lost, told.handed_over(lost), again, replace(told.received(lost, late_ms=7_200_000)),
        # Its first copy is handed over, and the next month's sent, before the first is received.
        slow, told.handed_over(slow), told.sent("slow", after=1850, delay=90_000), told.received(slow),
        clock, told.handed_over(clock, late_ms=40), by_its_own_clock(clock),
        soon_after, told.handed_over(soon_after, after=1), by_its_own_clock(soon_after),
        # Only sends and receptions are recorded, and the handler sends its id again within 100 ms.
        at_once, by_its_own_clock(at_once, behind_ms=0),
        replace(next_one, at_ms=next_one.at_ms - 900),
        # The id is used again, and again, before the delay consumer meets what was cancelled.
        *dropped, *[told.hop(each) for each in exact],
        *[told.consumed(each, EventKind.CANCELLED, after=4500) for each in exact[:-1]],
        back, back_again, told.handed_over(back), told.received(back),
        told.by_sender(back_again, EventKind.RESCHEDULED, after=5, due_ms=soon.due_ms),
        told.consumed(soon, EventKind.CANCELLED, after=900),
        # Moved to when another was due that is cancelled.
        far, told.consumed(far, EventKind.CANCELLED, after=900), near,
        told.by_sender(near, EventKind.RESCHEDULED, after=5, due_ms=moved.due_ms),
        told.consumed(moved, EventKind.REJECTED, after=900, reason="no queue"),
        # An idempotent send that is repeated is one message, what SQS takes anew is another.
        twice, told.sent("twice", after=60), told.consumed(twice, EventKind.CANCELLED, after=900),
        wrong, told.sent("wrong", after=10, sqs_message_id="2"),
        told.consumed(wrong, EventKind.CANCELLED, after=900),
    ]  # fmt: skip
    found = lives_of(spark, tmp_path, events)
    assert {name: [life[0] for life in lives] for name, lives in found.items()} == {
        "orders/stopped": ["cancelled", "lost"],
        "orders/monthly": ["delivered", "lost"],
        "orders/refused": ["rejected", "delivered"],
        "orders/replayed": ["delivered"],
        "orders/slow": ["delivered", "lost"],
        "orders/clock": ["delivered", "delivered"],
        "orders/at once": ["delivered", "lost"],
        "orders/dropped": [*["cancelled"] * 13, "lost"],
        "orders/back": ["delivered", "cancelled"],
        "orders/near": ["cancelled", "rejected"],
        "orders/twice": ["cancelled"],
        "orders/wrong": ["cancelled", "lost"],
    }
    assert not any(early for lives in found.values() for _, _, early in lives)
    for each in ([june, july], exact):
        assert [due for _, due, _ in found[f"orders/{each[0].message_id}"]] == [
            e.due_ms for e in each
        ]


class Histories:
    """Lives of messages whose end is known, as the ledger's writers would tell them."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self.events: list[Event] = []
        self.truth: dict[str, Lives] = {}

    def message(self, number: int) -> None:
        """One id, used up to four times."""
        chance = self._random
        endpoint, name = chance.choice(("orders", "silent")), f"m{number}"
        at_s = chance.randrange(1000)
        lives = self.truth[f"{endpoint}/{name}"] = []
        for _ in range(chance.randrange(1, 5)):
            status, due_ms, early, ended_s = self._life(endpoint, name, at_s)
            lives.append((status, due_ms, early))
            if status in ("lost", "pending"):
                break
            # A handler that sends its id again does so at once.
            at_s = ended_s + chance.choice((1, 60, 7200, 40 * 86_400))

    def _life(self, endpoint: str, name: str, at_s: int) -> tuple[str, int | None, bool, int]:
        chance = self._random
        delay = chance.choice((1000, 1900, 4000, 90_000))
        if chance.random() < 0.15:
            return self._direct(endpoint, name, at_s)
        sent = told.sent(name, endpoint=endpoint, after=at_s, delay=delay)
        self._tell(replace(sent, size=chance.choice((1, 381))))
        end = chance.choice(("delivered", "delivered", "replayed", "lost", "cancelled", "rejected"))
        moved = chance.random() < 0.2
        if moved:
            delay += 500
            assert sent.due_ms is not None
            sent = replace(sent, due_ms=sent.due_ms + 500_000)
            self._tell(told.by_sender(sent, EventKind.RESCHEDULED, after=5, due_ms=sent.due_ms))
        for hop in range(1, chance.randrange(1, 4)):
            self._tell(told.hop(sent, after=hop * 200))
        if end == "cancelled":
            self._tell(told.by_sender(sent, EventKind.CANCELLED, after=700))
        if end == "rejected":
            self._tell(told.consumed(sent, EventKind.REJECTED, after=700, reason="no queue"))
        if end in ("cancelled", "rejected"):
            return end, sent.due_ms, False, at_s + 700
        if end == "lost":
            if endpoint == "orders" and chance.random() < 0.5:
                self._tell(told.handed_over(sent, after=delay - 100))
            return "lost", sent.due_ms, False, 0
        early = endpoint == "orders" and not moved and chance.random() < 0.1
        if end == "replayed" and not moved:
            again = told.sent(name, endpoint=endpoint, after=at_s + delay + 7200, delay=0)
            self._tell(replace(again, due_ms=sent.due_ms))
        late_ms = -2500 if early else chance.choice((0, 40, 700))
        self._tell(told.handed_over(sent, after=delay - 100, late_ms=late_ms))
        ended_s = at_s + delay + (7300 if end == "replayed" and not moved else 5)
        if endpoint == "silent":
            return "handed-over", sent.due_ms, False, ended_s
        seen_ms = max(late_ms, 0) + (ended_s - at_s - delay - 1) * 1000
        known = by_its_own_clock(sent, late_ms=seen_ms)
        if chance.random() >= 0.3:
            assert sent.due_ms is not None
            known = replace(told.received(sent, late_ms=seen_ms), late_ms=late_ms)
            known = replace(known, enqueued_ms=sent.due_ms - 100_000)
        self._tell(known)
        return "delivered", sent.due_ms, early, ended_s

    def _direct(self, endpoint: str, name: str, at_s: int) -> tuple[str, int | None, bool, int]:
        """Sent straight to the queue: its copy tells no due time, and the clocks of sender and broker
        are a little apart."""
        straight: dict[str, Any] = {"delay": 60, "route": Route.DIRECT, "timer_seconds": 60}
        sent = told.sent(name, endpoint=endpoint, after=at_s, **straight)
        self._tell(sent)
        if endpoint == "silent":
            return "handed-over", sent.due_ms, False, at_s + 61
        if self._random.random() < 0.3:
            return "lost", sent.due_ms, False, 0
        taken_ms = sent.at_ms + self._random.randrange(-900, 900)
        seen = replace(told.received(sent), due_ms=None, late_ms=None)
        by_broker = {"at_ms": taken_ms + 60_000, "enqueued_ms": taken_ms}
        by_its_own = {"at_ms": taken_ms + 60_000 - BEHIND_MS, "enqueued_ms": None}
        self._tell(replace(seen, **self._random.choice((by_broker, by_its_own))))
        return "delivered", sent.due_ms, False, at_s + 62

    def _tell(self, event: Event) -> None:
        self.events += [event] * self._random.choice((1, 1, 1, 2))

    def shuffled(self) -> list[Event]:
        self._random.shuffle(self.events)
        return self.events


@pytest.mark.parametrize("seed", [33, pytest.param(34, marks=pytest.mark.nightly)])
def test_histories_are_counted_as_they_were(spark: SparkSession, tmp_path: Path, seed: int) -> None:
    """Statuses, due times and what is early, of every life; lines in any order, some of them twice."""
    histories = Histories(seed)
    for number in range(600):
        histories.message(number)
    found = lives_of(spark, tmp_path, histories.shuffled())
    wrong = {
        name: (lives, found.get(name))
        for name, lives in histories.truth.items()
        if found.get(name) != lives
    }
    assert not wrong, f"{len(wrong)} of {len(histories.truth)}: {list(wrong.items())[:3]}"
    assert len(found) == 600
    statuses = Counter(status for lives in found.values() for status, _, _ in lives)
    assert min(statuses.values()) > 20, statuses


def test_a_job_is_told_of_its_own_life(spark: SparkSession, tmp_path: Path) -> None:
    """An id that the next month's job uses again: each job's table is told what became of its own."""
    june, july = told.sent("m"), told.sent("m", after=8000)
    events = [june, told.handed_over(june), told.received(june), july, told.hop(july)]
    events.append(told.received(told.sent("other", after=90_000)))
    ledger = told.written(tmp_path, events)
    more: dict[str, Any] = {"endpoint": "orders", "job": "job"}
    for sent, status in ((june, "delivered"), (july, "lost")):
        at_ms = f"timestamp_millis({sent.due_ms}) due_at"
        rows = spark.range(1).selectExpr("'x' body", "'m' message_id", at_ms)
        (found,) = reconcile(rows, ledger, **more).collect()
        assert found.status == status
