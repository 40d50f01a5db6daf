"""The wire format: what travels through the delay queue, compatible with NServiceBus.AmazonSQS.

Reading accepts both spellings of a received message, boto3's and the Lambda event's.
"""

from __future__ import annotations

import base64
import hashlib
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from sqsdelay.core.hop import Reject
from sqsdelay.core.message import (
    DELAY_OF_NSERVICEBUS,
    Attribute,
    Attributes,
    OutgoingMessage,
    check_limits,
    size_of,
    string,
    text_of,
)
from sqsdelay.errors import MalformedMessage
from sqsdelay.limits import (
    CONTRADICTION_MS,
    ID,
    MAX_ATTRIBUTES,
    MAX_DUE_MS,
    MAX_ID_CHARS,
    MAX_MESSAGE_BYTES,
    SQS_LAUNCH_MS,
)

DELAY_SECONDS: Final = DELAY_OF_NSERVICEBUS
DUE_AT: Final = "sqsdelay.DueAt"
"""Steers: on what waits in a delay, due or error queue, and never on what reaches a destination."""
WAS_DUE_AT: Final = "sqsdelay.WasDueAt"
"""Tells a receiver when its message was due. It steers nothing, wherever it is met again."""
DELAY_MS: Final = "sqsdelay.DelayMilliseconds"
"""Only on a message whose relative delay is no whole number of seconds, until its first hop."""
MESSAGE_ID: Final = "sqsdelay.MessageId"
GROUP_ID: Final = "sqsdelay.MessageGroupId"
DEDUPLICATION_ID: Final = "sqsdelay.MessageDeduplicationId"
"""Only on messages for a FIFO queue, and always on those."""
ERROR: Final = "sqsdelay.Error"
"""On what waits in an error queue: why, as JSON. See ``sqsdelay.core.rejection``."""

NSERVICEBUS_ID: Final = "NServiceBus.MessageId"
"""NServiceBus's own id. An endpoint of its that relays adds it, with SQS's id of the copy, where it is
missing (DelayedMessagesPump); one that sends has it as deduplication id (MessageDispatcher)."""

_MADE_HERE: Final = re.compile(
    r"(send)\.(?:(\d{1,15})\.)?[0-9a-f]{64}|(?:hop)\.(?:(\d{1,15})\.)?.+", re.ASCII
)
"""Deduplication ids that a sender or a hop of ours made; nobody's message id, and readable:
``send.HASH``, where HASH may be random; ``send.AFTER.HASH`` where amendments left at AFTER or before
are none of the message's;
``hop.SENT.HASH`` with the SentTimestamp of the message's first copy; ``hop.HASH`` of former versions."""

DELAY_ATTRIBUTES: Final = (
    DELAY_SECONDS,
    DUE_AT,
    WAS_DUE_AT,
    DELAY_MS,
    MESSAGE_ID,
    GROUP_ID,
    DEDUPLICATION_ID,
)
"""What carries a delay on its way, and what a former life of the message has left on it. None of it
reaches a destination as it is."""
_MOST_ADDED: Final = 5
"""The most attributes of ours at once: on the way to a FIFO queue."""

_ID: Final = string("x" * MAX_ID_CHARS)
_SQS_ID: Final = string("x" * 36)
_TIME: Final = string(str(MAX_DUE_MS))

MOST_ADDED_BYTES: Final = size_of(
    "",
    dict.fromkeys((MESSAGE_ID, GROUP_ID, DEDUPLICATION_ID), _ID)
    | dict.fromkeys((DELAY_SECONDS, DELAY_MS, DUE_AT), _TIME),
)
"""The most that sqsdelay's own attributes add to a message."""

_TEXTS: Final = ("MessageGroupId", "MessageDeduplicationId", "AWSTraceHeader")
"""System attributes that are passed on."""

_WHOLE_NUMBER: Final = re.compile(r"\d{1,15}", re.ASCII)


@dataclass(frozen=True, slots=True)
class ReceivedMessage:
    """A copy received from a queue.

    ``received_at`` is the local monotonic time (seconds) when the copy arrived here; timestamps
    are the broker's, epoch milliseconds, None where the broker did not tell. ``unreadable`` says
    what of it could not be read, and is left out: such a copy is a reject.
    """

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
        """The sender's message id; SQS's own where the copy carries none.

        Our copies have it as message group. A foreign sender, or one of a former version, has it as
        deduplication id: it may put many messages in one group. A hop made by an NServiceBus endpoint
        puts our deduplication id into the group too: then an attribute has the id.
        """
        for found in (self.deduplication_id, self.group_id):
            if found and not _MADE_HERE.fullmatch(found):
                return found
        for name in (MESSAGE_ID, NSERVICEBUS_ID):
            found = text_of(self.attributes, name)
            if found and ID.fullmatch(found):
                return found
        return self.group_id or self.sqs_message_id

    @property
    def first_sent_ms(self) -> int | None:
        """When the message was first sent, broker's clock, epoch milliseconds: amendments left before it
        are none of its. None where nothing tells: then it was before this copy's last hop.

        A copy that an NServiceBus endpoint requeued before any hop of ours tells of that hop only.
        """
        made_here = _MADE_HERE.fullmatch(self.deduplication_id or "")
        if made_here is None:
            return self.sent_ms
        if made_here[1] is None:
            return whole_number(made_here[3])
        after_ms = whole_number(made_here[2])
        return self.sent_ms if after_ms is None else max(self.sent_ms or 0, after_ms + 1)

    @property
    def sent_by_nservicebus(self) -> bool:
        """Whether an NServiceBus endpoint sent it. When that delays a message again it copies the
        attributes it got, whatever they say, and sets the delay in seconds anew."""
        own_id = text_of(self.attributes, NSERVICEBUS_ID)
        return own_id is not None and own_id == self.deduplication_id


@dataclass(frozen=True, slots=True)
class DelayedMessage:
    """What a readable copy says: which message it is and when it is due."""

    message_id: str
    due_ms: int


def from_boto3(raw: Mapping[str, Any], *, received_at: float) -> ReceivedMessage:
    """A message as ``receive_message`` returns it.

    Raises:
        MalformedMessage: body or receipt handle is missing.
    """
    given = {
        name: (value.get("DataType"), value.get("StringValue"), value.get("BinaryValue"))
        for name, value in raw.get("MessageAttributes", {}).items()
    }
    return _received(
        raw.get("Body"),
        given,
        raw.get("ReceiptHandle"),
        raw.get("MessageId", ""),
        raw.get("Attributes", {}),
        received_at,
    )


def from_lambda_event(record: Mapping[str, Any], *, received_at: float) -> ReceivedMessage:
    """A record of a Lambda SQS event; its binary attributes are base64.

    Raises:
        MalformedMessage: no record of a queue at all.
    """
    try:
        given = {
            name: (value.get("dataType"), value.get("stringValue"), _decoded(value))
            for name, value in (record.get("messageAttributes") or {}).items()
        }
        return _received(
            record.get("body"),
            given,
            record.get("receiptHandle"),
            record.get("messageId", ""),
            record.get("attributes") or {},
            received_at,
        )
    except (AttributeError, TypeError, ValueError) as error:
        raise MalformedMessage(f"event record is not an SQS record: {error}") from error


def _decoded(value: Mapping[str, Any]) -> bytes | None:
    """A Lambda event's binary value; None, which fits no attribute, where it is no base64."""
    encoded = value.get("binaryValue")
    try:
        return None if encoded is None else base64.b64decode(encoded, validate=True)
    except (TypeError, ValueError):
        return None


def _shaped(data_type: Any, text: Any, binary: Any) -> Attribute | None:
    if isinstance(data_type, str) and data_type.startswith("Binary"):
        return {"DataType": data_type, "BinaryValue": binary} if isinstance(binary, bytes) else None
    if isinstance(data_type, str) and isinstance(text, str):
        return {"DataType": data_type, "StringValue": text}
    return None


def _received(
    body: Any,
    given: Mapping[str, tuple[Any, Any, Any]],
    receipt_handle: Any,
    sqs_message_id: Any,
    system: Mapping[str, Any],
    received_at: float,
) -> ReceivedMessage:
    if not isinstance(body, str) or not isinstance(receipt_handle, str):
        raise MalformedMessage("a received message needs a body and a receipt handle")
    shaped = {name: _shaped(*value) for name, value in given.items()}
    unfit = [f"message attribute {n!r}" for n, attribute in shaped.items() if attribute is None]
    unfit += [f"{n}" for n in _TEXTS if not isinstance(system.get(n), str | None)]
    attributes = {name: attribute for name, attribute in shaped.items() if attribute is not None}
    return ReceivedMessage(
        body=body,
        attributes=attributes,
        receipt_handle=receipt_handle,
        sqs_message_id=str(sqs_message_id),
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
    return int(text) if isinstance(text, str) and _WHOLE_NUMBER.fullmatch(text) else None


def read_delay(copy: ReceivedMessage) -> DelayedMessage | Reject:
    """When the message is due, or why that cannot be told. Never "now" by default."""
    if copy.unreadable is not None:
        return Reject(copy.unreadable)
    delay_seconds = copy.attributes.get(DELAY_SECONDS)
    due_at = copy.attributes.get(DUE_AT)
    if delay_seconds is None:
        return Reject(f"message attribute {DELAY_SECONDS} is missing")
    seconds = whole_number(delay_seconds.get("StringValue"))
    if seconds is None:
        return Reject(f"{DELAY_SECONDS} is {_shown(delay_seconds)}, not a whole number of seconds")
    if copy.sent_ms is None:
        return Reject("SentTimestamp is missing, so the start of the delay is unknown")
    if due_at is None or copy.sent_by_nservicebus:
        due_ms = copy.sent_ms + _exact_ms(copy, seconds)
    else:
        absolute = whole_number(due_at.get("StringValue"))
        if absolute is None:
            return Reject(f"{DUE_AT} is {_shown(due_at)}, not epoch milliseconds")
        if SQS_LAUNCH_MS <= absolute <= copy.sent_ms and not _made_here(copy):
            # It had passed before the copy was sent to wait: left over from an earlier life.
            return DelayedMessage(copy.message_id, copy.sent_ms + seconds * 1000)
        apart = abs(absolute - (copy.sent_ms + seconds * 1000))
        if apart > CONTRADICTION_MS:
            return Reject(
                f"{DUE_AT} {absolute} and {DELAY_SECONDS} {seconds} contradict each other: "
                f"{apart} ms apart, clock differences explain at most {CONTRADICTION_MS}"
            )
        due_ms = absolute
    if due_ms > MAX_DUE_MS:
        return Reject(f"due time {due_ms} ms is after the year 9999 ({MAX_DUE_MS} ms)")
    return DelayedMessage(copy.message_id, due_ms)


def _made_here(copy: ReceivedMessage) -> bool:
    return _MADE_HERE.fullmatch(copy.deduplication_id or "") is not None


def _exact_ms(copy: ReceivedMessage, seconds: int) -> int:
    """The delay from SentTimestamp in milliseconds, the part below a second included."""
    if copy.sent_by_nservicebus:
        return seconds * 1000
    milliseconds = whole_number(text_of(copy.attributes, DELAY_MS))
    if milliseconds is None or -(-milliseconds // 1000) != seconds:
        # Absent, or left behind by a relay that rewrote only the whole seconds: those stand.
        return seconds * 1000
    return milliseconds


def _shown(attribute: Attribute) -> str:
    value = attribute.get("StringValue", attribute.get("BinaryValue", b""))
    return repr(value[:40])


def delayed(
    attributes: dict[str, Attribute],
    *,
    remaining_ms: int,
    due_ms: int | None,
    message_group_id: str | None,
    deduplication_id: str | None = None,
) -> dict[str, Attribute]:
    """The attributes a sender puts on a message for the delay queue.

    Args:
        remaining_ms: the delay from now.
        due_ms: the due time where it is absolute; a relative delay starts at the broker's
            SentTimestamp, which only the first hop knows.
        deduplication_id: of a message for a FIFO queue.
    """
    wired = {**attributes, DELAY_SECONDS: string(str(-(-remaining_ms // 1000)))}
    if due_ms is not None:
        wired[DUE_AT] = string(str(due_ms))
    elif remaining_ms % 1000:
        wired[DELAY_MS] = string(str(remaining_ms))
    if message_group_id is not None:
        wired[GROUP_ID] = string(message_group_id)
    if deduplication_id is not None:
        wired[DEDUPLICATION_ID] = string(deduplication_id)
    return wired


def new_send_deduplication_id() -> str:
    """One of its own for a call to send: its retries are one message, and no other is taken for it."""
    return f"send.{secrets.token_hex(32)}"


def send_deduplication_id(message_id: str, body: str, wired: Attributes) -> str:
    """An idempotent sender's: the same for equal copies of one message, and another for another. It
    binds id, content and due time, or the delay where that is relative.

    Args:
        wired: the attributes, as `delayed` made them.
    """
    digest = hashlib.sha256()
    left_out = {MESSAGE_ID, DELAY_SECONDS} if DUE_AT in wired else {MESSAGE_ID}
    parts: list[str | bytes] = [message_id, body]
    for name in sorted(wired.keys() - left_out):
        value = wired[name]
        parts += [name, value["DataType"]]
        parts.append(value["BinaryValue"] if "BinaryValue" in value else value["StringValue"])
    for part in parts:
        coded = part if isinstance(part, bytes) else part.encode("utf-8", "surrogatepass")
        digest.update(b"%d:" % len(coded))
        digest.update(coded)
    return f"send.{digest.hexdigest()}"


def after_amendment(deduplication_id: str, amended_ms: int) -> str:
    """A sender's deduplication id for a message to which amendments left until then do not apply."""
    return f"send.{amended_ms}.{deduplication_id[-64:]}"


def with_message_id(body: str, attributes: Attributes, message_id: str) -> dict[str, Attribute]:
    """The attributes of a copy for the delay queue, with the message id as far as limits leave room.

    A hop by an NServiceBus endpoint overwrites message group and deduplication id and adds an
    attribute of its own: without room for both there is none for ours.
    """
    identified = {**attributes, MESSAGE_ID: string(message_id)}
    after_their_hop = {NSERVICEBUS_ID: _SQS_ID} | identified
    return identified if fits(body, after_their_hop) else dict(attributes)


def requeued(
    copy: ReceivedMessage,
    message: DelayedMessage,
    remaining_seconds: int,
    *,
    first_sent_ms: int | None = None,
) -> OutgoingMessage:
    """The next copy for the delay queue: due time set once, remaining seconds rewritten.

    Args:
        first_sent_ms: when the message was first sent, where another copy than this one tells it.
    """
    attributes = {
        **copy.attributes,
        DELAY_SECONDS: string(str(remaining_seconds)),
        DUE_AT: string(str(message.due_ms)),
    }
    for name in (DELAY_MS, MESSAGE_ID, WAS_DUE_AT):
        attributes.pop(name, None)
    if DUE_AT not in copy.attributes and not fits(copy.body, attributes):
        # A foreign sender left no room: fall back to its own format, which drifts but fits.
        del attributes[DUE_AT]
    attributes = with_message_id(copy.body, attributes, message.message_id)
    told_ms = copy.first_sent_ms if first_sent_ms is None else first_sent_ms
    return OutgoingMessage(
        body=copy.body,
        attributes=attributes,
        size=size_of(copy.body, attributes),
        group_id=message.message_id,
        deduplication_id=hop_deduplication_id(copy, message.message_id, told_ms),
        trace_header=trace_header_to_pass_on(copy.trace_header),
    )


def hop_deduplication_id(
    copy: ReceivedMessage, message_id: str, first_sent_ms: int | None = None
) -> str:
    """Same copy, same id; next hop, another id.

    A copy is told by SQS's own id and its SentTimestamp, beside the message id. Hashed, since a
    message id may fill all 128 characters. Before the hash stands when the message was first sent:
    here it costs none of the user's attributes.
    """
    found = f"{message_id}:{copy.sqs_message_id}:{copy.sent_ms}"
    hashed = hashlib.sha256(found.encode("utf-8", "surrogatepass")).hexdigest()
    return f"hop.{hashed}" if first_sent_ms is None else f"hop.{first_sent_ms}.{hashed}"


def check_whole_way(
    body: str,
    attributes: dict[str, Attribute],
    wired: Mapping[str, Attribute],
    *,
    message_id: str,
    due_ms: int,
) -> int:
    """The size of a message for the delay queue, if it also fits at every hop and at the destination.

    Args:
        attributes: the user's.
        wired: the user's and what `delayed` added.

    Raises:
        TooManyAttributes, MessageTooLarge: before anything is sent, not by the relay weeks later.
    """
    size = size_of(body, wired)
    room_for_all = len(attributes) + _MOST_ADDED <= MAX_ATTRIBUTES
    if room_for_all and size + MOST_ADDED_BYTES <= MAX_MESSAGE_BYTES:
        # At no stage are there more of ours. Nearly every message ends here.
        return size
    added = {name: value for name, value in wired.items() if name not in attributes}
    optional = (DELAY_MS, MESSAGE_ID)
    at_hops = {name: value for name, value in added.items() if name not in optional}
    at_hops |= {DUE_AT: string(str(due_ms))}
    at_destination = identity(message_id, due_ms)
    if DEDUPLICATION_ID in added:
        # On the due queue of a FIFO endpoint the queue's ids still travel as attributes.
        at_destination = waiting_identity(message_id, due_ms)
        at_destination |= {name: added[name] for name in (GROUP_ID, DEDUPLICATION_ID)}
    return check_limits(body, attributes, added, at_hops, at_destination)


def handed_over(
    copy: ReceivedMessage, message: DelayedMessage, delay_seconds: int
) -> OutgoingMessage:
    """What the endpoint's own queue gets: the user's message, and two attributes of ours.

    They are the id to deduplicate on and the due time to tell lateness by. What our sender sent has
    room for both (`check_whole_way`); a foreign message of ten attributes or 1 MiB goes without
    rather than not at all.
    """
    attributes = with_identity(
        copy.body, users_attributes(copy), message_id=message.message_id, due_ms=message.due_ms
    )
    group = text_of(copy.attributes, GROUP_ID)
    return OutgoingMessage(
        body=copy.body,
        attributes=attributes,
        size=size_of(copy.body, attributes),
        delay_seconds=delay_seconds,
        group_id=group if group and ID.fullmatch(group) else None,
        trace_header=trace_header_to_pass_on(copy.trace_header),
    )


def users_attributes(copy: ReceivedMessage) -> dict[str, Attribute]:
    """The copy's attributes without ours: those of its delay, and those an earlier life left on it."""
    return {name: value for name, value in copy.attributes.items() if name not in DELAY_ATTRIBUTES}


def with_identity(
    body: str,
    attributes: Mapping[str, Attribute],
    *,
    message_id: str,
    due_ms: int,
    waits: bool = False,
    limit: int = MAX_MESSAGE_BYTES,
) -> dict[str, Attribute]:
    """The attributes, and the message's id and due time as far as ``limit`` bytes leave room.

    Args:
        waits: it goes to a queue of ours to wait, where its due time steers; not to a destination.
        limit: what the queue takes.
    """
    identified = {n: v for n, v in attributes.items() if n not in (MESSAGE_ID, DUE_AT, WAS_DUE_AT)}
    ours = (waiting_identity if waits else identity)(message_id, due_ms)
    for name, value in ours.items():
        if fits(body, {**identified, name: value}, limit=limit):
            identified[name] = value
    return identified


def identity(message_id: str, due_ms: int) -> dict[str, Attribute]:
    """The two attributes a receiver tells a message and its lateness by."""
    return {MESSAGE_ID: string(message_id), WAS_DUE_AT: string(str(due_ms))}


def waiting_identity(message_id: str, due_ms: int) -> dict[str, Attribute]:
    """The same two on a queue of ours, where the due time steers."""
    return {MESSAGE_ID: string(message_id), DUE_AT: string(str(due_ms))}


def was_due_ms(attributes: Attributes) -> int | None:
    """When a received message was due, epoch milliseconds; None where it does not tell.

    Former versions told it by the name that steers.
    """
    return whole_number(text_of(attributes, WAS_DUE_AT) or text_of(attributes, DUE_AT))


def without_identity(entry: OutgoingMessage) -> OutgoingMessage | None:
    """The entry without what a receiver tells a message and its lateness by; None if it has neither.

    On the delay queue the due time goes, and the remaining seconds stay: such a copy may drift.
    """
    dropped = {DUE_AT, *identity("", 0)}
    left = {name: value for name, value in entry.attributes.items() if name not in dropped}
    if len(left) == len(entry.attributes):
        return None
    return replace(entry, attributes=left, size=size_of(entry.body, left))


def fits(body: str, attributes: Mapping[str, Attribute], *, limit: int = MAX_MESSAGE_BYTES) -> bool:
    """Whether a queue that takes ``limit`` bytes takes a message of this size and these attributes."""
    return len(attributes) <= MAX_ATTRIBUTES and size_of(body, attributes) <= limit


def trace_header_to_pass_on(header: str | None) -> str | None:
    """The trace header without the ``Lineage`` part by which Lambda counts recursion.

    The relay's hops are no recursion of the user's functions, and must not count as one.
    """
    if header is None:
        return None
    parts = [part for part in header.split(";") if not part.strip().startswith("Lineage=")]
    return ";".join(parts) or None
