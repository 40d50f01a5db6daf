"""Parking: messages that are far away wait in a store instead of hopping through the delay queue."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from sqsdelay.core.amendments import Amendment
from sqsdelay.core.delay import utc
from sqsdelay.core.one_line import one_line
from sqsdelay.core.stored_message import StoredMessage
from sqsdelay.errors import (
    ConfigurationError,
    InvalidMessage,
    MessageConflict,
    SqsDelayError,
    StoredInPart,
    StoreError,
)
from sqsdelay.limits import DEFAULT_HOP_SECONDS
from sqsdelay.ports.stores import ParkingPlace, ParksFarAhead, TakesGroups

logger = logging.getLogger(__name__)

DEFAULT_PARK_AFTER_SECONDS: Final = 9 * DEFAULT_HOP_SECONDS
"""Where hops begin to cost more than a store: with 8 hops and a last message timer ahead, 2.25 hours.

It is ``sqsdelay.cost.break_even_seconds`` at the shipped prices, for a message of 1 KiB, hops in full
batches of ten (at their cheapest) and a DynamoDB store; a test keeps it so. Reading a message's amendment,
one read unit a hop, makes hops dearer still, so parking from here on never costs more."""


class Parking:
    """A store as the delay consumer and senders use it: parks messages and reads amendments.

    Args:
        store: the endpoint's store.
        after_seconds: messages with more than this remaining are parked.

    Raises:
        ConfigurationError: ``after_seconds`` below 0, or sooner than the place takes messages.
    """

    def __init__(
        self, store: ParkingPlace, *, after_seconds: int = DEFAULT_PARK_AFTER_SECONDS
    ) -> None:
        self._store = store
        self.after_seconds = checked_after(after_seconds)
        if isinstance(store, ParksFarAhead) and self.after_seconds < store.soonest_seconds:
            raise ConfigurationError(
                f"park_after_seconds={after_seconds}; this store takes what is due in "
                f"{store.soonest_seconds} s or later: use {store.soonest_seconds} or more"
            )

    @property
    def stored_at_once(self) -> int | None:
        """How many messages the store wants in one call; None where it does not matter."""
        return self._store.stored_at_once if isinstance(self._store, TakesGroups) else None

    def park(self, messages: Sequence[StoredMessage]) -> list[SqsDelayError | None]:
        """Store in one call; None per message that the store has, however often it was stored.

        A message the store cannot keep (too large) fails alone; an outage fails them all.
        """
        try:
            new: Sequence[bool | StoreError] = self._stored(messages)
            return [
                outcome if isinstance(outcome, StoreError) else self._refused(message, outcome)
                for message, outcome in zip(messages, new, strict=True)
            ]
        except InvalidMessage as error:
            if len(messages) == 1:
                return [error]
            return [outcome for message in messages for outcome in self.park([message])]
        except StoreError as error:
            return [error] * len(messages)

    def _stored(self, messages: Sequence[StoredMessage]) -> Sequence[bool | StoreError]:
        try:
            return self._store.store(messages)
        except StoredInPart as error:
            return error.outcomes

    def _refused(self, message: StoredMessage, is_new: bool) -> SqsDelayError | None:
        return None if is_new else refused(message, self._store.find(message.message_id))

    def amendments(self, message_ids: Sequence[str]) -> dict[str, Amendment]:
        """The amendments of these messages; none while the store is unavailable.

        Messages still arrive on time then: a store's outage is no reason to hold them back.
        """
        try:
            return self._store.amendments(message_ids)
        except StoreError as error:
            logger.warning(
                "amendments of %d messages not read: %s", len(message_ids), one_line(error)
            )
            return {}

    def apply_amendments(self, parked: Mapping[str, int | None]) -> set[str]:
        """Apply amendments to messages parked just now; the ids of those cancelled.

        A cancellation first leaves an amendment and then looks into the store: either it finds the
        parked message there, or the amendment is found here.

        Args:
            parked: when each was first sent, by message id; None is before any amendment.
        """
        return {
            amendment.message_id
            for amendment in self.amendments(list(parked)).values()
            if self._cancelled(amendment, parked[amendment.message_id])
        }

    def _cancelled(self, amendment: Amendment, first_sent_ms: int | None) -> bool:
        """Whether the amendment cancelled a parked message; a new due time is set in passing."""
        message_id = amendment.message_id
        try:
            if amendment.cancels(first_sent_ms):
                return self._store.cancel([message_id]) == [True]
            due_ms = amendment.new_due_ms(first_sent_ms)
            if due_ms is not None:
                self._store.reschedule(message_id, due_ms)
        except (StoreError, InvalidMessage) as error:
            logger.error(
                "amendment of parked %s not applied: %s", one_line(message_id), one_line(error)
            )
        return False


def refused(message: StoredMessage, kept: StoredMessage | None) -> SqsDelayError | None:
    """Why a message was not stored whose id is taken; None where it is this very message.

    Args:
        kept: what the store has of that id.
    """
    remedy = "use a different id for each message"
    if kept is None:
        return InvalidMessage(
            f"message_id {message.message_id!r} was in the store and is being released; {remedy}"
        )
    if (kept.body, kept.attributes) != (message.body, message.attributes):
        return MessageConflict(
            f"message_id {message.message_id!r} is in the store with a different body or attributes; "
            f"{remedy}"
        )
    if kept.due_ms != message.due_ms:
        return MessageConflict(
            f"message_id {message.message_id!r} is in the store and due at "
            f"{utc(kept.due_ms).isoformat(timespec='milliseconds')}, not "
            f"{utc(message.due_ms).isoformat(timespec='milliseconds')}; reschedule it, or {remedy} (to "
            "resend a message safely, give its due time as due_at)"
        )
    return None


StoreOf = Callable[[str], ParkingPlace]
"""From an endpoint's name to its store."""


class Stores:
    """The stores of the endpoints a sender serves; each is asked for once.

    Args:
        store: one endpoint's store, or a function from an endpoint's name to its store.
        after_seconds: as for `Parking`.
    """

    def __init__(self, store: ParkingPlace | StoreOf, *, after_seconds: int) -> None:
        self._given = store
        self._after_seconds = checked_after(after_seconds)
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


def check_without_store(park_after_seconds: int) -> None:
    """Refuse a setting that would do nothing.

    Raises:
        ConfigurationError: another ``park_after_seconds`` than the default, and no store.
    """
    if park_after_seconds != DEFAULT_PARK_AFTER_SECONDS:
        raise ConfigurationError(
            f"park_after_seconds={park_after_seconds} has no effect without a store; give a store, or "
            "leave it out"
        )


def checked_after(seconds: int) -> int:
    """``seconds`` itself, if messages can be parked with more than that remaining.

    Raises:
        ConfigurationError: below 0.
    """
    if seconds < 0:
        raise ConfigurationError(f"park_after_seconds={seconds}; use 0 or more")
    return seconds
