"""The dispatcher empties a delayed message store on time: claim what is due, send it, remove it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from math import inf
from typing import Final

from sqsdelay.core.clock import Clock, SystemClock
from sqsdelay.core.readable import one_line
from sqsdelay.dispatching.at_least_once import AtLeastOnce
from sqsdelay.dispatching.circuit_breakers import CircuitBreaker, FailureRateBreaker, report
from sqsdelay.dispatching.destinations import Destinations
from sqsdelay.dispatching.exactly_once import ExactlyOnce, InTransaction
from sqsdelay.dispatching.recording import ReleaseRecorder
from sqsdelay.dispatching.settings import DispatchSettings
from sqsdelay.dispatching.settlement import Destination, Round, Settlement
from sqsdelay.dispatching.waiting import (
    BUSY_PAUSE_SECONDS,
    OUTAGE_PAUSE_SECONDS,
    seconds_to_sleep,
    wait_for,
)
from sqsdelay.errors import CriticalError, InvalidSetting, StoreError
from sqsdelay.ledger.events import Ledger
from sqsdelay.ports.queues import Outbox
from sqsdelay.ports.stores import Claim, DelayedMessageStore, TransactionMode

logger = logging.getLogger(__name__)

_FIRST_IDLE_SECONDS: Final = 0.25


class Dispatcher:
    """Releases due messages from one store to where they go. Several may share a store.

    A destination that is out of reach is left alone for 1 s, then twice as long each time, up to
    60 s; then one message tests whether it is back. Messages to other destinations go on meanwhile.

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
        self._settings = settings or DispatchSettings()
        self._store = store
        self._on_critical = on_critical
        self._on_round = on_round
        self._clock = clock or SystemClock()
        self._destinations = Destinations(self._clock)
        self._destination: Destination = (
            InTransaction(destination, self._clock)
            if isinstance(destination, ExactlyOnce)
            else AtLeastOnce(destination, self._destinations)
        )
        most = self._destination.max_ahead_seconds
        self._ahead_ms = 1000 * _checked_ahead(self._settings.release_ahead_seconds, most)
        self._poll_seconds = self._settings.poll_seconds or store.poll_seconds
        self._fetch = CircuitBreaker("fetch", self._settings.fetch_breaker_seconds, self._clock)
        self._dispatch = CircuitBreaker(
            "dispatch", self._settings.dispatch_breaker_seconds, self._clock
        )
        self._asked_again = False
        self._recovery = FailureRateBreaker(
            "recovery", self._settings.maximum_recovery_failures_per_second, self._clock
        )
        self._recorder = ReleaseRecorder(
            ledger,
            now_ms=self._destination.now_ms,
            in_transaction=self._destination.mode is TransactionMode.EXACTLY_ONCE,
        )
        self._settlement = Settlement(
            self._destination,
            self._destinations,
            self._recorder,
            number_of_retries=self._settings.number_of_retries,
            on_lost_count=lambda error: report(self._recovery.failed(error), self._on_critical),
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
        done = Round(now_ms=self._destination.now_ms())
        claiming = self._store.claim(
            self._settings.batch_size,
            due_by_ms=done.now_ms + self._ahead_ms,
            except_destinations=self._destinations.out_of_reach(),
        )
        with self._recorder.transaction(), claiming as claim:
            done.claimed = len(claim.messages)
            if claim.messages:
                outcomes = self._destination.deliver(claim)
                self._recorder.released(claim.messages, outcomes)
                done.now_ms = self._destination.now_ms()
                self._settlement.settle(claim, outcomes, done)
            self._forget_what_is_not_due(claim)
        self._destination.forget(done.released)
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
        """Disarm the dispatch breaker, or arm it if nothing is sent while something is due."""
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
        report(self._dispatch.failed(outage), self._on_critical)

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
            report(self._fetch.failed(error), self._on_critical)
            # Lost counts come so fast that their breaker can tell them from a single one.
            return BUSY_PAUSE_SECONDS if self._recovery.armed else OUTAGE_PAUSE_SECONDS

    def _pause_after(self, done: Round, idle_seconds: float) -> float | None:
        # Destinations that failed are out of the next claim: what is behind them goes ahead.
        if done.settled or done.held:
            return None
        if done.claimed:
            return BUSY_PAUSE_SECONDS
        closed = self._destinations.out_of_reach()
        at_most = min(idle_seconds, self._poll_seconds, self._destinations.seconds_to_next() or inf)
        return seconds_to_sleep(
            self._store.next_due_ms(except_destinations=closed),
            self._destination.now_ms(),
            ahead_ms=self._ahead_ms,
            at_most=at_most,
        )


def _checked_ahead(seconds: int | None, most: int) -> int:
    if seconds is None:
        return most
    if not 0 <= seconds <= most:
        raise InvalidSetting(
            f"release_ahead_seconds={seconds}; the destination's message timers allow 0 to {most}"
        )
    return seconds
