"""A message whose every field has been checked: made once, and used for every route."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from sqsdelay.core.due_time import DueTime, due_time
from sqsdelay.core.message import (
    Attribute,
    Message,
    attributes_of,
    check_body,
    check_ids,
    check_trace_header,
    size_of,
)
from sqsdelay.core.message_id import new_message_id
from sqsdelay.errors import InvalidMessage


class MessageIds(NamedTuple):
    """A message's ids, given by its sender or made up here.

    Args:
        message_id: the sender's, or made up here.
        deduplication_id: of a message for a FIFO queue.
    """

    message_id: str
    deduplication_id: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedMessage:
    """A message that its destination accepts, as far as the message alone can tell; size aside.

    Args:
        content: the content: the body itself, unless that is stored elsewhere.
        attributes: the sender's, in boto3's shape.
        fifo: its destination is a FIFO queue.
        message_id: the sender's.
        deduplication_id: the sender's.

    Attributes:
        size: bytes SQS counts, without what sqsdelay adds.
    """

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

    @property
    def named(self) -> bool:
        """Whether its sender gave an id."""
        return self.message_id is not None

    def ids(self, due_ms: int) -> MessageIds:
        """Its ids; those that its sender did not give are made up, anew at each call.

        Args:
            due_ms: when it is due, as far as the route can tell; an id made up here carries it.
        """
        message_id = self.message_id or new_message_id(due_ms)
        if not self.fifo:
            return MessageIds(message_id, None)
        return MessageIds(message_id, self.deduplication_id or message_id)


def checked(message: Message, *, fifo: bool) -> CheckedMessage:
    """The message, with everything checked that does not depend on its route.

    Args:
        fifo: the destination is a FIFO queue.

    Raises:
        InvalidDelay, InvalidMessage
    """
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
