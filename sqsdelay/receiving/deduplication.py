"""Receiving: a message that arrives twice is processed once, by its id."""

from __future__ import annotations

import itertools
import logging
import math
import uuid
from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Any, Final, Protocol

from sqsdelay.core.delay import Clock, SystemClock, check_positive
from sqsdelay.core.limits import MAX_DUE_MS, MAX_RETENTION_SECONDS
from sqsdelay.core.message import MESSAGE_ID
from sqsdelay.core.readable import one_line
from sqsdelay.errors import MalformedMessage, StoreError

logger = logging.getLogger(__name__)

IDEMPOTENCY_KEY: Final = f'messageAttributes."{MESSAGE_ID}".stringValue || messageId'
"""The id of a Lambda event's record as a JMESPath expression, for the ``event_key_jmespath`` of
Powertools' ``IdempotencyConfig``."""

_LONGEST_SECONDS: Final = MAX_DUE_MS // 1000

_FORGET_EVERY: Final = 100
_FORGET_AT_ONCE: Final = 1000


def message_id(message: Mapping[str, Any]) -> str:
    """What to deduplicate on: the sender's message id, SQS's own where the message carries none.

    Args:
        message: as boto3's ``receive_message`` returns it, or a record of a Lambda event. boto3 returns
            the attributes it was asked for only: ``MessageAttributeNames=["All"]``.

    Raises:
        MalformedMessage: neither of them.
    """
    attributes = message.get("MessageAttributes") or message.get("messageAttributes") or {}
    given = attributes.get(MESSAGE_ID) or {}
    found = given.get("StringValue") or given.get("stringValue")
    found = found or message.get("MessageId") or message.get("messageId")
    if not isinstance(found, str):
        raise MalformedMessage(
            "a received message has a MessageId (boto3) or messageId (Lambda event); this has neither"
        )
    return found


class Copy(StrEnum):
    """What a received copy is."""

    FIRST = "first"
    """The first of its message; it is processed now."""

    IN_PROGRESS = "in-progress"
    """Another copy is being processed. Leave this one in the queue: it comes back, should that fail."""

    DUPLICATE = "duplicate"
    """Another copy was processed. Delete this one."""


class Inbox(Protocol):
    """Remembers which messages were processed. Thread-safe. Times are epoch milliseconds.

    All methods raise StoreUnavailable, and StoreMissing before `set_up`.
    """

    def set_up(self) -> None:
        """Create the table, if it is not there."""

    def begin(self, message_id: str, *, claim: str, now_ms: int, until_ms: int) -> Copy:
        """Claim the message until then, if nobody holds it and it is not done."""

    def done(self, message_id: str, *, until_ms: int) -> None:
        """Remember until then that the message was processed, whoever claims it."""

    def release(self, message_id: str, *, claim: str) -> None:
        """Give up a claim; no effect on another's."""

    def first(self, message_id: str, *, transaction: Any, now_ms: int, until_ms: int) -> bool:
        """Remember it in the caller's open transaction (the driver's connection); whether it is new.

        Waits for another open transaction with the same message to end.

        Raises:
            ConfigurationError: no connection of this database's driver, or not in a transaction.
        """

    def forget(self, now_ms: int, *, limit: int) -> int:
        """Delete up to so many entries whose time is over; how many."""


class Deduplicator:
    """Processes each message once, however many copies of it arrive. Thread-safe.

    Args:
        inbox: remembers the messages; shared by all receivers of a queue.
        lease_seconds: the longest that processing one message takes, e.g. the queue's visibility
            timeout. When a receiver dies, its message is free again after this.
        remember_seconds: how long a processed message is known; by default as long as SQS can keep a
            copy of it.
        clock: all receivers' clocks must agree, to a fraction of ``lease_seconds``.

    Raises:
        ConfigurationError: a duration that is not above 0, or longer than can be counted.
    """

    def __init__(
        self,
        inbox: Inbox,
        *,
        lease_seconds: float,
        remember_seconds: float = MAX_RETENTION_SECONDS,
        clock: Clock | None = None,
    ) -> None:
        given = {"lease_seconds": lease_seconds, "remember_seconds": remember_seconds}
        check_positive(_LONGEST_SECONDS, **given)
        self._inbox = inbox
        self._lease_ms = math.ceil(lease_seconds * 1000)
        self._remember_ms = math.ceil(remember_seconds * 1000)
        self._clock = clock or SystemClock()
        self._processed = itertools.count(1)

    def process(self, message_id: str, effect: Callable[[], object]) -> Copy:
        """Call ``effect`` if this is the message's first copy.

        If it raises, so does this call, and the next copy is a first one again. At least once: a
        receiver that dies after the effect and before it is remembered leaves both to the next copy.

        Raises:
            StoreUnavailable, StoreMissing: asked before the effect, or remembering it after.
        """
        now_ms = self._clock.now_ms()
        claim = uuid.uuid4().hex
        copy = self._inbox.begin(
            message_id, claim=claim, now_ms=now_ms, until_ms=now_ms + self._lease_ms
        )
        if copy is not Copy.FIRST:
            return copy
        try:
            effect()
        except BaseException:
            self._release(message_id, claim)
            raise
        self._inbox.done(message_id, until_ms=self._clock.now_ms() + self._remember_ms)
        self._forget()
        return copy

    def first(self, message_id: str, transaction: Any) -> bool:
        """Whether the message is new, remembered in the caller's own transaction: exactly once.

        What the caller writes in that transaction is committed with the memory of the message, or not
        at all. Another copy waits until the transaction has ended, with SQLite for the connection's
        ``timeout`` at most. Old entries are not deleted here: call `forget` now and then.

        Args:
            transaction: the driver's connection to the inbox's database, in a transaction.

        Raises:
            ConfigurationError: a connection of another driver, or not in a transaction.
            StoreUnavailable, StoreMissing
        """
        now_ms = self._clock.now_ms()
        return self._inbox.first(
            message_id, transaction=transaction, now_ms=now_ms, until_ms=now_ms + self._remember_ms
        )

    def forget(self) -> int:
        """Delete all entries whose time is over; how many. `process` does so by and by."""
        forgotten = 0
        while count := self._inbox.forget(self._clock.now_ms(), limit=_FORGET_AT_ONCE):
            forgotten += count
        return forgotten

    def _release(self, message_id: str, claim: str) -> None:
        try:
            self._inbox.release(message_id, claim=claim)
        except StoreError as error:
            name, why = one_line(message_id), one_line(error)
            logger.warning("message %s stays claimed until its lease ends: %s", name, why)

    def _forget(self) -> None:
        if next(self._processed) % _FORGET_EVERY:
            return
        try:
            self._inbox.forget(self._clock.now_ms(), limit=_FORGET_AT_ONCE)
        except StoreError as error:
            logger.warning("old entries are not deleted now: %s", error)
