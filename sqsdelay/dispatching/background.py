"""Delayed delivery inside an application: store messages, and a thread that dispatches them."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from typing import Any

from sqsdelay.core.clock import Clock, SystemClock
from sqsdelay.core.readable import one_line
from sqsdelay.core.stored_message import StoredMessage
from sqsdelay.dispatching.circuit_breakers import CircuitBreaker, report
from sqsdelay.dispatching.destinations import ExactlyOnce
from sqsdelay.dispatching.dispatcher import Dispatcher, DispatchSettings
from sqsdelay.dispatching.settlement import Round
from sqsdelay.errors import CriticalError, StoreMissing, StoreUnavailable
from sqsdelay.ledger.events import Ledger
from sqsdelay.ports.queues import Outbox
from sqsdelay.ports.stores import DelayedMessageStore

logger = logging.getLogger(__name__)


class DelayedDelivery:
    """A store and its dispatcher in one object; a context manager. `store` is thread-safe.

    Args:
        store: where messages wait; created on entering if it is missing, and left open on leaving.
        destination, settings, on_round, ledger, clock: as for `Dispatcher`.
        on_critical: called in the thread that noticed when a circuit breaker triggers; if it
            returns, work goes on. Left out, dispatching stops, and `store` and `stop` raise the
            CriticalError.
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
        settings = settings or DispatchSettings()
        clock = clock or SystemClock()
        self._store = store
        self._on_critical = on_critical
        self._breaker = CircuitBreaker("store", settings.store_breaker_seconds, clock)
        self._dispatcher = Dispatcher(
            store,
            destination,
            settings=settings,
            on_critical=on_critical,
            on_round=on_round,
            ledger=ledger,
            clock=clock,
        )
        self._stop = threading.Event()
        self._error: Exception | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Create the store if needed, check the destination, and start dispatching in a thread.

        Raises:
            ConfigurationError, StoreUnavailable, QueueMissing, QueueUnavailable: nothing was started.
        """
        try:
            self._dispatcher.start()
        except StoreMissing:
            self._store.set_up()
            self._dispatcher.start()
        self._stop.clear()
        self._error = None
        self._thread = threading.Thread(target=self._run, name="dispatcher")
        self._thread.start()

    def store(self, messages: Sequence[StoredMessage], *, transaction: Any = None) -> list[bool]:
        """Keep messages until they are due; see `DelayedMessageStore.store`.

        Raises:
            StoreUnavailable: not stored; try again.
            CriticalError: storing has failed for too long, or dispatching has stopped.
        """
        if self._error is not None:
            raise CriticalError(f"dispatching has stopped: {self._error}") from self._error
        try:
            new = self._store.store(messages, transaction=transaction)
        except StoreUnavailable as error:
            report(self._breaker.failed(error), self._on_critical)
            raise
        self._breaker.succeeded()
        return new

    def stop(self) -> None:
        """Finish the batch in hand and end the thread.

        Raises:
            CriticalError: dispatching had stopped before.
        """
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self._error is not None:
            raise CriticalError(f"dispatching has stopped: {self._error}") from self._error

    def _run(self) -> None:
        try:
            self._dispatcher.run(self._stop)
        except Exception as error:
            # Callbacks of the user's may raise anything; whoever stores must hear of it.
            logger.critical("dispatching stops: %s", one_line(repr(error)))
            self._error = error

    def __enter__(self) -> DelayedDelivery:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
