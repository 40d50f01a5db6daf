"""A message whose every field has been checked: made once, and used for every route."""

from __future__ import annotations

import base64
import re
import secrets
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, cast

from sqsdelay.core import message as wire
from sqsdelay.core.delay import DueTime, due_time
from sqsdelay.core.message import Attribute, AttributeInput, Message
from sqsdelay.errors import InvalidMessage
from sqsdelay.limits import ID

_LETTERS: Final = "0123456789abcdefghjkmnpqrstvwxyz"
"""Crockford's base 32. Source: the ULID specification; it has no ``u``, which so tells ours."""

_VALUES: Final = {letter: value for value, letter in enumerate(_LETTERS)}
_CHANCE_BITS: Final = 80
_MADE_UP: Final = re.compile(r"u([0-7][0-9a-hjkmnp-tv-z]{9})[0-9a-hjkmnp-tv-z]{16}", re.ASCII)


def new_message_id(due_ms: int) -> str:
    """An id for a message whose sender gave none; it carries when that is due, as far as is known now."""
    value = (due_ms << _CHANCE_BITS) | secrets.randbits(_CHANCE_BITS)
    letters = "".join(_LETTERS[(value >> shift) & 31] for shift in range(125, -1, -5))
    return f"u{letters}"


def due_ms_of_id(message_id: str) -> int | None:
    """The due time that an id made up here carries, epoch milliseconds; None of any other id.

    It is when the message was due as its sender saw it: a relative delay counts from the broker's
    SentTimestamp, some milliseconds later, and a message can have been moved since.
    """
    made_up = _MADE_UP.fullmatch(message_id)
    if made_up is None:
        return None
    value = 0
    for letter in made_up[1]:
        value = value << 5 | _VALUES[letter]
    return value


def id_of_try(task_id: Any, retries: Any) -> str | None:
    """A task's id as a message's, with the number of the retry: a retry is another message to deduplicate
    on. None where it can be no message's."""
    message_id = f"{task_id}.{retries}" if retries else task_id
    return message_id if isinstance(message_id, str) and ID.fullmatch(message_id) else None


def attributes_of_texts(texts: Iterable[str]) -> dict[str, AttributeInput]:
    """The attributes of ``NAME=VALUE`` and ``NAME:TYPE=VALUE``; a Binary value is base64. Raises
    InvalidMessage: it is neither, names one attribute twice, or is not base64."""
    found: dict[str, AttributeInput] = {}
    for text in texts:
        named, equals, value = text.partition("=")
        name, _, kind = named.partition(":")
        kind = kind or "String"
        if not name or not equals:
            raise InvalidMessage(
                f"{text!r} is not NAME=VALUE or NAME:TYPE=VALUE, such as tenant=acme or tries:Number=3"
            )
        if name in found:
            raise InvalidMessage(f"{name!r} is given twice")
        field = "BinaryValue" if kind.partition(".")[0] == "Binary" else "StringValue"
        found[name] = attribute_of(name, {"DataType": kind, field: value})
    return found


def attribute_of(name: str, value: Any) -> AttributeInput:
    """As in the AWS CLI: a BinaryValue is base64. Raises InvalidMessage: it is not."""
    if isinstance(value, dict) and isinstance(value.get("BinaryValue"), str):
        try:
            binary = base64.b64decode(value["BinaryValue"], validate=True)
        except ValueError as error:
            raise InvalidMessage(
                f"attribute {name!r}: BinaryValue is not base64: {error}"
            ) from error
        value = {**value, "BinaryValue": binary}
    return cast(AttributeInput, value)  # what it is, the sender checks


class MessageIds(NamedTuple):
    """A message's ids, given by its sender or made up here; the second of a message for a FIFO queue."""

    message_id: str
    deduplication_id: str | None


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
        object.__setattr__(self, "size", wire.size_of(self.body, self.attributes))

    @property
    def named(self) -> bool:
        """Whether its sender gave an id."""
        return self.message_id is not None

    def ids(self, due_ms: int) -> MessageIds:
        """Its ids; those that its sender did not give are made up, anew at each call (`new_message_id`)."""
        message_id = self.message_id or new_message_id(due_ms)
        if not self.fifo:
            return MessageIds(message_id, None)
        return MessageIds(message_id, self.deduplication_id or message_id)


def checked(message: Message, *, fifo: bool) -> CheckedMessage:
    """The message, with everything checked that does not depend on its route, for a FIFO queue or another.
    Raises InvalidDelay, InvalidMessage."""
    if not isinstance(message, Message):
        raise InvalidMessage(f"a {type(message).__name__} is not a Message; give Message(body, …)")
    due = due_time(message.delay, message.due_at)
    wire.check_body(message.body)
    wire.check_ids(message, fifo=fifo)
    wire.check_trace_header(message.trace_header)
    return CheckedMessage(
        body=message.body,
        content=message.body,
        attributes=wire.attributes_of(message.attributes) if message.attributes else {},
        due=due,
        fifo=fifo,
        message_id=message.message_id,
        group_id=message.message_group_id,
        deduplication_id=message.message_deduplication_id,
        trace_header=message.trace_header,
    )
