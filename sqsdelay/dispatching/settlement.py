"""What becomes of a claim (released, tried later, held, rejected), what the ledger is told of it; and circuit
breakers, which tell a passing disturbance from one that needs attention."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import chain
from math import inf
from typing import Final

from sqsdelay.core.delay import Clock
from sqsdelay.core.endpoint import Endpoint
from sqsdelay.core.readable import one_line
from sqsdelay.core.stored_message import StoredMessage
from sqsdelay.dispatching import destinations
from sqsdelay.dispatching.destinations import Destination, Outcome, Reasons, retry_seconds
from sqsdelay.errors import (
    CriticalError,
    InvalidEndpoint,
    InvalidMessage,
    InvalidSetting,
    StoreError,
)
from sqsdelay.ledger.events import Event, EventKind, Ledger, Source, record_safely
from sqsdelay.limits import MAX_DUE_MS
from sqsdelay.ports.queues import Failure
from sqsdelay.ports.stores import Claim, DelayedMessageStore, TransactionMode

logger = logging.getLogger(__name__)

Refusals = Sequence[tuple[StoredMessage, Failure]]

OUTAGE_PAUSE_SECONDS: Final = 1.0
BUSY_PAUSE_SECONDS: Final = 0.1


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


@dataclass(eq=False, kw_only=True)
class Settlement:
    """Claims messages and settles them: delivered, tried later, held or rejected.

    Args:
        on_lost_count: called with the store's error when a failed attempt cannot be counted.
        ledger: events of effects in the store's transaction, which may undo what they tell, wait for its end.
            Others are recorded before the messages leave the store: a dispatcher that dies in between
            releases, and records, again.
    """

    store: DelayedMessageStore
    destination: Destination
    batch_size: int
    number_of_retries: int
    on_lost_count: Callable[[StoreError], None] = lambda _: None
    ledger: Ledger | None = None
    _waiting: list[Iterable[Event]] = field(default_factory=list)

    def claim_due(self, act: Callable[[Claim, Round], None], *, ahead_ms: int = 0) -> Round:
        """Claim a batch of due messages, and ``act`` on it. Those for destinations out of reach are passed
        over; those for queues that take nothing are claimed when nothing else is due."""
        away, last = self.destination.away(), self.destination.last()
        for passed_over in (away | last, away):
            done = Round(now_ms=self.destination.now_ms())
            due_by_ms = done.now_ms + ahead_ms
            claiming = self.store.claim(
                self.batch_size, due_by_ms=due_by_ms, except_destinations=passed_over
            )
            with self.claimed(claiming, done) as claim:
                done.claimed = len(claim.messages)
                act(claim, done)
            if done.claimed or not last:
                break
        return done

    @contextmanager
    def claimed(self, claiming: AbstractContextManager[Claim], done: Round) -> Iterator[Claim]:
        """A claim; when it has ended, what was released is known to be gone, or remembered as sent."""
        self._waiting.clear()
        try:
            with claiming as claim:
                yield claim
        except BaseException:
            self.destination.remember(done.released)
            raise
        self.destination.forget(done.released)
        if self.ledger is not None:
            record_safely(self.ledger, chain.from_iterable(self._waiting))

    def seconds_to_next(self, at_most: float, *, ahead_ms: int = 0) -> float:
        """How long whoever found nothing may sleep: until a message is due, or a pause ends."""
        next_due_ms = self.store.next_due_ms(except_destinations=self.destination.away())
        at_most = min(at_most, self.destination.seconds_to_next() or inf)
        if next_due_ms is None:
            return at_most
        seconds = (next_due_ms - ahead_ms - self.destination.now_ms()) / 1000
        # What is due already another dispatcher has: look again shortly.
        return min(at_most, seconds if seconds > 0 else BUSY_PAUSE_SECONDS)

    def release(self, claim: Claim, messages: Sequence[StoredMessage], done: Round) -> None:
        """Deliver messages of the claim and remove those that were released; count, hold or reject the rest.
        Where the store fails, what was not removed is claimed again."""
        if not messages:
            return
        refused = [
            (message, Failure("Unreadable", InvalidMessage(message.unreadable), transient=False))
            for message in messages
            if message.unreadable is not None
        ]
        readable = [message for message in messages if message.unreadable is None]
        delivered = self.destination.deliver(claim, readable) if readable else []
        outcomes = list(zip(readable, delivered, strict=True))
        for message, outcome in outcomes:
            if not isinstance(outcome, Failure):
                done.released.append(message)
            elif not outcome.outage:
                refused.append((message, outcome))
            elif outcome is not destinations.NOT_TRIED:
                done.held.append(message)
                done.outage = outcome.error
        done.now_ms = self.destination.now_ms()
        self._record(released(outcomes, at_ms=done.now_ms))
        if done.released:
            removed = claim.remove(ids_of(done.released))
            if not all(removed):
                # A lease was lost: the process was frozen, or the store away, for longer than it.
                logger.warning("%d messages may be sent twice", removed.count(False))
        away = self.destination.away()
        passing = [message for message in done.held if message.destination not in away]
        if passing:
            # Others to the same destination were sent: these alone wait for a moment.
            claim.hold(ids_of(passing), seconds=OUTAGE_PAUSE_SECONDS)
        self._settle_refused(claim, refused, done)

    def _settle_refused(self, claim: Claim, refused: Refusals, done: Round) -> None:
        again: list[StoredMessage] = []
        hopeless: list[tuple[StoredMessage, str]] = []
        for message, failure in refused:
            if failure.transient and message.failures < self.number_of_retries:
                again.append(message)
            else:
                hopeless.append((message, f"{failure.code}: {failure.error}"))
        _tell(logger.warning, "not released", refused)
        self._count_failures(claim, again, done)
        if not hopeless:
            return
        outcomes = list(zip(hopeless, self.destination.reject(claim, hopeless), strict=True))
        gone = [entry for entry, failure in outcomes if failure is None]
        stay = [(message, failure) for (message, _), failure in outcomes if failure is not None]
        # The error queue is away or missing; a message it refuses is no outage of it.
        done.outage = next((f.error for _, f in stay if f.transient), done.outage)
        _tell(logger.error, "not rejected", stay)
        done.rejected = [message for message, _ in gone]
        self._record(rejected(gone, at_ms=self.destination.now_ms()))
        self._count_failures(claim, [message for message, _ in stay], done)
        claim.remove(ids_of(done.rejected))

    def _record(self, events: Iterable[Event]) -> None:
        if self.ledger is not None and self.destination.mode is TransactionMode.EXACTLY_ONCE:
            self._waiting.append(events)
        elif self.ledger is not None:
            record_safely(self.ledger, events)

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
            self.on_lost_count(error)
            raise


def _tell(log: Callable[..., None], what: str, failed: Refusals) -> None:
    """One line for all that failed with the same error: thousands may, at every attempt."""
    together: dict[str, list[str]] = {}
    for message, failure in failed:
        together.setdefault(one_line(failure.error), []).append(message.message_id)
    for error, ids in together.items():
        more = f" and {len(ids) - 1} more" if len(ids) > 1 else ""
        log("message %s%s %s: %s", one_line(ids[0]), more, what, error)


def ids_of(messages: Iterable[StoredMessage]) -> list[str]:
    """Their message ids."""
    return [message.message_id for message in messages]


def released(messages: Iterable[tuple[StoredMessage, Outcome]], *, at_ms: int) -> Iterator[Event]:
    """Messages that left their store for their destination just now."""
    for message, how in messages:
        if isinstance(how, Failure) or how is destinations.SENT_BEFORE:
            continue
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


def rejected(messages: Reasons, *, at_ms: int) -> Iterator[Event]:
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


DEFAULT_TRIGGER_SECONDS: Final = 30.0
"""Seed 001: store, fetch and dispatch breakers trigger after 30 seconds."""

DEFAULT_FAILURES_PER_SECOND: Final = 1
"""Seed 001: ``MaximumRecoveryFailuresPerSecond``."""


@dataclass(eq=False)
class _Breaker:
    """``limit``: the seconds that failures may last, or how many there may be in one. Triggered, it calls
    ``on_critical``; without it, `failed` raises the CriticalError."""

    name: str
    limit: float
    clock: Clock
    on_critical: Callable[[CriticalError], None] | None = None

    def _trigger(self, text: str, cause: Exception) -> None:
        critical = CriticalError(f"{self.name} circuit breaker: {text}: {cause}")
        critical.__cause__ = cause
        if self.on_critical is None:
            raise critical
        self.on_critical(critical)


@dataclass(eq=False)
class CircuitBreaker(_Breaker):
    """Armed by the first failure, disarmed by a success, triggered when failures last. Thread-safe."""

    _armed_at: float | None = None

    def __post_init__(self) -> None:
        if not self.limit > 0:
            raise InvalidSetting(f"{self.name} circuit breaker of {self.limit} s; use more than 0")
        self._lock = threading.Lock()

    @property
    def lasting(self) -> bool:
        """True when the next failure triggers it."""
        armed_at = self._armed_at
        return armed_at is not None and self.clock.monotonic() - armed_at >= self.limit

    def succeeded(self) -> None:
        """Disarm."""
        with self._lock:
            self._armed_at = None

    def failed(self, error: Exception) -> None:
        """Arm; or trigger once failures have lasted, and arm again."""
        with self._lock:
            now = self.clock.monotonic()
            lasted = 0.0 if self._armed_at is None else now - self._armed_at
            if self._armed_at is None or lasted >= self.limit:
                self._armed_at = now
        if lasted >= self.limit:
            self._trigger(f"failing for {lasted:.0f} s (limit {self.limit:g} s), last with", error)


@dataclass(eq=False)
class FailureRateBreaker(_Breaker):
    """Triggered by more than so many failures within one second."""

    def __post_init__(self) -> None:
        if self.limit < 1:
            raise InvalidSetting(f"{self.name} breaker of {self.limit} a second; use 1 or more")
        self._failures: list[float] = []

    @property
    def armed(self) -> bool:
        """True within a second of a failure that did not trigger it."""
        return bool(self._failures) and self.clock.monotonic() - self._failures[-1] < 1

    def failed(self, error: Exception) -> None:
        """Count a failure; or trigger when there are too many, and start again."""
        now = self.clock.monotonic()
        self._failures = [*(at for at in self._failures if now - at < 1), now]
        counted = len(self._failures)
        if counted > self.limit:
            self._failures = []
            self._trigger(f"{counted} failures in a second (limit {self.limit}), last", error)
