"""Parking: messages that are due much later wait in a store instead of hopping through the delay queue. There
they can be listed, cancelled and moved."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from typing import Final

from sqsdelay.core.delay import due_at_ms, utc
from sqsdelay.core.readable import one_line
from sqsdelay.core.stored_message import Amendment, StoredMessage, check_stored_id
from sqsdelay.errors import (
    ConfigurationError,
    InvalidMessage,
    InvalidSetting,
    MessageConflict,
    ReadInPart,
    SchemaMismatch,
    SqsDelayError,
    StoredInPart,
    StoreError,
    StoreUnavailable,
)
from sqsdelay.ledger.events import Event, EventKind, Ledger, Source, record_safely
from sqsdelay.limits import DEFAULT_HOP_SECONDS
from sqsdelay.ports.stores import ParkingPlace

DEFAULT_PARK_AFTER_SECONDS: Final = 9 * DEFAULT_HOP_SECONDS
"""Where hops begin to cost more than a store: with 8 hops and a last message timer ahead, 2.25 hours.

It is what ``benchmarks.cost_by_delay`` finds at the shipped prices, for a message of 1 KiB, hops in full
batches of ten (at their cheapest) and a DynamoDB store; a test keeps it so. Looking for amendments, a
read unit or more for each hop of a batch, makes hops dearer still: parking from here on never costs more."""

StoreOf = Callable[[str], ParkingPlace]
"""From an endpoint's name to its store."""


@dataclass(frozen=True, slots=True)
class ParkingSettings:
    """Where messages are parked, and which.

    Args:
        store: an endpoint's store, or a function from an endpoint's name to its store.
        after_seconds: messages with more than this remaining are parked.

    Raises:
        ConfigurationError: ``after_seconds`` below 0.
    """

    store: ParkingPlace | StoreOf
    after_seconds: int = DEFAULT_PARK_AFTER_SECONDS

    def __post_init__(self) -> None:
        if self.after_seconds < 0:
            raise InvalidSetting("use 0 or more", park_after_seconds=self.after_seconds)


def parking_settings(
    store: ParkingPlace | StoreOf | None, park_after_seconds: int
) -> ParkingSettings | None:
    """The settings as users give them; None without a store.

    Raises:
        ConfigurationError: ``park_after_seconds`` below 0, or given without a store.
    """
    if store is not None:
        return ParkingSettings(store, park_after_seconds)
    if park_after_seconds != DEFAULT_PARK_AFTER_SECONDS:
        raise InvalidSetting(
            "has no effect without a store; give a store, or leave it out",
            park_after_seconds=park_after_seconds,
        )
    return None


logger = logging.getLogger(__name__)


def check(store: ParkingPlace) -> None:
    """Raise what keeps a store from being used, by a question that every one answers."""
    store.amendments(["-"])


class Parking:
    """A store as the delay consumer and senders use it: parks messages and reads amendments.

    Args:
        store: the endpoint's store.
        after_seconds: messages with more than this remaining are parked.

    Raises:
        ConfigurationError: ``after_seconds`` is sooner than the place takes messages.
    """

    def __init__(self, store: ParkingPlace, *, after_seconds: int) -> None:
        self.store = store
        self.after_seconds = after_seconds
        if after_seconds < store.soonest_seconds:
            raise InvalidSetting(
                f"use {store.soonest_seconds} or more: this store takes nothing that is due sooner",
                park_after_seconds=after_seconds,
            )

    def park(self, messages: Sequence[StoredMessage]) -> list[bool | SqsDelayError]:
        """Store in one call; per message whether it is new in the store, which has it now, or an error.

        A message the store cannot keep (too large) fails alone; an outage fails them all.
        """
        try:
            answered = list(zip(messages, self._stored(messages), strict=True))
            new = [message for message, outcome in answered if outcome is True]
            return [
                outcome if isinstance(outcome, StoreError) else self._refused(message, outcome, new)
                for message, outcome in answered
            ]
        except InvalidMessage as error:
            if len(messages) == 1:
                return [error]
            return [outcome for message in messages for outcome in self.park([message])]
        except StoreError as error:
            return [error] * len(messages)

    def _stored(self, messages: Sequence[StoredMessage]) -> Sequence[bool | StoreError]:
        try:
            return self.store.store(messages)
        except StoredInPart as error:
            return error.outcomes

    def _refused(
        self, message: StoredMessage, is_new: bool, new: Sequence[StoredMessage]
    ) -> bool | SqsDelayError:
        """Whether a message is new; why it was not stored if another has its id.

        Args:
            new: what the call has stored. A message of it may have the same id; not every store could
                find it by that.
        """
        if is_new:
            return True
        kept: list[StoredMessage | None] = [m for m in new if m.message_id == message.message_id]
        try:
            kept = kept or [self.store.find_due(message.message_id, message.due_ms)]
        except ConfigurationError as error:
            return error
        conflict = None
        for each in kept:
            conflict = refused(message, each)
            if conflict is None:
                break
        return conflict or False

    def amendments(self, message_ids: Sequence[str]) -> dict[str, Amendment | None]:
        """The amendments of these messages; None of those that cannot be read: there may be one.

        Raises:
            SchemaMismatch
        """
        try:
            return {**self.store.amendments(message_ids)}
        except SchemaMismatch:
            raise
        except (StoreError, InvalidMessage) as error:
            if len(message_ids) > 1 and not isinstance(error, StoreUnavailable):
                # One that nobody can read must not hold up the others.
                return {i: each for n in message_ids for i, each in self.amendments([n]).items()}
            logger.warning(
                "amendments of %d messages not read: %s", len(message_ids), one_line(error)
            )
            if isinstance(error, ReadInPart):
                return {**error.found, **dict.fromkeys(error.unread)}
            return dict.fromkeys(message_ids)

    def apply_amendments(self, parked: Mapping[str, int | None]) -> tuple[set[str], set[str]]:
        """Apply amendments to messages that were just parked, and were not there before. (What was there
        before may have been sent later than the amendment was left.)

        A cancellation first leaves an amendment and then looks into the store: either it finds the
        parked message there, or the amendment is found here.

        Args:
            parked: when each was first sent, by message id; None is before any amendment.

        Returns:
            The ids of those cancelled, and of those that are or may be out of the store again, because
            their amendments cannot be read: their copies are to stay where they are.
        """
        cancelled, taken_back = set[str](), set[str]()
        known: dict[str, Amendment] = {}
        asked = list(parked)
        while asked:
            read = self.amendments(asked)
            # A lost answer must not lose the message: what may be out of the store counts as taken.
            taken_back |= {i for i in read if read[i] is None and self._take_out(i, unsure=True)}
            found = {i: each for i, each in read.items() if each is not None}
            changed = [each for each in found.values() if each != known.get(each.message_id)]
            cancelled |= {a.message_id for a in changed if self._cancelled(a, parked[a.message_id])}
            known |= found
            # Whoever left another one meanwhile found the message parked, and moved it before this did.
            asked = [
                a.message_id for a in changed if a.new_due_ms(parked[a.message_id]) is not None
            ]
        return cancelled, taken_back

    def _cancelled(self, amendment: Amendment, first_sent_ms: int | None) -> bool:
        """Whether the amendment cancelled a parked message; also sets a new due time."""
        message_id, due_ms = amendment.message_id, amendment.new_due_ms(first_sent_ms)
        if amendment.cancels(first_sent_ms):
            return self._take_out(message_id)
        if due_ms is not None:
            self._applied(message_id, lambda: self.store.reschedule(message_id, due_ms))
        return False

    def _take_out(self, message_id: str, unsure: bool = False) -> bool:
        return self._applied(message_id, lambda: self.store.cancel([message_id]) == [True], unsure)

    def _applied(self, message_id: str, change: Callable[[], bool], unsure: bool = False) -> bool:
        try:
            return change() or unsure
        except (StoreError, InvalidMessage, ConfigurationError) as error:
            # The last: a store that cannot find such an id. The message itself is safe.
            logger.error(
                "amendment of parked %s not applied: %s", one_line(message_id), one_line(error)
            )
            return unsure and isinstance(error, StoreError)


def refused(message: StoredMessage, kept: StoredMessage | None) -> SqsDelayError | None:
    """Why a message whose id is taken was not stored; None if it is this very message.

    Args:
        kept: what the store has under that id.
    """
    remedy = "use a different id for each message"
    if kept is None:
        return InvalidMessage(
            f"message_id {message.message_id!r} was in the store and is being released; {remedy}"
        )
    if _content(kept) != _content(message):
        return MessageConflict(
            f"message_id {message.message_id!r} is in the store with a different body, attributes or "
            f"message group; {remedy}"
        )
    if kept.due_ms != message.due_ms:
        return MessageConflict(
            f"message_id {message.message_id!r} is in the store and due at "
            f"{utc(kept.due_ms).isoformat(timespec='milliseconds')}, not "
            f"{utc(message.due_ms).isoformat(timespec='milliseconds')}; reschedule it, or {remedy} (to "
            "resend a message safely, give its due time instead of a delay)"
        )
    return None


def _content(message: StoredMessage) -> tuple[object, ...]:
    return message.body, message.attributes, message.group_id


class Stores:
    """The stores of the endpoints served; each is opened once."""

    def __init__(self, settings: ParkingSettings) -> None:
        self._given = settings.store
        self._after_seconds = settings.after_seconds
        self._opened: dict[str, ParkingPlace] = {}
        self._lock = threading.Lock()

    def of(self, endpoint: str) -> ParkingPlace:
        """The store of the endpoint of that name.

        Raises:
            ConfigurationError: a second endpoint, and only one store.
        """
        with self._lock:
            opened = self._opened.get(endpoint)
            if opened is None:
                if callable(self._given):
                    opened = self._given(endpoint)
                elif self._opened:
                    raise ConfigurationError(
                        f"the store given serves {next(iter(self._opened))}, not {endpoint}; give "
                        "store=lambda endpoint: open_store(url, endpoint=endpoint)"
                    )
                else:
                    opened = self._given
                self._opened[endpoint] = opened
            return opened

    def parking(self, endpoint: str) -> Parking:
        """The same store, to park in."""
        return Parking(self.of(endpoint), after_seconds=self._after_seconds)


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

    def __init__(self, store: ParkingPlace, *, endpoint: str, ledger: Ledger | None = None) -> None:
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
        done = self._store.cancel([message_id]) == [True]
        return self._answer(done, message_id, now_ms)

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
        done = self._store.reschedule(message_id, due_ms)
        return self._answer(done, message_id, now_ms, due_ms)

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

    def _answer(
        self, done: bool, message_id: str, now_ms: int, due_ms: int | None = None
    ) -> Change:
        """A change that was only requested is recorded by the delay consumer when it meets the message."""
        if not done:
            return Change.REQUESTED if self._store.find(message_id) is None else Change.RELEASED
        if self._ledger is not None:
            event = Event(
                kind=EventKind.CANCELLED if due_ms is None else EventKind.RESCHEDULED,
                at_ms=now_ms + 1,
                endpoint=self._endpoint,
                message_id=message_id,
                source=Source.SENDER,
                due_ms=due_ms,
            )
            record_safely(self._ledger, [event])
        return Change.DONE

    def _amend(self, message_id: str, now_ms: int, due_ms: int | None = None) -> None:
        # A sender that could not read amendments set its message apart from those left by its now.
        amendment = Amendment(message_id=message_id, at_ms=now_ms + 1, due_ms=due_ms)
        before = self._store.amendments([message_id]).get(message_id)
        if before is not None and before.at_ms >= amendment.at_ms:
            # Clocks are known to the second: this one must cover what was sent since the last one.
            amendment = replace(amendment, at_ms=before.at_ms + 1)
        self._store.amend([amendment])
