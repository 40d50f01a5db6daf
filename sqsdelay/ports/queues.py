"""Queues and senders as the use cases need them. Adapters implement these; each method names its errors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Generic, Protocol, TypeVar

from sqsdelay.core.delay import BrokerClock, Delay, Reject
from sqsdelay.core.endpoint import QueueRef
from sqsdelay.core.limits import MAX_BATCH_ENTRIES
from sqsdelay.core.message import OutgoingMessage
from sqsdelay.core.outgoing import Failure as Failure
from sqsdelay.core.received_message import ReceivedMessage
from sqsdelay.core.stored_message import StoredMessage
from sqsdelay.errors import SqsDelayError

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class SendReceipt:
    """The broker has the message: its id for it, and in its own words what it got and answered. ``metadata``
    is about the whole response, which may have answered for several messages."""

    sqs_message_id: str
    sent: Mapping[str, Any] = field(default_factory=dict)
    answered: Mapping[str, Any] = field(default_factory=dict)
    metadata: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Released:
    """The broker has a stored message. ``timer_seconds`` is the message timer it got, ``batch`` how many
    messages shared the request."""

    timer_seconds: int
    batch: int


class Queues(Protocol):
    """Queues with message timers. Thread-safe. Batch methods take at most 10 entries and 1 MiB, answer per
    entry and in order, and raise nothing: a call that failed as a whole is a failure of each entry."""

    @property
    def broker_clock(self) -> BrokerClock:
        """The broker's clock, as learned from all answers so far."""

    def url(self, queue: QueueRef) -> str:
        """The queue's URL; remembered. Raises QueueMissing: there is no such queue (not remembered);
        QueueUnavailable: could not be asked; InvalidEndpoint: in another region than the client."""

    def synchronise(self, queue: QueueRef) -> None:
        """Make one cheap request from whose answer ``broker_clock`` learns, if the broker tells. Raises
        QueueMissing, QueueUnavailable."""

    def attributes(self, queue_url: str) -> Mapping[str, str]:
        """The queue's attributes under SQS's names. Raises QueueMissing, QueueUnavailable."""

    def send_batch(
        self, queue_url: str, entries: Sequence[OutgoingMessage]
    ) -> list[SendReceipt | Failure]:
        """Send; entries the broker failed for the moment have been retried."""

    def receive_batch(
        self,
        queue_url: str,
        *,
        wait_seconds: int,
        limit: int = MAX_BATCH_ENTRIES,
        visibility_seconds: int | None = None,
    ) -> list[ReceivedMessage]:
        """Up to ``limit`` copies (1 to 10), waiting at most ``wait_seconds`` (0 to 20) for the first. They
        stay hidden for ``visibility_seconds``, the queue's visibility timeout if left out. Raises
        QueueMissing, QueueUnavailable."""

    def delete_batch(
        self, queue_url: str, copies: Sequence[ReceivedMessage]
    ) -> list[Failure | None]:
        """Delete received copies; None means deleted."""

    def hide_batch(
        self, queue_url: str, copies: Sequence[tuple[ReceivedMessage, int]]
    ) -> list[Failure | None]:
        """Make each copy visible again after so many seconds (0 to 43,200); None means done."""


class QueueAges(Protocol):
    """Who knows how old a queue's oldest message is; SQS itself does not tell."""

    def oldest_seconds(self, queues: Sequence[QueueRef]) -> Mapping[QueueRef, int]:
        """The ages, in seconds, of those queues whose oldest message it can tell; raises nothing."""


class LargeBodies(Protocol):
    """Where bodies wait that are too large for a message. Thread-safe."""

    @property
    def above_bytes(self) -> int:
        """Messages larger than this leave their body here."""

    def put(self, body: str, *, needed_until_ms: int) -> str:
        """Keep a body until it was received, at least until then; returns the pointer to send. Raises
        ConfigurationError: it could be deleted before; BodyStoreMissing, BodyStoreUnavailable."""


class Outbox(Protocol):
    """Where a dispatcher sends due messages. Thread-safe.

    Batch methods take any number of messages, answer per message and in order (`Released` or None:
    the broker has it), and raise nothing: a call that failed as a whole is a failure of each
    message. An outage is not counted as the message's failure, which is sent again when it is over.
    """

    @property
    def max_ahead_seconds(self) -> int:
        """The longest message timer of the transport, 0 where it has none."""

    def check(self) -> None:
        """Find out at the start whether messages can be sent, and rejected. Raises ConfigurationError,
        QueueMissing, QueueUnavailable."""

    def now_ms(self) -> int:
        """Now by the clock that due times are measured with, epoch milliseconds."""

    def send(self, messages: Sequence[StoredMessage]) -> Sequence[Failure | Released | None]:
        """Send each to its destination, with what remains until its due time as message timer."""

    def reject(self, messages: Sequence[tuple[StoredMessage, str]]) -> list[Failure | None]:
        """Send each to the error queue, with the reason why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExactlyOnce:
    """A destination inside the store's own database: what it writes commits with the removal.

    Args:
        deliver: given the open transaction (the driver's connection) and due messages, the earliest
            first. It writes their effect there and does not commit. If it raises, what it wrote is
            undone, the messages are tried one by one, and those that raise have failed.
        reject: given the transaction, a message that is out of retries, and the reason; it writes
            the message where a person will find it.
    """

    deliver: Callable[[Any, Sequence[StoredMessage]], None]
    reject: Callable[[Any, StoredMessage, str], None]


@dataclass(frozen=True, slots=True)
class Delivery(Generic[T]):
    """A message received from one of a timeout manager's queues. ``content`` is what it says, or why it
    cannot be read; ``receipt`` is the transport's own."""

    content: T | Reject
    receipt: Any


class TimeoutTransport(Outbox, Protocol):
    """The queues of a timeout manager, and the way to its destinations. Thread-safe.

    What was received is delivered again, unless it is settled. Receiving waits at most so long for the
    first, and raises QueueMissing, QueueUnavailable.
    """

    def receive_timeouts(self, *, wait_seconds: int) -> list[Delivery[StoredMessage]]:
        """Messages that came to be delayed."""

    def receive_due_ids(self, *, wait_seconds: int) -> list[Delivery[str]]:
        """Ids of due messages, as announced."""

    def announce(self, message_ids: Sequence[str]) -> list[Failure | None]:
        """Send the ids of due messages to the queue that ``receive_due_ids`` reads."""

    def reject_unreadable(self, deliveries: Sequence[Delivery[Any]]) -> list[Failure | None]:
        """Send what cannot be read to the error queue, with the reason why."""

    def settle(self, deliveries: Sequence[Delivery[Any]]) -> None:
        """Acknowledge them, if any. One that could not be settled is delivered again."""

    def give_back(self, deliveries: Sequence[Delivery[Any]], *, seconds: int) -> None:
        """Have them delivered again, if any, after so many seconds."""


class TimeoutQueue(Protocol):
    """The way into a timeout manager: the queue that ``receive_timeouts`` reads. Thread-safe."""

    @property
    def message_type(self) -> Callable[..., Any]:
        """The transport's own class of messages to send."""

    def addressed(self, message: Any, destination: str) -> StoredMessage:
        """A message to send, checked now for what would keep it from being sent when it is due. Raises
        InvalidDelay, InvalidMessage, InvalidEndpoint; QueueMissing: where the destination can be looked up
        without a request each time."""

    def put(self, messages: Sequence[StoredMessage]) -> list[Failure | None]:
        """Send messages to the queue, with their destination and due time in headers."""


MessageT = TypeVar("MessageT", contravariant=True)
"""A broker's own message to send, e.g. `Message` or `RabbitMqMessage`."""


class SentMessage(Protocol):
    """What became of one message, as every sender's result tells it."""

    @property
    def message_id(self) -> str | None:
        """What receivers deduplicate on; of a message that was sent never None."""

    @property
    def due(self) -> datetime | None:
        """When it should arrive, aware."""

    @property
    def error(self) -> SqsDelayError | None:
        """Why it was not sent; None if and only if the broker or the store has confirmed it."""


class Sender(Protocol[MessageT]):
    """Sends to one kind of broker with any delay. Thread-safe.

    `DelaySender` (SQS) and `RabbitMqSender` are senders; so is a class of yours that keeps
    `sqsdelay.testing.SenderContract`.
    """

    def send(
        self,
        endpoint: str,
        body: str,
        *,
        delay: Delay | None = None,
        due_at: datetime | None = None,
        message_id: str | None = None,
    ) -> SentMessage:
        """Send one message; returns once the broker or the store has confirmed it.

        Raises:
            InvalidDelay, InvalidMessage, InvalidEndpoint, QueueMissing: nothing was sent.
            QueueUnavailable, SendFailed: the broker cannot be reached, or did not take it.
        """

    def send_many(self, endpoint: str, messages: Iterable[MessageT]) -> Sequence[SentMessage]:
        """Send many. One result per message, in order; one that failed carries its ``error``."""


class DeliverySpan(Protocol):
    """The span of a delivery on its way."""

    @property
    def header(self) -> str | None:
        """The trace header of the message as it arrives; None leaves it to be made up."""

    def end(self, error: str | None = None) -> None:
        """The destination has the message, or why it has not."""


class Tracing(Protocol):
    """Makes spans. Thread-safe; raises nothing."""

    def sending(self, endpoint: str) -> AbstractContextManager[str | None]:
        """A span around the send of one or more messages. Gives the trace header for those whose sender
        named none; None where nothing is traced."""

    def delivering(
        self, endpoint: str, message_id: str, *, sent_with: str | None, due_ms: int | None
    ) -> DeliverySpan:
        """The first span of a new trace, linked to the span that the message was sent in, whose trace
        header is ``sent_with``. ``endpoint``: the destination's name; ``due_ms``: epoch milliseconds."""
