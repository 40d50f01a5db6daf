"""The contents of an error queue: messages, and why they could not be delivered. Written and read here."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from sqsdelay.core import limits
from sqsdelay.core import message as wire
from sqsdelay.core.delay import Reject
from sqsdelay.core.message import Attribute, OutgoingMessage, as_json, string, text_of
from sqsdelay.core.outgoing import due_at_of, fits, trace_header_to_pass_on, with_identity
from sqsdelay.core.received_message import DelayedMessage, ReceivedMessage, read_delay
from sqsdelay.core.schedule_input import copy_of
from sqsdelay.core.stored_message import StoredMessage


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejection:
    """A message from an error queue, decoded.

    Args:
        copy: as it was received from the error queue.
        original: as it was before: attributes, ids and stamps that the queue it came from gave it.
        message_id: the sender's.
        reason: why it is here; None where the message left no room for it (the log has it).
        due: when it is due, epoch milliseconds, or why that cannot be told.
        destination: where a store's message was to go; None for one that came from a queue.
        body_encoding: what stands for a body SQS does not carry: ``empty`` or ``base64``.
    """

    copy: ReceivedMessage
    original: ReceivedMessage
    message_id: str
    reason: str | None
    due: int | Reject
    destination: str | None = None
    body_encoding: str | None = None

    @property
    def requeueable(self) -> ReceivedMessage:
        """The original, with the id and stamp of the copy in the error queue: retried twice it is one message
        on the delay queue, for as long as that deduplicates."""
        ours = self.copy
        return replace(self.original, sqs_message_id=ours.sqs_message_id, sent_ms=ours.sent_ms)


def rejected(
    copy: ReceivedMessage, reason: str, *, limit: int = limits.MAX_MESSAGE_BYTES
) -> OutgoingMessage:
    """A copy as the error queue gets it: as it came, plus the reason as JSON in ``sqsdelay.Error``.

    Where ten attributes leave no room the delay attributes move into that JSON; where nothing fits (ten
    attributes of the user's, or 1 MiB) the copy goes without it, its message id as its message group and
    its due time as far as that fits, and only the log has the reason. ``limit``: what the error queue
    takes, bytes; 0 leaves out all that can be."""
    about: dict[str, Any] = {
        "reason": limits.FORBIDDEN_BODY_CHARACTER.sub("?", reason),
        "messageId": copy.message_id,
        "sqsMessageId": copy.sqs_message_id,
        "messageGroupId": copy.group_id,
        "messageDeduplicationId": copy.deduplication_id,
        "sentTimestamp": copy.sent_ms,
        "receiveCount": copy.receive_count,
    }
    if copy.unreadable is not None:
        about["unreadable"] = copy.unreadable  # and left out: it is not whole any more
    attributes = {**copy.attributes, wire.ERROR: string(json.dumps(about))}
    group_id = None
    if not fits(copy.body, attributes, limit=limit):
        ours = [name for name in wire.DELAY_ATTRIBUTES if name in copy.attributes]
        about["attributes"] = {
            name: as_json(attributes.pop(name), "type", "value", "value")["value"] for name in ours
        }
        attributes[wire.ERROR] = string(json.dumps(about))
    if not fits(copy.body, attributes, limit=limit):
        attributes = _with_due_time(copy, limit)
        group_id = copy.message_id if limits.ID.fullmatch(copy.message_id) else None
    return OutgoingMessage(
        body=copy.body,
        attributes=attributes,
        group_id=group_id,
        trace_header=trace_header_to_pass_on(copy.trace_header),
    )


def _with_due_time(copy: ReceivedMessage, limit: int) -> dict[str, Attribute]:
    """The copy's attributes, and when it is due: a delay alone loses its start on the way."""
    attributes = {name: value for name, value in copy.attributes.items() if name != wire.ERROR}
    message = read_delay(copy)
    if isinstance(message, Reject):
        return attributes
    dated = {**attributes, wire.DUE_AT: string(str(message.due_ms))}
    return dated if fits(copy.body, dated, limit=limit) else attributes


def rejected_stored(
    message: StoredMessage, reason: str, *, limit: int = limits.MAX_MESSAGE_BYTES
) -> OutgoingMessage:
    """A store's message as the error queue gets it: as it was, plus the reason. A body that is no text of
    SQS's goes as base64, and says so. ``limit``: what the error queue takes, bytes; 0 leaves out all that can
    be."""
    about: dict[str, Any] = {
        "reason": limits.FORBIDDEN_BODY_CHARACTER.sub("?", reason),
        "messageId": message.message_id,
        "destination": message.destination,
        "dueMs": message.due_ms,
        "failures": message.failures,
    }
    if message.group_id is not None:
        about["messageGroupId"] = message.group_id
    body = message.body.decode("utf-8", "replace")
    if not body:
        about["bodyEncoding"] = "empty"
        body = "-"  # SQS takes no empty body
    elif body.encode("utf-8") != message.body or limits.FORBIDDEN_BODY_CHARACTER.search(body):
        about["bodyEncoding"] = "base64"
        body = base64.b64encode(message.body).decode("ascii")
    attributes = {**message.attributes, wire.ERROR: string(json.dumps(about))}
    if not fits(body, attributes, limit=limit):
        # Better without our words than not at all; the log has the reason.
        attributes = dict(message.attributes)
        if "bodyEncoding" not in about:
            # Group, id and due time as attributes, as far as they fit.
            if message.group_id is not None:
                grouped = {**attributes, wire.GROUP_ID: string(message.group_id)}
                attributes = grouped if fits(body, grouped, limit=limit) else attributes
            told = DelayedMessage(message.message_id, message.due_ms)
            attributes = with_identity(body, attributes, told, waits=True, limit=limit)
    return OutgoingMessage(
        body=body,
        attributes=attributes,
        trace_header=message.trace_header,
    )


def read_rejection(copy: ReceivedMessage) -> Rejection:
    """The inverse of `rejected` and `rejected_stored`; what it cannot find it says is not there. What
    EventBridge Scheduler could not send to the delay queue is read, too: it puts the request into the error
    queue, its dead-letter queue, with attributes of its own."""
    if unsent := _unsent(copy):
        return unsent
    about = _about(copy)
    original = _original(copy, about)
    return Rejection(
        copy=copy,
        original=original,
        message_id=_text(about, "messageId") or original.message_id,
        reason=_text(about, "reason"),
        due=_due(original),
        destination=_text(about, "destination"),
        body_encoding=_text(about, "bodyEncoding"),
    )


def _unsent(copy: ReceivedMessage) -> Rejection | None:
    """What a schedule could not send; None for any other copy."""
    if text_of(copy.attributes, "TARGET_ARN") is None or wire.ERROR in copy.attributes:
        return None
    try:
        sent = copy_of(copy.body)
    except ValueError:
        return None
    original = replace(sent, sqs_message_id=copy.sqs_message_id)
    code = text_of(copy.attributes, "ERROR_CODE") or "no code"
    told = text_of(copy.attributes, "ERROR_MESSAGE") or "no message"
    return Rejection(
        copy=copy,
        original=original,
        message_id=original.message_id,
        reason=f"its schedule could not send it to the delay queue: {told} ({code})",
        due=_due(original),
    )


def _original(copy: ReceivedMessage, about: Mapping[str, Any]) -> ReceivedMessage:
    """The copy as it was before it was rejected."""
    destination, moved = _text(about, "destination"), about.get("attributes")
    attributes = {name: value for name, value in copy.attributes.items() if name != wire.ERROR}
    group_id = copy.group_id
    if destination is not None:
        _restore_stored(attributes, about, fifo=destination.endswith(limits.FIFO_SUFFIX))
    elif about:
        if isinstance(moved, dict):
            attributes |= {
                name: string(value)
                for name, value in moved.items()
                if name in wire.DELAY_ATTRIBUTES and isinstance(value, str)
            }
        group_id = _text(about, "messageGroupId")
    return replace(
        copy,
        attributes=attributes,
        sqs_message_id=_text(about, "sqsMessageId") or copy.sqs_message_id,
        sent_ms=_whole(about, "sentTimestamp"),
        first_receive_ms=None,
        receive_count=_whole(about, "receiveCount"),
        group_id=group_id,
        deduplication_id=_text(about, "messageDeduplicationId"),
        unreadable=_text(about, "unreadable") or copy.unreadable,
    )


def _about(copy: ReceivedMessage) -> dict[str, Any]:
    try:
        about = json.loads(text_of(copy.attributes, wire.ERROR) or "{}")
    except (ValueError, RecursionError):
        return {}
    return about if isinstance(about, dict) else {}


def _restore_stored(
    attributes: dict[str, Attribute], about: Mapping[str, Any], *, fifo: bool
) -> None:
    """Give a store's message the attributes it would have on the delay queue."""
    due_ms = _whole(about, "dueMs")
    group_id, message_id = _text(about, "messageGroupId"), _text(about, "messageId")
    if due_ms is not None:
        attributes[wire.DUE_AT] = string(str(due_ms))
    if group_id is not None:
        attributes[wire.GROUP_ID] = string(group_id)
    if fifo and message_id is not None:
        attributes.setdefault(wire.DEDUPLICATION_ID, string(message_id))


def _due(original: ReceivedMessage) -> int | Reject:
    """As the delay consumer reads it; a due time alone, as a due queue or a store has it, will do."""
    attributes = original.attributes
    if wire.DELAY_SECONDS in attributes and (
        original.sent_ms is not None or wire.DUE_AT not in attributes
    ):
        message = read_delay(original)
        return message if isinstance(message, Reject) else message.due_ms
    due_ms = due_at_of(attributes)
    if due_ms is None or due_ms > limits.MAX_DUE_MS:
        return Reject(f"neither {wire.DELAY_SECONDS} nor {wire.DUE_AT} is present")
    return due_ms


def _text(about: Mapping[str, Any], name: str) -> str | None:
    value = about.get(name)
    return value if isinstance(value, str) and value else None


def _whole(about: Mapping[str, Any], name: str) -> int | None:
    value = about.get(name)
    if not isinstance(value, int) or isinstance(value, bool):
        return None
    return value if 0 <= value <= limits.MAX_DUE_MS else None
