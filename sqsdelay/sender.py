"""Sending: choose the route, check every limit before anything leaves, send in full batches."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, Final, TypeVar, cast

from sqsdelay import wire
from sqsdelay.batch import full_batches
from sqsdelay.decision import check_hop
from sqsdelay.delay import Delay, checked_due_ms, delay_ms, due_at_ms, seconds_until, utc
from sqsdelay.endpoint import Endpoint
from sqsdelay.errors import (
    ConfigurationError,
    DelayQueueMissing,
    DelayTooLong,
    InvalidDelay,
    QueueMissing,
    SqsDelayError,
)
from sqsdelay.limits import MAX_MESSAGE_TIMER_SECONDS
from sqsdelay.message import (
    Attribute,
    AttributeInput,
    Message,
    OutgoingMessage,
    attributes_of,
    check_body,
    check_id,
    check_limits,
    string,
)
from sqsdelay.ports import Failure, Queues, SendReceipt

DEFAULT_CONCURRENCY = 8

T = TypeVar("T")


class Route(StrEnum):
    """Where a message was sent first."""

    DIRECT = "direct"
    DELAY_QUEUE = "delay-queue"


@dataclass(frozen=True, slots=True)
class SendResult:
    """What became of one message.

    ``message_id`` is what receivers deduplicate on: the id given or made up for a delay queue, and
    SQS's own for a direct message without one. ``due`` is exact for ``due_at`` and estimated with
    the broker's clock for ``delay``. Exactly one of ``error`` and ``sqs_message_id`` is None.
    """

    message_id: str | None = None
    route: Route | None = None
    due: datetime | None = None
    sqs_message_id: str | None = None
    error: SqsDelayError | None = None


_PENDING: Final = SendResult()


@dataclass(slots=True)
class _Prepared:
    """A checked message on its way: where to, in which shape, and what to report."""

    queue_url: str
    entry: OutgoingMessage
    route: Route
    message_id: str | None
    due_ms: int
    absolute: bool

    def set_timer(self, now_ms: int) -> None:
        """Set the message timer of an absolute due time anew: batches before this one took time."""
        if self.absolute and self.route is Route.DIRECT:
            self.entry.delay_seconds = seconds_until(self.due_ms, now_ms)

    def result(self, outcome: SendReceipt | Failure) -> SendResult:
        if isinstance(outcome, Failure):
            return SendResult(self.message_id, self.route, utc(self.due_ms), error=outcome.error)
        return SendResult(
            self.message_id or outcome.sqs_message_id,
            self.route,
            utc(self.due_ms),
            outcome.sqs_message_id,
        )


class _Asked:
    """What one call has asked the queue service, errors included: it is not asked again per message."""

    def __init__(self) -> None:
        self._answers: dict[str, Any] = {}

    def once(self, what: str, ask: Callable[[], T]) -> T:
        if what not in self._answers:
            try:
                self._answers[what] = ask()
            except SqsDelayError as error:
                self._answers[what] = error
        answer = self._answers[what]
        if isinstance(answer, SqsDelayError):
            raise answer
        return cast(T, answer)


class Sender:
    """Sends messages with any delay over ``queues``.

    Args:
        queues: the queue service.
        unrestricted: False refuses delays above 900 seconds, as a sender without the feature would.
        hop_seconds: the delay queues' delivery delay; 900 unless the endpoint was created with less.
        concurrency: batches ``send_many`` keeps in flight.
    """

    def __init__(
        self,
        queues: Queues,
        *,
        unrestricted: bool = True,
        hop_seconds: int = MAX_MESSAGE_TIMER_SECONDS,
        concurrency: int = DEFAULT_CONCURRENCY,
    ) -> None:
        check_hop(hop_seconds)
        if not unrestricted and hop_seconds != MAX_MESSAGE_TIMER_SECONDS:
            raise ConfigurationError(
                f"hop_seconds={hop_seconds} with unrestricted=False; "
                "without a delay queue there is no hop, leave it out"
            )
        if concurrency < 1:
            raise ConfigurationError(f"concurrency={concurrency}; use 1 or more")
        self._queues = queues
        self._unrestricted = unrestricted
        self._hop_seconds = hop_seconds
        self._concurrency = concurrency
        self._checked_hops: set[str] = set()

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
        trace_header: str | None = None,
    ) -> SendResult:
        """Send one message; see `Message` for the arguments.

        Args:
            endpoint: the destination queue's name, URL or ARN.

        Raises:
            InvalidDelay, InvalidMessage, InvalidEndpoint: nothing was sent.
            DelayTooLong: above 900 seconds and ``unrestricted=False``.
            DelayQueueMissing, QueueMissing: a queue this send needs does not exist.
            QueueUnavailable, SendFailed: the queue service did not take it.
        """
        message = Message(
            body,
            delay=delay,
            due_at=due_at,
            attributes=attributes or {},
            message_id=message_id,
            message_group_id=message_group_id,
            trace_header=trace_header,
        )
        prepared = self._prepare(Endpoint.parse(endpoint), message, _Asked())
        (outcome,) = self._queues.send_batch(prepared.queue_url, [prepared.entry])
        result = prepared.result(outcome)
        if result.error is not None:
            raise result.error
        return result

    def send_many(self, endpoint: str, messages: Iterable[Message]) -> list[SendResult]:
        """Send many messages in full batches, several batches at a time.

        Returns:
            A result per message, in order; one that failed carries its ``error`` and none of the
            others is lost for it.

        Raises:
            InvalidEndpoint: nothing was sent.
        """
        parsed, asked = Endpoint.parse(endpoint), _Asked()
        results: list[SendResult] = []
        ready: list[tuple[int, _Prepared]] = []
        for position, message in enumerate(messages):
            results.append(_PENDING)
            try:
                ready.append((position, self._prepare(parsed, message, asked)))
            except SqsDelayError as error:
                results[position] = SendResult(message.message_id, error=error)
        batches = list(
            full_batches(ready, target=lambda r: r[1].queue_url, size=lambda r: r[1].entry.size)
        )
        if len(batches) <= 1 or self._concurrency == 1:
            outcomes: Iterator[list[SendReceipt | Failure]] = map(self._send_batch, batches)
            _collect(batches, outcomes, results)
        else:
            with ThreadPoolExecutor(min(self._concurrency, len(batches))) as pool:
                _collect(batches, pool.map(self._send_batch, batches), results)
        return results

    def _send_batch(self, batch: Sequence[tuple[int, _Prepared]]) -> list[SendReceipt | Failure]:
        now_ms = self._queues.broker_clock.now_ms()
        for _, prepared in batch:
            prepared.set_timer(now_ms)
        return self._queues.send_batch(
            batch[0][1].queue_url, [prepared.entry for _, prepared in batch]
        )

    def _prepare(self, endpoint: Endpoint, message: Message, asked: _Asked) -> _Prepared:
        if message.delay is not None and message.due_at is not None:
            raise InvalidDelay("delay and due_at are both given; give one of them")
        check_body(message.body)
        attributes = attributes_of(message.attributes) if message.attributes else {}
        if message.message_id is not None:
            check_id(message.message_id, "message_id")
        if message.message_group_id is not None:
            check_id(message.message_group_id, "message_group_id")
        if message.due_at is not None:
            due_ms = checked_due_ms(due_at_ms(message.due_at))
            now_ms = self._broker_now(endpoint, asked)
        else:
            now_ms = self._queues.broker_clock.now_ms()
            due_ms = now_ms if message.delay is None else now_ms + delay_ms(message.delay)
            checked_due_ms(due_ms)
        remaining = seconds_until(due_ms, now_ms)
        if remaining <= self._hop_seconds:
            entry = self._direct(message, attributes, remaining)
            url = asked.once("queue", lambda: self._queues.url(endpoint.queue))
            route, message_id = Route.DIRECT, message.message_id
        else:
            self._check_unrestricted(endpoint, due_ms - now_ms)
            url = asked.once("delay queue", lambda: self._delay_queue_url(endpoint))
            message_id = message.message_id or str(uuid.uuid4())
            entry = self._delayed(message, attributes, message_id, due_ms, due_ms - now_ms)
            route = Route.DELAY_QUEUE
        return _Prepared(url, entry, route, message_id, due_ms, message.due_at is not None)

    def _broker_now(self, endpoint: Endpoint, asked: _Asked) -> int:
        """The broker's now for an absolute due time, asked for if nothing has told it lately."""
        clock = self._queues.broker_clock
        if not clock.synchronised:
            asked.once("clock", lambda: self._queues.synchronise(endpoint.queue))
        return clock.now_ms()

    def _check_unrestricted(self, endpoint: Endpoint, remaining_ms: int) -> None:
        if not self._unrestricted:
            raise DelayTooLong(
                f"delay of {remaining_ms / 1000} s is above the {MAX_MESSAGE_TIMER_SECONDS} s a "
                "message timer holds, and unrestricted=False; shorten it, or use "
                "DelaySender(unrestricted=True) and an endpoint with a delay queue "
                f"({endpoint.delay_queue.name})"
            )

    def _direct(
        self, message: Message, attributes: dict[str, Attribute], remaining: int
    ) -> OutgoingMessage:
        added: dict[str, Attribute] = {}
        if message.message_id is not None:
            added = {wire.MESSAGE_ID: string(message.message_id)}
        immediate = message.delay is None and message.due_at is None
        return OutgoingMessage(
            body=message.body,
            attributes={**attributes, **added},
            size=check_limits(message.body, attributes, added),
            delay_seconds=None if immediate else remaining,
            group_id=message.message_group_id,
            trace_header=message.trace_header,
        )

    def _delayed(
        self,
        message: Message,
        attributes: dict[str, Attribute],
        message_id: str,
        due_ms: int,
        remaining_ms: int,
    ) -> OutgoingMessage:
        wired = wire.delayed(
            attributes,
            remaining_ms=remaining_ms,
            due_ms=due_ms if message.due_at is not None else None,
            message_group_id=message.message_group_id,
        )
        size = wire.check_whole_way(
            message.body, attributes, wired, message_id=message_id, due_ms=due_ms
        )
        return OutgoingMessage(
            body=message.body,
            attributes=wired,
            size=size,
            group_id=message_id,
            deduplication_id=message_id,
            trace_header=message.trace_header,
        )

    def _delay_queue_url(self, endpoint: Endpoint) -> str:
        try:
            queue_url = self._queues.url(endpoint.delay_queue)
        except QueueMissing as error:
            raise DelayQueueMissing(
                f"queue {endpoint.delay_queue.name} does not exist, so endpoint {endpoint.name} takes "
                f"no delays above {self._hop_seconds} s; create it with: "
                f"sqsdelay endpoint create {endpoint.name}"
            ) from error
        if self._hop_seconds < MAX_MESSAGE_TIMER_SECONDS and queue_url not in self._checked_hops:
            self._check_hop(endpoint, queue_url)
        return queue_url

    def _check_hop(self, endpoint: Endpoint, queue_url: str) -> None:
        """A hop longer than what the sender counts on would make every message late."""
        deployed = int(self._queues.attributes(queue_url).get("DelaySeconds", "0"))
        if deployed > self._hop_seconds:
            raise ConfigurationError(
                f"hop_seconds={self._hop_seconds}, but {endpoint.delay_queue.name} holds messages for "
                f"{deployed} s; use hop_seconds={deployed}"
            )
        self._checked_hops.add(queue_url)


def _collect(
    batches: Iterable[list[tuple[int, _Prepared]]],
    outcomes: Iterable[list[SendReceipt | Failure]],
    results: list[SendResult],
) -> None:
    for batch, batch_outcomes in zip(batches, outcomes, strict=True):
        for (position, prepared), outcome in zip(batch, batch_outcomes, strict=True):
            results[position] = prepared.result(outcome)
