"""What sends with any delay, whatever the broker: the port that users' code can stand on."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Protocol, TypeVar

from sqsdelay.core.delay import Delay
from sqsdelay.errors import SqsDelayError

MessageT = TypeVar("MessageT", contravariant=True)
"""A broker's own message to send, e.g. `Message` or `RabbitMqMessage`."""


class SentMessage(Protocol):
    """What became of one message, as every sender's result tells it."""

    @property
    def message_id(self) -> str | None:
        """What receivers deduplicate on; of a message that was sent never None."""
        ...

    @property
    def due(self) -> datetime | None:
        """When it should arrive, aware."""
        ...

    @property
    def error(self) -> SqsDelayError | None:
        """Why it was not sent; None if and only if the broker or the store has confirmed it."""
        ...


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
            InvalidDelay, InvalidMessage, InvalidEndpoint: nothing was sent.
            QueueMissing: there is no such queue.
            QueueUnavailable: the broker cannot be reached.
            SendFailed: the broker did not take it.
        """
        ...

    def send_many(self, endpoint: str, messages: Iterable[MessageT]) -> Sequence[SentMessage]:
        """Send many. One result per message, in order; one that failed carries its ``error``."""
        ...
