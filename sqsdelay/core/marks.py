"""Marks: what is to become of a message that waits in a delay queue, told through the store."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

from sqsdelay.core.stored_message import check_stored_due, check_stored_id
from sqsdelay.limits import MAX_RETENTION_SECONDS

MARK_LIFETIME_SECONDS: Final = MAX_RETENTION_SECONDS + 24 * 3600
"""How long a mark is kept. A copy in the delay queue meets the delay consumer, and so its mark, before
its retention ends; the day is for the batch that was in hand when the mark was left. Stores keep the end
of it and read the beginning from that: it must never be changed."""

MARK_LIFETIME_MS: Final = MARK_LIFETIME_SECONDS * 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """Cancels a message, or moves it: copies of it that were first sent before the mark was left.

    A message sent later is another one, whatever its id.

    Args:
        message_id: whose mark it is.
        at_ms: when it was left, broker's clock, epoch milliseconds.
        due_ms: the new due time, epoch milliseconds; None cancels the message.
        cancelled_ms: on a mark that moves, as a store has it: when a message of this id was cancelled
            before. Copies first sent by then are cancelled still.

    Raises:
        InvalidMessage: an id or due time no store keeps.
    """

    message_id: str
    at_ms: int
    due_ms: int | None = None
    cancelled_ms: int | None = None

    def __post_init__(self) -> None:
        check_stored_id(self.message_id)
        if self.due_ms is not None:
            check_stored_due(self.due_ms)

    @property
    def until_ms(self) -> int:
        """When it may be forgotten, epoch milliseconds."""
        return self.at_ms + MARK_LIFETIME_MS

    def cancels(self, first_sent_ms: int | None) -> bool:
        """Whether a copy is cancelled by it; ``first_sent_ms`` None is before any mark."""
        cancelled_ms = self.at_ms if self.due_ms is None else self.cancelled_ms
        return cancelled_ms is not None and (first_sent_ms is None or first_sent_ms <= cancelled_ms)

    def moves(self, first_sent_ms: int | None) -> bool:
        """Whether a copy is due at ``due_ms`` by it; ``first_sent_ms`` None is before any mark."""
        if self.due_ms is None or self.cancels(first_sent_ms):
            return False
        return first_sent_ms is None or first_sent_ms <= self.at_ms

    def after(self, before: Mark | None) -> Mark:
        """The one mark that both come to, where ``before`` was left earlier."""
        if before is None or self.due_ms is None:
            return self
        cancelled_ms = before.at_ms if before.due_ms is None else before.cancelled_ms
        return replace(self, cancelled_ms=cancelled_ms)


def in_force(marks: Iterable[Mark]) -> dict[str, Mark]:
    """Of each message the mark that counts: the last, which knows of a cancellation before it."""
    last: dict[str, Mark] = {}
    for mark in marks:
        last[mark.message_id] = mark.after(last.get(mark.message_id))
    return last


def kept_mark(
    message_id: str, due_ms: int | None, until_ms: int, cancelled_ms: int | None = None
) -> Mark:
    """The mark of a store's row."""
    at_ms = until_ms - MARK_LIFETIME_MS
    return Mark(message_id=message_id, at_ms=at_ms, due_ms=due_ms, cancelled_ms=cancelled_ms)
