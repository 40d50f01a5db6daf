"""A schedule: when it fires, and its input, the ``SendMessage`` into the parking queue."""

from __future__ import annotations

import hashlib
import json
import zlib
from typing import Any, Final

from sqsdelay.core import limits, received_message
from sqsdelay.core.endpoint import Endpoint
from sqsdelay.core.message import DEDUPLICATION_ID, Attribute, size_of, string, text_of
from sqsdelay.core.outgoing import add_message_id, delayed, due_at_of
from sqsdelay.core.received_message import DelayedMessage, ReceivedMessage
from sqsdelay.core.stored_message import Amendment, StoredMessage, parked
from sqsdelay.errors import InvalidMessage, MalformedMessage, MessageTooLarge, StoreError

CREATION_SECONDS: Final = 60
"""No schedule fires earlier than this after it was made: the time until it takes effect is not
documented."""

VISIBLE_SECONDS: Final = 840
"""So long before it is due, what a schedule has sent becomes visible in the parking queue: what is left
fits a message timer, and a run that fails is made up for by the next. A schedule fires up to a minute
late. Source: EventBridge Scheduler User Guide, "Schedule types": 60 seconds of precision."""

SOONEST_SECONDS: Final = VISIBLE_SECONDS + limits.MAX_MESSAGE_TIMER_SECONDS + CREATION_SECONDS
"""How far ahead a message must be due to wait as a schedule: half an hour."""


def firing_second(message_id: str, due_ms: int) -> int:
    """When the schedule of a message fires, epoch seconds: spread by the hash of the id over what a message
    timer holds, which hides the message until `VISIBLE_SECONDS` before it is due. A million due in one
    second need 1,111 invocations a second."""
    hashed = zlib.crc32(message_id.encode("utf-8", "surrogatepass"))
    return due_ms // 1000 - VISIBLE_SECONDS - hashed % limits.MAX_MESSAGE_TIMER_SECONDS


def hidden_seconds(due_ms: int, *, fires_at: int) -> int:
    """The message timer of what a schedule sends when it fires at this epoch second."""
    return max(0, due_ms // 1000 - VISIBLE_SECONDS - fires_at)


MAX_INPUT_BYTES: Final = 256 * 1024
"""Input of a universal target. Source: EventBridge Scheduler quotas, "Universal target input size"."""

_CONTEXT: Final = "<aws.scheduler."
"""How the context attributes begin that the service replaces anywhere in an input: schedule-arn,
scheduled-time, execution-id, attempt-number. Source: EventBridge Scheduler User Guide, "Adding context
attributes"."""

_ESCAPED: Final = "\\u003caws.scheduler."
"""The same in JSON, with ``<`` written as its code: no attribute to the service, and the same text to SQS."""

_MAX_DESCRIPTION_CHARS: Final = 512
"""Source: CreateSchedule API reference, Description."""

COPY: Final = "sqsdelay.Copy"
"""The attribute of what a schedule sends: all of the copy but its body, as JSON."""


def prefix_of(queue_url: str, kind: str) -> str:
    """How the names of one endpoint's schedules begin, by the URL of its delay queue: others may use the
    same group. ``kind``: ``m`` or ``n`` for messages, ``s`` for notes that ``n`` is in use, ``a`` for
    amendments."""
    return f"{kind}.{_digest(queue_url, 16)}."


def name_of(message_id: str, prefix: str) -> str:
    """The name of a schedule. An id may hold characters that a name may not, so it is hashed."""
    return prefix + _digest(message_id, 45)


def _digest(text: str, letters: int = 64) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:letters]


def check_keepable(message: StoredMessage, endpoint: Endpoint) -> None:
    """Refuse what the endpoint's delay queue would refuse months later. Raises InvalidMessage."""
    if Endpoint.parse(message.destination).queue.name != endpoint.queue.name:
        raise InvalidMessage(
            f"message {message.message_id} goes to {message.destination!r}, and schedules of endpoint "
            f"{endpoint.name} send to {endpoint.parking_queue.name} alone; use the store of that endpoint"
        )
    if not limits.ID.fullmatch(message.message_id):
        raise InvalidMessage(
            "cannot be a message group of SQS; use 1 to 128 letters, digits and punctuation characters",
            message_id=message.message_id,
        )
    if len(message.destination) > _MAX_DESCRIPTION_CHARS:
        raise InvalidMessage(
            f"destination of {len(message.destination)} characters; a schedule keeps "
            f"{_MAX_DESCRIPTION_CHARS}"
        )


def input_of(message: StoredMessage, queue_url: str, *, fires_at: int, kept_since_ms: int) -> str:
    """The input of a message's schedule: ``SendMessage`` as JSON. Raises InvalidMessage: a body SQS does not
    take; MessageTooLarge: above what a schedule holds. ``queue_url``: the parking queue's. ``fires_at``: the
    schedule's time, epoch seconds. ``kept_since_ms``: when the message came into the store, broker's clock.
    It travels in the deduplication id: amendments left later apply, earlier ones do not."""
    told = f"{message.message_id}:{kept_since_ms}:{message.due_ms}"
    body = _body(message)
    copy = ReceivedMessage(
        body=body,
        attributes=_attributes(message, body, fires_at),
        receipt_handle="",
        sqs_message_id="",
        received_at=0,
        sent_ms=fires_at * 1000,
        group_id=message.message_id,
        # The same at each attempt of the schedule, which may be invoked more than once.
        deduplication_id=f"hop.{kept_since_ms}.{_digest(told)}",
        trace_header=message.trace_header,
    )
    record = received_message.as_lambda_record(copy)
    request = {
        "QueueUrl": queue_url,
        "DelaySeconds": hidden_seconds(message.due_ms, fires_at=fires_at),
        # As it is: JSON within JSON has four characters for a quote.
        "MessageBody": record.pop("body"),
        "MessageAttributes": {COPY: string(json.dumps(record, ensure_ascii=False))},
    }
    text = json.dumps(request, ensure_ascii=False).replace(_CONTEXT, _ESCAPED)
    size = len(text.encode("utf-8"))
    if size > MAX_INPUT_BYTES:
        raise MessageTooLarge(
            f"message {message.message_id} takes {size} bytes as a schedule's input; the limit is "
            f"{MAX_INPUT_BYTES}; shorten it, or give the sender a bucket for large bodies"
        )
    return text


def _attributes(message: StoredMessage, body: str, fires_at: int) -> dict[str, Attribute]:
    deduplication_id = text_of(message.attributes, DEDUPLICATION_ID)
    users = {n: value for n, value in message.attributes.items() if n != DEDUPLICATION_ID}
    wired = users | delayed(
        # Less than 0 where it was moved to a time before its schedule can fire.
        remaining_ms=max(0, message.due_ms - fires_at * 1000),
        due_ms=message.due_ms,
        message_group_id=message.group_id,
        deduplication_id=deduplication_id,
    )
    size = size_of(body, wired)
    if len(wired) > limits.MAX_ATTRIBUTES or size > limits.MAX_MESSAGE_BYTES:
        raise InvalidMessage(
            f"message {message.message_id} has {len(users)} attributes, which leaves no room for those "
            "of its delay; use fewer"
        )
    add_message_id(wired, message.message_id, size=size)
    return wired


def _body(message: StoredMessage) -> str:
    try:
        body = message.body.decode("utf-8")
    except UnicodeDecodeError:
        body = ""
    if not body or limits.FORBIDDEN_BODY_CHARACTER.search(body):
        raise InvalidMessage(
            f"the body of {message.message_id} is not text that SQS accepts; a schedule sends to SQS: encode "
            "it, e.g. as base64"
        )
    return body


def kept_since_ms_of(text: str) -> int:
    """When the message of an input came into the store, epoch milliseconds."""
    return copy_of(text).first_sent_ms or 0


def message_of(text: str, destination: str) -> StoredMessage:
    """The message of a schedule's input; the inverse of `input_of`. Raises StoreError: the schedule is not
    one of ours."""
    try:
        copy = copy_of(text)
        due_ms = due_at_of(copy.attributes)
        said = DelayedMessage(copy.message_id, -1 if due_ms is None else due_ms)
        return parked(copy, said, destination)
    except ValueError as error:
        raise StoreError(f"the schedule is not a message of sqsdelay: {error!r}") from error


def copy_of(text: str) -> ReceivedMessage:
    """The copy that a schedule's input sends. Raises ValueError: it is no ``SendMessage`` of ours."""
    try:
        request = json.loads(text)
        record = record_of(
            request["MessageBody"], request["MessageAttributes"][COPY]["StringValue"]
        )
        return received_message.from_lambda_event({**record, "receiptHandle": ""}, received_at=0)
    except (KeyError, TypeError, AttributeError, RecursionError, MalformedMessage) as error:
        raise ValueError(f"no SendMessage request: {error!r}") from error


def record_of(body: str, rest: str | None) -> dict[str, Any]:
    """The record of a copy whose rest stands in the attribute `COPY`."""
    return {**json.loads(rest or ""), "body": body}


def description_of(amendment: Amendment) -> str:
    """An amendment as the description of its schedule."""
    told = {"at": amendment.at_ms, "due": amendment.due_ms, "cancelled": amendment.cancelled_ms}
    return json.dumps({name: value for name, value in told.items() if value is not None})


def amendment_of(message_id: str, description: str) -> Amendment:
    """The inverse of `description_of`. Raises StoreError: the schedule is not one of ours."""
    try:
        told = json.loads(description)
        return Amendment(
            message_id=message_id,
            at_ms=int(told["at"]),
            due_ms=told.get("due"),
            cancelled_ms=told.get("cancelled"),
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise StoreError(f"the schedule is not an amendment of sqsdelay: {error!r}") from error
