"""Moving on from a timeout store: its messages are sent through native delays, then removed.

Safe beside a running timeout manager or dispatcher, as long as they do not release the same messages
meanwhile: hence the cut-off time. Safe to repeat.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, Protocol, runtime_checkable

from sqsdelay.core.delay import utc
from sqsdelay.core.message import DEDUPLICATION_ID, Message, text_of
from sqsdelay.core.stored_message import Amendment, StoredMessage, latest_amendments
from sqsdelay.errors import ConfigurationError, InvalidMessage, SqsDelayError
from sqsdelay.limits import MAX_BATCH_ENTRIES
from sqsdelay.parking.parking import kept_as, refused
from sqsdelay.ports.stores import ParkingPlace
from sqsdelay.sending.sender import QueueSender

_PAGE: Final = 1_000
_AT_ONCE: Final = 10 * MAX_BATCH_ENTRIES
"""Sent before they are removed: after a crash, at most this many are sent again."""


class MigrationStatus(StrEnum):
    """What became of a stored message."""

    MIGRATED = "migrated"
    FAILED = "failed"
    """Not sent; still in the store."""
    SENT_NOT_REMOVED = "sent-not-removed"
    """Sent, but released, cancelled or moved in the store at the same moment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Migrated:
    """One message's outcome; ``error`` says why it was not migrated as meant."""

    message: StoredMessage
    status: MigrationStatus
    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a migration would do. ``left`` are due before the cut-off, by count."""

    messages: int = 0
    left: int = 0
    earliest_ms: int | None = None
    latest_ms: int | None = None
    destinations: dict[str, int] = field(default_factory=dict)


class Source(Protocol):
    """What a migration empties: a store, or the part of one that it needs."""

    def pending(
        self, limit: int, *, after: tuple[int, str] | None = None, due_from_ms: int | None = None
    ) -> list[StoredMessage]:
        """As `DelayedMessageStore.pending`."""
        ...

    def pending_count(self) -> int:
        """As `DelayedMessageStore.pending_count`."""
        ...

    def cancel(self, message_ids: Sequence[str]) -> list[bool]:
        """As `DelayedMessageStore.cancel`."""
        ...


@runtime_checkable
class HasAmendments(Protocol):
    """A source whose amendments move too, for messages in the delay queue."""

    def all_amendments(self) -> Iterator[Amendment]:
        """All amendments, in no particular order."""
        ...


class Migration:
    """Sends the messages of ``store`` that are due at or after the cut-off with ``sender``.

    Args:
        store: the timeout store.
        sender: sends through native delays.
        due_from_ms: the cut-off, epoch milliseconds: what is due before stays for whoever serves
            the store now.
    """

    def __init__(self, store: Source, sender: QueueSender, *, due_from_ms: int) -> None:
        self._store = store
        self._sender = sender
        self._due_from_ms = due_from_ms

    def plan(self) -> Plan:
        """Count, without sending or removing anything.

        Raises:
            StoreError
        """
        destinations: dict[str, int] = {}
        earliest = latest = None
        for message in self._pending():
            earliest = message.due_ms if earliest is None else earliest
            latest = message.due_ms
            destinations[message.destination] = destinations.get(message.destination, 0) + 1
        count = sum(destinations.values())
        return Plan(
            messages=count,
            left=max(0, self._store.pending_count() - count),
            earliest_ms=earliest,
            latest_ms=latest,
            destinations=destinations,
        )

    def run(self) -> Iterator[Migrated]:
        """Send and remove, the earliest due first; an outcome per message, as they come.

        A message is removed only once its send was confirmed.

        Raises:
            StoreError: what was sent last may still be stored, and is sent again by the next run.
        """
        chunk: list[StoredMessage] = []
        for message in self._pending():
            chunk.append(message)
            if len(chunk) == _AT_ONCE:
                yield from self._migrate(chunk)
                chunk = []
        yield from self._migrate(chunk)

    def _pending(self) -> Iterator[StoredMessage]:
        """Page by page, by due time and id, so that removing on the way skips nothing."""
        after = None
        while page := self._store.pending(_PAGE, after=after, due_from_ms=self._due_from_ms):
            yield from page
            after = (page[-1].due_ms, page[-1].message_id)

    def _migrate(self, messages: Sequence[StoredMessage]) -> list[Migrated]:
        by_destination: dict[str, list[StoredMessage]] = {}
        for message in messages:
            by_destination.setdefault(message.destination, []).append(message)
        return [
            outcome
            for destination, group in by_destination.items()
            for outcome in self._send(destination, group)
        ]

    def _send(self, destination: str, group: Sequence[StoredMessage]) -> list[Migrated]:
        outcomes: list[Migrated] = []
        sendable: list[tuple[StoredMessage, Message]] = []
        for stored in group:
            try:
                sendable.append((stored, as_message(stored)))
            except SqsDelayError as error:
                outcomes.append(_failed(stored, error))
        try:
            results = self._sender.send_many(destination, [message for _, message in sendable])
        except SqsDelayError as error:
            return outcomes + [_failed(stored, error) for stored, _ in sendable]
        sent: list[StoredMessage] = []
        for (stored, _), result in zip(sendable, results, strict=True):
            if result.error is None:
                sent.append(stored)
            else:
                outcomes.append(_failed(stored, result.error))
        removed = self._store.cancel([stored.message_id for stored in sent]) if sent else []
        for stored, gone in zip(sent, removed, strict=True):
            outcomes.append(_sent(stored, removed=gone))
        return outcomes


class Transfer(Migration):
    """Moves the messages of one store that are due at or after the cut-off into another.

    Args:
        store: what is emptied.
        target: what it goes into.
        due_from_ms: the cut-off, epoch milliseconds.
    """

    def __init__(self, store: Source, target: ParkingPlace, *, due_from_ms: int) -> None:
        self._store = store
        self._target = target
        self._due_from_ms = due_from_ms

    def run(self) -> Iterator[Migrated]:
        """Move amendments, then messages; one that the target has no room for under its id stays.

        Raises:
            StoreError: what was stored last may still be in the first store, too; run it again.
        """
        if isinstance(self._store, HasAmendments):
            for amendment in self._store.all_amendments():
                self._amend(amendment)
        yield from super().run()

    def _amend(self, amendment: Amendment) -> None:
        """Whoever uses the target may have cancelled or moved the message since: the last one stands."""
        known = self._target.amendments([amendment.message_id])
        both = sorted([amendment, *known.values()], key=lambda each: each.at_ms)
        last = latest_amendments(both)
        if last != known:
            self._target.amend(list(last.values()))

    def _migrate(self, messages: Sequence[StoredMessage]) -> list[Migrated]:
        unreadable = [
            _failed(message, InvalidMessage(message.unreadable))
            for message in messages
            if message.unreadable is not None
        ]
        if unreadable:
            readable = [message for message in messages if message.unreadable is None]
            return unreadable + (self._migrate(readable) if readable else [])
        try:
            stored = self._target.store(messages)
        except InvalidMessage as error:
            if len(messages) == 1:
                return [_failed(messages[0], error)]
            return [outcome for message in messages for outcome in self._migrate([message])]
        kept, outcomes = list[StoredMessage](), list[Migrated]()
        for message, is_new in zip(messages, stored, strict=True):
            problem = None if is_new else self._taken(message)
            if problem is None:
                kept.append(message)
            else:
                outcomes.append(_failed(message, problem))
        removed = self._store.cancel([message.message_id for message in kept]) if kept else []
        for message, gone in zip(kept, removed, strict=True):
            taken_back = not gone and self._take_back(message)
            outcomes.append(_not_moved(message) if taken_back else _sent(message, removed=gone))
        return outcomes

    def _take_back(self, message: StoredMessage) -> bool:
        """Whoever serves the first store has it in hand, or it was cancelled there."""
        try:
            return self._target.cancel([message.message_id]) == [True]
        except ConfigurationError:
            return False  # The target finds no such id.

    def _taken(self, message: StoredMessage) -> SqsDelayError | None:
        """Why a message whose id is taken must stay where it is; None if an earlier run stored it."""
        try:
            return refused(message, kept_as(self._target, message))
        except ConfigurationError as error:
            return error


def as_message(stored: StoredMessage) -> Message:
    """A stored message for a sender, with its id for deduplication and its own due time.

    Raises:
        InvalidMessage: a body that is no text, or a row that is no message.
    """
    if stored.unreadable is not None:
        raise InvalidMessage(stored.unreadable)
    try:
        body = stored.body.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidMessage(
            f"the stored body of {stored.message_id} is not UTF-8 ({error}); SQS accepts only text"
        ) from error
    attributes = dict(stored.attributes)
    attributes.pop(DEDUPLICATION_ID, None)
    return Message(
        body,
        due_at=utc(stored.due_ms),
        attributes=attributes,
        message_id=stored.message_id,
        message_group_id=stored.group_id,
        message_deduplication_id=text_of(stored.attributes, DEDUPLICATION_ID),
        trace_header=stored.trace_header,
    )


def _sent(message: StoredMessage, *, removed: bool) -> Migrated:
    if removed:
        return Migrated(message=message, status=MigrationStatus.MIGRATED)
    return Migrated(
        message=message,
        status=MigrationStatus.SENT_NOT_REMOVED,
        error="it was released or cancelled in the store meanwhile, but will arrive all the "
        "same; a later --due-from avoids this",
    )


def _not_moved(message: StoredMessage) -> Migrated:
    return Migrated(
        message=message,
        status=MigrationStatus.SENT_NOT_REMOVED,
        error="it was released or cancelled in the first store meanwhile, and was not moved",
    )


def _failed(message: StoredMessage, error: SqsDelayError) -> Migrated:
    return Migrated(message=message, status=MigrationStatus.FAILED, error=str(error))
