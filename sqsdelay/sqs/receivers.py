"""A worker's receive loops: as many as its queues have work for, and the processor time."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass
from typing import Any, Final

import tenacity

from sqsdelay.core.coalescing import SharedCalls
from sqsdelay.core.limits import DELAY_QUEUE_SUFFIX, FIFO_SUFFIX, MAX_BATCH_ENTRIES, STOP_SECONDS
from sqsdelay.core.message import OutgoingMessage
from sqsdelay.core.readable import one_line
from sqsdelay.core.received_message import ReceivedMessage
from sqsdelay.ports.queues import Failure, Queues, SendReceipt
from sqsdelay.relaying.gathering import Intake
from sqsdelay.relaying.outcomes import Outcome
from sqsdelay.relaying.relay import DueRelay

logger = logging.getLogger(__name__)

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

LINGER_MS: Final = 5.0
"""What a batch that is not full waits for others: less than a call takes."""

MAX_PAUSE_SECONDS: Final = 30
STOP_LOOK_SECONDS: Final = 0.02
_LAST_POLL_SECONDS: Final = 1.0
"""What SQS has to hand out it hands out at once: a poll that takes longer will bring nothing."""
_EXTRA_WAIT_SECONDS: Final = 1
"""The long poll of a receiver above the least. A short poll asks some of SQS's servers only, and may come
back empty from a queue that is not. Source: sqs-short-and-long-polling.html."""


class Concurrency:
    """The number of receivers of one queue. Thread-safe; time and processor time are arguments. It doubles as
    long as receives come back half full at least and the process leaves some of a processor unused. A receive
    that comes back empty ends one receiver, above the least."""

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


class SharedBatches:
    """Queues for several threads, whose sends and deletes leave together, up to ten entries in one batch.
    Each thread gets the answers to its own entries. What goes to a FIFO queue where order matters, that is
    any but a delay queue, is sent as it comes. ``lanes`` is how many calls are made at a time."""

    def __init__(self, queues: Queues, *, lanes: int) -> None:
        self._queues = queues
        self._sends = SharedCalls[OutgoingMessage, SendReceipt | Failure](
            queues.send_batch, linger_ms=LINGER_MS, lanes=lanes
        )
        self._deletes = SharedCalls[ReceivedMessage, Failure | None](
            queues.delete_batch, linger_ms=LINGER_MS, lanes=lanes
        )
        self.broker_clock = queues.broker_clock
        self.url = queues.url
        self.synchronise = queues.synchronise
        self.attributes = queues.attributes
        self.receive_batch = queues.receive_batch
        self.hide_batch = queues.hide_batch

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


@dataclass(eq=False, kw_only=True)
class Receivers:
    """Receives from a queue, has what came settled, and keeps it hidden meanwhile.

    The least number of receivers wait in long polls. What is above it is started while receives bring
    much, and ends with a receive that brings nothing. A due queue keeps the least: more receivers
    would bring more messages of a group out of order.

    ``number`` is that of the receivers, None for as many as it takes, ``most`` at most; ``told`` is called
    with the outcomes of each batch.
    """

    intake: Intake
    wait_seconds: int
    number: int | None
    most: int
    told: Callable[[list[Outcome]], object]

    def __post_init__(self) -> None:
        self._stop, self._over = threading.Event(), threading.Event()
        self._lock = threading.RLock()
        self._receivers: list[Future[None]] = []
        most = LEAST_RECEIVERS if isinstance(self.intake.relay, DueRelay) else self.most
        number = self.number
        self.concurrency = Concurrency(least=number or LEAST_RECEIVERS, most=number or most)

    def run(self, stop: threading.Event) -> None:
        """Serve until ``stop`` is set; then finish what is in hand as far as calls are answered."""
        self._stop = stop
        self._start()
        in_thread(self._extend_until_over)
        stop.wait()
        self._finish()
        self._over.set()

    def _running(self) -> list[Future[None]]:
        with self._lock:
            self._receivers[:] = [each for each in self._receivers if not each.done()]
            return list(self._receivers)

    def _start(self, *, extra: bool = False) -> None:
        """As many receivers as are wanted more."""
        with self._lock:
            for _ in range(self.concurrency.wanted - len(self._running())):
                self._receivers.append(in_thread(self._receive, extra))

    def _receive(self, extra: bool) -> None:
        """A receiver's work until the stop. One above the least ends when it is not needed, or in trouble:
        the others wait until that is over. Whatever goes wrong with a batch, its copies come back."""
        waiting, short = retrying_until(self._stop), min(_EXTRA_WAIT_SECONDS, self.wait_seconds)
        try:
            while not self._stop.is_set():
                if not extra:
                    waiting(self._poll, self.wait_seconds)
                elif not self._poll(short) or len(self._running()) > self.concurrency.wanted:
                    break
            if self._stop.is_set():
                self.told(self.intake.park())
        except Exception as error:
            logger.warning("one receiver less: %s", one_line(repr(error)))

    def _poll(self, wait_seconds: int) -> bool:
        """Receive a batch and work on it; whether there was one."""
        intake, left = self.intake, self.intake.seconds_left()
        wait_seconds = wait_seconds if left is None else min(wait_seconds, int(left))
        batch = intake.receive(wait_seconds=wait_seconds)
        if self._over.is_set():
            intake.release(batch)
            return False
        now, cpu_seconds, copies = intake.clock.monotonic(), time.process_time(), len(batch.copies)
        self.concurrency.received(copies, now=now, cpu_seconds=cpu_seconds)
        if not self._stop.is_set():
            self._start(extra=True)
        self.told(intake.settle(batch, gather=True))
        self.told(intake.park(only_if_full=True))
        return bool(copies)

    def _extend_until_over(self) -> None:
        while not self._over.wait(self.intake.beat_seconds):
            self.intake.extend()

    def _finish(self) -> None:
        """Wait for the batches in hand as long as their calls are answered, for long polls a moment."""
        stopped_at = time.monotonic()
        while running := self._running():
            touched = self.intake.last_touched()
            if touched is None and time.monotonic() - stopped_at > _LAST_POLL_SECONDS:
                return
            if touched is not None and self.intake.clock.monotonic() - touched > STOP_SECONDS:
                logger.warning("stopped while SQS does not answer; copies in hand come back")
                return
            wait(running, timeout=STOP_LOOK_SECONDS)


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

    def tell(state: tenacity.RetryCallState) -> None:
        error = state.outcome.exception() if state.outcome else None
        seconds, why = state.upcoming_sleep, one_line(repr(error))
        logger.warning("cannot receive, trying again in %.1f s: %s", seconds, why)

    return tenacity.Retrying(
        retry=tenacity.retry_if_exception_type(only),
        wait=tenacity.wait_random_exponential(multiplier=1, max=MAX_PAUSE_SECONDS),
        stop=tenacity.stop_when_event_set(stop),
        sleep=tenacity.sleep_using_event(stop),
        before_sleep=tell,
        retry_error_callback=lambda _: None,
    )
