"""Copies of a delayed message: what the sender, each hop and the hand-over put on the wire."""

from __future__ import annotations

from collections.abc import Mapping

from sqsdelay.core.deduplication_ids import hop_deduplication_id
from sqsdelay.core.delayed_message import DelayedMessage
from sqsdelay.core.identity import fits, identity, waiting_identity, with_identity, with_message_id
from sqsdelay.core.message import Attribute, OutgoingMessage, check_limits, size_of, string, text_of
from sqsdelay.core.received_message import ReceivedMessage
from sqsdelay.core.trace_header import of_new_trace
from sqsdelay.core.wire import (
    DEDUPLICATION_ID,
    DELAY_ATTRIBUTES,
    DELAY_MS,
    DELAY_SECONDS,
    DUE_AT,
    GROUP_ID,
    MESSAGE_ID,
    MOST_ADDED,
    MOST_ADDED_BYTES,
    WAS_DUE_AT,
)
from sqsdelay.limits import ID, MAX_ATTRIBUTES, MAX_MESSAGE_BYTES


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
    attributes, size = with_message_id(
        attributes, message.message_id, size=size_of(copy.body, attributes)
    )
    told_ms = copy.first_sent_ms if first_sent_ms is None else first_sent_ms
    return OutgoingMessage(
        body=copy.body,
        attributes=attributes,
        size=size,
        group_id=message.message_id,
        deduplication_id=hop_deduplication_id(copy, message.message_id, told_ms),
        trace_header=trace_header_to_pass_on(copy.trace_header),
    )


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
        trace_header=of_new_trace(copy.trace_header, at_ms=arrival_ms(copy, message.due_ms)),
    )


def check_whole_way(
    body: str,
    attributes: dict[str, Attribute],
    wired: Mapping[str, Attribute],
    *,
    message_id: str,
    due_ms: int,
    size: int,
) -> int:
    """The size of a message for the delay queue, if it also fits at every hop and at the destination.

    Args:
        attributes: the user's.
        wired: the user's and what `delayed` added.
        size: of body and ``wired``, bytes.

    Raises:
        TooManyAttributes, MessageTooLarge: before anything is sent, not by the relay weeks later.
    """
    room_for_all = len(attributes) + MOST_ADDED <= MAX_ATTRIBUTES
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


def users_attributes(copy: ReceivedMessage) -> dict[str, Attribute]:
    """The copy's attributes without ours: those of its delay, and those an earlier life left on it."""
    return {name: value for name, value in copy.attributes.items() if name not in DELAY_ATTRIBUTES}


def arrival_ms(copy: ReceivedMessage, due_ms: int | None) -> int:
    """About when a copy arrives that is sent to its destination now, epoch milliseconds."""
    return max(due_ms or 0, copy.first_receive_ms or copy.sent_ms or 0)


def trace_header_to_pass_on(header: str | None) -> str | None:
    """The trace header without the ``Lineage`` part by which Lambda counts recursion.

    The relay's hops are no recursion of the user's functions, and must not count as one.
    """
    if header is None:
        return None
    parts = [part for part in header.split(";") if not part.strip().startswith("Lineage=")]
    return ";".join(parts) or None
