"""Sending to a timeout manager: into its timeouts queue, with destination and due time in headers. sqsdelay's
own names come first, NServiceBus's are understood as well."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from sqsdelay.core import message as wire
from sqsdelay.core.delay import Delay, Reject, due_at_ms, utc
from sqsdelay.core.message import Attribute, Attributes, string, text_of
from sqsdelay.core.outgoing import group_id_of, trace_header_to_pass_on
from sqsdelay.core.received_message import ReceivedMessage, whole_number
from sqsdelay.core.stored_message import StoredMessage, check_stored_id
from sqsdelay.errors import InvalidMessage, QueueMissing, SqsDelayError
from sqsdelay.ports.queues import TimeoutQueue

DESTINATION: Final = "sqsdelay.Destination"
NSERVICEBUS_DESTINATION: Final = "NServiceBus.Timeout.RouteExpiredTimeoutTo"
NSERVICEBUS_DUE: Final = "NServiceBus.Timeout.Expire"
NSERVICEBUS_TIME: Final = "%Y-%m-%d %H:%M:%S:%f Z"
"""How NServiceBus writes an instant, UTC: ``2027-01-31 09:00:00:000000 Z``."""

_OURS: Final = (DESTINATION, wire.DUE_AT, wire.WAS_DUE_AT, wire.MESSAGE_ID, wire.GROUP_ID)


def read_timeout(copy: ReceivedMessage) -> StoredMessage | Reject:
    """The message to keep until it is due, or why that cannot be told. Its id is ``sqsdelay.MessageId``, or
    else the queue service's own, which stays the same when a copy is delivered again."""
    if copy.unreadable is not None:
        return Reject(copy.unreadable)
    try:
        return StoredMessage(
            message_id=text_of(copy.attributes, wire.MESSAGE_ID) or copy.sqs_message_id,
            destination=destination_of(copy.attributes),
            due_ms=due_ms_of(copy.attributes),
            body=copy.body.encode("utf-8"),
            attributes={n: value for n, value in copy.attributes.items() if n not in _OURS},
            group_id=group_id_of(copy.attributes),
            trace_header=trace_header_to_pass_on(copy.trace_header),
        )
    except (InvalidMessage, UnicodeEncodeError) as error:
        return Reject(str(error))


def timeout_attributes(message: StoredMessage) -> dict[str, Attribute]:
    """The attributes that send a message to a timeout manager on SQS; the inverse of `read_timeout`."""
    ours = {DESTINATION: message.destination, wire.MESSAGE_ID: message.message_id}
    if message.group_id is not None:
        ours[wire.GROUP_ID] = message.group_id
    ours[wire.DUE_AT] = str(message.due_ms)
    return {**message.attributes, **{name: string(text) for name, text in ours.items()}}


def nservicebus_headers(message: StoredMessage) -> dict[str, str]:
    """Destination and due time as NServiceBus writes and reads them."""
    due = utc(message.due_ms).strftime(NSERVICEBUS_TIME)
    return {NSERVICEBUS_DESTINATION: message.destination, NSERVICEBUS_DUE: due}


def destination_of(attributes: Attributes) -> str:
    """The destination as written; raises InvalidMessage where there is none."""
    destination = text_of(attributes, DESTINATION) or text_of(attributes, NSERVICEBUS_DESTINATION)
    if not destination:
        raise InvalidMessage(
            f"neither {DESTINATION} nor {NSERVICEBUS_DESTINATION} gives its destination"
        )
    return destination


def due_ms_of(attributes: Attributes) -> int:
    """The due time, epoch milliseconds; raises InvalidMessage where it cannot be told."""
    due = text_of(attributes, wire.DUE_AT)
    if due is not None:
        if (due_ms := whole_number(due)) is None:
            raise InvalidMessage(f"{wire.DUE_AT} is {due[:40]!r}, not epoch milliseconds")
        return due_ms
    expire = text_of(attributes, NSERVICEBUS_DUE)
    if expire is None:
        raise InvalidMessage(f"neither {wire.DUE_AT} nor {NSERVICEBUS_DUE} gives its due time")
    try:
        return due_at_ms(datetime.strptime(expire, NSERVICEBUS_TIME).replace(tzinfo=UTC))
    except ValueError:
        raise InvalidMessage(
            f"{NSERVICEBUS_DUE} is {expire[:40]!r}, not as 2027-01-31 09:00:00:000000 Z"
        ) from None


def id_body(message_id: str) -> str:
    """The body of the message that announces a due one: ASCII, whatever the id holds."""
    return json.dumps({"message_id": message_id})


def read_id(body: str) -> str | Reject:
    """The id in an announcement's body, or why there is none."""
    try:
        message_id = json.loads(body)["message_id"]
        check_stored_id(message_id)
    except (ValueError, TypeError, KeyError, RecursionError, InvalidMessage):
        return Reject('the body is not {"message_id": "…"}: it was not sent by a timeout manager')
    return str(message_id)


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
            try:
                if missing is not None:
                    # Asked for once a call.
                    raise missing
                ready.append((place, self._transport.addressed(message, endpoint)))
                results.append(SentTimeout(None))
            except SqsDelayError as error:
                missing = error if isinstance(error, QueueMissing) else missing
                results.append(SentTimeout(getattr(message, "message_id", None), error=error))
        outcomes = self._transport.put([stored for _, stored in ready]) if ready else []
        for (place, stored), failure in zip(ready, outcomes, strict=True):
            why = None if failure is None else failure.error
            results[place] = SentTimeout(stored.message_id, utc(stored.due_ms), why)
        return results
