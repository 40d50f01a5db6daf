"""The schedule of an endpoint's waiting messages: list, cancel and move them while they wait."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime
from enum import StrEnum
from typing import Final

from sqsdelay.core.delay import due_at_ms
from sqsdelay.core.stored_message import Amendment, StoredMessage, check_stored_id
from sqsdelay.errors import InvalidMessage
from sqsdelay.ledger.events import Event, EventKind, Ledger, Source, record_safely
from sqsdelay.ports.stores import ParkingPlace

_PAGE: Final = 100
"""Messages in memory at once: at the 1 MiB of a body, 100 MiB."""


class Change(StrEnum):
    """The answer to a request to cancel or reschedule a message."""

    DONE = "done"
    """It was waiting in the store and is now cancelled or rescheduled."""

    RELEASED = "released"
    """Too late: it is being released at this moment."""

    REQUESTED = "requested"
    """It does not wait in the store. If it is in the delay queue, the delay consumer cancels or moves
    it at its next hop or hand-over. If it was released or cancelled before, or never was, nothing
    happens."""


class Schedule:
    """An endpoint's waiting messages, as its store knows them.

    A change first leaves an amendment and then looks into the store. The delay consumer reads amendments
    once more after it has parked a message, so neither can miss the other.

    Args:
        store: the endpoint's store.
        endpoint: its name, as the ledger is to have it.
        ledger: where to record what was cancelled or rescheduled in the store; None records nothing.
    """

    def __init__(
        self, store: ParkingPlace, *, endpoint: str = "", ledger: Ledger | None = None
    ) -> None:
        self._store = store
        self._endpoint = endpoint
        self._ledger = ledger

    def cancel(self, message_id: str, *, now_ms: int) -> Change:
        """Cancel a message: what was sent of it by now, and nothing sent later.

        Args:
            now_ms: the latest reading that the broker's clock may show, epoch milliseconds.

        Raises:
            InvalidMessage: not an id that a store can keep.
            ConfigurationError: this store cannot find such an id; nothing is cancelled.
            StoreUnavailable, StoreMissing: the outcome is unknown; repeating the call is safe.
        """
        self._check_can_be_found(message_id)
        self._amend(message_id, now_ms)
        change = self._change(message_id, self._store.cancel([message_id]) == [True])
        self._record(change, message_id, now_ms)
        return change

    def reschedule(self, message_id: str, due_ms: int, *, now_ms: int) -> Change:
        """Move a message to another due time, epoch milliseconds; nothing of it that is sent later.

        Args:
            now_ms: the latest reading that the broker's clock may show, epoch milliseconds.

        Raises:
            InvalidMessage: an id or due time that a store cannot keep, or sooner than it can release.
            ConfigurationError: this store cannot find such an id; nothing is moved.
            StoreUnavailable, StoreMissing: the outcome is unknown; repeating the call is safe.
        """
        self._check_far_ahead(message_id, due_ms, now_ms)
        self._amend(message_id, now_ms, due_ms)
        change = self._change(message_id, self._store.reschedule(message_id, due_ms))
        self._record(change, message_id, now_ms, due_ms)
        return change

    def _check_can_be_found(self, message_id: str) -> StoredMessage | None:
        """Before an amendment is left: it would apply although the call was refused."""
        check_stored_id(message_id)
        return self._store.find(message_id)

    def _check_far_ahead(self, message_id: str, due_ms: int, now_ms: int) -> None:
        """Before an amendment is left: it would apply to the message when that comes out, too late."""
        kept = self._check_can_be_found(message_id)
        least = self._store.soonest_seconds
        if kept is not None and least and due_ms - now_ms < least * 1000:
            raise InvalidMessage(
                f"message {message_id} waits where it cannot be released within {least} s; cancel it, and "
                "send it anew with the short delay"
            )

    def pending(
        self, *, due_from: datetime | None = None, due_before: datetime | None = None
    ) -> Iterator[StoredMessage]:
        """Messages in the store, the earliest due first; read page by page.

        Messages in the delay queue are not among them: SQS does not list messages.

        Args:
            due_from: leaves out what is due before; with its time zone, as ``due_before``.
            due_before: leaves out what is due then or later.

        Raises:
            InvalidDelay: a time without time zone.
            StoreUnavailable, StoreMissing
        """
        due_from_ms = None if due_from is None else due_at_ms(due_from)
        due_before_ms = None if due_before is None else due_at_ms(due_before)
        return self._pending(due_from_ms, due_before_ms)

    def _pending(
        self, due_from_ms: int | None, due_before_ms: int | None
    ) -> Iterator[StoredMessage]:
        after = None
        while page := self._store.pending(
            _PAGE, after=after, due_from_ms=due_from_ms, due_before_ms=due_before_ms
        ):
            yield from page
            after = (page[-1].due_ms, page[-1].message_id)

    def _change(self, message_id: str, done: bool) -> Change:
        if done:
            return Change.DONE
        return Change.REQUESTED if self._store.find(message_id) is None else Change.RELEASED

    def _record(
        self, change: Change, message_id: str, now_ms: int, due_ms: int | None = None
    ) -> None:
        """A change that was only requested is recorded by the delay consumer when it meets the message."""
        if self._ledger is not None and change is Change.DONE:
            done = _changed(self._endpoint, message_id, at_ms=now_ms + 1, due_ms=due_ms)
            record_safely(self._ledger, done)

    def _amend(self, message_id: str, now_ms: int, due_ms: int | None = None) -> None:
        # A sender that could not read amendments set its message apart from those left by its now.
        amendment = Amendment(message_id=message_id, at_ms=now_ms + 1, due_ms=due_ms)
        before = self._store.amendments([message_id]).get(message_id)
        if before is not None and before.at_ms >= amendment.at_ms:
            # Clocks are known to the second: this one must cover what was sent since the last one.
            amendment = replace(amendment, at_ms=before.at_ms + 1)
        self._store.amend([amendment])


def _changed(
    endpoint: str, message_id: str, *, at_ms: int, due_ms: int | None = None
) -> Iterator[Event]:
    """A message that waits in a store was moved to ``due_ms``, or cancelled without one."""
    yield Event(
        kind=EventKind.CANCELLED if due_ms is None else EventKind.RESCHEDULED,
        at_ms=at_ms,
        endpoint=endpoint,
        message_id=message_id,
        source=Source.SENDER,
        due_ms=due_ms,
    )
