"""Parking: messages that are due much later wait in a store instead of hopping through the delay queue."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from sqsdelay.core.delay import utc
from sqsdelay.core.readable import one_line
from sqsdelay.core.stored_message import Amendment, StoredMessage
from sqsdelay.errors import (
    ConfigurationError,
    InvalidMessage,
    InvalidSetting,
    MessageConflict,
    ReadInPart,
    SqsDelayError,
    StoredInPart,
    StoreError,
)
from sqsdelay.limits import DEFAULT_HOP_SECONDS
from sqsdelay.ports.stores import ParkingPlace

DEFAULT_PARK_AFTER_SECONDS: Final = 9 * DEFAULT_HOP_SECONDS
"""Where hops begin to cost more than a store: with 8 hops and a last message timer ahead, 2.25 hours.

It is ``sqsdelay.cost.break_even_seconds`` at the shipped prices, for a message of 1 KiB, hops in full
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


class Parking:
    """A store as the delay consumer and senders use it: parks messages and reads amendments.

    Args:
        store: the endpoint's store.
        after_seconds: messages with more than this remaining are parked.

    Raises:
        ConfigurationError: ``after_seconds`` is sooner than the place takes messages.
    """

    def __init__(self, store: ParkingPlace, *, after_seconds: int) -> None:
        self._store = store
        self.after_seconds = after_seconds
        if after_seconds < store.soonest_seconds:
            raise InvalidSetting(
                f"use {store.soonest_seconds} or more: this store takes nothing that is due sooner",
                park_after_seconds=after_seconds,
            )

    @property
    def stored_at_once(self) -> int | None:
        """How many messages the store prefers in one call; None if it does not matter."""
        return self._store.stored_at_once

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

    def too_large(self, message: StoredMessage) -> bool:
        """Whether a message is too large for the store, so that it has to hop."""
        return self._store.too_large(message)

    def _stored(self, messages: Sequence[StoredMessage]) -> Sequence[bool | StoreError]:
        try:
            return self._store.store(messages)
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
            kept = kept or [self._store.find_due(message.message_id, message.due_ms)]
        except ConfigurationError as error:
            return error
        conflict = None
        for each in kept:
            conflict = refused(message, each)
            if conflict is None:
                break
        return conflict or False

    def amendments(self, message_ids: Sequence[str]) -> dict[str, Amendment | None]:
        """The amendments of these messages; None of those that cannot be read, which still arrive on time:
        a store's outage is no reason to be late."""
        try:
            return {**self._store.amendments(message_ids)}
        except StoreError as error:
            logger.warning(
                "amendments of %d messages not read: %s", len(message_ids), one_line(error)
            )
            if isinstance(error, ReadInPart):
                return {**error.found, **dict.fromkeys(error.unread)}
            return dict.fromkeys(message_ids)

    def apply_amendments(self, parked: Mapping[str, int | None]) -> set[str]:
        """Apply amendments to messages that were just parked, and were not there before; returns the ids
        of those cancelled. (What was there before may have been sent later than the amendment was left.)

        A cancellation first leaves an amendment and then looks into the store: either it finds the
        parked message there, or the amendment is found here.

        Args:
            parked: when each was first sent, by message id; None is before any amendment.
        """
        cancelled: set[str] = set()
        known: dict[str, Amendment] = {}
        asked = list(parked)
        while asked:
            found = {i: each for i, each in self.amendments(asked).items() if each is not None}
            changed = [each for each in found.values() if each != known.get(each.message_id)]
            cancelled |= {a.message_id for a in changed if self._cancelled(a, parked[a.message_id])}
            known |= found
            # Whoever left another one meanwhile found the message parked, and moved it before this did.
            asked = [
                a.message_id for a in changed if a.new_due_ms(parked[a.message_id]) is not None
            ]
        return cancelled

    def _cancelled(self, amendment: Amendment, first_sent_ms: int | None) -> bool:
        """Whether the amendment cancelled a parked message; also sets a new due time."""
        message_id = amendment.message_id
        try:
            if amendment.cancels(first_sent_ms):
                return self._store.cancel([message_id]) == [True]
            due_ms = amendment.new_due_ms(first_sent_ms)
            if due_ms is not None:
                self._store.reschedule(message_id, due_ms)
        except (StoreError, InvalidMessage, ConfigurationError) as error:
            # The last: a store that cannot find such an id. The message itself is safe.
            logger.error(
                "amendment of parked %s not applied: %s", one_line(message_id), one_line(error)
            )
        return False


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
