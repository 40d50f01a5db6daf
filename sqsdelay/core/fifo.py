"""Messages for a FIFO queue: their ids travel in attributes, on the delay queue and on the due queue."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sqsdelay.core.delay import Reject
from sqsdelay.core.endpoint import Endpoint
from sqsdelay.core.message import (
    DEDUPLICATION_ID,
    DUE_AT,
    GROUP_ID,
    WAS_DUE_AT,
    Attribute,
    OutgoingMessage,
    size_of,
    string,
    text_of,
)
from sqsdelay.core.outgoing import (
    arrival_ms,
    fits,
    handed_over,
    of_new_trace,
    trace_header_to_pass_on,
    users_attributes,
    with_identity,
)
from sqsdelay.core.received_message import DelayedMessage, ReceivedMessage, whole_number
from sqsdelay.limits import ID


@dataclass(frozen=True, slots=True)
class FifoIds:
    """What a FIFO queue orders and deduplicates by; it travels in attributes until then."""

    group_id: str
    deduplication_id: str

    def attributes(self) -> dict[str, Attribute]:
        return {GROUP_ID: string(self.group_id), DEDUPLICATION_ID: string(self.deduplication_id)}


def read_fifo_ids(copy: ReceivedMessage) -> FifoIds | Reject:
    """A copy's ids for its FIFO queue, or what is wrong with them."""
    if copy.unreadable is not None:
        return Reject(copy.unreadable)
    found = []
    for name in (GROUP_ID, DEDUPLICATION_ID):
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
    if DEDUPLICATION_ID in copy.attributes:
        return Reject(f"the message was sent for the FIFO queue {endpoint.twin.name}")
    return None


def for_hand_over(
    copy: ReceivedMessage, message: DelayedMessage, endpoint: Endpoint, *, delay_seconds: int
) -> OutgoingMessage:
    """A copy from the delay queue as it is for the last leg: in the destination, or in the due queue."""
    ids = read_fifo_ids(copy) if endpoint.fifo else None
    if not isinstance(ids, FifoIds):
        return handed_over(copy, message, delay_seconds)
    return for_due_queue(
        copy.body,
        users_attributes(copy),
        ids,
        message_id=message.message_id,
        due_ms=message.due_ms,
        delay_seconds=delay_seconds,
        trace_header=copy.trace_header,
    )


def for_due_queue(
    body: str,
    attributes: Mapping[str, Attribute],
    ids: FifoIds,
    *,
    message_id: str,
    due_ms: int,
    delay_seconds: int,
    trace_header: str | None,
) -> OutgoingMessage:
    """What the due queue of a FIFO endpoint gets: a message timer, and the FIFO queue's ids."""
    wired = with_identity(
        body, {**attributes, **ids.attributes()}, message_id=message_id, due_ms=due_ms, waits=True
    )
    return OutgoingMessage(
        body=body,
        attributes=wired,
        size=size_of(body, wired),
        delay_seconds=delay_seconds,
        trace_header=trace_header_to_pass_on(trace_header),
    )


def delivered(copy: ReceivedMessage, ids: FifoIds) -> OutgoingMessage:
    """What the FIFO queue gets of a copy from the due queue."""
    attributes = {
        name: value
        for name, value in copy.attributes.items()
        if name not in (GROUP_ID, DEDUPLICATION_ID, DUE_AT, WAS_DUE_AT)
    }
    due_at = copy.attributes.get(DUE_AT)
    if due_at is not None and fits(copy.body, {**attributes, WAS_DUE_AT: due_at}):
        attributes[WAS_DUE_AT] = due_at
    return OutgoingMessage(
        body=copy.body,
        attributes=attributes,
        size=size_of(copy.body, attributes),
        group_id=ids.group_id,
        deduplication_id=ids.deduplication_id,
        trace_header=of_new_trace(
            copy.trace_header,
            at_ms=arrival_ms(copy, whole_number(text_of(copy.attributes, DUE_AT))),
        ),
    )
