"""The sender for threads: messages are checked, routed and sent in full batches; each has its result."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from contextvars import copy_context
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import Final

from sqsdelay import errors
from sqsdelay.core import message as wire
from sqsdelay.core.coalescing import Interrupted, NeverLeft, SharedCalls, own
from sqsdelay.core.delay import Delay, begun_within, due_time, utc
from sqsdelay.core.endpoint import Endpoint
from sqsdelay.core.limits import MAX_BATCH_ENTRIES
from sqsdelay.core.message import AttributeInput, CheckedMessage, Message, Route
from sqsdelay.core.outgoing import after_amendment
from sqsdelay.core.stored_message import StoredMessage
from sqsdelay.errors import SqsDelayError
from sqsdelay.ledger.events import Event, EventKind, Source, record_safely
from sqsdelay.parking.parking import Change, Schedule
from sqsdelay.ports.queues import Failure, Queues, SendReceipt
from sqsdelay.sending.router import Call, Prepared, Router, SenderSettings, ToQueue, ToStore

__all__ = ["Change", "Route", "SendResult", "QueueSender"]

STORED_AT_ONCE: Final = 500
"""Messages of one call to a store that does not care."""


@dataclass(frozen=True, slots=True)
class SendResult:
    """What became of one message.

    ``message_id`` is what receivers deduplicate on: the id given or generated for a delayed message,
    and SQS's own for a direct message without one. ``due`` is exact for ``due_at`` and estimated
    with the broker's clock for ``delay``. A message that was sent has an ``sqs_message_id``, unless
    it was parked; one that was not has an ``error``.
    """

    message_id: str | None = None
    route: Route | None = None
    due: datetime | None = None
    sqs_message_id: str | None = None
    error: SqsDelayError | None = None


class QueueSender:
    """Sends messages with any delay over ``queues``, a queue service, as ``settings`` say. Thread-safe."""

    def __init__(self, queues: Queues, settings: SenderSettings | None = None) -> None:
        self._queues = queues
        self._settings = settings = settings or SenderSettings()
        self.concurrency = settings.concurrency
        self.deadline_seconds = settings.deadline_seconds
        self.router = Router(queues, settings)
        self._begin_anew()

    def _begin_anew(self) -> None:
        """In a forked process: what waits there belongs to threads of the parent."""
        self._shared: SharedCalls[CheckedMessage, SendResult] | None = None
        if self._settings.linger_ms:
            self._shared = SharedCalls(
                lambda key, messages: self._send_all(key[0], messages),
                linger_ms=self._settings.linger_ms,
                lanes=self.concurrency,
                within_seconds=self.deadline_seconds,
            )

    def send(
        self,
        endpoint: str,
        body: str,
        *,
        delay: Delay | None = None,
        due_at: datetime | None = None,
        attributes: Mapping[str, AttributeInput] | None = None,
        message_id: str | None = None,
        message_group_id: str | None = None,
        message_deduplication_id: str | None = None,
        trace_header: str | None = None,
    ) -> SendResult:
        """Send one message; see `Message` for the arguments.

        Args:
            endpoint: the destination queue's name, URL or ARN.

        Raises:
            InvalidDelay, InvalidMessage, InvalidEndpoint: nothing was sent.
            DelayTooLong: above 900 seconds and ``unrestricted=False``.
            ConfigurationError: another endpoint would share the delay queue, or its hop is longer.
            DelayQueueMissing, QueueMissing: a queue this send needs does not exist.
            QueueUnavailable, SendFailed: the queue service did not take it.
            MessageConflict: another message of this id waits in the store.
            StoreUnavailable, StoreMissing: the store did not take it; again is safe with the same id
                and ``due_at`` (a ``delay`` would count from now, and be another due time).
            BodyStoreMissing, BodyStoreUnavailable: its large body could not be kept.
            Unconfirmed: with ``linger_ms``, the thread that sends for several was interrupted, or has no
                answer before this call's deadline.
        """
        ids = (message_id, message_group_id, trace_header, message_deduplication_id)
        message = Message(body, delay, due_at, attributes or {}, *ids)
        parsed = Endpoint.parse(endpoint)
        seconds = self._settings.begin_within_seconds
        with begun_within(seconds), self.traced(parsed) as header:
            ready = wire.checked(with_header(message, header), fifo=parsed.fifo)
            return sent(self._send(parsed, ready))

    def traced(self, endpoint: Endpoint) -> AbstractContextManager[str | None]:
        """The span of a send, and the trace header that its messages are to carry."""
        tracing = self._settings.tracing
        return nullcontext() if tracing is None else tracing.sending(endpoint.name)

    def _together(
        self, endpoint: Endpoint, message: CheckedMessage
    ) -> tuple[tuple[Endpoint, Route], int]:
        """What a message can share a request with, and how many go into one. Nobody is asked: at
        worst a request is less full."""
        route = self.router.expected_route(endpoint, message)
        most = STORED_AT_ONCE if route is Route.STORE else MAX_BATCH_ENTRIES
        return (endpoint, route), most

    def _send(self, endpoint: Endpoint, message: CheckedMessage) -> SendResult:
        if self._shared is None:
            return self._send_all(endpoint, [message])[0]
        key, most = self._together(endpoint, message)
        try:
            return self._shared.call(key, [message], sizes=[message.size], most=most)[0]
        except NeverLeft:
            raise too_late(endpoint) from None
        except Interrupted as error:
            raise errors.Unconfirmed(
                f"this message may or may not have been sent, with those of other threads: {error}"
            ) from error

    def preview(self, endpoint: str, message: Message) -> SendResult:
        """What `send` would do with a message now, without sending it: its id, route and due time.

        All that `send` checks before it sends is checked. Only the broker or the store can find more.

        Raises:
            InvalidDelay, InvalidMessage, InvalidEndpoint, DelayTooLong, ConfigurationError,
            DelayQueueMissing, QueueMissing, QueueUnavailable: as `send`.
        """
        return _result(self.router.prepare(Call(Endpoint.parse(endpoint)), message, put=False))

    def send_many(self, endpoint: str, messages: Iterable[Message]) -> list[SendResult]:
        """Send many messages in full batches, several batches at a time.

        Returns:
            A result per message, in order; one that failed carries its ``error`` and none of the
            others is lost for it.

        Raises:
            InvalidEndpoint: nothing was sent.
        """
        return self.send_noting(endpoint, messages, None)

    def send_noting(
        self,
        endpoint: str,
        messages: Iterable[Message],
        note: Callable[[SendReceipt | Failure], None] | None,
    ) -> list[SendResult]:
        """As `send_many`; ``note`` is told in this thread what became of each message that was sent to a
        queue."""
        parsed = Endpoint.parse(endpoint)
        with self.traced(parsed) as header:
            headed = (with_header(message, header) for message in messages)
            return self._send_all(parsed, headed, concurrency=self.concurrency, note=note)

    def _send_all(
        self,
        endpoint: Endpoint,
        messages: Iterable[Message | CheckedMessage],
        *,
        concurrency: int = 1,
        note: Callable[[SendReceipt | Failure], None] | None = None,
    ) -> list[SendResult]:
        """Send them all, so many batches at a time; a result per message, in order."""
        call, given = Call(endpoint), list[ToQueue | ToStore | SendResult]()
        for message in messages:
            try:
                given.append(self.router.prepare(call, message))
            except SqsDelayError as error:
                given.append(SendResult(getattr(message, "message_id", None), error=own(error)))
        self._park(endpoint, [each for each in given if isinstance(each, ToStore)])
        ready = [each for each in given if isinstance(each, ToQueue)]
        batches = list(
            wire.full_batches(ready, target=lambda e: e.queue_url, size=lambda e: e.entry.size)
        )
        # In this thread's context, where an instrumentation of the client finds its trace.
        sends = [partial(copy_context().run, self._send_batch, endpoint, each) for each in batches]
        lanes = min(concurrency, len(batches))
        with ThreadPoolExecutor(lanes) if lanes > 1 else nullcontext() as pool:
            for outcomes in (map if pool is None else pool.map)(operator.call, sends):
                if note is not None:
                    for outcome in outcomes:
                        note(outcome)
        return [each if isinstance(each, SendResult) else _result(each) for each in given]

    def _send_batch(
        self, endpoint: Endpoint, batch: Sequence[ToQueue]
    ) -> list[SendReceipt | Failure]:
        """Send to one queue; its answers, none where it was not asked."""
        try:
            self._heed_amendments(endpoint, batch)
        except errors.SchemaMismatch as error:
            for prepared in batch:
                prepared.error = error
            return []
        now_ms = self._queues.broker_clock.proven_ms()
        if now_ms is not None:
            # Else the timers stay as they were worked out: by a local clock they could end early.
            for prepared in batch:
                prepared.set_timer(now_ms)
        outcomes = self._queues.send_batch(batch[0].queue_url, [each.entry for each in batch])
        for prepared, outcome in zip(batch, outcomes, strict=True):
            if isinstance(outcome, Failure):
                prepared.error = outcome.error
            else:
                prepared.sqs_message_id = outcome.sqs_message_id
        self._record(endpoint, batch, shared_by=len(batch))
        return outcomes

    def _heed_amendments(self, endpoint: Endpoint, batch: Sequence[ToQueue]) -> None:
        """Set messages apart from former ones of the same id that were cancelled or moved. Otherwise the
        delay queue, which forgets nothing for five minutes, would swallow them, or the delay consumer would
        take them for what the amendment was about."""
        named = [(p.message_id or "", p.entry) for p in batch if p.named]
        if not named or (parking := self.router.parking(endpoint)) is None:
            return
        amendments = parking.amendments([name for name, _ in named])
        latest_ms = self._queues.broker_clock.latest_ms()
        for message_id, entry in named:
            if message_id in amendments:
                amendment = amendments[message_id]
                # Unread, set apart from whatever there may be: a second copy is better than none.
                amended_ms = latest_ms if amendment is None else amendment.at_ms
                entry.deduplication_id = after_amendment(entry.deduplication_id or "", amended_ms)

    def _park(self, endpoint: Endpoint, given: Sequence[ToStore]) -> None:
        while given:
            parking = given[0].parking
            at_once = parking.store.stored_at_once or STORED_AT_ONCE
            chunk, given = given[:at_once], given[at_once:]
            outcomes = parking.park([each.stored for each in chunk])
            for prepared, outcome in zip(chunk, outcomes, strict=True):
                prepared.error = outcome if isinstance(outcome, SqsDelayError) else None
            self._record(endpoint, chunk)

    def _record(
        self, endpoint: Endpoint, given: Sequence[ToQueue | ToStore], shared_by: int | None = None
    ) -> None:
        """Record those messages that a queue or the store has taken."""
        if (ledger := self._settings.ledger) is None:
            return
        at_ms, events = self._queues.broker_clock.now_ms(), list[Event]()
        for each in given:
            if isinstance(each, ToStore):
                size, timer = len(each.stored.body) + wire.size_of("", each.stored.attributes), None
            else:
                size, timer = each.entry.size, each.entry.delay_seconds
            event = Event(
                kind=EventKind.SENT,
                at_ms=at_ms,
                endpoint=endpoint.name,
                message_id=each.message_id or each.sqs_message_id or "",
                source=Source.SENDER,
                due_ms=each.due_ms,
                size=size,
                batch=shared_by,
                route=each.route,
                timer_seconds=timer,
                sqs_message_id=each.sqs_message_id,
            )
            events += [event] if each.error is None else []
        record_safely(ledger, events)

    def cancel(self, endpoint: str, message_id: str) -> Change:
        """Cancel a message that waits; see `Change` for the answers.

        A message sent with 900 seconds or less waits in the destination queue itself, out of reach.

        Raises:
            NoStore: this sender has no store, so nothing to ask and nowhere to leave an amendment.
            InvalidEndpoint, InvalidMessage, StoreUnavailable, StoreMissing
            QueueMissing, QueueUnavailable: the broker's time cannot be learned.
        """
        schedule, now_ms = self._schedule_now(endpoint)
        return schedule.cancel(message_id, now_ms=now_ms)

    def reschedule(
        self,
        endpoint: str,
        message_id: str,
        *,
        delay: Delay | None = None,
        due_at: datetime | None = None,
    ) -> Change:
        """Move a message that waits to another due time; see `Change` for the answers.

        Args:
            delay: from now; not with ``due_at``.

        Raises:
            InvalidDelay: both or none of them, or out of range.
            NoStore, InvalidEndpoint, InvalidMessage, StoreUnavailable, StoreMissing,
            QueueMissing, QueueUnavailable
        """
        if (delay is None) == (due_at is None):
            raise errors.InvalidDelay("give either delay or due_at, the new due time")
        due = due_time(delay, due_at)
        schedule, now_ms = self._schedule_now(endpoint)
        due_ms = due.due_ms(now_ms)
        self.router.check_max_delay(due_ms, now_ms)
        return schedule.reschedule(message_id, due_ms, now_ms=now_ms)

    def pending(
        self,
        endpoint: str,
        *,
        due_from: datetime | None = None,
        due_before: datetime | None = None,
    ) -> Iterator[StoredMessage]:
        """The messages that wait in the endpoint's store, the earliest due first.

        Those in the delay queue are not among them: SQS does not list messages.

        Args:
            due_from: leaves out what is due before; with its time zone, as ``due_before``.
            due_before: leaves out what is due then or later.

        Raises:
            InvalidDelay: a time without time zone.
            NoStore, InvalidEndpoint, StoreUnavailable, StoreMissing
        """
        return self._schedule(endpoint).pending(due_from=due_from, due_before=due_before)

    def _schedule_now(self, endpoint: str) -> tuple[Schedule, int]:
        schedule = self._schedule(endpoint)
        with begun_within(self._settings.begin_within_seconds):
            return schedule, self.router.broker_latest(Call(Endpoint.parse(endpoint)))

    def _schedule(self, endpoint: str) -> Schedule:
        name = Endpoint.parse(endpoint).name
        if self.router.stores is None:
            raise errors.NoStore(
                f"without a store the waiting messages of {name} cannot be listed, cancelled or rescheduled, "
                "because SQS has no such call; give DelaySender(store=…), and the delay consumer "
                "the same store"
            )
        return Schedule(self.router.stores.of(name), endpoint=name, ledger=self._settings.ledger)


def _result(of: Prepared) -> SendResult:
    sqs_id, error = of.sqs_message_id, of.error and own(of.error)
    return SendResult(of.message_id or sqs_id, of.route, utc(of.due_ms), sqs_id, error)


def sent(result: SendResult) -> SendResult:
    """The result, or its error raised."""
    if result.error is not None:
        raise result.error
    return result


def too_late(endpoint: Endpoint) -> errors.QueueUnavailable:
    """The error of a send whose time was over before a request had its message."""
    return errors.QueueUnavailable(
        f"queue {endpoint.name} cannot be used now: the time for this call (deadline_seconds) is over; "
        "try again later"
    )


def with_header(message: Message, header: str | None) -> Message:
    """The message with the send's trace header, unless its sender named one."""
    if header is None or not isinstance(message, Message) or message.trace_header is not None:
        return message
    return replace(message, trace_header=header)
