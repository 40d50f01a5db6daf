"""Parking: messages that are due much later wait in a store instead of hopping through the delay queue. There
they can be listed, cancelled and moved."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from typing import Final

from sqsdelay import errors
from sqsdelay.core.delay import check_range, due_at_ms, utc
from sqsdelay.core.limits import DEFAULT_HOP_SECONDS
from sqsdelay.core.readable import one_line
from sqsdelay.core.stored_message import Amendment, StoredMessage, check_stored_id
from sqsdelay.errors import InvalidMessage, InvalidSetting, SqsDelayError, StoreError
from sqsdelay.ledger.events import Event, EventKind, Ledger, Source, record_safely
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
    """Where messages are parked, and which: those with more than ``after_seconds`` remaining. ``store``: an
    endpoint's store, or a function from an endpoint's name to its store. Raises ConfigurationError:
    ``after_seconds`` below 0."""

    store: ParkingPlace | StoreOf
    after_seconds: int = DEFAULT_PARK_AFTER_SECONDS

    def __post_init__(self) -> None:
        check_range(0, park_after_seconds=self.after_seconds)


def parking_settings(
    store: ParkingPlace | StoreOf | None, park_after_seconds: int
) -> ParkingSettings | None:
    """The settings as users give them; None without a store. Raises ConfigurationError:
    ``park_after_seconds`` below 0, or given without a store."""
    if store is not None:
        return ParkingSettings(store, park_after_seconds)
    if park_after_seconds == DEFAULT_PARK_AFTER_SECONDS:
        return None
    remedy = "has no effect without a store; give a store, or leave it out"
    raise InvalidSetting(remedy, park_after_seconds=park_after_seconds)


logger = logging.getLogger(__name__)


def check(store: ParkingPlace) -> None:
    """Raise what keeps a store from being used, by a question that every one answers."""
    store.amendments(["-"])


class Parking:
    """A store as the delay consumer and senders use it: parks messages and reads amendments. Raises
    ConfigurationError: ``after_seconds`` is sooner than the place takes messages."""

    def __init__(self, store: ParkingPlace, *, after_seconds: int) -> None:
        self.store = store
        self.after_seconds = after_seconds
        if after_seconds < store.soonest_seconds:
            raise InvalidSetting(
                f"use {store.soonest_seconds} or more: this store takes nothing that is due sooner",
                park_after_seconds=after_seconds,
            )

    def park(self, messages: Sequence[StoredMessage]) -> list[bool | SqsDelayError]:
        """Store in one call; per message whether it is new in the store, which has it now, or an error. A
        message the store cannot keep (too large) fails alone; an outage fails them all."""
        try:
            try:
                answers: Sequence[bool | StoreError] = self.store.store(messages)
            except errors.StoredInPart as error:
                answers = error.outcomes
            answered = list(zip(messages, answers, strict=True))
            new = [message for message, answer in answered if answer is True]
            return [
                answer if isinstance(answer, StoreError) else self._refused(message, answer, new)
                for message, answer in answered
            ]
        except InvalidMessage as error:
            if len(messages) == 1:
                return [error]
            return [outcome for message in messages for outcome in self.park([message])]
        except StoreError as error:
            return [error] * len(messages)

    def _refused(
        self, message: StoredMessage, is_new: bool, new: Sequence[StoredMessage]
    ) -> bool | SqsDelayError:
        """Whether a message is new; why it was not stored if another has its id. That may be in the store
        since this call: not every store could find it by its id."""
        if is_new:
            return True
        kept: list[StoredMessage | None] = [m for m in new if m.message_id == message.message_id]
        try:
            kept = kept or [self.store.find_due(message.message_id, message.due_ms)]
        except errors.ConfigurationError as error:
            return error
        conflicts = [refused(message, each) for each in kept]
        return False if None in conflicts else conflicts[-1] or False

    def amendments(self, message_ids: Sequence[str]) -> dict[str, Amendment | None]:
        """The amendments of these messages; None of those that cannot be read: there may be one. Raises
        SchemaMismatch."""
        try:
            return {**self.store.amendments(message_ids)}
        except errors.SchemaMismatch:
            raise
        except (StoreError, InvalidMessage) as error:
            if len(message_ids) > 1 and not isinstance(error, errors.StoreUnavailable):
                # One that nobody can read must not hold up the others.
                return {i: each for n in message_ids for i, each in self.amendments([n]).items()}
            logger.warning(
                "amendments of %d messages not read: %s", len(message_ids), one_line(error)
            )
            if isinstance(error, errors.ReadInPart):
                return {**error.found, **dict.fromkeys(error.unread)}
            return dict.fromkeys(message_ids)

    def park_sent(
        self, given: Sequence[tuple[StoredMessage, int | None]]
    ) -> list[bool | SqsDelayError]:
        """Park messages out of a queue, and apply the amendments that were left meanwhile.

        A cancellation first leaves an amendment and then looks into the store: either it finds the
        parked message there, or the amendment is found here. ``given``: each message, and when it was first
        sent; None is before any amendment. Returns for each True: it is parked; False: it was cancelled; or
        why its copy must stay or hop on. `Unread`: it may be out of the store again, or its amendment may be
        for it."""
        answers = [
            self._met_again(*each, answer) if isinstance(answer, errors.MessageConflict) else answer
            for each, answer in zip(given, self.park([m for m, _ in given]), strict=True)
        ]
        # What was there already may be another message of this id, sent after the amendment was left.
        new = {m.message_id for (m, _), made in zip(given, answers, strict=True) if made is True}
        by_time = sorted(given, key=lambda each: each[1] or 0)
        sent_ms = {m.message_id: at_ms for m, at_ms in by_time if m.message_id in new}
        changed = self._apply_amendments(sent_ms)
        return [
            answer if isinstance(answer, SqsDelayError) else changed.get(message.message_id, True)
            for (message, _), answer in zip(given, answers, strict=True)
        ]

    def _met_again(
        self, message: StoredMessage, sent_ms: int | None, conflict: errors.MessageConflict
    ) -> bool | SqsDelayError:
        """No error where the store has the same message, rescheduled since its amendments were read."""
        found = self.amendments([message.message_id])
        amendment = found.get(message.message_id)
        if amendment is None:
            return Unread() if found else conflict
        due_ms = amendment.new_due_ms(sent_ms)
        return conflict if due_ms is None else self.park([replace(message, due_ms=due_ms)])[0]

    def _apply_amendments(
        self, sent_ms: Mapping[str, int | None]
    ) -> dict[str, bool | SqsDelayError]:
        """Apply amendments to messages that were just parked: False for those cancelled, `Unread` for those
        that are or may be out of the store again, because their amendments cannot be read."""
        changed: dict[str, bool | SqsDelayError] = {}
        known: dict[str, Amendment] = {}
        asked = list(sent_ms)
        while asked:
            found = self.amendments(asked)
            asked = []
            for message_id, amendment in found.items():
                if amendment is None:
                    # A lost answer must not lose the message: what may be out of the store counts as taken.
                    if isinstance(self._changed(message_id), bool | StoreError):
                        changed[message_id] = Unread()
                elif amendment == known.get(message_id):
                    continue
                elif amendment.cancels(sent_ms[message_id]):
                    if self._changed(message_id) is True:
                        changed[message_id] = False
                elif (due_ms := amendment.new_due_ms(sent_ms[message_id])) is not None:
                    self._changed(message_id, due_ms)
                    # Whoever left another one meanwhile found the message parked, and moved it before.
                    asked.append(message_id)
                    known[message_id] = amendment
        return changed

    def _changed(self, message_id: str, due_ms: int | None = None) -> bool | SqsDelayError:
        """Cancel or move a parked message: whether the store had it, or why that is not known."""
        try:
            if due_ms is not None:
                return self.store.reschedule(message_id, due_ms)
            return self.store.cancel([message_id]) == [True]
        except (StoreError, InvalidMessage, errors.ConfigurationError) as error:
            # The last: a store that cannot find such an id. The message itself is safe.
            name, why = one_line(message_id), one_line(error)
            logger.error("amendment of parked %s not applied: %s", name, why)
            return error


class Unread(errors.StoreUnavailable):
    """A message whose amendments cannot be read."""

    def __init__(self) -> None:
        super().__init__("whether it was cancelled or moved cannot be read now")


def refused(message: StoredMessage, kept: StoredMessage | None) -> SqsDelayError | None:
    """Why a message whose id is taken was not stored; None if it is this very message. ``kept``: what the
    store has under that id."""
    remedy = "use a different id for each message"
    if kept is None:
        return InvalidMessage(
            f"message_id {message.message_id!r} was in the store and is being released; {remedy}"
        )
    if _content(kept) != _content(message):
        return errors.MessageConflict(
            f"message_id {message.message_id!r} is in the store with a different body, attributes or "
            f"message group; {remedy}"
        )
    if kept.due_ms != message.due_ms:
        return errors.MessageConflict(
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
        """The store of the endpoint of that name. Raises ConfigurationError: a second endpoint, and only one
        store."""
        with self._lock:
            if endpoint not in self._opened:
                if self._opened and not callable(self._given):
                    raise errors.ConfigurationError(
                        f"the store given serves {next(iter(self._opened))}, not {endpoint}; give "
                        "store=lambda endpoint: open_store(url, endpoint=endpoint)"
                    )
                given = self._given
                self._opened[endpoint] = given(endpoint) if callable(given) else given
            return self._opened[endpoint]

    def parking(self, endpoint: str) -> Parking:
        """The same store, to park in."""
        return Parking(self.of(endpoint), after_seconds=self._after_seconds)


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
    once more after it has parked a message, so neither can miss the other. ``now_ms`` of a change is the
    latest reading that the broker's clock may show, epoch milliseconds. Changes raise InvalidMessage: an id
    or due time that a store cannot keep, or sooner than it can release; ConfigurationError: this store cannot
    find such an id, and nothing is changed; StoreUnavailable, StoreMissing: the outcome is unknown, repeating
    the call is safe. ``endpoint``: its name, as the ledger is to have it, which records what was cancelled or
    rescheduled in the store."""

    def __init__(self, store: ParkingPlace, *, endpoint: str, ledger: Ledger | None = None) -> None:
        self._store = store
        self._endpoint = endpoint
        self._ledger = ledger

    def cancel(self, message_id: str, *, now_ms: int) -> Change:
        """Cancel a message: what was sent of it by now, and nothing sent later."""
        self._found(message_id)
        return self._changed(message_id, now_ms)

    def reschedule(self, message_id: str, due_ms: int, *, now_ms: int) -> Change:
        """Move a message to another due time, epoch milliseconds; nothing of it that is sent later."""
        kept, least = self._found(message_id), self._store.soonest_seconds
        if kept is not None and least and due_ms - now_ms < least * 1000:
            raise InvalidMessage(
                f"message {message_id} waits where it cannot be released within {least} s; cancel it, and "
                "send it anew with the short delay"
            )
        return self._changed(message_id, now_ms, due_ms)

    def _found(self, message_id: str) -> StoredMessage | None:
        """What is refused is refused before an amendment is left: that would apply all the same."""
        check_stored_id(message_id)
        return self._store.find(message_id)

    def _changed(self, message_id: str, now_ms: int, due_ms: int | None = None) -> Change:
        """Leave an amendment, then look into the store. A change that was only requested is recorded by the
        delay consumer when it meets the message."""
        before = self._store.amendments([message_id]).get(message_id)
        # Clocks are known to the second: this one must cover what was sent since the last one. And a sender
        # that could not read amendments set its message apart from those left by its now.
        at_ms = max(now_ms, before.at_ms if before else now_ms) + 1
        self._store.amend([Amendment(message_id=message_id, at_ms=at_ms, due_ms=due_ms)])
        if due_ms is None:
            done = self._store.cancel([message_id]) == [True]
        else:
            done = self._store.reschedule(message_id, due_ms)
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

    def pending(
        self, *, due_from: datetime | None = None, due_before: datetime | None = None
    ) -> Iterator[StoredMessage]:
        """The messages in the store, read page by page. Arguments and errors as of `DelaySender.pending`."""
        from_ms = None if due_from is None else due_at_ms(due_from)
        before_ms = None if due_before is None else due_at_ms(due_before)
        return Listing(due_from_ms=from_ms, due_before_ms=before_ms).read(self._store)


PAGE: Final = 100
"""Messages in memory at once: at the 1 MiB of a body, 100 MiB."""
Cursor = tuple[int, str]
"""Due time, epoch milliseconds, and id of the last message listed."""


@dataclass(slots=True, kw_only=True)
class Listing:
    """Messages from a cursor on, within due times; ``listed`` counts them."""

    after: Cursor | None = None
    due_from_ms: int | None = None
    due_before_ms: int | None = None
    listed: int = 0

    @property
    def cursor(self) -> str:
        """Where the next page begins, once something was listed."""
        due_ms, message_id = self.after or (0, "")
        return f"{due_ms}:{message_id}"

    def read(self, store: ParkingPlace, limit: int = sys.maxsize) -> Iterator[StoredMessage]:
        """So many messages at most, the earliest due first, page by page."""
        while page := self._page(store, min(PAGE, limit - self.listed)):
            for message in page:
                self.after = message.due_ms, message.message_id
                self.listed += 1
                yield message

    def has_more(self, store: ParkingPlace) -> bool:
        """Whether there are messages behind those that were listed."""
        return bool(self.listed and self._page(store, 1))

    def _page(self, store: ParkingPlace, limit: int) -> list[StoredMessage]:
        due = {"due_from_ms": self.due_from_ms, "due_before_ms": self.due_before_ms}
        return store.pending(limit, after=self.after, **due) if limit > 0 else []
