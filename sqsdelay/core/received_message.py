"""A copy as received from a queue, read from boto3's spelling or a Lambda event's: which message it belongs
to, when that is due, and the ids it has for a FIFO queue."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from sqsdelay.core import message as wire
from sqsdelay.core.delay import BrokerClock, Reject
from sqsdelay.core.endpoint import Endpoint
from sqsdelay.core.limits import CONTRADICTION_MS, ID, MAX_DUE_MS, SQS_LAUNCH_MS
from sqsdelay.core.message import Attribute, as_json, string, text_of
from sqsdelay.errors import MalformedMessage

_TEXTS: Final = ("MessageGroupId", "MessageDeduplicationId", "AWSTraceHeader")
"""System attributes that are passed on."""


@dataclass(frozen=True, slots=True)
class ReceivedMessage:
    """A copy received from a queue. ``received_at`` is the local monotonic time (seconds); timestamps are the
    broker's, epoch milliseconds, None where it did not tell. ``unreadable`` says what of it could not be
    read, and is left out: such a copy is a reject."""

    body: str
    attributes: dict[str, Attribute]
    receipt_handle: str
    sqs_message_id: str
    received_at: float
    sent_ms: int | None = None
    first_receive_ms: int | None = None
    receive_count: int | None = None
    group_id: str | None = None
    deduplication_id: str | None = None
    trace_header: str | None = None
    unreadable: str | None = None

    @property
    def message_id(self) -> str:
        """The sender's message id; SQS's own where the copy carries none. NServiceBus has it as deduplication
        id. Every other sender has it in an attribute, if there was room. That tells nothing beside
        `WAS_DUE_AT`: somebody sent again what he had received, with all attributes. Without it the id is the
        deduplication id or the group, unless both were made here."""
        own = text_of(self.attributes, wire.MESSAGE_ID)
        if (
            own
            and ID.fullmatch(own)
            and not (self.sent_by_nservicebus or wire.WAS_DUE_AT in self.attributes)
        ):
            return own
        for found in (self.deduplication_id, self.group_id):
            if found and not wire.MADE_HERE.fullmatch(found):
                return found
        for found in (own, text_of(self.attributes, wire.NSERVICEBUS_ID)):
            if found and ID.fullmatch(found):
                return found
        return self.group_id or self.sqs_message_id

    @property
    def first_sent_ms(self) -> int | None:
        """When the message was first sent, broker's clock, epoch milliseconds: amendments left before it
        are none of its. None where nothing tells: then it was before this copy's last hop. A copy that an
        NServiceBus endpoint requeued before any hop of ours tells of that hop only."""
        made_here = wire.MADE_HERE.fullmatch(self.deduplication_id or "")
        if made_here is None:
            return self.sent_ms
        if made_here[1] is None:
            return whole_number(made_here[3])
        after_ms = whole_number(made_here[2])
        return self.sent_ms if after_ms is None else max(self.sent_ms or 0, after_ms + 1)

    @property
    def sent_by_nservicebus(self) -> bool:
        """Whether an NServiceBus endpoint sent it, which copies whatever attributes it got when it delays a
        message again, and sets the delay in seconds anew."""
        own_id = text_of(self.attributes, wire.NSERVICEBUS_ID)
        return own_id is not None and own_id == self.deduplication_id


def learn(clock: BrokerClock, copies: Iterable[ReceivedMessage]) -> None:
    """Let a clock learn from SQS's stamps, which tell when each copy was first received."""
    stamps = {(c.first_receive_ms, c.received_at) for c in copies if c.receive_count == 1}
    for first_ms, at in stamps:
        if first_ms is not None:
            clock.observe(first_ms, at=at)


def from_boto3(raw: Mapping[str, Any], *, received_at: float) -> ReceivedMessage:
    """A message as ``receive_message`` returns it. Raises MalformedMessage: body or receipt handle is
    missing."""
    return _received(raw, str, received_at)


def from_lambda_event(record: Mapping[str, Any], *, received_at: float) -> ReceivedMessage:
    """A record of a Lambda SQS event; its binary attributes are base64. Raises MalformedMessage: not a
    queue's record at all."""
    try:
        return _received(record, _in_lambda, received_at)
    except (AttributeError, TypeError, ValueError) as error:
        raise MalformedMessage(f"event record is not an SQS record: {error}") from error


def _in_lambda(name: str) -> str:
    """boto3's name of a field, as a Lambda event spells it."""
    return name[0].lower() + name[1:]


def as_lambda_record(copy: ReceivedMessage) -> dict[str, Any]:
    """A copy as a record that `from_lambda_event` reads, but for its receipt handle."""
    system = {
        "SentTimestamp": None if copy.sent_ms is None else str(copy.sent_ms),
        "MessageGroupId": copy.group_id,
        "MessageDeduplicationId": copy.deduplication_id,
        "AWSTraceHeader": copy.trace_header,
    }
    return {
        "messageId": copy.sqs_message_id,
        "body": copy.body,
        "attributes": {name: value for name, value in system.items() if value is not None},
        "messageAttributes": {
            name: as_json(each, "dataType", "stringValue", "binaryValue")
            for name, each in copy.attributes.items()
        },
    }


def _shaped(value: Mapping[str, Any], spelled: Callable[[str], str]) -> Attribute | None:
    """A message attribute; None where its value is not of its type, or a Lambda event's is no base64."""
    data_type = value.get(spelled("DataType"))
    if not isinstance(data_type, str):
        return None
    if not data_type.startswith("Binary"):
        text = value.get(spelled("StringValue"))
        return {"DataType": data_type, "StringValue": text} if isinstance(text, str) else None
    binary: Any = value.get(spelled("BinaryValue"))
    if spelled is _in_lambda:
        try:
            binary = base64.b64decode(binary, validate=True)
        except (TypeError, ValueError):
            return None
    return {"DataType": data_type, "BinaryValue": binary} if isinstance(binary, bytes) else None


def _received(
    raw: Mapping[str, Any], spelled: Callable[[str], str], received_at: float
) -> ReceivedMessage:
    body, receipt_handle = raw.get(spelled("Body")), raw.get(spelled("ReceiptHandle"))
    attributes, unfit = dict[str, Attribute](), list[str]()
    for name, value in (raw.get(spelled("MessageAttributes")) or {}).items():
        attribute = _shaped(value, spelled)
        if attribute is None:
            unfit.append(f"message attribute {name!r}")
        else:
            attributes[name] = attribute
    if not isinstance(body, str) or not isinstance(receipt_handle, str):
        raise MalformedMessage("a received message needs a body and a receipt handle")
    system = raw.get(spelled("Attributes")) or {}
    unfit += [n for n in _TEXTS if not isinstance(system.get(n), str | None)]
    return ReceivedMessage(
        body=body,
        attributes=attributes,
        receipt_handle=receipt_handle,
        sqs_message_id=str(raw.get(spelled("MessageId"), "")),
        received_at=received_at,
        sent_ms=whole_number(system.get("SentTimestamp")),
        first_receive_ms=whole_number(system.get("ApproximateFirstReceiveTimestamp")),
        receive_count=whole_number(system.get("ApproximateReceiveCount")),
        group_id=_text(system.get("MessageGroupId")),
        deduplication_id=_text(system.get("MessageDeduplicationId")),
        trace_header=_text(system.get("AWSTraceHeader")),
        unreadable=f"{min(unfit)} has no value of its type" if unfit else None,
    )


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def whole_number(text: Any) -> int | None:
    """A non-negative number of at most 15 ASCII digits; None for anything else."""
    whole = isinstance(text, str) and len(text) <= 15 and text.isascii() and text.isdigit()
    return int(text) if whole else None


@dataclass(frozen=True, slots=True)
class DelayedMessage:
    """What a readable copy says: which message it is and when it is due."""

    message_id: str
    due_ms: int


def read_delay(copy: ReceivedMessage) -> DelayedMessage | Reject:
    """When the message is due, or why that is unknown. Never "now" by default."""
    if copy.unreadable is not None:
        return Reject(copy.unreadable)
    delay_seconds = copy.attributes.get(wire.DELAY_SECONDS)
    due_at = copy.attributes.get(wire.DUE_AT)
    if delay_seconds is None:
        return Reject(f"message attribute {wire.DELAY_SECONDS} is missing")
    seconds = whole_number(delay_seconds.get("StringValue"))
    if seconds is None:
        return Reject(
            f"{wire.DELAY_SECONDS} is {_shown(delay_seconds)}, not a whole number of seconds"
        )
    if copy.sent_ms is None:
        return Reject("SentTimestamp is missing, so the start of the delay is unknown")
    if due_at is None or copy.sent_by_nservicebus:
        due_ms = copy.sent_ms + _exact_ms(copy, seconds)
    else:
        absolute = whole_number(due_at.get("StringValue"))
        if absolute is None:
            return Reject(f"{wire.DUE_AT} is {_shown(due_at)}, not epoch milliseconds")
        passed = SQS_LAUNCH_MS <= absolute <= copy.sent_ms
        if passed and not wire.MADE_HERE.fullmatch(copy.deduplication_id or ""):
            # It had passed before the copy was sent to wait: left over from an earlier life.
            return DelayedMessage(copy.message_id, copy.sent_ms + seconds * 1000)
        apart = abs(absolute - (copy.sent_ms + seconds * 1000))
        if apart > CONTRADICTION_MS:
            return Reject(
                f"{wire.DUE_AT} {absolute} and {wire.DELAY_SECONDS} {seconds} contradict each other: "
                f"{apart} ms apart, clock differences explain at most {CONTRADICTION_MS}"
            )
        due_ms = absolute
    if due_ms > MAX_DUE_MS:
        return Reject(f"due time {due_ms} ms is after the year 9999 ({MAX_DUE_MS} ms)")
    return DelayedMessage(copy.message_id, due_ms)


def _exact_ms(copy: ReceivedMessage, seconds: int) -> int:
    """The delay from SentTimestamp in milliseconds, the part below a second included."""
    if copy.sent_by_nservicebus:
        return seconds * 1000
    milliseconds = whole_number(text_of(copy.attributes, wire.DELAY_MS))
    if milliseconds is None or -(-milliseconds // 1000) != seconds:
        # Absent, or left behind by a relay that rewrote only the whole seconds: those stand.
        return seconds * 1000
    return milliseconds


def _shown(attribute: Attribute) -> str:
    value = attribute.get("StringValue", attribute.get("BinaryValue", b""))
    return repr(value[:40])


@dataclass(frozen=True, slots=True)
class FifoIds:
    """What a FIFO queue orders and deduplicates by; it travels in attributes until then."""

    group_id: str
    deduplication_id: str

    def attributes(self) -> dict[str, Attribute]:
        return {
            wire.GROUP_ID: string(self.group_id),
            wire.DEDUPLICATION_ID: string(self.deduplication_id),
        }


def read_fifo_ids(copy: ReceivedMessage) -> FifoIds | Reject:
    """A copy's ids for its FIFO queue, or what is wrong with them."""
    if copy.unreadable is not None:
        return Reject(copy.unreadable)
    found = []
    for name in (wire.GROUP_ID, wire.DEDUPLICATION_ID):
        text = text_of(copy.attributes, name)
        if text is None or not ID.fullmatch(text):
            shown = None if text is None else text[:40]
            return Reject(
                f"{name} is {shown!r}: the message was not sent for a FIFO queue "
                "(was it sent for a standard endpoint of the same name?)"
            )
        found.append(text)
    return FifoIds(*found)


def misdirected(copy: ReceivedMessage, endpoint: Endpoint) -> Reject | None:
    """Why a copy is not for this endpoint but for one of the other kind; None if it is."""
    if endpoint.fifo:
        ids = read_fifo_ids(copy)
        return ids if isinstance(ids, Reject) else None
    if wire.DEDUPLICATION_ID in copy.attributes:
        return Reject(f"the message was sent for the FIFO queue {endpoint.twin.name}")
    return None
