"""Marks: what is to become of a message that waits in a delay queue, told through the store."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from sqsdelay.limits import MAX_RETENTION_SECONDS
from sqsdelay.stored import check_stored_due, check_stored_id

MARK_LIFETIME_SECONDS: Final = MAX_RETENTION_SECONDS + 24 * 3600
"""How long a mark is kept. A copy in the delay queue meets the delay consumer, and so its mark, before
its retention ends; the day is for the batch that was in hand when the mark was left."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """Cancels a message, or moves it.

    Args:
        message_id: whose mark it is.
        due_ms: the new due time, epoch milliseconds; None cancels the message.

    Raises:
        InvalidMessage: an id or due time no store keeps.
    """

    message_id: str
    due_ms: int | None = None

    def __post_init__(self) -> None:
        check_stored_id(self.message_id)
        if self.due_ms is not None:
            check_stored_due(self.due_ms)


def in_force(marks: Iterable[Mark]) -> dict[str, Mark]:
    """Of each message the mark that counts: the last, unless it was cancelled before."""
    last: dict[str, Mark] = {}
    for mark in marks:
        before = last.get(mark.message_id)
        if before is None or before.due_ms is not None or mark.due_ms is None:
            last[mark.message_id] = mark
    return last
