"""Parking: messages that are far away wait in a store instead of hopping through the delay queue."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from sqsdelay.core.delay import utc
from sqsdelay.core.marks import Mark
from sqsdelay.core.one_line import one_line
from sqsdelay.core.stored_message import StoredMessage
from sqsdelay.errors import (
    ConfigurationError,
    InvalidMessage,
    MessageConflict,
    SqsDelayError,
    StoreError,
)
from sqsdelay.limits import DEFAULT_HOP_SECONDS
from sqsdelay.ports.stores import DelayedMessageStore

logger = logging.getLogger(__name__)

DEFAULT_PARK_AFTER_SECONDS: Final = 9 * DEFAULT_HOP_SECONDS
"""Where hops begin to cost more than a store: with 8 hops and a last message timer ahead, 2.25 hours.

It is ``sqsdelay.cost.break_even_seconds`` at the shipped prices, for a message of 1 KiB, hops in full
batches of ten (at their cheapest) and a DynamoDB store; a test keeps it so. Reading a message's mark,
one read unit a hop, makes hops dearer still, so parking from here on never costs more."""


class Parking:
    """A store, as the delay consumer and senders use it: parks messages, and reads marks.

    Args:
        store: the endpoint's store.
        after_seconds: messages with more than this remaining are parked.

    Raises:
        ConfigurationError: ``after_seconds`` below 0.
    """

    def __init__(
        self, store: DelayedMessageStore, *, after_seconds: int = DEFAULT_PARK_AFTER_SECONDS
    ) -> None:
        self._store = store
        self.after_seconds = checked_after(after_seconds)

    def park(self, messages: Sequence[StoredMessage]) -> list[SqsDelayError | None]:
        """Store in one call; None per message that the store has, however often it was stored.

        A message the store cannot keep (too large) fails alone; an outage fails them all.
        """
        try:
            new = self._store.store(messages)
            return [
                None if is_new else self._refused(message)
                for message, is_new in zip(messages, new, strict=True)
            ]
        except InvalidMessage as error:
            if len(messages) == 1:
                return [error]
            return [outcome for message in messages for outcome in self.park([message])]
        except StoreError as error:
            return [error] * len(messages)

    def _refused(self, message: StoredMessage) -> SqsDelayError | None:
        return refused(message, self._store.find(message.message_id))

    def marks(self, message_ids: Sequence[str]) -> dict[str, Mark]:
        """The marks of these messages; none while the store cannot be asked.

        Messages arrive on time all the same then: an outage of the store is no reason to hold them.
        """
        try:
            return self._store.marks(message_ids)
        except StoreError as error:
            logger.warning("marks of %d messages not read: %s", len(message_ids), one_line(error))
            return {}

    def apply_marks(self, parked: Mapping[str, int | None]) -> set[str]:
        """Apply marks to messages that were parked just now; the ids of those cancelled.

        Who cancels a message leaves its mark first and then looks into the store; so a mark left
        while the message was being parked is seen here, or the message was seen there.

        Args:
            parked: when each was first sent, by message id; None is before any mark.
        """
        cancelled = set()
        for mark in self.marks(list(parked)).values():
            first_sent_ms = parked[mark.message_id]
            try:
                if mark.moves(first_sent_ms):
                    self._store.reschedule(mark.message_id, mark.due_ms or 0)
                elif mark.cancels(first_sent_ms) and self._store.cancel([mark.message_id]) == [
                    True
                ]:
                    cancelled.add(mark.message_id)
            except StoreError as error:
                logger.error(
                    "mark of parked %s not applied: %s", one_line(mark.message_id), one_line(error)
                )
        return cancelled


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


StoreOf = Callable[[str], DelayedMessageStore]
"""From an endpoint's name to its store."""


class Stores:
    """The stores of the endpoints a sender serves; each is asked for once.

    Args:
        store: one endpoint's store, or a function from an endpoint's name to its store.
        after_seconds: as for `Parking`.
    """

    def __init__(self, store: DelayedMessageStore | StoreOf, *, after_seconds: int) -> None:
        self._given = store
        self._after_seconds = checked_after(after_seconds)
        self._opened: dict[str, DelayedMessageStore] = {}
        self._lock = threading.Lock()

    def of(self, endpoint: str) -> DelayedMessageStore:
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
