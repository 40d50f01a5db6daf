"""The messages of a run: sent, followed and received until all have arrived at their endpoint."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from rich.console import Console
from rich.live import Live
from rich.table import Table

from sqsdelay.cli.console import out, tell
from sqsdelay.core.delay import delay_ms, due_at_ms
from sqsdelay.core.endpoint import Endpoint, QueueRef
from sqsdelay.core.limits import MAX_BATCH_ENTRIES, MAX_RECEIVE_WAIT_SECONDS
from sqsdelay.core.message import MESSAGE_ID, WAS_DUE_AT, Message, Route, attributes_of, text_of
from sqsdelay.core.outgoing import was_due_ms
from sqsdelay.core.received_message import ReceivedMessage
from sqsdelay.errors import SqsDelayError
from sqsdelay.ledger.events import Event, Ledger, record_safely
from sqsdelay.ledger.files import lateness_ms, received_events
from sqsdelay.sending.sender import SendResult

if TYPE_CHECKING:
    from sqsdelay.ports.queues import Queues
    from sqsdelay.sqs.queues import SqsQueues

TOO_LATE_MS: Final = 2_000


@dataclass(slots=True)
class Tracked:
    """One message: as sent, and what has been seen of it since. Times are the broker's."""

    message: Message
    route: Route
    due_ms: int
    hops: int = 0
    told_late_ms: int | None = None
    """What the consumer says that hands it over, where this run can see it."""
    copies: set[str] = field(default_factory=set)
    received_ms: int | None = None
    late_ms: int | None = None
    """How long after it was due, or after it was sent if that was later, its queue showed it."""
    intact: bool = True

    @property
    def waited_ms(self) -> int | None:
        """How long it then lay there until it was received."""
        if self.received_ms is None or self.late_ms is None:
            return None
        return self.received_ms - self.due_ms - self.late_ms

    def arrived(self, copy: ReceivedMessage, *, fifo: bool) -> None:
        """Count an arrival, unless SQS shows the same copy again; times are those of the first."""
        self.copies.add(copy.sqs_message_id)
        self.intact = self.intact and self._is_as_sent(copy)
        if self.received_ms is None and copy.first_receive_ms is not None:
            self.received_ms = copy.first_receive_ms
            relayed_ms = was_due_ms(copy.attributes)
            self.due_ms = self._direct(copy.sent_ms or 0) if relayed_ms is None else relayed_ms
            self.late_ms = lateness_ms(copy, fifo=fifo, due_ms=self.due_ms)
            if self.told_late_ms is not None:
                self.late_ms = min(self.told_late_ms, self.received_ms - self.due_ms)

    def _direct(self, sent_ms: int) -> int:
        """When it is due: a relative delay counts from the broker's SentTimestamp."""
        if self.message.due_at is not None:
            return max(due_at_ms(self.message.due_at), sent_ms)
        return sent_ms + delay_ms(self.message.delay or 0)

    def _is_as_sent(self, copy: ReceivedMessage) -> bool:
        ours = (MESSAGE_ID, WAS_DUE_AT)
        users = {name: value for name, value in copy.attributes.items() if name not in ours}
        return copy.body == self.message.body and users == attributes_of(self.message.attributes)


@dataclass(frozen=True, slots=True)
class Summary:
    """How a run went. Latenesses are milliseconds, None if nothing arrived."""

    sent: int
    delivered: int
    lost: int
    duplicated: int
    early: int
    altered: int
    p50_late_ms: int | None
    p99_late_ms: int | None
    worst_late_ms: int | None

    @property
    def good(self) -> bool:
        """Nothing lost, duplicated, early or altered, and nothing more than 2 s late."""
        bad = self.lost or self.duplicated or self.early or self.altered
        return not bad and (self.worst_late_ms or 0) <= TOO_LATE_MS


def _at(ascending: Sequence[int], part: float) -> int | None:
    return ascending[min(int(part * len(ascending)), len(ascending) - 1)] if ascending else None


class Run:
    """The messages of a run, by message id, until they have arrived at their endpoint. Thread-safe.
    ``ledger`` is where to record what arrives."""

    def __init__(self, endpoint: Endpoint, queues: SqsQueues, ledger: Ledger | None = None) -> None:
        self._endpoint, self._queues, self._ledger = endpoint, queues, ledger
        self._tracked: dict[str, Tracked] = {}
        self._foreign: dict[str, ReceivedMessage] = {}
        self._lock = threading.Lock()

    def sent(self, messages: Sequence[Message], results: Iterable[SendResult]) -> None:
        """Follow messages that were sent; each has its ``message_id``."""
        for message, result in zip(messages, results, strict=True):
            if result.error is not None:
                raise result.error
            assert result.route is not None
            assert result.due is not None
            with self._lock:
                tracked = Tracked(message, result.route, due_at_ms(result.due))
                self._tracked[message.message_id or ""] = tracked

    def hopped(self, message_id: str, late_ms: int | None = None) -> None:
        """A consumer that this run can see has settled a copy; ``late_ms`` of one that it handed over."""
        with self._lock:
            entry = self._tracked[message_id]
            entry.hops += 1
            if entry.told_late_ms is None:
                entry.told_late_ms = late_ms

    def rows(self) -> list[tuple[str, Tracked]]:
        """Message ids and messages, in the order sent."""
        with self._lock:
            return list(self._tracked.items())

    def summary(self, route: Route | None = None) -> Summary:
        """The run so far, or one route of it."""
        tracked = [each for _, each in self.rows() if route in (None, each.route)]
        late = sorted(each.late_ms for each in tracked if each.late_ms is not None)
        return Summary(
            sent=len(tracked),
            delivered=sum(bool(each.copies) for each in tracked),
            lost=sum(not each.copies for each in tracked),
            duplicated=sum(len(each.copies) > 1 for each in tracked),
            early=sum(lateness < 0 for lateness in late),
            altered=sum(not each.intact for each in tracked),
            p50_late_ms=_at(late, 0.5),
            p99_late_ms=_at(late, 0.99),
            worst_late_ms=_at(late, 1),
        )

    def follow(
        self,
        table: Callable[[int | None], Table],
        *,
        patience_seconds: int,
        second_copy_seconds: int,
        wait_seconds: int = MAX_RECEIVE_WAIT_SECONDS,
        beside: Sequence[Callable[[threading.Event], None]] = (),
        quiet: bool = False,
    ) -> None:
        """Receive until all have arrived, or nothing more can be expected. Deletes the run's own only.
        ``table``: what is shown meanwhile, for so many rows; nothing if ``quiet``. ``patience_seconds``: how
        long to wait beyond the last due time. ``second_copy_seconds``: how long to look for second copies at
        the end. ``beside``: what else runs until the event is set."""
        stop = threading.Event()
        ended: float | None = None
        last_due_ms = max((entry.due_ms for _, entry in self.rows()), default=0)
        give_up_ms = last_due_ms + 1000 * patience_seconds
        console = Console(quiet=True) if quiet else out
        room = console.size.height - 5  # for the table's frame, and a line above it
        with ThreadPoolExecutor(1 + len(beside)) as pool:
            jobs = [pool.submit(self._receive, stop, wait_seconds)]
            jobs += [pool.submit(job, stop) for job in beside]
            with ExitStack() as ending:
                ending.callback(stop.set)
                live = ending.enter_context(Live(console=console, refresh_per_second=4))
                while ended is None or time.time() < ended + second_copy_seconds:
                    live.update(table(room))
                    if any(job.done() for job in jobs):
                        break  # It failed: what it raises is the answer.
                    over = 1000 * time.time() > give_up_ms
                    if ended is None and (over or not self.summary().lost):
                        ended = time.time()
                    time.sleep(0.25)
                live.update(table(None))
            for job in jobs:
                job.result()
        let_go(self._queues, self._endpoint.queue, self._foreign.values())

    def _receive(self, stop: threading.Event, wait_seconds: int) -> None:
        url = self._queues.url(self._endpoint.queue)
        while not stop.is_set():
            copies = self._queues.receive_batch(url, wait_seconds=wait_seconds)
            own = [copy for copy in copies if self._arrived(copy)]
            if self._ledger is not None:
                now_ms = self._queues.broker_clock.now_ms()
                events = received_events(self._endpoint.name, own, now_ms=now_ms)
                record_safely(self._ledger, map(self._dated, events))
            if own:
                self._queues.delete_batch(url, own)

    def _arrived(self, copy: ReceivedMessage) -> bool:
        with self._lock:
            tracked = self._tracked.get(text_of(copy.attributes, MESSAGE_ID) or "")
            if tracked is not None:
                tracked.arrived(copy, fifo=self._endpoint.fifo)
                return True
        if not self._foreign:
            tell(f"{self._endpoint.name} gets messages of others; they are left there")
        self._foreign[copy.sqs_message_id] = copy
        return False

    def _dated(self, event: Event) -> Event:
        """A reception, with what a receiver does not know of a direct message: when it was due."""
        entry = self._tracked[event.message_id]
        return replace(event, due_ms=entry.due_ms, late_ms=entry.late_ms)


def let_go(queues: Queues, queue: QueueRef, copies: Iterable[ReceivedMessage]) -> None:
    """Let others see at once what this command has received and left, as far as SQS can be told."""
    held = [(copy, 0) for copy in copies]
    with suppress(SqsDelayError):
        for start in range(0, len(held), MAX_BATCH_ENTRIES):
            queues.hide_batch(queues.url(queue), held[start : start + MAX_BATCH_ENTRIES])


def seconds(late_ms: int | None) -> str:
    """A lateness for people."""
    return "-" if late_ms is None else f"{late_ms / 1000:.3f} s"
