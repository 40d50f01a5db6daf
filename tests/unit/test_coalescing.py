"""Coalescing, in virtual time: what shares a request, and when it leaves."""

from __future__ import annotations

import math

import pytest

from sqsdelay.core.coalescing import Coalescer, Waiting
from sqsdelay.core.limits import MAX_BATCH_BYTES, MAX_BATCH_ENTRIES

LINGER = 0.005


class Lines:
    """A coalescer and the time it is told."""

    def __init__(self, *, linger: float = LINGER, lanes: int = 8) -> None:
        self.coalescer = Coalescer[str](linger_seconds=linger, lanes=lanes)
        self.now = 100.0

    def add(
        self, *items: str, key: str = "orders", size: int = 1, most: int = MAX_BATCH_ENTRIES
    ) -> list[Waiting[str]]:
        return [self.coalescer.add(key, item, size=size, most=most, now=self.now) for item in items]

    def take(self, key: str | None = None) -> str:
        """The items of the next group, joined."""
        return "".join(waiting.item for waiting in self.coalescer.take(self.now, key))

    def take_all(self) -> list[str]:
        groups = []
        while group := self.take():
            groups.append(group)
        return groups


@pytest.fixture
def lines() -> Lines:
    return Lines()


def test_what_meets_within_the_linger_leaves_together(lines: Lines) -> None:
    """The first of them waits for the linger, and no item for longer."""
    lines.add("a")
    lines.now += 0.004
    lines.add("b")
    assert (lines.take(), lines.coalescer.next_at()) == ("", 100.0 + LINGER)
    lines.now += 0.001
    assert (lines.take(), lines.coalescer.next_at()) == ("ab", math.inf)


def test_a_full_group_does_not_linger(lines: Lines) -> None:
    """Ten fill a request; the eleventh waits for others."""
    lines.add(*"abcdefghijk")
    assert lines.coalescer.next_at() == -math.inf
    assert lines.take_all() == ["abcdefghij"]
    assert lines.coalescer.next_at() == 100.0 + LINGER


def test_a_group_ends_where_a_request_ends(lines: Lines) -> None:
    """1 MiB in all; what is larger by itself leaves by itself."""
    lines.add(*"abc", size=MAX_BATCH_BYTES // 2)
    lines.add("d", size=MAX_BATCH_BYTES + 1)
    assert lines.take() == "ab"
    lines.now += LINGER
    assert lines.take_all() == ["c", "d"]


def test_keys_do_not_mix_and_the_oldest_goes_first(lines: Lines) -> None:
    """Each queue has its own requests."""
    lines.add("a", key="late")
    lines.now += 0.001
    lines.add("b")
    lines.add("c", key="late")
    lines.now += LINGER
    assert lines.take_all() == ["ac", "b"]


def test_a_thread_takes_its_own_queues_group_only(lines: Lines) -> None:
    """However long another's has waited."""
    lines.add("a", key="other")
    lines.add("b")
    lines.now += LINGER
    assert [lines.take("orders"), lines.take("orders"), lines.take("other")] == ["b", "", "a"]


def test_no_linger_is_no_sharing() -> None:
    """0 turns it off: each by itself, at once."""
    lines = Lines(linger=0)
    lines.add(*"abc")
    assert lines.take_all() == ["a", "b", "c"]


def test_while_the_lanes_are_busy_groups_fill() -> None:
    """What lingered long enough takes others with it until a lane is free."""
    lines = Lines(lanes=1)
    lines.add("a")
    lines.now += LINGER
    in_flight = lines.coalescer.take(lines.now)
    lines.add(*"bc")
    lines.now += 10 * LINGER
    lines.add("d")
    assert (lines.take(), lines.coalescer.next_at()) == ("", math.inf)
    lines.coalescer.done(in_flight)
    assert lines.take() == "bcd"


def test_a_queue_that_does_not_answer_leaves_a_lane_to_others() -> None:
    """The last free lane is for a queue that has nothing in flight."""
    lines = Lines(linger=0, lanes=3)
    lines.add(*"abcd", key="deaf")
    assert lines.take_all() == ["a", "b"]
    lines.add("x")
    assert lines.take_all() == ["x"]
    assert lines.coalescer.next_at() == math.inf


def test_a_withdrawn_item_does_not_leave(lines: Lines) -> None:
    """Nor does it count, or hold the others' linger. What has left cannot be withdrawn."""
    (a, *_) = lines.add(*"abcdefghij")
    assert lines.coalescer.withdraw(a)
    assert not lines.coalescer.withdraw(a)
    assert lines.take() == ""
    lines.now += LINGER
    (b,) = lines.add("b")
    assert lines.take() == "bcdefghijb"
    assert not lines.coalescer.withdraw(b)


def test_nothing_lingers_once_hurried(lines: Lines) -> None:
    """A sender that closes has nobody to wait for."""
    lines.add(*"ab")
    lines.coalescer.hurry()
    assert lines.coalescer.next_at() == -math.inf
    assert lines.take_all() == ["ab"]


def test_nothing_is_kept_of_queues_that_are_done() -> None:
    """A sender for ever new queues does not grow."""
    lines = Lines(linger=0)
    for number in range(100):
        lines.add("a", key=f"queue-{number}")
        lines.coalescer.done(lines.coalescer.take(lines.now))
    (gone,) = lines.add("a", key="withdrawn")
    lines.coalescer.withdraw(gone)
    assert not lines.coalescer._lines
