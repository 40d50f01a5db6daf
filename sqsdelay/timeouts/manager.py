"""The timeout manager: a store and two queues, for transports that cannot delay by themselves.

Senders put delayed messages into the *timeouts* queue, whose receiver stores them. When one is due
its id goes to the *timeouts dispatcher* queue, whose receiver looks it up, sends it on, and removes
it. An id that is no longer there is dropped: an id delivered twice is not a message sent twice.

All that it knows of a message is in the store: when it is due, what has failed, until when it is held.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from math import ceil
from typing import Any, Final

from sqsdelay.core.clock import Clock, SystemClock
from sqsdelay.core.readable import one_line
from sqsdelay.core.stored_message import StoredMessage
from sqsdelay.dispatching.dispatcher import take_turns
from sqsdelay.dispatching.settlement import OUTAGE_PAUSE_SECONDS, Round, ids_of
from sqsdelay.errors import CriticalError, QueueUnavailable, StoreError
from sqsdelay.ports.queues import Delivery, TimeoutTransport
from sqsdelay.ports.stores import Claim, ClaimsIds, DelayedMessageStore, TransactionMode
from sqsdelay.timeouts.arrivals import (
    PAUSE_SECONDS,
    Arrivals,
    TimeoutParts,
    TimeoutSettings,
    TimeoutStatus,
)

logger = logging.getLogger(__name__)

_SOON_MS: Final = 5_000
"""Announced, and due so soon: clocks differ, or it was moved by a moment. The id waits for it."""


class Announcer:
    """Announces due messages, each once: they are held in the store while their ids are in the dispatcher
    queue. What comes out of the store again has failed, or its id was lost: it is dispatched straight from
    there, like what is for a destination that is not well. So the queue never has an id twice, nor one that
    cannot be sent."""

    def __init__(self, parts: TimeoutParts) -> None:
        self._parts = parts
        self._fetching = parts.breaker("fetching")
        # What a store cannot find by ids in one query is dispatched straight from there.
        self._announces = isinstance(parts.store, ClaimsIds)
        self._unannounced: list[str] = []

    def turn(self) -> int:
        """Claim one batch of due messages: announce those that are new, dispatch the others.

        The new ones are held first. If the process dies just then, they are dispatched when their hold ends.

        Returns:
            How many were announced, dispatched, rejected, or are tried later.

        Raises:
            StoreError, CriticalError: the storage failed.
            QueueUnavailable: some were not announced; the next turn begins with them.
        """
        parts, done = self._parts, Round()
        if not self._unannounced:
            try:
                done = parts.settlement.claim_due(self._sort)
            except StoreError as error:
                # Their holds may be undone.
                self._unannounced = []
                self._fetching.failed(error)
                raise
            self._fetching.succeeded()
            parts.tell_of(done)
        # Kept until the transport has answered: it may raise as well.
        outcomes = parts.transport.announce(self._unannounced) if self._unannounced else []
        waiting, self._unannounced = self._unannounced, []
        announced: list[str] = []
        for message_id, failure in zip(waiting, outcomes, strict=True):
            (announced if failure is None else self._unannounced).append(message_id)
        parts.tell(TimeoutStatus.ANNOUNCED, announced)
        for failure in filter(None, outcomes):
            raise QueueUnavailable(f"due messages not announced: {failure.error}")
        return len(announced) + len(done.released) + len(done.rejected) + len(done.failed)

    def _sort(self, claim: Claim, done: Round) -> None:
        """Hold what is to be announced, once the rest has been dispatched."""
        unwell = self._parts.destination.unwell()
        held: Collection[str] = getattr(claim, "again", ())
        new: list[StoredMessage] = []
        again: list[StoredMessage] = []
        for message in claim.messages:
            known = message.message_id in held or message.destination in unwell
            straight = known or message.unreadable is not None or not self._announces
            (again if straight else new).append(message)
        if again:
            self._parts.settlement.release(claim, again, done)
        if new:
            # Last: a hold that outlives an error here would keep them from being announced.
            claim.hold(ids_of(new), seconds=self._parts.settings.announce_again_seconds)
        self._unannounced = ids_of(new)

    def run(self, stop: threading.Event) -> None:
        """Until ``stop`` is set: announce a batch, then sleep until the next message is due.

        Raises:
            CriticalError
        """
        parts = self._parts

        def turn(idle_seconds: float) -> float | None:
            try:
                return None if self.turn() else parts.settlement.seconds_to_next(idle_seconds)
            except (StoreError, QueueUnavailable) as error:
                logger.warning("cannot announce, trying again: %s", one_line(error))
                return PAUSE_SECONDS

        poll_seconds = parts.settings.poll_seconds or parts.store.poll_seconds
        take_turns(parts.store, turn, wake=parts.look, stop=stop, poll_seconds=poll_seconds)


class TimeoutDispatch:
    """Dispatches announced messages. What fails waits in the store, not in the queue. Where that does not
    find messages by ids, ids are dropped: the announcer dispatches from it."""

    def __init__(self, parts: TimeoutParts) -> None:
        self._parts = parts
        self._finding = parts.breaker("finding")
        self._removing = parts.breaker("removing")

    def turn(self) -> int:
        """Receive what ids the queue gives, find their messages in one query, and dispatch them.

        Returns:
            How many were received.

        Raises:
            StoreError, CriticalError: the storage failed; the ids come back, and what was sent is
                remembered and not sent again.
            QueueMissing, QueueUnavailable
        """
        transport, settings = self._parts.transport, self._parts.settings
        received = transport.receive_due_ids(wait_seconds=settings.wait_seconds)
        brought: dict[str, list[Delivery[Any]]] = {}
        for delivery, message_id in self._parts.readable(received):
            brought.setdefault(message_id, []).append(delivery)
        if brought:
            self._dispatch(brought)
        return len(received)

    def _dispatch(self, brought: dict[str, list[Delivery[Any]]]) -> None:
        parts, done = self._parts, Round(now_ms=self._parts.transport.now_ms())
        due: list[StoredMessage] = []
        later: dict[str, int] = {}
        if isinstance(parts.store, ClaimsIds):
            breaker = self._finding
            try:
                claiming = parts.store.claim_ids(list(brought))
                with parts.settlement.claimed(claiming, done) as claim:
                    breaker.succeeded()
                    breaker = self._removing
                    # Whoever has it now sends it, or lets it go.
                    later = dict.fromkeys(getattr(claim, "busy", ()), 1)
                    for message in claim.messages:
                        ahead_ms = message.due_ms - done.now_ms
                        if ahead_ms <= 0:
                            due.append(message)
                        elif ahead_ms <= _SOON_MS:
                            later[message.message_id] = ceil(ahead_ms / 1000)
                    if due:
                        self._release(claim, due, done)
            except (StoreError, CriticalError) as error:
                back = [d for deliveries in brought.values() for d in deliveries]
                parts.transport.give_back(back, seconds=PAUSE_SECONDS)
                if isinstance(error, StoreError):
                    breaker.failed(error)
                raise
            if due:
                breaker.succeeded()
        for message_id, seconds in later.items():
            parts.transport.give_back(brought.pop(message_id), seconds=seconds)
        parts.transport.settle([d for deliveries in brought.values() for d in deliveries])
        parts.tell_of(done)
        tried = set(ids_of(due))
        parts.tell(TimeoutStatus.DROPPED, [i for i in brought if i not in tried])

    def _release(self, claim: Claim, due: list[StoredMessage], done: Round) -> None:
        self._parts.settlement.release(claim, due, done)
        tried = {*ids_of(done.released + done.rejected + done.failed + done.held)}
        # As soon as their destinations are in reach; those tried just now perhaps are, for others.
        untried = [message_id for message_id in ids_of(due) if message_id not in tried]
        for ids, seconds in ((untried, 0.0), (ids_of(done.held), OUTAGE_PAUSE_SECONDS)):
            if ids:
                claim.hold(ids, seconds=seconds)
        if len(done.released) < len(due):
            self._parts.look.set()


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
        self._parts = TimeoutParts(store, transport, settings, on_critical, on_done, clock)
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
