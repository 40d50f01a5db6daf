"""A message as its sender writes it, and checked: its ids, its attributes in boto3's shape, those that
carry a delay, its size as SQS counts it; and full batches."""

from __future__ import annotations

import base64
import re
import secrets
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from enum import StrEnum
from functools import lru_cache
from typing import Any, Final, NotRequired, TypedDict, TypeVar

from sqsdelay.core import limits
from sqsdelay.core.delay import Delay, DueTime, due_time
from sqsdelay.errors import InvalidMessage, MessageTooLarge, TooManyAttributes


class Attribute(TypedDict):
    """A message attribute in boto3's shape: ``StringValue`` for String and Number, else ``BinaryValue``."""

    DataType: str
    StringValue: NotRequired[str]
    BinaryValue: NotRequired[bytes]


Attributes = Mapping[str, Attribute]
AttributeInput = Attribute | str | bytes | bytearray | int | float | Decimal
"""What a caller may give: boto3's shape, or a plain value (text, bytes or a number)."""

OUR_PREFIX: Final = "sqsdelay."
_DATA_TYPE: Final = re.compile(r"(String|Number|Binary)(\.[^\s]{1,249})?")
_RESERVED_BY_AWS: Final = ("aws.", "amazon.")


class Route(StrEnum):
    """Where a message was first sent."""

    DIRECT = "direct"
    DELAY_QUEUE = "delay-queue"
    DUE_QUEUE = "due-queue"
    STORE = "store"


@dataclass(frozen=True, slots=True)
class Message:
    """A message to send, with its delay.

    Args:
        body: text; every character must be one SQS takes.
        delay: ``timedelta`` or seconds from the broker's ``SentTimestamp``; not with ``due_at``.
        due_at: aware ``datetime``; one in the past is sent at once; not with ``delay``.
        attributes: message attributes, plain values or boto3's shape; custom types as in boto3.
            Those of a received message will do: ``sqsdelay.…`` and NServiceBus's delay are replaced.
        message_id: what receivers deduplicate on (at most 128 letters, digits, punctuation);
            generated when left out.
        message_group_id: message group at the destination: required by a FIFO queue, which keeps
            the order within a group; on a standard queue the fair-queue group.
        message_deduplication_id: FIFO queues only; the message id when left out.
        trace_header: X-Ray trace header, sent as ``AWSTraceHeader``.
    """

    body: str
    delay: Delay | None = None
    due_at: datetime | None = None
    attributes: Mapping[str, AttributeInput] = field(default_factory=dict)
    message_id: str | None = None
    message_group_id: str | None = None
    trace_header: str | None = None
    message_deduplication_id: str | None = None


@dataclass(slots=True)
class OutgoingMessage:
    """One entry of a batch send, limits checked. Its size is counted where it is not given. ``delay_seconds``
    None leaves the queue's own delay in force (FIFO queues take no other)."""

    body: str
    attributes: dict[str, Attribute]
    size: int = -1
    delay_seconds: int | None = None
    group_id: str | None = None
    deduplication_id: str | None = None
    trace_header: str | None = None

    def __post_init__(self) -> None:
        if self.size < 0:
            self.size = size_of(self.body, self.attributes)


def string(value: str) -> Attribute:
    """A String attribute."""
    return {"DataType": "String", "StringValue": value}


def as_json(attribute: Attribute, of_type: str, of_text: str, of_bytes: str) -> dict[str, str]:
    """An attribute as JSON, by these names of its type, its text and its bytes, which are base64."""
    if "BinaryValue" in attribute:
        value = {of_bytes: base64.b64encode(attribute["BinaryValue"]).decode("ascii")}
    else:
        value = {of_text: attribute["StringValue"]}
    return {of_type: attribute["DataType"], **value}


def text_of(attributes: Attributes, name: str) -> str | None:
    """The text of a String or Number attribute; None without one of that name."""
    attribute = attributes.get(name)
    return None if attribute is None else attribute.get("StringValue")


def attributes_of(given: Mapping[str, AttributeInput]) -> dict[str, Attribute]:
    """The attributes in boto3's shape, checked, without those that carry a delay: who sends again what was
    received passes them on, and neither a former due time nor a former id may rule the new message. Raises
    InvalidMessage: no mapping, or a name, type or value SQS refuses."""
    if not isinstance(given, Mapping):
        raise InvalidMessage(
            f"is a {type(given).__name__}; give a dict of names and values", attributes=given
        )
    return {
        name: _attribute(name, value)
        for name, value in given.items()
        if name != DELAY_SECONDS and not (isinstance(name, str) and name.startswith(OUR_PREFIX))
    }


def _attribute(name: str, value: AttributeInput) -> Attribute:
    _check_attribute_name(name)
    if isinstance(value, str):
        attribute = string(value)
    elif isinstance(value, Mapping):
        attribute = _boto3_shape(name, value)
    elif isinstance(value, bytes | bytearray):
        attribute = {"DataType": "Binary", "BinaryValue": bytes(value)}
    elif isinstance(value, int | float | Decimal) and not isinstance(value, bool):
        try:
            attribute = {"DataType": "Number", "StringValue": str(value)}
        except ValueError as error:  # an int of more than 4,300 digits
            raise InvalidMessage(f"attribute {name!r} is too large a number: {error}") from error
    else:
        raise InvalidMessage(
            f"attribute {name!r} is a {type(value).__name__}; "
            "give text, bytes, a number or boto3's {'DataType': …} shape"
        )
    if not (attribute.get("StringValue") or attribute.get("BinaryValue")):
        raise InvalidMessage(f"attribute {name!r} is empty; SQS requires at least 1 byte")
    if text := attribute.get("StringValue"):
        _check_characters(text, f"attribute {name!r}")
    return attribute


def _boto3_shape(name: str, value: Attribute) -> Attribute:
    data_type = value.get("DataType", "")
    if not isinstance(data_type, str) or not _DATA_TYPE.fullmatch(data_type):
        raise InvalidMessage(
            f"attribute {name!r} has DataType {data_type!r}; "
            "use String, Number or Binary, optionally with a .custom suffix"
        )
    wanted = "BinaryValue" if data_type.startswith("Binary") else "StringValue"
    content = value.get(wanted)
    if not isinstance(content, bytes if wanted == "BinaryValue" else str):
        raise InvalidMessage(f"attribute {name!r} of DataType {data_type!r} needs a {wanted}")
    if extra := ", ".join(sorted(set(value) - {"DataType", wanted})):
        raise InvalidMessage(f"attribute {name!r} has {extra}; use only DataType and {wanted}")
    return value


@lru_cache
def _check_attribute_name(name: str) -> None:
    if not isinstance(name, str) or not limits.ATTRIBUTE_NAME.fullmatch(name):
        raise InvalidMessage(
            f"attribute name {name!r} is not allowed by SQS; use letters, digits, '-', '_' and inner '.'"
        )
    if len(name) > limits.MAX_ATTRIBUTE_NAME_CHARS:
        raise InvalidMessage(
            f"attribute name {name[:20]!r}… has {len(name)} characters; "
            f"the limit is {limits.MAX_ATTRIBUTE_NAME_CHARS}; shorten it"
        )
    if name.lower().startswith(_RESERVED_BY_AWS):
        raise InvalidMessage(
            f"attribute name {name!r} has a prefix reserved for AWS; choose another"
        )


def _check_characters(text: str, what: str) -> None:
    if text.isprintable():
        return  # None of the forbidden characters is; this is the quicker question.
    if match := limits.FORBIDDEN_BODY_CHARACTER.search(text):
        raise InvalidMessage(
            f"{what} contains the character U+{ord(match.group()):04X} at position {match.start()}, "
            "which SQS refuses; encode it (e.g. base64) or send it as a Binary attribute"
        )


def check_body(body: str) -> None:
    """Refuse a body that SQS would refuse, size aside. Raises InvalidMessage: not text, empty, or with a
    forbidden character."""
    if not isinstance(body, str):
        raise InvalidMessage(
            f"body is {type(body).__name__}; SQS accepts only text: decode it, or use base64"
        )
    if not body:
        raise InvalidMessage("body is empty; SQS requires at least 1 character")
    _check_characters(body, "body")


def check_trace_header(trace_header: str | None) -> None:
    """Refuse a trace header that is not a valid attribute value. Raises InvalidMessage: not text, empty, or
    with a forbidden character."""
    if trace_header is not None:
        if not isinstance(trace_header, str) or not trace_header:
            raise InvalidMessage(
                "is not an X-Ray trace header; give text such as 'Root=1-…', or leave it out",
                trace_header=trace_header,
            )
        _check_characters(trace_header, "trace_header")


def check_ids(message: Message, *, fifo: bool) -> None:
    """Refuse ids the destination would refuse. Raises InvalidMessage. ``fifo``: the destination is a FIFO
    queue."""
    for what in ("message_id", "message_group_id", "message_deduplication_id"):
        if (value := getattr(message, what)) is not None:
            check_id(value, what)
    if fifo and message.message_group_id is None:
        raise InvalidMessage(
            "message_group_id is missing; FIFO queues require one and keep the order within it"
        )
    if message.message_deduplication_id is not None and not fifo:
        raise InvalidMessage(
            "message_deduplication_id is for FIFO queues; leave it out: "
            "receivers of a standard queue deduplicate on message_id"
        )


def check_id(value: str, what: str) -> None:
    """Refuse an id SQS would refuse as a message group or deduplication id. Raises InvalidMessage: empty,
    longer than 128 characters, or with a character outside ASCII's letters, digits and punctuation."""
    if not isinstance(value, str) or not limits.ID.fullmatch(value):
        raise InvalidMessage(
            f"is not valid; use 1 to {limits.MAX_ID_CHARS} letters, digits and punctuation",
            **{what: value},
        )


def size_of(body: str, attributes: Attributes) -> int:
    """Bytes SQS counts: body, and names, types and values of the attributes, in UTF-8."""
    size = _utf8_bytes(body)
    for name, attribute in attributes.items():
        size += _utf8_bytes(name + attribute["DataType"] + attribute.get("StringValue", ""))
        size += len(attribute.get("BinaryValue", b""))
    return size


def _utf8_bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))


def check_limits(body: str, attributes: Attributes, *additions: Attributes) -> int:
    """The size of a message in bytes, with the first additions, if SQS takes it with each of them. Raises
    TooManyAttributes, MessageTooLarge: with value, limit and remedy. ``attributes``: the user's.
    ``additions``: what sqsdelay adds, at one stage of the way after the other."""
    added = max((len(addition) for addition in additions), default=0)
    count = len(attributes) + added
    if count > limits.MAX_ATTRIBUTES:
        raise TooManyAttributes(
            f"{count} message attributes ({added} of them added for the delay); "
            f"the limit is {limits.MAX_ATTRIBUTES}; move {count - limits.MAX_ATTRIBUTES} into the body"
        )
    own = size_of(body, attributes)
    sizes = [own + size_of("", addition) for addition in additions] or [own]
    if max(sizes) > limits.MAX_MESSAGE_BYTES:
        raise MessageTooLarge(
            f"message of {max(sizes)} bytes (body and attributes in UTF-8, {max(sizes) - own} bytes "
            f"added for the delay); the limit is {limits.MAX_MESSAGE_BYTES}; shorten it, or keep "
            "large bodies in S3 (large_bodies=Bucket(…), --bucket)"
        )
    return sizes[0]


DELAY_SECONDS: Final = "NServiceBus.AmazonSQS.DelaySeconds"
DUE_AT: Final = "sqsdelay.DueAt"
"""Steers: on what waits in a delay, due or error queue, and never on what reaches a destination."""
WAS_DUE_AT: Final = "sqsdelay.WasDueAt"
"""Says to a receiver when its message was due. It never steers."""
DELAY_MS: Final = "sqsdelay.DelayMilliseconds"
"""Only on a message whose relative delay is no whole number of seconds, until its first hop."""
MESSAGE_ID: Final = "sqsdelay.MessageId"
GROUP_ID: Final = "sqsdelay.MessageGroupId"
DEDUPLICATION_ID: Final = "sqsdelay.MessageDeduplicationId"
"""Only on messages for a FIFO queue, and always on those."""
ERROR: Final = "sqsdelay.Error"
"""On what waits in an error queue: why, as JSON. See ``sqsdelay.core.rejection``."""

NSERVICEBUS_ID: Final = "NServiceBus.MessageId"
"""NServiceBus's own id. Its endpoints add it when they relay, with SQS's id of the copy, where it is
missing (DelayedMessagesPump); one that sends has it as deduplication id (MessageDispatcher)."""

MADE_HERE: Final = re.compile(
    r"(send)\.(?:(\d{1,15})\.)?[0-9a-f]{64}|(?:hop)\.(?:(\d{1,15})\.)?.+", re.ASCII
)
"""Deduplication ids made by our senders and hops, which are never a message id:
``send.HASH``, where HASH may be random; ``send.AFTER.HASH`` where amendments left at AFTER or before
are none of the message's;
``hop.SENT.HASH`` with the SentTimestamp of the message's first copy; ``hop.HASH`` of former versions."""

_FIFO_IDS: Final = (GROUP_ID, DEDUPLICATION_ID)
DELAY_ATTRIBUTES: Final = (DELAY_SECONDS, DUE_AT, WAS_DUE_AT, DELAY_MS, MESSAGE_ID, *_FIFO_IDS)
"""What carries a delay, and what an earlier delay has left on the message. None of it reaches a
destination unchanged."""

MOST_ADDED: Final = 5
"""The most attributes of ours at once: on the way to a FIFO queue."""

_IDS: Final = dict.fromkeys((MESSAGE_ID, *_FIFO_IDS), string("x" * limits.MAX_ID_CHARS))
_TIMES: Final = dict.fromkeys((DELAY_SECONDS, DELAY_MS, DUE_AT), string(str(limits.MAX_DUE_MS)))
MOST_ADDED_BYTES: Final = size_of("", _IDS | _TIMES)
"""The most that sqsdelay's own attributes add to a message."""


T = TypeVar("T")


def full_batches(
    items: Iterable[T],
    *,
    target: Callable[[T], Hashable],
    size: Callable[[T], int],
    most: tuple[int, int] = (limits.MAX_BATCH_ENTRIES, limits.MAX_BATCH_BYTES),
) -> Iterator[list[T]]:
    """Group ``items`` per target, in order, into batches of so many items and bytes, a larger item by itself.
    ``target``: the queue an item goes to; ``size``: its bytes; ``most``: what SQS takes in one call."""
    waiting: dict[Hashable, tuple[list[T], int]] = {}
    for item in items:
        key, added = target(item), size(item)
        batch, total = waiting.get(key, ([], 0))
        full = len(batch) == most[0] or total + added > most[1]
        if batch and full:
            yield batch
            batch, total = [], 0
        batch.append(item)
        waiting[key] = batch, total + added
    yield from (batch for batch, _ in waiting.values())


_LETTERS: Final = "0123456789abcdefghjkmnpqrstvwxyz"
"""Crockford's base 32. Source: the ULID specification; it has no ``u``, which so tells ours."""

_PAIRS: Final = [first + second for first in _LETTERS for second in _LETTERS]
_BASE_32: Final = str.maketrans(_LETTERS, "0123456789abcdefghijklmnopqrstuv")
_CHANCE_BITS: Final = 80
_MADE_UP: Final = re.compile(r"u([0-7][0-9a-hjkmnp-tv-z]{9})[0-9a-hjkmnp-tv-z]{16}", re.ASCII)


def chances() -> Iterator[int]:
    """Random numbers of 256 bits for what a call makes up. The system is asked once for ten messages: at each
    question another thread may take over."""
    while True:
        drawn = secrets.randbits(2560)
        yield from (drawn >> shift & (1 << 256) - 1 for shift in range(0, 2560, 256))


def new_message_id(due_ms: int, chance: int | None = None) -> str:
    """An id for a message whose sender gave none; it carries when that is due. ``chance``: of `chances`."""
    chance = secrets.randbits(_CHANCE_BITS) if chance is None else chance % (1 << _CHANCE_BITS)
    value = (due_ms << _CHANCE_BITS) | chance
    return "u" + "".join([_PAIRS[(value >> shift) & 1023] for shift in range(120, -1, -10)])


def due_ms_of_id(message_id: str) -> int | None:
    """The due time that an id made up here carries, epoch milliseconds, None of any other id: as its sender
    saw it. A relative delay counts from the broker's SentTimestamp, milliseconds later, and the message can
    have been moved since."""
    made_up = _MADE_UP.fullmatch(message_id)
    return None if made_up is None else int(made_up[1].translate(_BASE_32), 32)


def id_of_try(task_id: Any, retries: Any) -> str | None:
    """A task's id as a message's, with the number of the retry: a retry is another message. None where it
    can be no message's."""
    message_id = f"{task_id}.{retries}" if retries else task_id
    return message_id if isinstance(message_id, str) and limits.ID.fullmatch(message_id) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedMessage:
    """A message that its destination accepts, as far as it alone can tell; size aside. Its content is
    the body itself, unless that is stored elsewhere; its size what SQS counts, without what sqsdelay adds."""

    body: str
    content: str
    attributes: dict[str, Attribute]
    due: DueTime
    fifo: bool
    message_id: str | None
    group_id: str | None
    deduplication_id: str | None
    trace_header: str | None
    size: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", size_of(self.body, self.attributes))

    def ids(self, due_ms: int, chance: int | None = None) -> tuple[str, str | None]:
        """Its id and, for a FIFO queue, its deduplication id. What its sender did not give is made up."""
        message_id = self.message_id or new_message_id(due_ms, chance)
        return message_id, (self.deduplication_id or message_id) if self.fifo else None


def checked(message: Message, *, fifo: bool) -> CheckedMessage:
    """The message, with everything checked that does not depend on its route, for a FIFO queue or another.
    Raises InvalidDelay, InvalidMessage."""
    if not isinstance(message, Message):
        raise InvalidMessage(f"a {type(message).__name__} is not a Message; give Message(body, …)")
    due = due_time(message.delay, message.due_at)
    check_body(message.body)
    check_ids(message, fifo=fifo)
    check_trace_header(message.trace_header)
    return CheckedMessage(
        body=message.body,
        content=message.body,
        attributes=attributes_of(message.attributes) if message.attributes else {},
        due=due,
        fifo=fifo,
        message_id=message.message_id,
        group_id=message.message_group_id,
        deduplication_id=message.message_deduplication_id,
        trace_header=message.trace_header,
    )
