"""The timeout manager: a store and two queues, for transports that cannot delay by themselves.

Senders put delayed messages into the *timeouts* queue, whose receiver stores them. When one is due
its id goes to the *timeouts dispatcher* queue, whose receiver looks it up, sends it on, and removes
it. An id that is no longer there is dropped: an id delivered twice is not a message sent twice.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from sqsdelay.core.clock import Clock, SystemClock
from sqsdelay.core.readable import one_line
from sqsdelay.core.stored_message import StoredMessage
from sqsdelay.dispatching.destinations import Destinations
from sqsdelay.errors import CriticalError, InvalidMessage, QueueUnavailable, StoreError
from sqsdelay.ports.queues import TimeoutTransport
from sqsdelay.ports.stores import DelayedMessageStore, TransactionMode
from sqsdelay.timeouts.announcer import Announcer
from sqsdelay.timeouts.dispatch import TimeoutDispatch
from sqsdelay.timeouts.task import (
    LOST_AFTER,
    PAUSE_SECONDS,
    Announcements,
    Delivered,
    Refused,
    TimeoutParts,
    TimeoutSettings,
    TimeoutStatus,
    TimeoutTask,
)


class Arrivals(TimeoutTask):
    """Stores arriving messages."""

    def __init__(self, parts: TimeoutParts) -> None:
        super().__init__(parts)
        self._storing = self._breaker("storing")

    def turn(self) -> int:
        """Receive one batch and store it.

        Returns:
            How many were received.

        Raises:
            StoreError, CriticalError: the storage failed; the messages come back.
            QueueMissing, QueueUnavailable
        """
        received = self._transport.receive_timeouts(wait_seconds=self._parts.settings.wait_seconds)
        readable: list[Delivered] = [(d, m) for d, m in self._readable(received)]
        now_ms = self._transport.now_ms()
        sent, failed = self._sent([(d, m) for d, m in readable if m.due_ms <= now_ms])
        self._done(TimeoutStatus.SENT_ON, sent)
        self._reject([(d, m, f"{f.code}: {f.error}") for (d, m), f in failed if not f.transient])
        # Overdue in the store, they are dispatched as soon as their destination takes them.
        waiting = [each for each, failure in failed if failure.transient]
        self._keep([(d, m) for d, m in readable if m.due_ms > now_ms] + waiting)
        return len(received)

    def _reject(self, refused: list[Refused]) -> None:
        rejected, left = self._rejected(refused)
        self._done(TimeoutStatus.REJECTED, rejected)
        self._give_back([delivery for delivery, _ in left], seconds=PAUSE_SECONDS)

    def _keep(self, arrived: list[Delivered]) -> None:
        if not arrived:
            return
        try:
            with self._storage(self._storing):
                hopeless = self._stored([message for _, message in arrived])
        except (StoreError, CriticalError):
            self._give_back([delivery for delivery, _ in arrived], seconds=PAUSE_SECONDS)
            raise
        kept = [(d, m) for d, m in arrived if m.message_id not in hopeless]
        self._done(TimeoutStatus.STORED, kept)
        refused: list[Refused] = [
            (d, m, hopeless[m.message_id]) for d, m in arrived if m.message_id in hopeless
        ]
        self._reject(refused)

    def _stored(self, messages: list[StoredMessage]) -> dict[str, str]:
        """Store; by message id, why the store can never keep a message (it is too large)."""
        try:
            self._store.store(messages)
        except InvalidMessage as error:
            if len(messages) == 1:
                return {messages[0].message_id: f"{type(error).__name__}: {error}"}
            hopeless: dict[str, str] = {}
            for message in messages:
                hopeless |= self._stored([message])
            return hopeless
        return {}


__all__ = ["TimeoutManager", "TimeoutSettings", "TimeoutStatus"]

logger = logging.getLogger(__name__)


class TimeoutManager:
    """Serves one endpoint's timeouts. Several may share queues and store.

    Args:
        store: where messages wait.
        transport: the two queues, and the way to the destinations.
        settings: waits and limits.
        on_critical: called in the thread that noticed when the storage has failed for too long;
            if it returns, work goes on. Left out, the CriticalError ends `run`.
        on_done: called with outcomes and their message ids, from the threads.
        clock: the local clock.

    Attributes:
        arrivals, announcer, dispatch: the three tasks; ``turn()`` does one batch of each.
    """

    def __init__(
        self,
        store: DelayedMessageStore,
        transport: TimeoutTransport,
        *,
        settings: TimeoutSettings | None = None,
        on_critical: Callable[[CriticalError], None] | None = None,
        on_done: Callable[[TimeoutStatus, Sequence[str]], None] | None = None,
        clock: Clock | None = None,
    ) -> None:
        settings, clock = settings or TimeoutSettings(), clock or SystemClock()
        self._parts = TimeoutParts(
            store=store,
            transport=transport,
            settings=settings,
            clock=clock,
            destinations=Destinations(clock),
            announcements=Announcements(
                clock, lost_after_seconds=LOST_AFTER * settings.announce_again_seconds
            ),
            on_critical=on_critical,
            on_done=on_done,
        )
        self.arrivals = Arrivals(self._parts)
        self.announcer = Announcer(self._parts)
        self.dispatch = TimeoutDispatch(self._parts)

    def start(self) -> None:
        """Check store and queues. `run` calls it.

        Raises:
            ConfigurationError, StoreMissing, StoreUnavailable, QueueMissing, QueueUnavailable
        """
        self._parts.store.initialize(TransactionMode.AT_LEAST_ONCE)
        self._parts.transport.check()

    def run(self, stop: threading.Event) -> None:
        """Serve until ``stop`` is set, with a thread for each task.

        While queues or storage cannot be reached, it tries again every two seconds. A task that ends
        with an error sets ``stop``, and the others finish the batch in hand.

        Raises:
            ConfigurationError, StoreMissing, StoreUnavailable, QueueMissing, QueueUnavailable:
                from `start`.
            CriticalError: the storage has failed for too long, and there is no ``on_critical``.
        """
        self.start()
        tasks: tuple[Callable[[], None], ...] = (
            lambda: _repeat(self.arrivals.turn, stop),
            lambda: self.announcer.run(stop),
            lambda: _repeat(self.dispatch.turn, stop),
        )
        with ThreadPoolExecutor(len(tasks), thread_name_prefix="timeouts") as threads:
            running = [threads.submit(_stopping_all, task, stop) for task in tasks]
        for task in running:
            task.result()


def _repeat(turn: Callable[[], int], stop: threading.Event) -> None:
    while not stop.is_set():
        try:
            turn()
        except (StoreError, QueueUnavailable) as error:
            logger.warning("trying again in %d s: %s", PAUSE_SECONDS, one_line(error))
            stop.wait(PAUSE_SECONDS)


def _stopping_all(task: Callable[[], None], stop: threading.Event) -> None:
    try:
        task()
    except BaseException:
        stop.set()
        raise
