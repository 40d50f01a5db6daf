"""A worker's receive loops: as many as its queues have work for, and the processor time."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from typing import Any, Final, NamedTuple

import tenacity

from sqsdelay.core.coalescing import SharedCalls
from sqsdelay.core.delay import BrokerClock, Clock, SystemClock
from sqsdelay.core.message import OutgoingMessage
from sqsdelay.core.readable import one_line
from sqsdelay.core.received_message import ReceivedMessage
from sqsdelay.limits import DELAY_QUEUE_SUFFIX, FIFO_SUFFIX, MAX_BATCH_ENTRIES, STOP_SECONDS
from sqsdelay.ports.queues import Failure, Queues, SendReceipt
from sqsdelay.relaying.outcomes import Outcome
from sqsdelay.relaying.parker import Gathering
from sqsdelay.relaying.relay import DueRelay, Mover
from sqsdelay.relaying.visibility import InHand, Visibility

LEAST_RECEIVERS: Final = 2
"""What an idle queue has: each costs a long poll every 20 s."""

MOST_RECEIVERS: Final = 32
"""At 20 ms an answer they relay some 5,000 messages a second: more than one processor can."""

STEP_SECONDS: Final = 0.1
"""How often the number may change: some answers' time, so that a change shows before the next."""

BUSY: Final = 0.85
"""Of one processor, which is what Python's threads share: more receivers would only wait for it."""

OVERLOADED: Final = 0.97
"""Threads that wait for the processor cost some of it: fewer do the same."""

PLENTY: Final = MAX_BATCH_ENTRIES // 2
"""Copies of a receive that say that there are more."""


class Concurrency:
    """The number of receivers of one queue. Thread-safe; time and processor time are arguments.

    It doubles as long as receives come back half full at least and the process leaves some of a
    processor unused. A receive that comes back empty ends one receiver, above the least.
    """

    def __init__(self, *, least: int = LEAST_RECEIVERS, most: int = MOST_RECEIVERS) -> None:
        self._least = min(least, most)
        self._most = most
        self._since: tuple[float, float] | None = None
        self._lock = threading.Lock()
        self.wanted = self._least

    def received(self, copies: int, *, now: float, cpu_seconds: float) -> None:
        """A receive brought so many, at this monotonic time; the process has used so much processor time."""
        with self._lock:
            if not copies:
                self.wanted = max(self._least, self.wanted - 1)
            if copies < PLENTY:
                return
            if self._since is None:
                self._since = (now, cpu_seconds)
            passed = now - self._since[0]
            if passed < STEP_SECONDS:
                return
            share = (cpu_seconds - self._since[1]) / passed
            self._since = (now, cpu_seconds)
            if share < BUSY:
                self.wanted = min(self._most, 2 * self.wanted)
            elif share > OVERLOADED:
                self.wanted = max(self._least, self.wanted * 3 // 4)


LINGER_MS: Final = 5.0
"""What a batch that is not full waits for others: less than a call takes."""


class SharedBatches:
    """Queues for several threads, whose sends and deletes leave together, up to ten entries in one batch.
    Each thread gets the answers to its own entries.

    What goes to a FIFO queue where order matters, that is any but a delay queue, is sent as it comes.
    ``lanes`` is how many calls are made at a time.
    """

    def __init__(self, queues: Queues, *, lanes: int) -> None:
        self._queues = queues
        self._sends = SharedCalls[OutgoingMessage, SendReceipt | Failure](
            queues.send_batch, linger_ms=LINGER_MS, lanes=lanes
        )
        self._deletes = SharedCalls[ReceivedMessage, Failure | None](
            queues.delete_batch, linger_ms=LINGER_MS, lanes=lanes
        )
        self.url = queues.url
        self.synchronise = queues.synchronise
        self.attributes = queues.attributes
        self.receive_batch = queues.receive_batch
        self.hide_batch = queues.hide_batch

    @property
    def broker_clock(self) -> BrokerClock:
        return self._queues.broker_clock

    def send_batch(
        self, queue_url: str, entries: Sequence[OutgoingMessage]
    ) -> list[SendReceipt | Failure]:
        ordered = queue_url.endswith(FIFO_SUFFIX) and not queue_url.endswith(DELAY_QUEUE_SUFFIX)
        if ordered or len(entries) == MAX_BATCH_ENTRIES:
            return self._queues.send_batch(queue_url, entries)
        sizes = [entry.size for entry in entries]
        return self._sends.call(queue_url, entries, sizes=sizes, most=MAX_BATCH_ENTRIES)

    def delete_batch(
        self, queue_url: str, copies: Sequence[ReceivedMessage]
    ) -> list[Failure | None]:
        if len(copies) == MAX_BATCH_ENTRIES:
            return self._queues.delete_batch(queue_url, copies)
        sizes = [0] * len(copies)
        return self._deletes.call(queue_url, copies, sizes=sizes, most=MAX_BATCH_ENTRIES)


logger = logging.getLogger(__name__)

MAX_PAUSE_SECONDS: Final = 30
_STOP_LOOK_SECONDS: Final = 0.05
_LAST_POLL_SECONDS: Final = 1.0
"""What SQS has to hand out it hands out at once: a poll that takes longer will bring nothing."""
_EXTRA_WAIT_SECONDS: Final = 1
"""The long poll of a receiver above the least. A short poll asks some of SQS's servers only, and may come
back empty from a queue that is not. Source: sqs-short-and-long-polling.html."""


class _Served(NamedTuple):
    """A queue's mover, the number of its receivers, they themselves, and what they have gathered together."""

    mover: Mover
    concurrency: Concurrency
    receivers: set[Future[None]]
    gathering: Gathering


class Receivers:
    """Receives from each mover's queue, has it work on what came, and keeps it hidden meanwhile.

    The least number of receivers wait in long polls. What is above it is started while receives bring
    much, and ends with a receive that brings nothing. A due queue keeps the least: more receivers
    would bring more messages of a group out of order.

    Args:
        number: of receivers for each queue; None for as many as it takes.
        most: receivers of a queue at most.
        told: called with the outcomes of each batch.
    """

    def __init__(
        self,
        movers: Sequence[Mover],
        visibility: Visibility,
        *,
        clock: Clock,
        wait_seconds: int,
        number: int | None,
        most: int,
        told: Callable[[list[Outcome]], object],
    ) -> None:
        self._visibility = visibility
        self._clock = clock
        self._wait_seconds = wait_seconds
        self._told = told
        self._stop, self._over = threading.Event(), threading.Event()
        self._lock = threading.RLock()
        self._served = [
            _Served(mover, _concurrency(mover, number, most), set(), Gathering(mover, visibility))
            for mover in movers
        ]

    def run(self, stop: threading.Event) -> None:
        """Serve until ``stop`` is set; then finish what is in hand as far as calls are answered."""
        self._stop = stop
        for served in self._served:
            self._start(self._receive_until_stopped, served)
        in_thread(self._extend_until_over)
        stop.wait()
        self._finish()
        self._over.set()

    def _running(self, served: _Served) -> list[Future[None]]:
        with self._lock:
            served.receivers.difference_update([each for each in served.receivers if each.done()])
            return list(served.receivers)

    def _start(self, loop: Callable[[_Served], None], served: _Served) -> None:
        """As many receivers as are wanted more."""
        with self._lock:
            for _ in range(served.concurrency.wanted - len(self._running(served))):
                served.receivers.add(in_thread(loop, served))

    def _receive_until_stopped(self, served: _Served) -> None:
        # Whatever goes wrong with one batch, its copies come back; a receiver must not die of it.
        waiting = retrying_until(self._stop)
        while not self._stop.is_set():
            waiting(self._poll, served, self._wait_seconds)
        self._told(served.gathering.park())

    def _receive_while_busy(self, served: _Served) -> None:
        """A receiver above the least. In trouble it ends: the others wait until that is over."""
        try:
            busy = not self._stop.is_set()
            while busy:
                busy = self._poll(served, min(_EXTRA_WAIT_SECONDS, self._wait_seconds))
                too_many = len(self._running(served)) > served.concurrency.wanted
                busy = busy and not too_many and not self._stop.is_set()
            if self._stop.is_set():
                self._told(served.gathering.park())
        except Exception as error:
            logger.warning("one receiver less: %s", one_line(repr(error)))

    def _poll(self, served: _Served, wait_seconds: int) -> bool:
        """Receive a batch and work on it; whether there was one."""
        mover, concurrency, _, gathering = served
        left = gathering.seconds_left()
        if left is not None:
            wait_seconds = min(wait_seconds, int(left))
        batch = self._visibility.receive(mover.source, wait_seconds=wait_seconds)
        if self._over.is_set():
            self._visibility.release(batch)
            return False
        now, cpu_seconds = self._clock.monotonic(), time.process_time()
        concurrency.received(len(batch.copies), now=now, cpu_seconds=cpu_seconds)
        if not self._stop.is_set():
            self._start(self._receive_while_busy, served)
        # What is to be parked waits until there is enough of it.
        work = gathering.keep(batch)
        if work.copies:
            self._told(processed(mover, self._visibility, work))
        self._told(gathering.park(only_if_full=True))
        return bool(batch.copies)

    def _extend_until_over(self) -> None:
        while not self._over.wait(self._visibility.beat_seconds):
            self._visibility.extend()

    def _finish(self) -> None:
        """Wait for the batches in hand as long as their calls are answered, for long polls a moment."""
        local = SystemClock()
        stopped_at = local.monotonic()
        while True:
            running = [each for served in self._served for each in self._running(served)]
            touched = self._visibility.last_touched()
            if not running or (
                touched is None and local.monotonic() - stopped_at > _LAST_POLL_SECONDS
            ):
                return
            if touched is not None and self._clock.monotonic() - touched > STOP_SECONDS:
                logger.warning("stopped while SQS does not answer; copies in hand come back")
                return
            wait(running, timeout=_STOP_LOOK_SECONDS)


def _concurrency(mover: Mover, number: int | None, most: int) -> Concurrency:
    if number is not None:
        return Concurrency(least=number, most=number)
    return Concurrency(most=LEAST_RECEIVERS if isinstance(mover, DueRelay) else most)


def processed(mover: Mover, visibility: Visibility, batch: InHand) -> list[Outcome]:
    """Have a mover work on a batch; it is in hand until then."""
    try:
        return mover.process(batch.copies, held=batch.held)
    finally:
        visibility.done(batch)


def in_thread(work: Callable[..., Any], *arguments: Any) -> Future[Any]:
    """Do it in a thread that no process waits for when it ends."""
    result: Future[Any] = Future()

    def run() -> None:
        try:
            result.set_result(work(*arguments))
        except BaseException as error:
            result.set_exception(error)

    threading.Thread(target=run, name="receiver", daemon=True).start()
    return result


def retrying_until(
    stop: threading.Event, *, only: type[Exception] = Exception
) -> tenacity.Retrying:
    """Retries with growing pauses until it works, ``stop`` is set, or it fails otherwise."""
    return tenacity.Retrying(
        retry=tenacity.retry_if_exception_type(only),
        wait=tenacity.wait_random_exponential(multiplier=1, max=MAX_PAUSE_SECONDS),
        stop=tenacity.stop_when_event_set(stop),
        sleep=tenacity.sleep_using_event(stop),
        before_sleep=_log_pause,
        retry_error_callback=lambda _: None,
    )


def _log_pause(state: tenacity.RetryCallState) -> None:
    error = state.outcome.exception() if state.outcome else None
    logger.warning(
        "cannot receive, trying again in %.1f s: %s", state.upcoming_sleep, one_line(repr(error))
    )
