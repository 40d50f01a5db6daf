"""The id and due time that travel with a message, if its size leaves room."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from sqsdelay.core.message import Attribute, Attributes, OutgoingMessage, size_of, string, text_of
from sqsdelay.core.received_message import whole_number
from sqsdelay.core.wire import DUE_AT, MESSAGE_ID, NSERVICEBUS_ID, SQS_ID, WAS_DUE_AT
from sqsdelay.limits import MAX_ATTRIBUTES, MAX_MESSAGE_BYTES


def identity(message_id: str, due_ms: int) -> dict[str, Attribute]:
    """The two attributes a receiver tells a message and its lateness by."""
    return {MESSAGE_ID: string(message_id), WAS_DUE_AT: string(str(due_ms))}


def waiting_identity(message_id: str, due_ms: int) -> dict[str, Attribute]:
    """The same two on a queue of ours, where the due time steers."""
    return {MESSAGE_ID: string(message_id), DUE_AT: string(str(due_ms))}


def was_due_ms(attributes: Attributes) -> int | None:
    """When a received message was due, epoch milliseconds; None if it does not say.

    Earlier versions used the name that steers.
    """
    return whole_number(text_of(attributes, WAS_DUE_AT) or text_of(attributes, DUE_AT))


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


def without_identity(entry: OutgoingMessage) -> OutgoingMessage | None:
    """The entry without what a receiver tells a message and its lateness by; None if it has neither.

    On the delay queue the due time goes, and the remaining seconds stay: such a copy may drift.
    """
    dropped = {DUE_AT, *identity("", 0)}
    left = {name: value for name, value in entry.attributes.items() if name not in dropped}
    if len(left) == len(entry.attributes):
        return None
    return replace(entry, attributes=left, size=size_of(entry.body, left))


def with_message_id(
    attributes: Attributes, message_id: str, *, size: int
) -> tuple[dict[str, Attribute], int]:
    """The attributes of a copy for the delay queue, with the message id as far as limits leave room;
    and the copy's size.

    A hop by an NServiceBus endpoint overwrites message group and deduplication id and adds an
    attribute of its own: without room for both there is none for ours.

    Args:
        attributes: without the message id.
        size: of body and attributes, bytes.
    """
    ours = {MESSAGE_ID: string(message_id)}
    theirs = {} if NSERVICEBUS_ID in attributes else {NSERVICEBUS_ID: SQS_ID}
    identified = {**attributes, **ours}
    larger = size + size_of("", ours)
    after_their_hop = larger + size_of("", theirs)
    if len(identified) + len(theirs) > MAX_ATTRIBUTES or after_their_hop > MAX_MESSAGE_BYTES:
        return dict(attributes), size
    return identified, larger


def fits(body: str, attributes: Mapping[str, Attribute], *, limit: int = MAX_MESSAGE_BYTES) -> bool:
    """Whether a queue that takes ``limit`` bytes takes a message of this size and these attributes."""
    return len(attributes) <= MAX_ATTRIBUTES and size_of(body, attributes) <= limit
