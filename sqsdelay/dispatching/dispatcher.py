"""The dispatcher: empties a delayed message store on time. Claim what is due, send it, remove it."""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Final

from sqsdelay.core.backoff import retry_seconds
from sqsdelay.core.clock import Clock, SystemClock
from sqsdelay.core.one_line import one_line
from sqsdelay.core.stored_message import StoredMessage
from sqsdelay.dispatching.circuit_breakers import CircuitBreaker, FailureRateBreaker
from sqsdelay.dispatching.destinations import NOT_TRIED, Destinations, is_outage, unreadable
from sqsdelay.dispatching.exactly_once import ExactlyOnce
from sqsdelay.dispatching.recording import ReleaseRecorder
from sqsdelay.dispatching.settings import DispatchSettings
from sqsdelay.errors import (
    ConfigurationError,
    CriticalError,
    StoreError,
)
from sqsdelay.ledger.events import Ledger
from sqsdelay.ports.queues import Failure, Outbox
from sqsdelay.ports.stores import Claim, DelayedMessageStore, TransactionMode

logger = logging.getLogger(__name__)

_OUTAGE_PAUSE_SECONDS: Final = 1.0
_BUSY_PAUSE_SECONDS: Final = 0.1
_FIRST_IDLE_SECONDS: Final = 0.25
_STOP_LOOK_SECONDS: Final = 0.5
_REMEMBERED: Final = 100_000


@dataclass(slots=True)
class Round:
    """What one claim came to. ``held`` wait for an outage to pass, ``failed`` for a retry.

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
        """For each released message how long after its due time it was sent; 0 when ahead of it."""
        return [max(0, self.now_ms - message.due_ms) for message in self.released]


class Dispatcher:
    """Releases due messages from one store to where they go. Several may share a store.

    A destination that is out of reach is left alone for 1 s, then twice as long each time, up to
    60 s; then one message finds out whether it is back. Messages to the others go on meanwhile.

    Args:
        store: where messages wait.
        destination: an outbox (at least once), or effects inside the store's database.
        settings: retries, release ahead, circuit breakers.
        on_critical: called when a circuit breaker triggers; if it returns, the dispatcher goes on.
            Left out, the CriticalError ends `run`.
        on_round: called after each claim that found messages, from the dispatcher's thread.
        ledger: where to record what was released and rejected; None records nothing.
        clock: the local clock.

    Raises:
        ConfigurationError: a release further ahead than the destination has timers for.
    """

    def __init__(
        self,
        store: DelayedMessageStore,
        destination: Outbox | ExactlyOnce,
        *,
        settings: DispatchSettings | None = None,
        on_critical: Callable[[CriticalError], None] | None = None,
        on_round: Callable[[Round], None] | None = None,
        ledger: Ledger | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._settings = settings or DispatchSettings()
        self._store = store
        self._destination = destination
        self._on_critical = on_critical
        self._on_round = on_round
        self._clock = clock or SystemClock()
        self._ahead_ms = 1000 * _checked_ahead(self._settings.release_ahead_seconds, destination)
        self._poll_seconds = self._settings.poll_seconds or store.poll_seconds
        self._fetch = CircuitBreaker("fetch", self._settings.fetch_breaker_seconds, self._clock)
        self._dispatch = CircuitBreaker(
            "dispatch", self._settings.dispatch_breaker_seconds, self._clock
        )
        self._destinations = Destinations(self._clock)
        self._asked_again = False
        self._recovery = FailureRateBreaker(
            "recovery", self._settings.maximum_recovery_failures_per_second, self._clock
        )
        self._sent: OrderedDict[tuple[str, int], None] = OrderedDict()
        self._recorder = ReleaseRecorder(
            ledger, now_ms=self._now_ms, in_transaction=isinstance(destination, ExactlyOnce)
        )

    def start(self) -> None:
        """Check the store's mode and the destination. `run` calls it.

        Raises:
            ConfigurationError: the store cannot give the mode, or the destination is not fit.
            StoreMissing, StoreUnavailable, QueueMissing, QueueUnavailable
        """
        if isinstance(self._destination, ExactlyOnce):
            self._store.initialize(TransactionMode.EXACTLY_ONCE)
        else:
            self._store.initialize(TransactionMode.AT_LEAST_ONCE)
            self._destination.check()

    def dispatch(self) -> Round:
        """Claim one batch of due messages and settle it; at once, whether or not any are due.

        Raises:
            StoreError: the store failed; what was sent is remembered and not sent again.
            CriticalError: a circuit breaker triggered, and there is no ``on_critical``.
        """
        done = Round(now_ms=self._now_ms())
        claiming = self._store.claim(
            self._settings.batch_size,
            due_by_ms=done.now_ms + self._ahead_ms,
            except_destinations=self._destinations.out_of_reach(),
        )
        with self._recorder.transaction(), claiming as claim:
            done.claimed = len(claim.messages)
            if claim.messages:
                outcomes = self._deliver(claim)
                done.now_ms = self._now_ms()
                self._settle(claim, outcomes, done)
            self._forget_what_is_not_due(claim)
        for message in done.released:
            self._sent.pop(_key(message), None)
        if done.claimed and self._on_round is not None:
            self._on_round(done)
        # Only now, when nothing of the claim can be undone any more.
        self._judge(done)
        return done

    def _forget_what_is_not_due(self, claim: Claim) -> None:
        if len(claim.messages) < self._settings.batch_size and self._destinations.forget_but(
            {message.destination for message in claim.messages}
        ):
            # Another dispatcher sent it, or it was cancelled: there is nothing to fail with.
            self._dispatch.succeeded()
            self._asked_again = False

    def _judge(self, done: Round) -> None:
        """Disarm the dispatch breaker, or arm it: nothing is sent while something is due."""
        if done.settled:
            self._dispatch.succeeded()
            self._asked_again = False
            return
        outage = done.outage or self._destinations.outage()
        if outage is None:
            return
        self._dispatch.arm()
        # Behind a full batch may be messages whose destination is well: those first.
        if done.claimed == self._settings.batch_size or not self._dispatch.lasting:
            return
        if not self._asked_again and self._destinations.try_now():
            # A pause may be longer than the breaker's time: not critical before another attempt.
            self._asked_again = True
            return
        self._asked_again = False
        self._raise_critical(self._dispatch.failed(outage))

    def run(self, stop: threading.Event) -> None:
        """Dispatch until ``stop`` is set; then finish the batch in hand and return.

        Raises:
            ConfigurationError, StoreMissing, StoreUnavailable, QueueMissing, QueueUnavailable:
                from `start`, before any claim.
            CriticalError: a circuit breaker triggered, and there is no ``on_critical``.
        """
        self.start()
        wake = threading.Event()
        idle_seconds = _FIRST_IDLE_SECONDS
        with self._store.watch(wake.set):
            while not stop.is_set():
                wake.clear()
                pause = self._turn(idle_seconds)
                if pause is None:
                    idle_seconds = _FIRST_IDLE_SECONDS
                    continue
                wait_for(wake, stop, pause)
                # Looking again soon after work finds what was committed just then, in any store.
                idle_seconds = min(2 * idle_seconds, self._poll_seconds)

    def _turn(self, idle_seconds: float) -> float | None:
        """One claim; then how long to sleep, or None to go on at once."""
        try:
            pause = self._pause_after(self.dispatch(), idle_seconds)
            self._fetch.succeeded()
            return pause
        except StoreError as error:
            logger.warning("the store failed, trying again: %s", one_line(error))
            self._raise_critical(self._fetch.failed(error))
            # Lost counts come so fast that their breaker can tell them from a single one.
            return _BUSY_PAUSE_SECONDS if self._recovery.armed else _OUTAGE_PAUSE_SECONDS

    def _pause_after(self, done: Round, idle_seconds: float) -> float | None:
        # Destinations that failed are out of the next claim: what is behind them goes ahead.
        if done.settled or done.held:
            return None
        if done.claimed:
            return _BUSY_PAUSE_SECONDS
        closed = self._destinations.out_of_reach()
        at_most = min(idle_seconds, self._poll_seconds, self._destinations.seconds_to_next() or inf)
        return seconds_to_sleep(
            self._store.next_due_ms(except_destinations=closed),
            self._now_ms(),
            ahead_ms=self._ahead_ms,
            at_most=at_most,
        )

    def _deliver(self, claim: Claim) -> list[Failure | None]:
        if isinstance(self._destination, ExactlyOnce):
            failures = self._destination.send(claim)
            self._recorder.released(claim.messages, failures)
            return failures
        # Sent before, only the removal had failed: sending again would duplicate it.
        new = [m for m in claim.messages if not m.unreadable and _key(m) not in self._sent]
        sent = self._destinations.send(self._destination, new)
        self._recorder.released(new, sent)
        failed: dict[tuple[str, int], Failure] = {}
        for message, outcome in zip(new, sent, strict=True):
            if isinstance(outcome, Failure):
                failed[_key(message)] = outcome
            else:
                self._remember(_key(message))
        return [failed.get(_key(m)) or unreadable(m) for m in claim.messages]

    def _remember(self, key: tuple[str, int]) -> None:
        self._sent[key] = None
        if len(self._sent) > _REMEMBERED:
            self._sent.popitem(last=False)

    def _settle(self, claim: Claim, outcomes: Sequence[Failure | None], done: Round) -> None:
        refused: list[tuple[StoredMessage, Failure]] = []
        for message, failure in zip(claim.messages, outcomes, strict=True):
            if failure is None:
                done.released.append(message)
            elif failure is NOT_TRIED:
                continue
            elif is_outage(failure):
                done.held.append(message)
                done.outage = failure.error
            else:
                refused.append((message, failure))
        if done.released:
            removed = claim.remove(_ids(done.released))
            if not all(removed):
                # A lease was lost: the process was frozen, or the store away, for longer than it.
                logger.warning("%d messages may be sent twice", removed.count(False))
        closed = self._destinations.out_of_reach()
        passing = [message for message in done.held if message.destination not in closed]
        if passing:
            # Others to the same destination were sent: these alone wait for a moment.
            claim.hold(_ids(passing), seconds=_OUTAGE_PAUSE_SECONDS)
        self._settle_refused(claim, refused, done)

    def _settle_refused(
        self, claim: Claim, refused: list[tuple[StoredMessage, Failure]], done: Round
    ) -> None:
        hopeless: list[tuple[StoredMessage, str]] = []
        for message, failure in refused:
            logger.warning(
                "message %s not released: %s", one_line(message.message_id), one_line(failure.error)
            )
            if failure.transient and message.failures < self._settings.number_of_retries:
                self._count_failure(claim, message, done)
            else:
                hopeless.append((message, f"{failure.code}: {failure.error}"))
        if not hopeless:
            return
        rejections = self._reject(claim, hopeless)
        self._recorder.rejected(hopeless, rejections)
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
                self._count_failure(claim, message, done)
        claim.remove(_ids(done.rejected))

    def _reject(
        self, claim: Claim, hopeless: list[tuple[StoredMessage, str]]
    ) -> list[Failure | None]:
        if isinstance(self._destination, ExactlyOnce):
            return self._destination.send_to_error_queue(claim, hopeless)
        return self._destination.reject(hopeless)

    def _count_failure(self, claim: Claim, message: StoredMessage, done: Round) -> None:
        done.failed.append(message)
        try:
            claim.count_failures(
                [message.message_id], retry_after_seconds=retry_seconds(message.failures)
            )
        except StoreError as error:
            self._raise_critical(self._recovery.failed(error))
            raise

    def _raise_critical(self, critical: CriticalError | None) -> None:
        if critical is None:
            return
        if self._on_critical is None:
            raise critical
        self._on_critical(critical)

    def _now_ms(self) -> int:
        if isinstance(self._destination, ExactlyOnce):
            return self._clock.now_ms()
        return self._destination.now_ms()


def seconds_to_sleep(
    next_due_ms: int | None, now_ms: int, *, ahead_ms: int, at_most: float
) -> float:
    """How long a dispatcher that found nothing may sleep: until the next is due, never negative.

    When something is due already, another dispatcher has it: look again shortly.
    """
    if next_due_ms is None:
        return at_most
    remaining = (next_due_ms - ahead_ms - now_ms) / 1000
    return min(at_most, remaining if remaining > 0 else _BUSY_PAUSE_SECONDS)


def _checked_ahead(seconds: int | None, destination: Outbox | ExactlyOnce) -> int:
    most = 0 if isinstance(destination, ExactlyOnce) else destination.max_ahead_seconds
    if seconds is None:
        return most
    if not 0 <= seconds <= most:
        raise ConfigurationError(
            f"release_ahead_seconds={seconds}; the destination's message timers allow 0 to {most}"
        )
    return seconds


def wait_for(wake: threading.Event, stop: threading.Event, seconds: float) -> None:
    """Sleep, looking now and then whether to stop; a clock that is set plays no part."""
    while seconds > 0 and not stop.is_set():
        if wake.wait(min(seconds, _STOP_LOOK_SECONDS)):
            return
        seconds -= _STOP_LOOK_SECONDS


def _key(message: StoredMessage) -> tuple[str, int]:
    return message.message_id, message.due_ms


def _ids(messages: Sequence[StoredMessage]) -> list[str]:
    return [message.message_id for message in messages]
