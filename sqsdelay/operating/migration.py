"""Moving on from a timeout store: its messages are sent through native delays, then removed.

Safe beside running dispatchers and timeout managers, beside cancellations and new due times, and when it
dies: a message is *taken* first, which its store remembers. From then on nobody else cancels, moves or
(until it is due) releases it. What a run that died had taken, the next one sends again, and the delay queue
drops the second copy.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import Any, Final

from sqsdelay.core.delay import SystemClock, utc
from sqsdelay.core.limits import MAX_BATCH_ENTRIES
from sqsdelay.core.message import DEDUPLICATION_ID, Message, text_of
from sqsdelay.core.readable import instant
from sqsdelay.core.stored_message import StoredMessage, text_for_sqs
from sqsdelay.errors import ConfigurationError, InvalidMessage, SqsDelayError
from sqsdelay.parking.parking import Listing
from sqsdelay.ports.stores import Movable, ParkingPlace
from sqsdelay.sending.sender import QueueSender

DEFAULT_CUT_OFF_MS: Final = 24 * 3600 * 1000
"""A day from now: a dispatcher that releases ahead, and clocks that differ, are far from it."""
_PAGE: Final = 1_000
_AT_ONCE: Final = 10 * MAX_BATCH_ENTRIES
"""Taken, sent and then removed: after a crash, at most this many are sent again."""
_HAD: Final = (
    "it became due, and a dispatcher has it: it may arrive twice; a later --due-from avoids this"
)


class MigrationStatus(StrEnum):
    """What became of a stored message."""

    MIGRATED = "migrated"
    FAILED = "failed"
    """Not sent; still in the store."""
    SENT_NOT_REMOVED = "sent-not-removed"
    """Sent, but it became due meanwhile, and a dispatcher has it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Migrated:
    """One message's outcome; ``error`` says why it was not migrated as meant."""

    message: StoredMessage
    status: MigrationStatus
    error: str | None = None


class Migration:
    """Sends the messages of a store in SQLite or PostgreSQL through native delays; ConfigurationError where a
    store's cannot be taken. ``due_from_ms``: the cut-off: what is due before stays for whoever serves the
    store now; a day from now if left out. ``amendments_to``: the delay consumer's store, if another:
    cancellations and new due times go there."""

    def __init__(
        self,
        store: ParkingPlace,
        sender: QueueSender,
        *,
        due_from_ms: int | None = None,
        amendments_to: ParkingPlace | None = None,
    ) -> None:
        if not isinstance(store, Movable):
            raise ConfigurationError(
                f"a {type(store).__name__} cannot hand its messages over, only sqlite:///FILE and "
                "postgresql://… can; point senders at the delay queue, and let this store release what it "
                "has"
            )
        self._store: Movable = store
        self._sender, self._amendments_to = sender, amendments_to
        a_day_on = SystemClock().now_ms() + DEFAULT_CUT_OFF_MS
        self.due_from_ms = a_day_on if due_from_ms is None else due_from_ms

    def plan(self) -> dict[str, Any]:
        """What `run` would do: how many messages it would migrate, of each destination, and leave, for they
        are due before the cut-off; and when the first and the last are due."""
        destinations: Counter[str] = Counter()
        first = last = None
        listing = Listing(due_from_ms=self.due_from_ms)
        for message in listing.read(self._store):
            destinations[message.destination] += 1
            first, last = first or message, message
        return {
            "would_migrate": listing.listed,
            "left": max(0, self._store.pending_count() - listing.listed),
            "due_from": utc(self.due_from_ms).isoformat(),
            "earliest": first and instant(first.due_ms),
            "latest": last and instant(last.due_ms),
            "destinations": dict(destinations),
        }

    def run(self) -> Iterator[Migrated]:
        """Send and remove, the earliest due first; an outcome per message, as they come.

        It begins with what an earlier run had taken when it ended. Run one at a time. Raises StoreError: what
        was sent last may still be stored, and is sent again by the next run."""
        take = partial(self._store.take, due_from_ms=self.due_from_ms)
        # What was taken before, and fails now, stays taken: it may have been sent.
        for read, put_back in ((self._store.taken, False), (take, True)):
            after = None
            while page := read(_AT_ONCE, after=after):
                after = (page[-1].due_ms, page[-1].message_id)
                # All of the page at once: whoever reads the outcomes may take his time.
                yield from list(self._migrate(page, put_back=put_back))
        if self._amendments_to is not None:
            # Last, with those that were left meanwhile.
            self._move_amendments(self._amendments_to)

    def _move_amendments(self, to: ParkingPlace) -> None:
        after_id = ""
        while page := self._store.all_amendments(_PAGE, after_id=after_id):
            after_id = page[-1].message_id
            there = to.amendments([amendment.message_id for amendment in page])
            if later := [
                a for a in page if a.message_id not in there or there[a.message_id].at_ms < a.at_ms
            ]:
                to.amend(later)

    def _migrate(self, messages: Sequence[StoredMessage], *, put_back: bool) -> Iterator[Migrated]:
        by_destination = defaultdict[str, list[StoredMessage]](list)
        for message in messages:
            by_destination[message.destination].append(message)
        for destination, group in by_destination.items():
            failed = self._send(destination, group)
            if put_back and failed:
                self._store.put_back(list(failed))
            sent = [m.message_id for m in group if m.message_id not in failed]
            removed = dict(zip(sent, self._store.remove_taken(sent) if sent else [], strict=True))
            for message in group:
                status, why = MigrationStatus.MIGRATED, None
                if message.message_id in failed:
                    status, why = MigrationStatus.FAILED, str(failed[message.message_id])
                elif not removed[message.message_id]:
                    status, why = MigrationStatus.SENT_NOT_REMOVED, _HAD
                yield Migrated(message=message, status=status, error=why)

    def _send(self, destination: str, group: Sequence[StoredMessage]) -> dict[str, SqsDelayError]:
        """Send them; by message id, why some were not sent."""
        failed: dict[str, SqsDelayError] = {}
        sendable: list[Message] = []
        for stored in group:
            try:
                sendable.append(as_message(stored))
            except SqsDelayError as error:
                failed[stored.message_id] = error
        ids = [message.message_id or "" for message in sendable]
        try:
            results = self._sender.send_many(destination, sendable)
        except SqsDelayError as error:
            return failed | dict.fromkeys(ids, error)
        return failed | {i: r.error for i, r in zip(ids, results, strict=True) if r.error}


def as_message(stored: StoredMessage) -> Message:
    """A stored message for a sender, with its id for deduplication and its own due time. Raises
    InvalidMessage: a body that is no text, or a row that is no message."""
    if stored.unreadable is not None:
        raise InvalidMessage(stored.unreadable)
    attributes = {n: value for n, value in stored.attributes.items() if n != DEDUPLICATION_ID}
    return Message(
        text_for_sqs(stored),
        due_at=utc(stored.due_ms),
        attributes=attributes,
        message_id=stored.message_id,
        message_group_id=stored.group_id,
        message_deduplication_id=text_of(stored.attributes, DEDUPLICATION_ID),
        trace_header=stored.trace_header,
    )
