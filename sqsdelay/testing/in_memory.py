"""In memory, for tests: queues as SQS has them, a store, an outbox, a ledger, and a clock moved by hand."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from weakref import finalize

from sqsdelay.core import limits
from sqsdelay.core.delay import BrokerClock, Clock
from sqsdelay.core.endpoint import Endpoint, QueueRef
from sqsdelay.core.message import OutgoingMessage, size_of
from sqsdelay.core.received_message import ReceivedMessage, whole_number
from sqsdelay.core.stored_message import StoredMessage
from sqsdelay.errors import ConfigurationError, QueueMissing, QueueUnavailable, SendFailed
from sqsdelay.ledger.events import Event
from sqsdelay.ports.queues import Failure, SendReceipt
from sqsdelay.stores.shared import DEFAULT_LEASE_SECONDS
from sqsdelay.stores.sqlite.sqlite_store import SqliteStore


class ManualClock:
    """Virtual time. ``error_ms`` makes the wall clock wrong; the monotonic clock never is.

    Args:
        now_ms: the true time to start at, epoch milliseconds.
        error_ms: how far the wall clock is ahead of the true time (negative: behind).
    """

    def __init__(self, now_ms: int = 1_800_000_000_000, *, error_ms: int = 0) -> None:
        self.true_ms = now_ms
        self.error_ms = error_ms

    def now_ms(self) -> int:
        return self.true_ms + self.error_ms

    def monotonic(self) -> float:
        return self.true_ms / 1000

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        if seconds < 0:
            raise ValueError(f"seconds={seconds}; time does not run backwards")
        self.true_ms += round(seconds * 1000)


@dataclass(slots=True)
class _Stored:
    sequence: int
    message: OutgoingMessage
    sent_ms: int
    visible_ms: int
    first_receive_ms: int | None = None
    receive_count: int = 0


@dataclass(slots=True)
class _Queue:
    attributes: dict[str, str]
    messages: dict[int, _Stored] = field(default_factory=dict)
    deduplicated: dict[tuple[str, str], tuple[int, str]] = field(default_factory=dict)

    @property
    def fifo(self) -> bool:
        return self.attributes.get("FifoQueue") == "true"


class InMemoryQueues:
    """The `Queues` port without a network, under virtual time.

    Kept as SQS has them: queue-level delay, message timers up to 900 s on standard queues only, a queue's
    ``MaximumMessageSize``, visibility timeouts, receive counts and timestamps, FIFO deduplication for 5
    minutes (also after a delete) and one group's copy in flight blocking that group.

    Args:
        clock: the broker's clock, moved by the test.
        local: the caller's clock where it differs (wrong by some minutes, say).
    """

    def __init__(self, clock: ManualClock, *, local: Clock | None = None) -> None:
        self.clock = clock
        self.calls: list[str] = []
        # Without a local one, the clock is the broker's own.
        self.broker_clock = BrokerClock(local) if local else BrokerClock(clock, drift_rate=0)
        self._queues: dict[str, _Queue] = {}
        self._sequence = 0
        self._lock = threading.RLock()

    def create_queue(self, name: str, **attributes: str) -> str:
        """Create a queue with attributes under SQS's names; returns its URL."""
        fifo = {"FifoQueue": "true"} if name.endswith(".fifo") else {}
        self._queues.setdefault(name, _Queue(fifo | attributes))
        return name

    def create_endpoint(
        self, name: str, *, hop_seconds: int = limits.DEFAULT_HOP_SECONDS
    ) -> Endpoint:
        """Create an endpoint's queues."""
        endpoint = Endpoint.parse(name)
        for ref in endpoint.queues:
            if ref != endpoint.delay_queue:
                self.create_queue(ref.name)
        self.create_queue(
            endpoint.delay_queue.name,
            DelaySeconds=str(hop_seconds),
            VisibilityTimeout=str(limits.DELAY_QUEUE_VISIBILITY_SECONDS),
        )
        return endpoint

    def delete_queue(self, name: str) -> None:
        """Delete a queue and what is in it."""
        del self._queues[name]

    def next_visible_ms(self, *, after_ms: int | None = None) -> int | None:
        """When the next message of any queue becomes visible; None when there is none.

        Args:
            after_ms: pass over those that are, or were, visible then, epoch milliseconds.
        """
        times = [m.visible_ms for queue in self._queues.values() for m in queue.messages.values()]
        return min((ms for ms in times if after_ms is None or ms > after_ms), default=None)

    def url(self, queue: QueueRef) -> str:
        if queue.name not in self._queues:
            raise QueueMissing(f"queue {queue.name} does not exist")
        return queue.name

    def synchronise(self, queue: QueueRef) -> None:
        """As a ``Date`` header tells it: to the whole second."""
        self.calls.append("synchronise")
        asked_at = self.broker_clock.local.monotonic()
        self.broker_clock.observe(self.clock.true_ms // 1000 * 1000, asked_at=asked_at)

    def attributes(self, queue_url: str) -> Mapping[str, str]:
        queue, now = self._queue(queue_url), self.clock.true_ms
        with self._lock:
            hidden = [m for m in queue.messages.values() if m.visible_ms > now]
            in_flight = sum(1 for m in hidden if m.receive_count)
            counts = {
                "ApproximateNumberOfMessages": len(queue.messages) - len(hidden),
                "ApproximateNumberOfMessagesNotVisible": in_flight,
                "ApproximateNumberOfMessagesDelayed": len(hidden) - in_flight,
            }
        return queue.attributes | {name: str(count) for name, count in counts.items()}

    def send_batch(
        self, queue_url: str, entries: Sequence[OutgoingMessage]
    ) -> list[SendReceipt | Failure]:
        self.calls.append("send")
        with self._lock:
            try:
                queue = self._queue(queue_url)
            except QueueMissing as error:
                return [Failure("QueueDoesNotExist", error, transient=True)] * len(entries)
            return [self._send(queue, entry) for entry in entries]

    def _send(self, queue: _Queue, entry: OutgoingMessage) -> SendReceipt | Failure:
        delay = entry.delay_seconds
        if delay is not None and (queue.fifo or not 0 <= delay <= limits.MAX_MESSAGE_TIMER_SECONDS):
            return _refusal(f"DelaySeconds {delay} is not possible on this queue")
        if queue.fifo and entry.group_id is None:
            text = "The request must contain the parameter MessageGroupId."
            return _refusal(text, code="MissingParameter")
        limit = int(queue.attributes.get("MaximumMessageSize", limits.MAX_MESSAGE_BYTES))
        if size_of(entry.body, entry.attributes) > limit:
            return _refusal(f"Message must be shorter than {limit} bytes")
        now = self.clock.true_ms
        key = (entry.group_id or "", entry.deduplication_id or "")
        if queue.fifo:
            seen_ms, sqs_id = queue.deduplicated.get(key, (None, ""))
            if seen_ms is not None and now - seen_ms < limits.DEDUPLICATION_INTERVAL_SECONDS * 1000:
                return SendReceipt(sqs_id)
        self._sequence += 1
        sqs_id = f"sqs-{self._sequence}"
        if queue.fifo:
            queue.deduplicated[key] = (now, sqs_id)
        seconds = int(queue.attributes.get("DelaySeconds", "0")) if delay is None else delay
        stored = _Stored(self._sequence, replace(entry), now, now + seconds * 1000)
        queue.messages[self._sequence] = stored
        return SendReceipt(sqs_id)

    def receive_batch(
        self,
        queue_url: str,
        *,
        wait_seconds: int,
        limit: int = limits.MAX_BATCH_ENTRIES,
        visibility_seconds: int | None = None,
    ) -> list[ReceivedMessage]:
        """What is visible now; virtual time does not pass while waiting."""
        self.calls.append("receive")
        with self._lock:
            queue = self._queue(queue_url)
            now = self.clock.true_ms
            in_flight = {
                stored.message.group_id
                for stored in (queue.messages.values() if queue.fifo else ())
                if stored.receive_count and stored.visible_ms > now
            }
            visible = (
                stored
                for stored in queue.messages.values()
                if stored.visible_ms <= now and stored.message.group_id not in in_flight
            )
            hidden = visibility_seconds
            if hidden is None:
                hidden = int(queue.attributes.get("VisibilityTimeout", "30"))
            return [self._receive(stored, hidden) for stored in islice(visible, limit)]

    def _receive(self, stored: _Stored, hidden: int) -> ReceivedMessage:
        now = self.clock.true_ms
        stored.visible_ms = now + hidden * 1000
        stored.receive_count += 1
        stored.first_receive_ms = stored.first_receive_ms or now
        received_at = self.broker_clock.local.monotonic()
        return ReceivedMessage(
            body=stored.message.body,
            attributes=dict(stored.message.attributes),
            receipt_handle=f"{stored.sequence}:{stored.receive_count}",
            sqs_message_id=f"sqs-{stored.sequence}",
            received_at=received_at,
            sent_ms=stored.sent_ms,
            first_receive_ms=stored.first_receive_ms,
            receive_count=stored.receive_count,
            group_id=stored.message.group_id,
            deduplication_id=stored.message.deduplication_id,
            trace_header=stored.message.trace_header,
        )

    def delete_batch(
        self, queue_url: str, copies: Sequence[ReceivedMessage]
    ) -> list[Failure | None]:
        self.calls.append("delete")
        return [self._settle(queue_url, copy, None) for copy in copies]

    def hide_batch(
        self, queue_url: str, copies: Sequence[tuple[ReceivedMessage, int]]
    ) -> list[Failure | None]:
        self.calls.append("hide")
        return [self._settle(queue_url, copy, seconds) for copy, seconds in copies]

    def _settle(
        self, queue_url: str, copy: ReceivedMessage, hide_seconds: int | None
    ) -> Failure | None:
        with self._lock:
            queue = self._queue(queue_url)
            sequence, _, count = copy.receipt_handle.partition(":")
            stored = queue.messages.get(whole_number(sequence) or 0)
            if stored is None:
                return None
            expired = stored.visible_ms <= self.clock.true_ms or str(stored.receive_count) != count
            if queue.fifo and expired:
                return _refusal("the receipt handle has expired")
            if hide_seconds is None:
                del queue.messages[stored.sequence]
            else:
                stored.visible_ms = self.clock.true_ms + hide_seconds * 1000
            return None

    def _queue(self, queue_url: str) -> _Queue:
        if queue_url not in self._queues:
            raise QueueMissing(f"queue {queue_url} does not exist")
        return self._queues[queue_url]


def _refusal(text: str, *, code: str = "InvalidParameterValue") -> Failure:
    return Failure(code, SendFailed(text, code=code, transient=False), transient=False)


class InMemoryStore(SqliteStore):
    """A `DelayedMessageStore` without a file: the SQLite store, in memory; leases end on ``clock``.

    As every store it keeps a message's fields, not ``unreadable``: that is said of a row as it is read.

    Args:
        clock: moved by the test.
        lease_seconds: how long an abandoned claim holds its messages.
    """

    _renews = False

    def __init__(self, clock: Clock, *, lease_seconds: float = DEFAULT_LEASE_SECONDS) -> None:
        super().__init__(":memory:", endpoint="memory", clock=clock, lease_seconds=lease_seconds)
        self.set_up()
        # Whoever drops it need not close it: Python 3.13 warns of a connection that is left open.
        finalize(self, self._connection.close).atexit = False

    def _check_given(self, transaction: object) -> None:
        if transaction is not self._connection:
            raise ConfigurationError(
                "a store in memory has no connection but its own; give claim.transaction (exactly once), or "
                "use a SqliteStore on a file"
            )

    def close(self) -> None:
        """Nothing: a test looks at what is left after the code under test has closed it."""


class InMemoryOutbox:
    """The `Outbox` port in memory.

    Args:
        clock: the destination's clock.
        max_ahead_seconds: the transport's longest message timer.

    Attributes:
        sent: what was sent, in order.
        rejected: what went to the error queue, with its reason.
        fail: asked before each send; what it returns fails the message.
        fail_reject: the same for the error queue.
    """

    def __init__(self, clock: Clock, *, max_ahead_seconds: int = 0) -> None:
        self._clock = clock
        self._max_ahead_seconds = max_ahead_seconds
        self._lock = threading.Lock()
        self.sent: list[StoredMessage] = []
        self.rejected: list[tuple[StoredMessage, str]] = []
        self.fail: Callable[[StoredMessage], Failure | None] = lambda _: None
        self.fail_reject: Callable[[StoredMessage], Failure | None] = lambda _: None

    @property
    def max_ahead_seconds(self) -> int:
        return self._max_ahead_seconds

    def check(self) -> None:
        """Always ready."""

    def now_ms(self) -> int:
        return self._clock.now_ms()

    def send(self, messages: Sequence[StoredMessage]) -> list[Failure | None]:
        with self._lock:
            failures = [self.fail(message) or self._too_early(message) for message in messages]
            self.sent += [m for m, f in zip(messages, failures, strict=True) if f is None]
            return failures

    def reject(self, messages: Sequence[tuple[StoredMessage, str]]) -> list[Failure | None]:
        with self._lock:
            failures = [self.fail_reject(message) for message, _ in messages]
            self.rejected += [m for m, f in zip(messages, failures, strict=True) if f is None]
            return failures

    def _too_early(self, message: StoredMessage) -> Failure | None:
        """What the timer cannot hold is kept for later."""
        ahead_ms = message.due_ms - self.now_ms()
        if ahead_ms <= self.max_ahead_seconds * 1000:
            return None
        text = f"message {message.message_id} is due in {ahead_ms} ms; it is released later"
        return Failure("TooEarly", QueueUnavailable(text), transient=True, outage=True)


class InMemoryLedger:
    """The `Ledger` protocol in memory.

    Attributes:
        events: what was recorded, in order.
        fail: raised instead of recording, unless it is None.
    """

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.fail: Exception | None = None
        self._lock = threading.Lock()

    def record(self, events: Sequence[Event]) -> None:
        with self._lock:
            if self.fail is not None:
                raise self.fail
            self.events += events
