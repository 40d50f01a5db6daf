"""The dispatcher empties a delayed message store on time: claim what is due, send it, remove it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from sqsdelay import errors
from sqsdelay.core.delay import Clock, SystemClock, check_positive, check_range
from sqsdelay.core.readable import one_line
from sqsdelay.core.stored_message import StoredMessage
from sqsdelay.dispatching import settlement
from sqsdelay.dispatching.settlement import Destination, Round, Settlement
from sqsdelay.errors import CriticalError
from sqsdelay.ledger.events import Ledger
from sqsdelay.ports.queues import ExactlyOnce, Outbox
from sqsdelay.ports.stores import DelayedMessageStore

logger = logging.getLogger(__name__)

DEFAULT_TRIGGER_SECONDS: Final = 30.0
"""Seed 001: store, fetch and dispatch breakers trigger after 30 seconds."""

DEFAULT_FAILURES_PER_SECOND: Final = 1
"""Seed 001: ``MaximumRecoveryFailuresPerSecond``."""

DEFAULT_BATCH: Final = 500
MAX_POLL_SECONDS: Final = 3600
"""What is due later than this need not wake anyone: PostgreSQL's store counts on it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DispatchSettings:
    """How a dispatcher works; the defaults are NServiceBus's where it has any.

    Args:
        number_of_retries: further attempts on a message that its destination refused, before it
            goes to the error queue. An outage of the destination counts as no attempt.
        release_ahead_seconds: how long before its due time a message is sent, with a message timer
            for the rest; a released message can no longer be cancelled. The transport's most (900
            on SQS) when left out.
        batch_size: messages claimed at once.
        poll_seconds: the longest sleep; by default the store's own.
        maximum_recovery_failures_per_second: failed attempts to count a message's failure, above
            which the recovery circuit breaker triggers.
        store_breaker_seconds, fetch_breaker_seconds, dispatch_breaker_seconds: how long storing,
            fetching and sending may fail before their circuit breaker triggers.

    Raises:
        ConfigurationError: a value out of range.
    """

    number_of_retries: int = 0
    release_ahead_seconds: int | None = None
    batch_size: int = DEFAULT_BATCH
    poll_seconds: float | None = None
    maximum_recovery_failures_per_second: int = DEFAULT_FAILURES_PER_SECOND
    store_breaker_seconds: float = DEFAULT_TRIGGER_SECONDS
    fetch_breaker_seconds: float = DEFAULT_TRIGGER_SECONDS
    dispatch_breaker_seconds: float = DEFAULT_TRIGGER_SECONDS

    def __post_init__(self) -> None:
        check_range(0, number_of_retries=self.number_of_retries)
        most_lost = self.maximum_recovery_failures_per_second
        check_range(1, batch_size=self.batch_size, maximum_recovery_failures_per_second=most_lost)
        check_positive(MAX_POLL_SECONDS, poll_seconds=self.poll_seconds)
        check_positive(store_breaker_seconds=self.store_breaker_seconds)
        check_positive(fetch_breaker_seconds=self.fetch_breaker_seconds)
        check_positive(dispatch_breaker_seconds=self.dispatch_breaker_seconds)


_FIRST_IDLE_SECONDS: Final = 0.25
_STOP_LOOK_SECONDS: Final = 0.5


def take_turns(
    store: DelayedMessageStore,
    turn: Callable[[float], float | None],
    *,
    wake: threading.Event,
    stop: threading.Event,
    poll_seconds: float | None,
) -> None:
    """Turn after turn, until ``stop`` is set. Each is told the longest sleep after it, and answers how long
    to sleep, or None to go on at once."""
    most = poll_seconds or store.poll_seconds
    idle_seconds = first = min(_FIRST_IDLE_SECONDS, most)
    with store.watch(wake.set):
        while not stop.is_set():
            wake.clear()
            pause = turn(idle_seconds)
            if pause is not None:
                wait_for(wake, stop, pause)
            # Looking again soon after work finds what was committed just then, in any store.
            again = pause is None or wake.is_set()
            idle_seconds = first if again else min(2 * idle_seconds, most)


def wait_for(wake: threading.Event, stop: threading.Event, seconds: float) -> None:
    """Sleep, checking now and then whether to stop. Setting the system clock has no effect."""
    while seconds > 0 and not stop.is_set():
        if wake.wait(min(seconds, _STOP_LOOK_SECONDS)):
            return
        seconds -= _STOP_LOOK_SECONDS


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


class Dispatcher:
    """Releases due messages from one store to where they go. Several may share a store.

    A destination that is out of reach is left alone for 1 s, then twice as long each time, up to
    60 s; then one message tests whether it is back. Messages to other destinations go on meanwhile, and
    before those for a queue that does not exist, or refuses what it is sent.

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
        ConfigurationError: a release further ahead than the destination's message timers reach.
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
        settings, clock = settings or DispatchSettings(), clock or SystemClock()
        self._settings, self._store, self._on_round = settings, store, on_round
        self._destination = Destination(destination, clock)
        most = self._destination.max_ahead_seconds
        ahead = settings.release_ahead_seconds
        if ahead is not None and not 0 <= ahead <= most:
            raise errors.InvalidSetting(
                f"the destination's message timers allow 0 to {most}", release_ahead_seconds=ahead
            )
        self._ahead_ms = 1000 * (most if ahead is None else ahead)
        self._fetch = CircuitBreaker("fetch", settings.fetch_breaker_seconds, clock, on_critical)
        self._storing = CircuitBreaker("store", settings.store_breaker_seconds, clock, on_critical)
        seconds = settings.dispatch_breaker_seconds
        self._sending = CircuitBreaker("dispatch", seconds, clock, on_critical)
        self._outage: Exception | None = None
        most_lost = settings.maximum_recovery_failures_per_second
        self._recovery = FailureRateBreaker("recovery", most_lost, clock, on_critical)
        self._settlement = Settlement(
            store=store,
            destination=self._destination,
            batch_size=settings.batch_size,
            number_of_retries=settings.number_of_retries,
            on_lost_count=self._recovery.failed,
            ledger=ledger,
        )

    def start(self) -> None:
        """Check the store's mode and the destination. `run` calls it.

        Raises:
            ConfigurationError: the store does not support the mode, or the destination is unsuitable.
            StoreMissing, StoreUnavailable, QueueMissing, QueueUnavailable
        """
        self._store.initialize(self._destination.mode)
        self._destination.check()

    def dispatch(self) -> Round:
        """Claim one batch of due messages and settle it, without waiting for any to be due.

        Raises:
            StoreError: the store failed; what was sent is remembered and not sent again.
            CriticalError: a circuit breaker triggered, and there is no ``on_critical``.
        """
        if self._outage is None and self._sending.lasting:
            # A pause may be longer than the breaker's time: not critical before another attempt.
            self._destination.end_pauses()
        done = self._settlement.claim_due(
            lambda claim, done: self._settlement.release(claim, claim.messages, done),
            ahead_ms=self._ahead_ms,
        )
        if done.claimed and self._on_round is not None:
            self._on_round(done)
        # Only now, when nothing of the claim can be undone any more.
        self._judge(done)
        return done

    def _judge(self, done: Round) -> None:
        """Disarm the dispatch breaker, or arm it if nothing is sent while something is due."""
        if done.settled or (not done.claimed and self._destination.forget_all()):
            # Sent; or cancelled, or sent by another dispatcher: there is nothing to fail with.
            self._sending.succeeded()
            self._outage = None
            return
        self._outage = done.outage or self._outage
        # Behind a full batch may be messages whose destination is well: those first.
        full = done.claimed == self._settings.batch_size
        if self._outage is not None and not (full and self._sending.lasting):
            outage, self._outage = self._outage, None
            self._sending.failed(outage)

    def run(self, stop: threading.Event) -> None:
        """Dispatch until ``stop`` is set; then finish the batch in hand and return.

        Raises:
            ConfigurationError, StoreMissing, StoreUnavailable, QueueMissing, QueueUnavailable:
                from `start`, before any claim.
            CriticalError: a circuit breaker triggered, and there is no ``on_critical``.
        """
        Dispatcher.start(self)
        self._go_on(stop)

    def _go_on(self, stop: threading.Event) -> None:
        wake, poll_seconds = threading.Event(), self._settings.poll_seconds
        take_turns(self._store, self._turn, wake=wake, stop=stop, poll_seconds=poll_seconds)

    def _turn(self, idle_seconds: float) -> float | None:
        """One claim; then how long to sleep, or None to go on at once."""
        try:
            done, pause = self.dispatch(), None
            if not done.claimed:
                pause = self._settlement.seconds_to_next(idle_seconds, ahead_ms=self._ahead_ms)
            elif not (done.settled or done.held or done.failed):
                # What failed is out of the next claim, which finds what is behind it.
                pause = settlement.BUSY_PAUSE_SECONDS
            self._fetch.succeeded()
            return pause
        except errors.StoreError as error:
            logger.warning("the store failed, trying again: %s", one_line(error))
            self._fetch.failed(error)
            # Lost counts come so fast that their breaker can tell them from a single one.
            lost = self._recovery.armed
            return settlement.BUSY_PAUSE_SECONDS if lost else settlement.OUTAGE_PAUSE_SECONDS


class DelayedDelivery(Dispatcher):
    """A dispatcher in a thread of its own, which also stores; a context manager. `store` is thread-safe.

    Args:
        store: created on entering if it is missing, and left open on leaving.
        on_critical: called in the thread that noticed when a circuit breaker triggers; if it
            returns, work goes on. Left out, dispatching stops, and `store` and `stop` raise the
            CriticalError.
    """

    _error: Exception | None = None
    _thread: threading.Thread | None = None

    def start(self) -> None:
        """Create the store if needed, check the destination, and start dispatching in a thread.

        Raises:
            ConfigurationError, StoreUnavailable, QueueMissing, QueueUnavailable: nothing was started.
        """
        with suppress(CriticalError):
            self.stop()  # Started twice, a thread would outlive the only stop it gets.
        try:
            super().start()
        except errors.StoreMissing:
            self._store.set_up()
            super().start()
        self._stop, self._error = threading.Event(), None
        self._thread = threading.Thread(target=self._run, name="dispatcher")
        self._thread.start()

    def store(self, messages: Sequence[StoredMessage], *, transaction: Any = None) -> list[bool]:
        """Keep messages until they are due; see `DelayedMessageStore.store`.

        Raises:
            StoreUnavailable: not stored; try again.
            CriticalError: storing has failed for too long, or dispatching has stopped.
        """
        self._check_runs()
        try:
            new = self._store.store(messages, transaction=transaction)
        except errors.StoreUnavailable as error:
            self._storing.failed(error)
            raise
        self._storing.succeeded()
        return new

    def stop(self) -> None:
        """Finish the batch in hand and end the thread. Raises CriticalError if dispatching had stopped."""
        if self._thread is not None:
            self._stop.set()
            self._thread.join()
        self._thread = None
        self._check_runs()

    def _check_runs(self) -> None:
        if self._error is not None:
            raise CriticalError(f"dispatching has stopped: {self._error}") from self._error

    def _run(self) -> None:
        try:
            self._go_on(self._stop)
        except Exception as error:
            # Callbacks of the user's may raise anything; whoever stores must hear of it.
            logger.critical("dispatching stops: %s", one_line(repr(error)))
            self._error = error

    def __enter__(self) -> DelayedDelivery:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
