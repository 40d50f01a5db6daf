"""What becomes of a claim (released, tried later, held, rejected), and what the ledger is told of it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import chain
from typing import Final

from sqsdelay.core.endpoint import Endpoint
from sqsdelay.core.readable import one_line
from sqsdelay.core.stored_message import StoredMessage
from sqsdelay.dispatching.destinations import (
    NOT_TRIED,
    SENT_BEFORE,
    Destination,
    Destinations,
    Outcome,
    retry_seconds,
)
from sqsdelay.errors import InvalidEndpoint, StoreError
from sqsdelay.ledger.events import Event, EventKind, Ledger, Source, record_safely
from sqsdelay.limits import MAX_DUE_MS
from sqsdelay.ports.queues import Failure, Released
from sqsdelay.ports.stores import Claim, TransactionMode

logger = logging.getLogger(__name__)

OUTAGE_PAUSE_SECONDS: Final = 1.0


@dataclass(slots=True)
class Round:
    """The result of one claim. ``held`` wait for an outage to pass, ``failed`` for a retry.

    What was claimed and is in none of the lists was not tried: its destination is out of reach.
    ``outage`` is why a destination or the error queue could not be used, where that was so.
    """

    claimed: int = 0
    released: list[StoredMessage] = field(default_factory=list)
    rejected: list[StoredMessage] = field(default_factory=list)
    failed: list[StoredMessage] = field(default_factory=list)
    held: list[StoredMessage] = field(default_factory=list)
    now_ms: int = 0
    outage: Exception | None = None

    @property
    def settled(self) -> bool:
        """True if the store has become emptier, so that it is worth going on at once."""
        return bool(self.released or self.rejected)

    def late_ms(self) -> list[int]:
        """For each released message, how long after its due time it was sent; 0 if ahead of it."""
        return [max(0, self.now_ms - message.due_ms) for message in self.released]


class Settlement:
    """Releases messages of one claim after the other, and records what became of them.

    Args:
        destination: where they are delivered, and rejected.
        destinations: what is known of those that are out of reach.
        number_of_retries: after the first attempt on a message.
        on_lost_count: called with the store's error when a failed attempt cannot be counted.
        ledger: where to record; None records nothing. Events of effects in the store's transaction,
            which may undo what they tell, wait for its end. Others are recorded before the messages
            leave the store: a dispatcher that dies in between releases, and records, again.
    """

    def __init__(
        self,
        destination: Destination,
        destinations: Destinations,
        *,
        number_of_retries: int,
        on_lost_count: Callable[[StoreError], None],
        ledger: Ledger | None = None,
    ) -> None:
        self._destination = destination
        self._destinations = destinations
        self._number_of_retries = number_of_retries
        self._on_lost_count = on_lost_count
        self._ledger = ledger
        self._waiting: list[Iterable[Event]] = []

    @contextmanager
    def claimed(self, claiming: AbstractContextManager[Claim], done: Round) -> Iterator[Claim]:
        """A claim; when it has ended, what was released is known to be gone, or remembered as sent."""
        self._waiting.clear()
        try:
            with claiming as claim:
                yield claim
        except BaseException:
            self._destination.remember(done.released)
            raise
        self._destination.forget(done.released)
        if self._ledger is not None:
            record_safely(self._ledger, chain.from_iterable(self._waiting))

    def release(self, claim: Claim, messages: Sequence[StoredMessage], done: Round) -> None:
        """Deliver messages of the claim and remove those that were released; count, hold or reject the rest.

        Raises:
            StoreError, CriticalError: the store failed; what was not removed is claimed again.
        """
        outcomes = self._destination.deliver(claim, messages)
        done.released = [
            message
            for message, outcome in zip(messages, outcomes, strict=True)
            if not isinstance(outcome, Failure)
        ]
        if self._ledger is not None:
            sent = [
                (message, outcome)
                for message, outcome in zip(messages, outcomes, strict=True)
                if not isinstance(outcome, Failure) and outcome is not SENT_BEFORE
            ]
            self._record(released(sent, at_ms=self._destination.now_ms()))
        done.now_ms = self._destination.now_ms()
        refused: list[tuple[StoredMessage, Failure]] = []
        if len(done.released) < len(outcomes):
            refused = _refused(messages, outcomes, done)
        if done.released:
            removed = claim.remove(ids_of(done.released))
            if not all(removed):
                # A lease was lost: the process was frozen, or the store away, for longer than it.
                logger.warning("%d messages may be sent twice", removed.count(False))
        closed = self._destinations.closed()
        passing = [message for message in done.held if message.destination not in closed]
        if passing:
            # Others to the same destination were sent: these alone wait for a moment.
            claim.hold(ids_of(passing), seconds=OUTAGE_PAUSE_SECONDS)
        self._settle_refused(claim, refused, done)

    def _settle_refused(
        self, claim: Claim, refused: list[tuple[StoredMessage, Failure]], done: Round
    ) -> None:
        again: list[StoredMessage] = []
        hopeless: list[tuple[StoredMessage, str]] = []
        for message, failure in refused:
            logger.warning(
                "message %s not released: %s", one_line(message.message_id), one_line(failure.error)
            )
            if failure.transient and message.failures < self._number_of_retries:
                again.append(message)
            else:
                hopeless.append((message, f"{failure.code}: {failure.error}"))
        self._count_failures(claim, again, done)
        if not hopeless:
            return
        again = []
        rejections = self._destination.reject(claim, hopeless)
        for (message, _), failed in zip(hopeless, rejections, strict=True):
            if failed is None:
                done.rejected.append(message)
            else:
                logger.error(
                    "message %s not rejected: %s",
                    one_line(message.message_id),
                    one_line(failed.error),
                )
                if failed.transient:
                    # The error queue is away or missing; a message it refuses is no outage of it.
                    done.outage = failed.error
                again.append(message)
        if self._ledger is not None:
            gone = [entry for entry, failed in zip(hopeless, rejections, strict=True) if not failed]
            self._record(rejected(gone, at_ms=self._destination.now_ms()))
        self._count_failures(claim, again, done)
        claim.remove(ids_of(done.rejected))

    def _record(self, events: Iterable[Event]) -> None:
        if self._destination.mode is TransactionMode.EXACTLY_ONCE:
            self._waiting.append(events)
        elif self._ledger is not None:
            record_safely(self._ledger, events)

    def _count_failures(self, claim: Claim, messages: Sequence[StoredMessage], done: Round) -> None:
        """In one call for all that are tried again at the same time: one a message took seconds."""
        done.failed += messages
        together: dict[int, list[StoredMessage]] = {}
        for message in messages:
            together.setdefault(retry_seconds(message.failures), []).append(message)
        try:
            for seconds, group in together.items():
                claim.count_failures(ids_of(group), retry_after_seconds=seconds)
        except StoreError as error:
            self._on_lost_count(error)
            raise


def _refused(
    messages: Sequence[StoredMessage], outcomes: Sequence[Outcome], done: Round
) -> list[tuple[StoredMessage, Failure]]:
    """What failed by itself; notes what an outage holds up."""
    refused = []
    for message, outcome in zip(messages, outcomes, strict=True):
        if not isinstance(outcome, Failure) or outcome is NOT_TRIED:
            continue
        if outcome.outage:
            done.held.append(message)
            done.outage = outcome.error
        else:
            refused.append((message, outcome))
    return refused


def ids_of(messages: Iterable[StoredMessage]) -> list[str]:
    """Their message ids."""
    return [message.message_id for message in messages]


def released(
    messages: Iterable[tuple[StoredMessage, Released | None]], *, at_ms: int
) -> Iterator[Event]:
    """Messages that left their store for their destination."""
    for message, how in messages:
        late_ms = at_ms - message.due_ms
        if how is not None:
            late_ms += 1000 * how.timer_seconds
        yield Event(
            kind=EventKind.RELEASED,
            at_ms=at_ms,
            endpoint=_endpoint_name(message.destination),
            message_id=message.message_id,
            source=Source.DISPATCHER,
            due_ms=message.due_ms,
            batch=None if how is None else how.batch,
            timer_seconds=None if how is None else how.timer_seconds,
            # Ahead of its due time it has a message timer, which this outbox does not tell.
            late_ms=None if how is None and late_ms < 0 else late_ms,
        )


def rejected(messages: Iterable[tuple[StoredMessage, str]], *, at_ms: int) -> Iterator[Event]:
    """Messages that left their store for the error queue, and why."""
    for message, reason in messages:
        yield Event(
            kind=EventKind.REJECTED,
            at_ms=at_ms,
            # A row that is no message may lack either, and an event without them cannot be read back.
            endpoint=_endpoint_name(message.destination) or "-",
            message_id=message.message_id or "-",
            source=Source.DISPATCHER,
            due_ms=message.due_ms if 0 <= message.due_ms <= MAX_DUE_MS else None,
            reason=reason,
        )


@lru_cache
def _endpoint_name(destination: str) -> str:
    """The endpoint of a stored message's destination; a queue that is not SQS's is its own name."""
    try:
        return Endpoint.parse(destination).name
    except InvalidEndpoint:
        return destination
