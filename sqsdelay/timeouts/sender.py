"""Sending to a timeout manager: into its timeouts queue, with destination and due time in headers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqsdelay.core.delay import Delay, utc
from sqsdelay.core.stored_message import StoredMessage
from sqsdelay.errors import QueueMissing, SqsDelayError
from sqsdelay.ports.queues import TimeoutQueue


@dataclass(frozen=True, slots=True)
class SentTimeout:
    """What became of one message; without an ``error`` the timeouts queue has it."""

    message_id: str | None
    due: datetime | None = None
    error: SqsDelayError | None = None


class TimeoutSender:
    """Sends with any delay through an endpoint's timeout manager, sqsdelay's or NServiceBus's. Thread-safe.

    Args:
        transport: `SqsTimeouts` or `RabbitMqTimeouts` of the endpoint whose timeout manager delays.
    """

    def __init__(self, transport: TimeoutQueue) -> None:
        self._transport = transport

    def send(
        self,
        endpoint: str,
        body: str | bytes,
        *,
        delay: Delay | None = None,
        due_at: datetime | None = None,
        message_id: str | None = None,
        **more: Any,
    ) -> SentTimeout:
        """Send one message; returns once the timeouts queue has it.

        Args:
            endpoint: the destination queue; on SQS its name, URL or ARN.
            delay, due_at, message_id: as of `Message`; without a delay it arrives at once.
            more: further arguments of `Message` on SQS, of `RabbitMqMessage` on RabbitMQ.

        Raises:
            InvalidDelay, InvalidMessage, InvalidEndpoint: nothing was sent.
            QueueMissing, QueueUnavailable, SendFailed: the broker did not take it.
        """
        given = {"delay": delay, "due_at": due_at, "message_id": message_id}
        message = self._transport.message_type(body, **given, **more)
        (result,) = self.send_many(endpoint, [message])
        if result.error is not None:
            raise result.error
        return result

    def send_many(self, endpoint: str, messages: Iterable[Any]) -> list[SentTimeout]:
        """Send `Message` objects (SQS) or `RabbitMqMessage` objects (RabbitMQ) together.

        Returns:
            A result per message, in order; one that failed carries its ``error``.
        """
        results: list[SentTimeout] = []
        ready: list[tuple[int, StoredMessage]] = []
        missing: QueueMissing | None = None
        for place, message in enumerate(messages):
            results.append(SentTimeout(getattr(message, "message_id", None)))
            try:
                if missing is not None:
                    # Asked for once a call.
                    raise missing
                ready.append((place, self._transport.addressed(message, endpoint)))
            except SqsDelayError as error:
                missing = error if isinstance(error, QueueMissing) else missing
                results[place] = SentTimeout(results[place].message_id, error=error)
        outcomes = self._transport.put([stored for _, stored in ready]) if ready else []
        for (place, stored), failure in zip(ready, outcomes, strict=True):
            results[place] = SentTimeout(
                stored.message_id, utc(stored.due_ms), None if failure is None else failure.error
            )
        return results
