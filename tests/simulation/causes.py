"""The documented causes of a duplicate, and which of them a journal shows for a given one."""

from __future__ import annotations

from collections import defaultdict
from enum import StrEnum
from itertools import pairwise

from sqsdelay.limits import DEDUPLICATION_INTERVAL_SECONDS, ERROR_QUEUE_SUFFIX, FIFO_SUFFIX
from tests.simulation.journal import Action, Journal, Step


class Cause(StrEnum):
    """Why a message was delivered once more. docs/reliability.md explains each; there are no others."""

    ANSWER_LOST = "answer lost"
    """The queue took the message, the sender of it was not told, and sent it again."""
    DIED = "died before the delete"
    """A consumer handed over and was killed before it deleted its copy."""
    DELETE_FAILED = "delete failed"
    """It handed over, its delete did not take effect, and another consumer received the copy."""
    HELD = "held too long"
    """It handed over later than its copy's visibility timeout; another had received the copy."""
    BOTH_WAYS = "delay queue, then destination"
    """It went to the delay queue, whose answer or the delete after it failed; tried again when less
    than a hop remained, it went to the destination as well."""
    AGAIN_LATE = "again after 5 minutes"
    """It went to a FIFO queue (the delay queue, or a FIFO destination), and the answer or the delete
    after it failed; tried again after the deduplication interval, it went there a second time."""
    CLAIM_BROKEN = "claim broken before its checkpoint"
    """A dispatcher sent a batch and could not note it in the store; or a store's answer was lost, and its
    messages were stored again."""


def forks(key: str, journal: Journal) -> list[tuple[Step, Step]]:
    """Where one message became two: pairs of sends of one copy, both of which made another one.

    Every delivery above the first has a fork of its own, so these bound the duplicates.
    """
    sent_on: dict[str | None, dict[str, Step]] = defaultdict(dict)
    for step in journal.of(key):
        if step.made is not None and not step.queue.endswith(ERROR_QUEUE_SUFFIX):
            sent_on[step.copy].setdefault(step.made, step)
    return [pair for sends in sent_on.values() for pair in pairwise(sends.values())]


def cause_of(first: Step, second: Step, journal: Journal) -> Cause | None:
    """Why a copy was sent on a second time; None if nothing documented explains it."""
    why = _why_not_settled(first, second, journal)
    if why is None or first.queue != second.queue:
        return why and Cause.BOTH_WAYS
    if not first.queue.endswith(FIFO_SUFFIX):
        return why
    apart_ms = _made_ms(second, journal) - _made_ms(first, journal)
    return Cause.AGAIN_LATE if apart_ms >= DEDUPLICATION_INTERVAL_SECONDS * 1000 else None


def _made_ms(send: Step, journal: Journal) -> int:
    """When the copy a send names was made: by itself, or by the one that deduplication compared it to."""
    return min(step.at_ms for step in journal.of(send.key) if step.made == send.made)


def _why_not_settled(first: Step, second: Step, journal: Journal) -> Cause | None:
    """Why the copy was there still, to be sent on a second time."""
    overtaken = not second.answered and second.asked_ms < first.at_ms
    if not first.answered or overtaken:
        return Cause.ANSWER_LOST
    deletes = [
        step
        for step in journal.of(first.key)
        if step.action is Action.DELETE
        and (step.party, step.copy) == (first.party, first.copy)
        and first.number < step.number < second.number
    ]
    if any(not step.acted for step in deletes):
        again = first.party == second.party
        return None if again and first.party in journal.remembering else Cause.DELETE_FAILED
    if first.party in journal.died and not deletes:
        return Cause.DIED
    received = _received(second, journal)
    if received is not None and not any(step.number < received for step in deletes):
        return Cause.HELD
    return None


def _received(send: Step, journal: Journal) -> int | None:
    """When a party had received the copy it sent on; None for the sender's own send."""
    numbers = [
        step.number
        for step in journal.of(send.key)
        if step.action is Action.RECEIVE
        and (step.party, step.copy) == (send.party, send.copy)
        and step.number < send.number
    ]
    return max(numbers, default=None)
