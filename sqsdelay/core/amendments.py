"""Amendments: cancellations and new due times, left in the store for copies in a delay queue."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

from sqsdelay.core.stored_message import check_stored_due, check_stored_id
from sqsdelay.limits import MAX_RETENTION_SECONDS

AMENDMENT_LIFETIME_SECONDS: Final = MAX_RETENTION_SECONDS + 24 * 3600
"""How long an amendment is kept. A copy in the delay queue meets the delay consumer, and so its
amendment, before its retention ends; the extra day covers the batch that was in hand when the amendment
was left. It must never change: SQL stores keep only the end of the lifetime."""

AMENDMENT_LIFETIME_MS: Final = AMENDMENT_LIFETIME_SECONDS * 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Amendment:
    """A cancellation or a new due time, for copies first sent before it was left.

    A message sent later is a different one, even with the same id.

    Args:
        message_id: the message it applies to.
        at_ms: when it was left, on the broker's clock, epoch milliseconds.
        due_ms: the new due time, epoch milliseconds; None cancels the message.
        cancelled_ms: set by stores on a new due time: when a message of this id was cancelled earlier.
            Copies first sent by then stay cancelled.

    Raises:
        InvalidMessage: a store cannot keep the id or the due time.
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
        """When it may be deleted, epoch milliseconds."""
        return self.at_ms + AMENDMENT_LIFETIME_MS

    def cancels(self, first_sent_ms: int | None) -> bool:
        """Whether it cancels a copy; ``first_sent_ms`` None is before any amendment."""
        cancelled_ms = self.at_ms if self.due_ms is None else self.cancelled_ms
        return cancelled_ms is not None and (first_sent_ms is None or first_sent_ms <= cancelled_ms)

    def new_due_ms(self, first_sent_ms: int | None) -> int | None:
        """A copy's new due time; None if it keeps its own or is cancelled.

        ``first_sent_ms`` None is before any amendment.
        """
        if self.cancels(first_sent_ms):
            return None
        applies = first_sent_ms is None or first_sent_ms <= self.at_ms
        return self.due_ms if applies else None

    def after(self, earlier: Amendment | None) -> Amendment:
        """This amendment, with any cancellation that an earlier one made."""
        if earlier is None or self.due_ms is None:
            return self
        cancelled_ms = earlier.at_ms if earlier.due_ms is None else earlier.cancelled_ms
        return replace(self, cancelled_ms=cancelled_ms)


def latest_amendments(amendments: Iterable[Amendment]) -> dict[str, Amendment]:
    """Each message's latest amendment, with any earlier cancellation."""
    last: dict[str, Amendment] = {}
    for amendment in amendments:
        last[amendment.message_id] = amendment.after(last.get(amendment.message_id))
    return last


def amendment_from_row(
    message_id: str, due_ms: int | None, until_ms: int, cancelled_ms: int | None = None
) -> Amendment:
    """An amendment from a row of a SQL store."""
    at_ms = until_ms - AMENDMENT_LIFETIME_MS
    return Amendment(message_id=message_id, at_ms=at_ms, due_ms=due_ms, cancelled_ms=cancelled_ms)
