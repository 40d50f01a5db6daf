"""Confirms settle exactly what they answer for."""

from __future__ import annotations

from collections.abc import Callable

from pika import BasicProperties

from sqsdelay.errors import SendFailed, SqsDelayError
from sqsdelay.rabbitmq.link import Outstanding, Publication

REFUSED = SendFailed("refused", code="nack", transient=True)
Settled = list[tuple[str, SqsDelayError | None]]


def three() -> tuple[Outstanding, Settled]:
    """Publications a, b and c, written at 10, 20 and 30 s, and the list of what settles."""
    outstanding, settled = Outstanding(), Settled()
    for number, name in enumerate("abc", start=1):
        publication = Publication("", name, b"", BasicProperties(message_id=name))
        publication.on_settled = _noting(settled, name)
        outstanding.add(publication, begins_at=number, ends_at=number + 1)
        outstanding.taken(up_to=number + 1, now=number * 10.0)
    return outstanding, settled


def _noting(settled: Settled, name: str) -> Callable[[Publication], None]:
    return lambda each: settled.append((name, each.error))


def test_confirms_out_of_order() -> None:
    """Queues confirm at their own pace."""
    outstanding, settled = three()
    outstanding.answered(3, multiple=False)
    outstanding.answered(1, multiple=False, error=REFUSED)
    assert settled == [("c", None), ("a", REFUSED)]
    assert len(outstanding) == 1


def test_one_confirm_for_several() -> None:
    """``multiple`` answers for all up to its tag, and none beyond."""
    outstanding, settled = three()
    outstanding.answered(2, multiple=True)
    assert settled == [("a", None), ("b", None)]


def test_a_late_or_repeated_confirm_changes_nothing() -> None:
    """What was given up stays given up."""
    outstanding, settled = three()
    outstanding.give_up(REFUSED, lambda each: each.written_at < 25.0)
    outstanding.answered(1, multiple=False)
    outstanding.answered(2, multiple=True)
    outstanding.oldest.settle(REFUSED)  # by its call's deadline
    outstanding.answered(3, multiple=False)
    assert settled == [("a", REFUSED), ("b", REFUSED), ("c", REFUSED)]


def test_a_returned_message_fails_when_its_ack_comes() -> None:
    """The broker acknowledges what it could not route, after saying so."""
    outstanding, settled = three()
    outstanding.returned(("", "b", "b"), REFUSED)
    outstanding.returned(("", "b", "b"), REFUSED)  # no second such message: nobody else is blamed
    assert settled == []
    outstanding.answered(3, multiple=True)
    assert settled == [("a", None), ("b", REFUSED), ("c", None)]
