"""The sender for threads: every limit is checked before anything leaves; each message has its result."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from datetime import datetime
from typing import Any

from sqsdelay.core.coalescing import Interrupted, NeverLeft, SharedCalls, own
from sqsdelay.core.delay import Delay, due_time
from sqsdelay.core.endpoint import Endpoint
from sqsdelay.core.message import AttributeInput, CheckedMessage, Message, Route, checked
from sqsdelay.core.stored_message import StoredMessage
from sqsdelay.errors import InvalidDelay, NoStore, QueueUnavailable, Unconfirmed
from sqsdelay.parking.parking import Change, Schedule
from sqsdelay.ports.queues import Failure, Queues, SendReceipt
from sqsdelay.sending.batches import BatchSender, SendResult
from sqsdelay.sending.router import Asked, SenderSettings

__all__ = ["Change", "Route", "SendResult", "QueueSender"]


class QueueSender:
    """Sends messages with any delay over ``queues``.

    Args:
        queues: the queue service.
        settings: how to send.
    """

    def __init__(self, queues: Queues, settings: SenderSettings | None = None) -> None:
        settings = settings or SenderSettings()
        self.concurrency = settings.concurrency
        self.batches = BatchSender(queues, settings)
        self._ledger = settings.ledger
        self._tracing = settings.tracing
        self._linger_ms = settings.linger_ms
        self.deadline_seconds = settings.deadline_seconds
        self._begin_anew()

    def _begin_anew(self) -> None:
        """In a forked process: what waits there belongs to threads of the parent."""
        self._shared: SharedCalls[CheckedMessage, SendResult] | None = None
        if self._linger_ms:
            self._shared = SharedCalls(
                self._send_together, linger_ms=self._linger_ms, lanes=self.concurrency
            )

    def _send_together(self, key: Any, messages: list[CheckedMessage]) -> list[SendResult]:
        return self.batches.send(key[0], messages)

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
        with self.batches.in_time(), self.traced(parsed) as header:
            ready = checked(with_header(message, header), fifo=parsed.fifo)
            return sent(self._send(parsed, ready))

    def traced(self, endpoint: Endpoint) -> AbstractContextManager[str | None]:
        """The span of a send, and the trace header that its messages are to carry."""
        return nullcontext() if self._tracing is None else self._tracing.sending(endpoint.name)

    def preview(self, endpoint: str, message: Message) -> SendResult:
        """What `send` would do with a message now, without sending it: its id, route and due time.

        All that `send` checks before it sends is checked. Only the broker or the store can find more.

        Raises:
            InvalidDelay, InvalidMessage, InvalidEndpoint, DelayTooLong, ConfigurationError,
            DelayQueueMissing, QueueMissing, QueueUnavailable: as `send`.
        """
        return self.batches.preview(Endpoint.parse(endpoint), message)

    def _send(self, endpoint: Endpoint, message: CheckedMessage) -> SendResult:
        if self._shared is None:
            return self.batches.send(endpoint, [message])[0]
        route, most = self.batches.together(endpoint, message)
        key, within = (endpoint, route), self.deadline_seconds
        try:
            (result,) = self._shared.call(
                key, [message], sizes=[message.size], most=most, within_seconds=within
            )
        except NeverLeft:
            raise too_late(endpoint) from None
        except Interrupted as error:
            raise Unconfirmed(
                f"this message may or may not have been sent, with those of other threads: {error}"
            ) from error
        return result

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
        """As `send_many`, for callers that need the broker's own answers.

        Args:
            note: called in this thread with what became of each message that was sent to a queue.
        """
        parsed = Endpoint.parse(endpoint)
        with self.traced(parsed) as header:
            return self.batches.send(
                parsed,
                (with_header(message, header) for message in messages),
                concurrency=self.concurrency,
                note=note,
            )

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
            raise InvalidDelay("give either delay or due_at, the new due time")
        due = due_time(delay, due_at)
        schedule, now_ms = self._schedule_now(endpoint)
        due_ms = due.due_ms(now_ms)
        self.batches.router.check_max_delay(due_ms, now_ms)
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
        return schedule, self.batches.router.broker_latest(Endpoint.parse(endpoint), Asked())

    def _schedule(self, endpoint: str) -> Schedule:
        name = Endpoint.parse(endpoint).name
        if self.batches.stores is None:
            raise NoStore(
                f"without a store the waiting messages of {name} cannot be listed, cancelled or rescheduled, "
                "because SQS has no such call; give DelaySender(store=…), and the delay consumer "
                "the same store"
            )
        return Schedule(self.batches.stores.of(name), endpoint=name, ledger=self._ledger)


def sent(result: SendResult) -> SendResult:
    """The result, or its error raised, as an object of the caller's own."""
    if result.error is not None:
        raise own(result.error)
    return result


def too_late(endpoint: Endpoint) -> QueueUnavailable:
    """The error of a send whose time was over before a request had its message."""
    return QueueUnavailable(
        f"queue {endpoint.name} cannot be used now: the time for this call (deadline_seconds) is over; "
        "try again later"
    )


def with_header(message: Message, header: str | None) -> Message:
    """The message with the send's trace header, unless its sender named one."""
    if header is None or not isinstance(message, Message) or message.trace_header is not None:
        return message
    return replace(message, trace_header=header)
