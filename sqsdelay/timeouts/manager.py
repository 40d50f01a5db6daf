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
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from math import ceil
from typing import Any, Final, TypeVar

from sqsdelay import errors
from sqsdelay.core.delay import Clock, Reject, SystemClock, check_positive, check_range
from sqsdelay.core.limits import MAX_RECEIVE_WAIT_SECONDS, STOP_SECONDS
from sqsdelay.core.readable import one_line
from sqsdelay.core.stored_message import StoredMessage
from sqsdelay.dispatching import settlement
from sqsdelay.dispatching.dispatcher import DEFAULT_BATCH, CircuitBreaker, take_turns
from sqsdelay.dispatching.settlement import Destination, Round, Settlement, ids_of
from sqsdelay.errors import CriticalError
from sqsdelay.ports.queues import Delivery, Failure, TimeoutTransport
from sqsdelay.ports.stores import Claim, ClaimsIds, DelayedMessageStore, TransactionMode

logger = logging.getLogger(__name__)

_PAUSE_SECONDS: Final = 2
"""Between attempts while storage or queues cannot be reached."""

_SOON_MS: Final = 5_000
"""Announced, and due so soon: clocks differ, or it was moved by a moment. The id waits for it."""

T = TypeVar("T")
Arrived = tuple[Delivery[StoredMessage], StoredMessage]

DEFAULT_OUTAGE_SECONDS: Final = 120.0
"""NServiceBus raises a critical error when its timeout storage has failed for two minutes."""

DEFAULT_ANNOUNCE_AGAIN_SECONDS: Final = 300.0

DEFAULT_WAIT_SECONDS: Final = STOP_SECONDS
"""A stop waits for the poll in hand, since what SQS hands out to a process that has ended comes back three
minutes late. Two receivers so ask 1.3 million times a month (0.52 USD in us-east-1)."""

DEFAULT_RETRIES: Final = 7
"""After 1, 2, 4 … 60 s, so about two minutes: as long as the storage may fail. The seeds name no number."""


class TimeoutStatus(StrEnum):
    """What became of messages."""

    STORED = "stored"
    SENT_ON = "sent-on"
    """Due when it arrived."""
    ANNOUNCED = "announced"
    DISPATCHED = "dispatched"
    DROPPED = "dropped"
    """Announced, but no longer there, or moved to a later due time."""
    REJECTED = "rejected"


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeoutSettings:
    """Waits and limits.

    Args:
        outage_seconds: how long the storage may fail before that is a critical error.
        announce_again_seconds: a message that was announced but has not been dispatched for this
            long is dispatched straight from the store.
        number_of_retries: further attempts on a message that its destination refused, or whose
            destination does not exist, before it goes to the error queue; counted in the store.
            An outage of the destination counts as no attempt.
        batch_size: due messages announced at once.
        poll_seconds: the longest sleep between looks for due messages; the store's own if left out.
        wait_seconds: long poll of the receivers, 0 to 20; a stop waits for the one in hand.

    Raises:
        ConfigurationError: a value out of range.
    """

    outage_seconds: float = DEFAULT_OUTAGE_SECONDS
    announce_again_seconds: float = DEFAULT_ANNOUNCE_AGAIN_SECONDS
    number_of_retries: int = DEFAULT_RETRIES
    batch_size: int = DEFAULT_BATCH
    poll_seconds: float | None = None
    wait_seconds: int = DEFAULT_WAIT_SECONDS

    def __post_init__(self) -> None:
        check_positive(outage_seconds=self.outage_seconds, poll_seconds=self.poll_seconds)
        check_positive(announce_again_seconds=self.announce_again_seconds)
        check_range(1, batch_size=self.batch_size)
        check_range(0, number_of_retries=self.number_of_retries)
        check_range(0, MAX_RECEIVE_WAIT_SECONDS, wait_seconds=self.wait_seconds)


class TimeoutManager:
    """Serves one endpoint's timeouts. Several may share queues and store. `run` has a thread for each of
    `store_arrivals`, `announce` and `dispatch`, which do one batch.

    Args:
        store: where messages wait.
        transport: the two queues, and the way to the destinations.
        settings: waits and limits.
        on_critical: called in the thread that noticed when the storage has failed for too long;
            if it returns, work goes on. Left out, the CriticalError ends `run`.
        on_done: called with outcomes and their message ids, from the threads.
        clock: the local clock.
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
        self._settings, clock = settings or TimeoutSettings(), clock or SystemClock()
        self._store, self._transport, self._on_done = store, transport, on_done
        self._destination = Destination(transport, clock)
        # Of all threads: without a ledger it remembers nothing from one claim to the next.
        self._settlement = Settlement(
            store=store,
            destination=self._destination,
            batch_size=self._settings.batch_size,
            number_of_retries=self._settings.number_of_retries,
        )
        # One for each use of the storage: reading may work while writing fails.
        self._storing, self._fetching, self._finding, self._removing = (
            CircuitBreaker(
                f"timeout storage ({use})", self._settings.outage_seconds, clock, on_critical
            )
            for use in ("storing", "fetching", "finding", "removing")
        )
        # What a store cannot find by ids in one query is dispatched straight from there.
        self._finds = store if isinstance(store, ClaimsIds) else None
        self._unannounced: list[str] = []
        self._look = threading.Event()

    def start(self) -> None:
        """Check store and queues; `run` calls it. Raises ConfigurationError, StoreMissing, StoreUnavailable,
        QueueMissing, QueueUnavailable."""
        self._store.initialize(TransactionMode.AT_LEAST_ONCE)
        self._transport.check()

    def run(self, stop: threading.Event) -> None:
        """Serve until ``stop`` is set, with a thread for each task.

        While queues or storage cannot be reached, it tries again every two seconds. A task that ends
        with an error sets ``stop``, and the others finish the batch in hand. It raises what `start` raises.

        Raises:
            CriticalError: the storage has failed for too long, and there is no ``on_critical``.
        """
        self.start()
        store, dispatch = partial(_repeat, self.store_arrivals), partial(_repeat, self.dispatch)
        with ThreadPoolExecutor(3, thread_name_prefix="timeouts") as threads:
            try:
                tasks = [threads.submit(t, stop) for t in (store, self._go_on_announcing, dispatch)]
                wait(tasks, return_when=FIRST_EXCEPTION)
            finally:
                stop.set()
        for task in tasks:
            task.result()

    def store_arrivals(self) -> int:
        """Receive what the timeouts queue gives, and store it; what is due already is sent on. Returns how
        many were received. Raises StoreError, CriticalError: the storage failed, and the messages come back;
        QueueMissing, QueueUnavailable."""
        received = self._transport.receive_timeouts(wait_seconds=self._settings.wait_seconds)
        keep: list[Arrived] = []
        due: list[Arrived] = []
        now_ms = self._transport.now_ms()
        for each in self._readable(received):
            (keep if each[1].due_ms > now_ms else due).append(each)
        sent: list[Arrived] = []
        hopeless: list[tuple[Arrived, str]] = []
        outcomes = self._destination.send([message for _, message in due])
        for each, outcome in zip(due, outcomes, strict=True):
            if not isinstance(outcome, Failure):
                sent.append(each)
            elif outcome.transient:
                # Overdue in the store, it is dispatched as soon as its destination takes it.
                keep.append(each)
            else:
                hopeless.append((each, f"{outcome.code}: {outcome.error}"))
        self._done(TimeoutStatus.SENT_ON, sent)
        self._reject(hopeless)
        if keep:
            self._keep(keep)
        return len(received)

    def _keep(self, arrived: list[Arrived]) -> None:
        try:
            too_large = self._stored([message for _, message in arrived])
        except errors.StoreError as error:
            self._transport.give_back([d for d, _ in arrived], seconds=_PAUSE_SECONDS)
            self._storing.failed(error)
            raise
        self._storing.succeeded()
        self._done(TimeoutStatus.STORED, [a for a in arrived if a[1].message_id not in too_large])
        refused = [a for a in arrived if a[1].message_id in too_large]
        self._reject([(a, too_large[a[1].message_id]) for a in refused])

    def _stored(self, messages: list[StoredMessage]) -> dict[str, str]:
        """Store; by message id, why the store can never keep a message (it is too large)."""
        try:
            self._store.store(messages)
        except errors.InvalidMessage as error:
            if len(messages) == 1:
                return {messages[0].message_id: f"{type(error).__name__}: {error}"}
            return {id_: why for m in messages for id_, why in self._stored([m]).items()}
        return {}

    def _done(self, status: TimeoutStatus, settled: Sequence[Arrived]) -> None:
        self._transport.settle([delivery for delivery, _ in settled])
        self._tell(status, ids_of(message for _, message in settled))

    def _reject(self, refused: Sequence[tuple[Arrived, str]]) -> None:
        if refused:
            outcomes = self._transport.reject([(m, reason) for (_, m), reason in refused])
            told = [(d, f"message {m.message_id}: {reason}") for (d, m), reason in refused]
            self._rejected(told, outcomes)

    def _readable(self, received: Sequence[Delivery[T]]) -> list[tuple[Delivery[T], T]]:
        """Deliveries with their contents; what cannot be read goes to the error queue."""
        refused = [(d, d.content.reason) for d in received if isinstance(d.content, Reject)]
        if refused:
            self._rejected(refused, self._transport.reject_unreadable([d for d, _ in refused]))
        return [(d, d.content) for d in received if not isinstance(d.content, Reject)]

    def _rejected(
        self, refused: Sequence[tuple[Delivery[T], str]], outcomes: Sequence[Failure | None]
    ) -> None:
        """Be done with what the error queue took; the rest is delivered again."""
        gone: list[Delivery[T]] = []
        back: list[Delivery[T]] = []
        for (delivery, reason), failure in zip(refused, outcomes, strict=True):
            if failure is None:
                logger.warning("rejected: %s", one_line(reason))
                gone.append(delivery)
            else:
                logger.error("not rejected (%s): %s", one_line(reason), one_line(failure.error))
                back.append(delivery)
        self._transport.settle(gone)
        self._transport.give_back(back, seconds=_PAUSE_SECONDS)
        messages = [d.content for d in gone if isinstance(d.content, StoredMessage)]
        self._tell(TimeoutStatus.REJECTED, ids_of(messages))

    def announce(self) -> int:
        """Claim one batch of due messages: announce those that are new, dispatch the others.

        Each is announced once: it is held in the store while its id is in the dispatcher queue. What comes
        out of the store again has failed, or its id was lost: it is dispatched straight from there, like
        what is for a destination that is not well. So the queue never has an id twice, nor one that cannot
        be sent. Returns how many were announced, dispatched, rejected, or are tried later.

        Raises:
            StoreError, CriticalError: the storage failed.
            QueueUnavailable: some were not announced; the next call begins with them.
        """
        done = Round()
        if not self._unannounced:
            try:
                done = self._settlement.claim_due(self._sort)
            except errors.StoreError as error:
                # Their holds may be undone.
                self._unannounced = []
                self._fetching.failed(error)
                raise
            self._fetching.succeeded()
            self._tell_of(done)
        # Kept until the transport has answered: it may raise as well.
        outcomes = self._transport.announce(self._unannounced) if self._unannounced else []
        waiting, self._unannounced = self._unannounced, []
        announced: list[str] = []
        for message_id, failure in zip(waiting, outcomes, strict=True):
            (announced if failure is None else self._unannounced).append(message_id)
        self._tell(TimeoutStatus.ANNOUNCED, announced)
        for failure in filter(None, outcomes):
            raise errors.QueueUnavailable(f"due messages not announced: {failure.error}")
        return len(announced) + len(done.released) + len(done.rejected) + len(done.failed)

    def _sort(self, claim: Claim, done: Round) -> None:
        """Hold what is to be announced, once the rest has been dispatched."""
        unwell = self._destination.unwell()
        held: Collection[str] = getattr(claim, "again", ())
        new: list[StoredMessage] = []
        again: list[StoredMessage] = []
        for message in claim.messages:
            known = message.message_id in held or message.destination in unwell
            straight = known or message.unreadable is not None or self._finds is None
            (again if straight else new).append(message)
        self._settlement.release(claim, again, done)
        if new:
            # Last: a hold that outlives an error here would keep them from being announced.
            claim.hold(ids_of(new), seconds=self._settings.announce_again_seconds)
        self._unannounced = ids_of(new)

    def _go_on_announcing(self, stop: threading.Event) -> None:
        def turn(idle_seconds: float) -> float | None:
            try:
                return None if self.announce() else self._settlement.seconds_to_next(idle_seconds)
            except (errors.StoreError, errors.QueueUnavailable) as error:
                logger.warning("cannot announce, trying again: %s", one_line(error))
                return _PAUSE_SECONDS

        poll_seconds = self._settings.poll_seconds
        take_turns(self._store, turn, wake=self._look, stop=stop, poll_seconds=poll_seconds)

    def dispatch(self) -> int:
        """Receive what ids the queue gives, find their messages in one query, and dispatch them; what fails
        waits in the store. Where that does not find messages by ids, ids are dropped: `announce` dispatches
        from it. Returns how many ids were received.

        Raises:
            StoreError, CriticalError: the storage failed; the ids come back, and what was sent is
                remembered and not sent again.
            QueueMissing, QueueUnavailable
        """
        received = self._transport.receive_due_ids(wait_seconds=self._settings.wait_seconds)
        brought: dict[str, list[Delivery[Any]]] = {}
        for delivery, message_id in self._readable(received):
            brought.setdefault(message_id, []).append(delivery)
        if brought:
            self._dispatch(brought)
        return len(received)

    def _dispatch(self, brought: dict[str, list[Delivery[Any]]]) -> None:
        done = Round(now_ms=self._transport.now_ms())
        due: list[StoredMessage] = []
        later: dict[str, int] = {}
        if self._finds is not None:
            breaker = self._finding
            try:
                claiming = self._finds.claim_ids(list(brought))
                with self._settlement.claimed(claiming, done) as claim:
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
            except (errors.StoreError, CriticalError) as error:
                back = [d for deliveries in brought.values() for d in deliveries]
                self._transport.give_back(back, seconds=_PAUSE_SECONDS)
                if isinstance(error, errors.StoreError):
                    breaker.failed(error)
                raise
            if due:
                breaker.succeeded()
        for message_id, seconds in later.items():
            self._transport.give_back(brought.pop(message_id), seconds=seconds)
        self._transport.settle([d for deliveries in brought.values() for d in deliveries])
        self._tell_of(done)
        tried = set(ids_of(due))
        self._tell(TimeoutStatus.DROPPED, [i for i in brought if i not in tried])

    def _release(self, claim: Claim, due: list[StoredMessage], done: Round) -> None:
        self._settlement.release(claim, due, done)
        tried = {*ids_of(done.released + done.rejected + done.failed + done.held)}
        # As soon as their destinations are in reach; those tried just now perhaps are, for others.
        untried = [message_id for message_id in ids_of(due) if message_id not in tried]
        for ids, seconds in ((untried, 0.0), (ids_of(done.held), settlement.OUTAGE_PAUSE_SECONDS)):
            if ids:
                claim.hold(ids, seconds=seconds)
        if len(done.released) < len(due):
            self._look.set()

    def _tell_of(self, done: Round) -> None:
        self._tell(TimeoutStatus.DISPATCHED, ids_of(done.released))
        self._tell(TimeoutStatus.REJECTED, ids_of(done.rejected))

    def _tell(self, status: TimeoutStatus, message_ids: Sequence[str]) -> None:
        if message_ids and self._on_done is not None:
            self._on_done(status, message_ids)


def _repeat(task: Callable[[], int], stop: threading.Event) -> None:
    while not stop.is_set():
        try:
            task()
        except (errors.StoreError, errors.QueueUnavailable) as error:
            logger.warning("trying again in %d s: %s", _PAUSE_SECONDS, one_line(error))
            stop.wait(_PAUSE_SECONDS)
