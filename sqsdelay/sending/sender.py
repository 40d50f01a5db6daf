"""Sending: every limit checked before anything leaves, full batches, a result for each message."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import Final

from sqsdelay.core.batching import full_batches
from sqsdelay.core.checked_message import CheckedMessage, checked
from sqsdelay.core.delay import Delay, utc
from sqsdelay.core.due_time import due_time
from sqsdelay.core.endpoint import Endpoint
from sqsdelay.core.message import AttributeInput, Message, Route
from sqsdelay.core.one_line import one_line
from sqsdelay.core.stored_message import StoredMessage
from sqsdelay.errors import (
    InvalidDelay,
    NoStore,
    SqsDelayError,
    StoreError,
)
from sqsdelay.ledger.events import record_safely
from sqsdelay.parking.parking import Parking, Stores
from sqsdelay.parking.schedule import Change, Schedule
from sqsdelay.ports.queues import Failure, Queues, SendReceipt
from sqsdelay.sending.large_bodies import Offloading
from sqsdelay.sending.recording import sent_to_queue, sent_to_store
from sqsdelay.sending.router import Asked, Router, ToQueue, ToStore
from sqsdelay.sending.settings import SenderSettings

__all__ = ["Change", "Route", "SendResult", "QueueSender"]

logger = logging.getLogger(__name__)

_STORED_AT_ONCE: Final = 500


@dataclass(frozen=True, slots=True)
class SendResult:
    """What became of one message.

    ``message_id`` is what receivers deduplicate on: the id given or made up for a delayed message,
    and SQS's own for a direct message without one. ``due`` is exact for ``due_at`` and estimated
    with the broker's clock for ``delay``. A message that was sent has an ``sqs_message_id``, unless
    it was parked; one that was not has an ``error``.
    """

    message_id: str | None = None
    route: Route | None = None
    due: datetime | None = None
    sqs_message_id: str | None = None
    error: SqsDelayError | None = None


_PENDING: Final = SendResult()
_Ready = list[tuple[int, ToQueue]]


class QueueSender:
    """Sends messages with any delay over ``queues``.

    Args:
        queues: the queue service.
        settings: how to send.
    """

    def __init__(self, queues: Queues, settings: SenderSettings | None = None) -> None:
        settings = settings or SenderSettings()
        self._queues = queues
        self._concurrency = settings.concurrency
        self._ledger = settings.ledger
        self._tracing = settings.tracing
        large_bodies = settings.large_bodies
        self._stores = None if settings.parking is None else Stores(settings.parking)
        self._offloading = None if large_bodies is None else Offloading(large_bodies)
        self._router = Router(queues, settings, parking=self._parking)

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
        """
        message = Message(
            body,
            delay=delay,
            due_at=due_at,
            attributes=attributes or {},
            message_id=message_id,
            message_group_id=message_group_id,
            message_deduplication_id=message_deduplication_id,
            trace_header=trace_header,
        )
        parsed = Endpoint.parse(endpoint)
        with self._traced(parsed) as header:
            prepared = self._prepare(parsed, _with_header(message, header), Asked())
            if isinstance(prepared, ToStore):
                (result,) = self._park(parsed, [prepared])
            else:
                (outcome,) = self._send_batch(parsed, [(0, prepared)])
                result = _sent(prepared, outcome)
            if result.error is not None:
                raise result.error
        return result

    def preview(self, endpoint: str, message: Message) -> SendResult:
        """What `send` would do with a message now, without sending it: its id, route and due time.

        All that `send` checks before it sends is checked. Only the broker or the store can find more.

        Raises:
            InvalidDelay, InvalidMessage, InvalidEndpoint, DelayTooLong, ConfigurationError,
            DelayQueueMissing, QueueMissing, QueueUnavailable: as `send`.
        """
        parsed = Endpoint.parse(endpoint)
        _, fitting = self._fitted(parsed, message)
        prepared = self._router.prepare(parsed, fitting, Asked())
        if isinstance(prepared, ToStore):
            return _parked(prepared, None)
        return SendResult(prepared.message_id, prepared.route, utc(prepared.due_ms))

    def send_many(self, endpoint: str, messages: Iterable[Message]) -> list[SendResult]:
        """Send many messages in full batches, several batches at a time.

        Returns:
            A result per message, in order; one that failed carries its ``error`` and none of the
            others is lost for it.

        Raises:
            InvalidEndpoint: nothing was sent.
        """
        return self.send_noting(endpoint, messages, lambda _: None)

    def send_noting(
        self,
        endpoint: str,
        messages: Iterable[Message],
        note: Callable[[SendReceipt | Failure], None],
    ) -> list[SendResult]:
        """As `send_many`, for callers that need the broker's own answers.

        Args:
            note: called in this thread with what became of each message that was sent to a queue.
        """
        parsed = Endpoint.parse(endpoint)
        with self._traced(parsed) as header:
            return self._send_noting(parsed, (_with_header(m, header) for m in messages), note)

    def _send_noting(
        self,
        parsed: Endpoint,
        messages: Iterable[Message],
        note: Callable[[SendReceipt | Failure], None],
    ) -> list[SendResult]:
        asked = Asked()
        results: list[SendResult] = []
        ready: _Ready = []
        to_store: list[tuple[int, ToStore]] = []
        for position, message in enumerate(messages):
            results.append(_PENDING)
            try:
                prepared = self._prepare(parsed, message, asked)
            except SqsDelayError as error:
                results[position] = SendResult(message.message_id, error=error)
                continue
            if isinstance(prepared, ToStore):
                to_store.append((position, prepared))
            else:
                ready.append((position, prepared))
        self._park_all(parsed, to_store, results)
        for position, prepared, outcome in self._send_all(parsed, ready):
            note(outcome)
            results[position] = _sent(prepared, outcome)
        return results

    def cancel(self, endpoint: str, message_id: str) -> Change:
        """Cancel a message that waits; see `Change` for the answers.

        A message sent with 900 seconds or less waits in the destination queue itself, out of reach.

        Raises:
            NoStore: this sender has no store, so nothing to ask and nowhere to leave an amendment.
            InvalidEndpoint, InvalidMessage, StoreUnavailable, StoreMissing
            QueueMissing, QueueUnavailable: the broker's time cannot be learned.
        """
        schedule = self._schedule(endpoint)
        now_ms = self._router.broker_latest(Endpoint.parse(endpoint), Asked())
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
            raise InvalidDelay("give either delay or due_at, the new due time")
        due = due_time(delay, due_at)
        schedule = self._schedule(endpoint)
        now_ms = self._router.broker_latest(Endpoint.parse(endpoint), Asked())
        due_ms = due.due_ms(now_ms)
        self._router.check_max_delay(due_ms, now_ms)
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

    def _traced(self, endpoint: Endpoint) -> AbstractContextManager[str | None]:
        return nullcontext() if self._tracing is None else self._tracing.sending(endpoint.name)

    def _prepare(self, endpoint: Endpoint, given: Message, asked: Asked) -> ToQueue | ToStore:
        message, fitting = self._fitted(endpoint, given)
        prepared = self._router.prepare(endpoint, fitting, asked)
        if fitting is message or self._offloading is None:
            return prepared
        return self._offloading.put(message.body, prepared)

    def _fitted(self, endpoint: Endpoint, given: Message) -> tuple[CheckedMessage, CheckedMessage]:
        """A message as it is, and as it travels: the same, unless its body is to wait elsewhere."""
        message, large = checked(given, fifo=endpoint.fifo), self._offloading
        if large is None:
            return message, message
        message = large.as_new(message)
        if not (
            large.wants(message, lambda size: self._router.limit(endpoint, message, size=size))
            or self._router.too_large_to_park(endpoint, message)
        ):
            return message, message
        return message, large.stand_in(message)

    def _schedule(self, endpoint: str) -> Schedule:
        name = Endpoint.parse(endpoint).name
        if self._stores is None:
            raise NoStore(
                f"without a store the waiting messages of {name} cannot be listed, cancelled or rescheduled, "
                "because SQS has no such call; give DelaySender(store=…), and the delay consumer "
                "the same store"
            )
        return Schedule(self._stores.of(name), endpoint=name, ledger=self._ledger)

    def _parking(self, endpoint: Endpoint) -> Parking | None:
        return None if self._stores is None else self._stores.parking(endpoint.name)

    def _send_all(
        self, endpoint: Endpoint, ready: _Ready
    ) -> Iterator[tuple[int, ToQueue, SendReceipt | Failure]]:
        send = partial(self._send_batch, endpoint)
        batches = list(
            full_batches(ready, target=lambda r: r[1].queue_url, size=lambda r: r[1].entry.size)
        )
        if len(batches) <= 1 or self._concurrency == 1:
            yield from _paired(batches, map(send, batches))
        else:
            with ThreadPoolExecutor(min(self._concurrency, len(batches))) as pool:
                yield from _paired(batches, pool.map(send, batches))

    def _send_batch(
        self, endpoint: Endpoint, batch: Sequence[tuple[int, ToQueue]]
    ) -> list[SendReceipt | Failure]:
        if self._stores is not None:
            self._heed_amendments(endpoint, [prepared for _, prepared in batch])
        clock = self._queues.broker_clock
        if clock.synchronised:
            # Else the timers stay as they were worked out: by a local clock they could end early.
            for _, prepared in batch:
                prepared.set_timer(clock.now_ms())
        outcomes = self._queues.send_batch(
            batch[0][1].queue_url, [prepared.entry for _, prepared in batch]
        )
        if self._ledger is not None:
            now_ms = self._queues.broker_clock.now_ms()
            sent = [prepared for _, prepared in batch]
            record_safely(self._ledger, sent_to_queue(endpoint.name, sent, outcomes, at_ms=now_ms))
        return outcomes

    def _heed_amendments(self, endpoint: Endpoint, batch: Sequence[ToQueue]) -> None:
        """Set messages apart from former ones of the same id that were cancelled or moved.

        Otherwise the delay queue, which forgets nothing for five minutes, would swallow them, or the
        delay consumer would take them for what the amendment was about.
        """
        named = [p for p in batch if p.named and p.route is Route.DELAY_QUEUE]
        if self._stores is None or not named:
            return
        try:
            amendments = self._stores.of(endpoint.name).amendments(
                [p.message_id or "" for p in named]
            )
        except StoreError as error:
            # Set apart from whatever there may be. A second copy of a message is better than none.
            logger.warning("amendments of %d messages not read: %s", len(named), one_line(error))
            latest_ms = self._queues.broker_clock.latest_ms()
            for prepared in named:
                prepared.sent_after(latest_ms)
            return
        for prepared in named:
            amendment = amendments.get(prepared.message_id or "")
            if amendment is not None:
                prepared.sent_after(amendment.at_ms)

    def _park_all(
        self,
        endpoint: Endpoint,
        to_store: Sequence[tuple[int, ToStore]],
        results: list[SendResult],
    ) -> None:
        if not to_store:
            return
        at_once = to_store[0][1].parking.stored_at_once or _STORED_AT_ONCE
        for start in range(0, len(to_store), at_once):
            chunk = to_store[start : start + at_once]
            parked = self._park(endpoint, [prepared for _, prepared in chunk])
            for (position, _), result in zip(chunk, parked, strict=True):
                results[position] = result

    def _park(self, endpoint: Endpoint, chunk: Sequence[ToStore]) -> list[SendResult]:
        errors = chunk[0].parking.park([prepared.stored for prepared in chunk])
        if self._ledger is not None:
            now_ms = self._queues.broker_clock.now_ms()
            kept = [p.stored for p, error in zip(chunk, errors, strict=True) if error is None]
            record_safely(self._ledger, sent_to_store(endpoint.name, kept, at_ms=now_ms))
        return [_parked(p, error) for p, error in zip(chunk, errors, strict=True)]


def _with_header(message: Message, header: str | None) -> Message:
    """The message with the send's trace header, unless its sender named one."""
    if header is None or message.trace_header is not None:
        return message
    return replace(message, trace_header=header)


def _paired(
    batches: Iterable[_Ready], outcomes: Iterable[list[SendReceipt | Failure]]
) -> Iterator[tuple[int, ToQueue, SendReceipt | Failure]]:
    for batch, batch_outcomes in zip(batches, outcomes, strict=True):
        for (position, prepared), outcome in zip(batch, batch_outcomes, strict=True):
            yield position, prepared, outcome


def _sent(prepared: ToQueue, outcome: SendReceipt | Failure) -> SendResult:
    due = utc(prepared.due_ms)
    if isinstance(outcome, Failure):
        return SendResult(prepared.message_id, prepared.route, due, error=outcome.error)
    message_id = prepared.message_id or outcome.sqs_message_id
    return SendResult(message_id, prepared.route, due, outcome.sqs_message_id)


def _parked(prepared: ToStore, error: SqsDelayError | None) -> SendResult:
    stored = prepared.stored
    return SendResult(stored.message_id, Route.STORE, utc(stored.due_ms), error=error)
