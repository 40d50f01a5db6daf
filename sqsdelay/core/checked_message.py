"""A message whose sender's every word was checked: made once, and every route builds from it."""

from __future__ import annotations

from dataclasses import dataclass

from sqsdelay.core.due_time import DueTime, due_time
from sqsdelay.core.message import (
    Attribute,
    Message,
    attributes_of,
    check_body,
    check_ids,
    check_trace_header,
    new_message_id,
    size_of,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedMessage:
    """A message that its destination takes, as far as the message alone tells; not yet its size.

    Args:
        content: what the body stands for: the body itself, unless that waits elsewhere.
        attributes: the sender's, in boto3's shape.
        message_id: the sender's, or made up where it is not ``named``.
        deduplication_id: of a message for a FIFO queue.
    """

    body: str
    content: str
    attributes: dict[str, Attribute]
    due: DueTime
    message_id: str
    named: bool
    group_id: str | None
    deduplication_id: str | None
    trace_header: str | None

    @property
    def size(self) -> int:
        """Bytes SQS counts, without what sqsdelay adds."""
        return size_of(self.body, self.attributes)


def checked(message: Message, *, fifo: bool) -> CheckedMessage:
    """The message, checked for what can be told before its way is known.

    Args:
        fifo: the destination is a FIFO queue.

    Raises:
        InvalidDelay, InvalidMessage
    """
    due = due_time(message.delay, message.due_at)
    check_body(message.body)
    check_ids(message, fifo=fifo)
    check_trace_header(message.trace_header)
    message_id = message.message_id or new_message_id()
    return CheckedMessage(
        body=message.body,
        content=message.body,
        attributes=attributes_of(message.attributes) if message.attributes else {},
        due=due,
        message_id=message_id,
        named=message.message_id is not None,
        group_id=message.message_group_id,
        deduplication_id=(message.message_deduplication_id or message_id) if fifo else None,
        trace_header=message.trace_header,
    )
