"""Counts of the management API are used once they are newer than the question, and not before."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from sqsdelay.errors import ConfigurationError, QueueUnavailable
from sqsdelay.rabbitmq.management import FRESH_SECONDS, Held, Management, held, standing

LEVEL = "acme.delay-level-00"


class Counting(Management):
    """A management API whose answers are given; the last is repeated."""

    def __init__(self, *rows: dict[str, Any] | None) -> None:
        super().__init__("http://u:sesame@localhost", "/")
        self._rows: Iterator[dict[str, Any] | None] = iter(rows)
        self._last: dict[str, Any] | None = None
        self.seconds = 0.0

    def get(self, path: str) -> Any:
        self._last = next(self._rows, self._last)
        return [] if self._last is None else [{"name": LEVEL, **self._last}]

    def sleep(self, seconds: float) -> None:
        self.seconds += seconds


def count(management: Counting) -> int:
    found = held(
        management, {LEVEL: 0}, sleep=management.sleep, monotonic=lambda: management.seconds
    )
    return found[LEVEL].unseen


def row(mark: int, dead_lettering: int = 0, unacknowledged: int = 0) -> dict[str, Any]:
    return {
        "reductions": mark,
        "messages_dlx": dead_lettering,
        "messages_unacknowledged": unacknowledged,
    }


@pytest.mark.parametrize(
    ("rows", "counted"),
    [
        ((row(1), row(1), row(2), row(3, dead_lettering=130)), 130),
        ((row(1, unacknowledged=7), row(2, unacknowledged=7), row(3)), 0),
        ((None, None, row(1), row(2), row(3)), 0),
    ],
    ids=["old count of nothing", "old count of something", "just declared"],
)
def test_a_count_is_believed_once_it_is_new(rows: tuple[Any, ...], counted: int) -> None:
    """Not an old one, nor the first new one: it may have been on its way when the question was asked."""
    assert count(Counting(*rows)) == counted


def test_a_management_api_that_does_not_know_the_queue() -> None:
    """Another broker's, or one without statistics: the error says which, and not the password."""
    management = Counting(None)
    with pytest.raises(
        ConfigurationError, match=f"does not count the messages of {LEVEL}"
    ) as caught:
        count(management)
    assert management.seconds >= FRESH_SECONDS
    assert "sesame" not in str(caught.value)


def test_figures_that_stand_still_are_not_taken_for_new() -> None:
    """An error, not a count of long ago."""
    with pytest.raises(QueueUnavailable, match="did not change for 60 s"):
        count(Counting(row(1)))


@pytest.mark.parametrize(
    ("counts", "expected"),
    [((5, 5, 7), {LEVEL: 7}), ((5, 5, 4), {}), ((5, 0), {}), ((0,), {})],
)
def test_a_hand_over_stands_if_no_newer_count_is_lower(
    counts: tuple[int, ...], expected: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that goes on holds messages too, but not ever more."""
    rows = [row(mark, dead_lettering=count) for mark, count in enumerate(counts)]
    found = iter([{LEVEL: Held(each["messages_dlx"], 0, 0)} for each in rows])
    before = next(found)
    monkeypatch.setattr("sqsdelay.rabbitmq.management.held", lambda *_: next(found))
    assert standing(Counting(None), before) == expected
