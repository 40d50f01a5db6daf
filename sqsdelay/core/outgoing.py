"""Copies of a delayed message: what the sender, each hop and the hand-over put on the wire, with its ids and
its trace header."""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, TypeVar

from sqsdelay.core import message as wire
from sqsdelay.core import received_message
from sqsdelay.core.endpoint import Endpoint
from sqsdelay.core.limits import ID, MAX_ATTRIBUTES, MAX_MESSAGE_BYTES, MIN_QUEUE_LIMIT_BYTES
from sqsdelay.core.message import Attribute, Attributes, CheckedMessage, OutgoingMessage
from sqsdelay.core.received_message import DelayedMessage, FifoIds, ReceivedMessage, whole_number
from sqsdelay.errors import SqsDelayError

T = TypeVar("T")


def send_deduplication_id(message: CheckedMessage, message_id: str, ours: Attributes) -> str:
    """An idempotent sender's: the same for equal copies of a message, different for any other message. It
    binds id, content and due time, or the delay where that is relative. ``ours``: what `first_copy` adds.
    Each part stands behind its length: no other parts, joined, come to the same."""
    left_out = {wire.MESSAGE_ID, wire.DELAY_SECONDS} if wire.DUE_AT in ours else {wire.MESSAGE_ID}
    wired = {**message.attributes, **ours}
    parts: list[str | bytes] = [message_id, message.content]
    for name in sorted(wired.keys() - left_out):
        value = wired[name]
        parts += [name, value["DataType"]]
        parts.append(value["BinaryValue"] if "BinaryValue" in value else value["StringValue"])
    coded = [p if isinstance(p, bytes) else p.encode("utf-8", "surrogatepass") for p in parts]
    counted = b"".join([b"%d:%b" % (len(part), part) for part in coded])
    return f"send.{hashlib.sha256(counted).hexdigest()}"


def after_amendment(deduplication_id: str, amended_ms: int) -> str:
    """A sender's deduplication id for a message that amendments left by then do not apply to."""
    return f"send.{amended_ms}.{deduplication_id[-64:]}"


def hop_deduplication_id(
    copy: ReceivedMessage, message_id: str, first_sent_ms: int | None = None
) -> str:
    """The same copy gives the same id; the next hop gives another. A copy is told by SQS's own id and its
    SentTimestamp, beside the message id, which may fill all 128 characters: so they are hashed. Before the
    hash stands when the message was first sent: here it costs none of the user's attributes."""
    found = f"{message_id}:{copy.sqs_message_id}:{copy.sent_ms}"
    hashed = hashlib.sha256(found.encode("utf-8", "surrogatepass")).hexdigest()
    return f"hop.{hashed}" if first_sent_ms is None else f"hop.{first_sent_ms}.{hashed}"


_TRACE_ID: Final = re.compile(r"1-([0-9a-f]{8})-([0-9a-f]{24})", re.ASCII | re.IGNORECASE)
_SPAN_ID: Final = re.compile(r"[0-9a-f]{16}", re.ASCII | re.IGNORECASE)
_CHANCE_BYTES: Final = 12


@dataclass(frozen=True, slots=True)
class TraceHeader:
    """A span's place in a trace. Source: AWS X-Ray Developer Guide, "Tracing header". A trace id of W3C's,
    which OpenTelemetry has, is the same 32 digits without the dashes. ``trace_id``, ``span_id``: 32 and 16
    hexadecimal digits; no span id where no span has begun the trace. ``sampled``: None where nobody has
    decided."""

    trace_id: str
    span_id: str | None = None
    sampled: bool | None = None

    @classmethod
    def read(cls, header: str | None) -> TraceHeader | None:
        """What a header says; None where there is none, or nothing that can be read."""
        parts = dict(part.strip().partition("=")[::2] for part in (header or "").split(";"))
        root = _TRACE_ID.fullmatch(parts.get("Root", ""))
        if root is None:
            return None
        parent = parts.get("Parent", "")
        return cls(
            (root[1] + root[2]).lower(),
            parent.lower() if _SPAN_ID.fullmatch(parent) else None,
            {"0": False, "1": True}.get(parts.get("Sampled", "")),
        )

    def __str__(self) -> str:
        parts = [f"Root=1-{self.trace_id[:8]}-{self.trace_id[8:]}"]
        if self.span_id is not None:
            parts.append(f"Parent={self.span_id}")
        if self.sampled is not None:
            parts.append(f"Sampled={int(self.sampled)}")
        return ";".join(parts)


def of_new_trace(header: str | None, *, at_ms: int) -> str | None:
    """The header of a message on arrival, in place of its sender's, whose trace may be months old. X-Ray
    keeps a trace for 30 days, and what joins it later is lost. The sender's sampling decision stays.
    ``at_ms``: when the message arrives, epoch milliseconds, which X-Ray reads in the trace id."""
    if header is None:
        return None
    sent_with = TraceHeader.read(header)
    seconds = min(max(at_ms, 0) // 1000, 0xFFFFFFFF)
    trace_id = f"{seconds:08x}{secrets.token_hex(_CHANCE_BYTES)}"
    return str(TraceHeader(trace_id, sampled=None if sent_with is None else sent_with.sampled))


def identity(message_id: str, due_ms: int, *, waits: bool = False) -> dict[str, Attribute]:
    """The attributes a receiver tells a message and its lateness by; where it ``waits``, its due time."""
    when = wire.DUE_AT if waits else wire.WAS_DUE_AT
    return {wire.MESSAGE_ID: wire.string(message_id), when: wire.string(str(due_ms))}


def due_at_of(attributes: Attributes) -> int | None:
    """When a copy that waits is due, epoch milliseconds; None if it does not say."""
    return whole_number(wire.text_of(attributes, wire.DUE_AT))


def was_due_ms(attributes: Attributes) -> int | None:
    """When a received message was due, epoch milliseconds; None if it does not say."""
    # Earlier versions used the name that steers.
    return whole_number(
        wire.text_of(attributes, wire.WAS_DUE_AT) or wire.text_of(attributes, wire.DUE_AT)
    )


def with_identity(
    body: str,
    attributes: Attributes,
    message: DelayedMessage,
    *,
    waits: bool = False,
    limit: int = MAX_MESSAGE_BYTES,
) -> dict[str, Attribute]:
    """The attributes, and the message's id and due time as far as ``limit`` bytes, what the queue takes,
    leave room. See `identity`."""
    former = (wire.MESSAGE_ID, wire.DUE_AT, wire.WAS_DUE_AT)
    identified = {name: value for name, value in attributes.items() if name not in former}
    size = wire.size_of(body, identified)
    for name, value in identity(message.message_id, message.due_ms, waits=waits).items():
        larger = size + wire.size_of("", {name: value})
        if len(identified) < MAX_ATTRIBUTES and larger <= limit:
            identified[name], size = value, larger
    return identified


def without_identity(entry: OutgoingMessage) -> OutgoingMessage | None:
    """The entry without what a receiver tells a message and its lateness by; None if it has neither. On the
    delay queue the due time goes, and the remaining seconds stay: such a copy may drift."""
    dropped = {wire.DUE_AT, *identity("", 0)}
    left = {name: value for name, value in entry.attributes.items() if name not in dropped}
    if len(left) == len(entry.attributes):
        return None
    return replace(entry, attributes=left, size=-1)


@dataclass(frozen=True, slots=True)
class Failure:
    """One entry of a batch did not succeed.

    ``error`` is what to raise or log; ``transient`` is True when the same call may succeed later,
    ``retry_at_once`` when the broker itself asks for it, ``outage`` when it says nothing about the entry:
    its destination is out of reach, full, throttled or denied. ``metadata`` is about the response.
    """

    code: str
    error: SqsDelayError
    transient: bool
    retry_at_once: bool = False
    metadata: Mapping[str, Any] | None = None
    outage: bool = False


def send_fitting(
    send: Callable[[list[OutgoingMessage]], list[T | Failure]],
    entries: Sequence[OutgoingMessage],
    smaller: Callable[[int], OutgoingMessage | None] | None = None,
) -> list[T | Failure]:
    """Send, and what is refused for good once more without what we added to it. So a message that fits its
    queue does not fail for our words, and nobody need be allowed to read the queue's attributes. ``smaller``:
    the entry at this position without our own, None where it has nothing of ours; where left out, without its
    identity."""
    outcomes = send(list(entries))
    again: dict[int, OutgoingMessage] = {}
    for position, (entry, outcome) in enumerate(zip(entries, outcomes, strict=True)):
        refused = isinstance(outcome, Failure) and not outcome.transient
        if refused and entry.size > MIN_QUEUE_LIMIT_BYTES:
            bare = without_identity(entry) if smaller is None else smaller(position)
            if bare is not None:
                again[position] = bare
    if again:
        for position, outcome in zip(again, send(list(again.values())), strict=True):
            if not isinstance(outcome, Failure):
                outcomes[position] = outcome
    return outcomes


def add_message_id(attributes: dict[str, Attribute], message_id: str, *, size: int) -> int:
    """Add the message id to the attributes of a copy for the delay queue, as far as limits leave room. Its
    size, which was ``size`` bytes without it. A hop by an NServiceBus endpoint overwrites message group and
    deduplication id and adds an attribute of its own: without room for both there is none for ours."""
    ours = {wire.MESSAGE_ID: wire.string(message_id)}
    larger = size + wire.size_of("", ours)
    theirs = 0 if wire.NSERVICEBUS_ID in attributes else 1
    after_their_hop = larger + theirs * _NSERVICEBUS_BYTES
    if len(attributes) + 1 + theirs > MAX_ATTRIBUTES or after_their_hop > MAX_MESSAGE_BYTES:
        return size
    attributes.update(ours)
    return larger


_NSERVICEBUS_BYTES: Final = wire.size_of("", {wire.NSERVICEBUS_ID: wire.string("x" * 36)})


def fits(body: str, attributes: Mapping[str, Attribute], *, limit: int = MAX_MESSAGE_BYTES) -> bool:
    """Whether a queue that takes ``limit`` bytes takes a message of this size and these attributes."""
    return len(attributes) <= MAX_ATTRIBUTES and wire.size_of(body, attributes) <= limit


def delayed(
    *,
    remaining_ms: int,
    due_ms: int | None,
    message_group_id: str | None,
    deduplication_id: str | None = None,
) -> dict[str, Attribute]:
    """What is added to the attributes of a message for the delay queue, but for its id. ``remaining_ms``: the
    delay from now. ``due_ms``: the due time where it is absolute; a relative delay starts at the broker's
    SentTimestamp, which only the first hop knows."""
    ours = {wire.DELAY_SECONDS: wire.string(str(-(-remaining_ms // 1000)))}
    if due_ms is not None:
        ours[wire.DUE_AT] = wire.string(str(due_ms))
    elif remaining_ms % 1000:
        ours[wire.DELAY_MS] = wire.string(str(remaining_ms))
    if message_group_id is not None:
        ours[wire.GROUP_ID] = wire.string(message_group_id)
    if deduplication_id is not None:
        ours[wire.DEDUPLICATION_ID] = wire.string(deduplication_id)
    return ours


def first_copy(
    message: CheckedMessage,
    ids: tuple[str, str | None],
    *,
    remaining_ms: int,
    due_ms: int,
    chance: int | None,
) -> OutgoingMessage:
    """What a sender sends to the delay queue, if it also fits at every hop and at the destination. Raises
    TooManyAttributes, MessageTooLarge: before anything is sent, not by the relay weeks later. ``due_ms``: as
    far as is known: the delay starts at the broker's SentTimestamp. ``chance``: of `wire.chances`; without
    one, what is sent again with the same id, content and due time is the same message."""
    body, attributes, (message_id, deduplication_id) = message.body, message.attributes, ids
    ours = delayed(
        remaining_ms=remaining_ms,
        due_ms=message.due.at_ms,
        message_group_id=message.group_id,
        deduplication_id=deduplication_id,
    )
    wired = {**attributes, **ours}
    size = add_message_id(wired, message_id, size=message.size + wire.size_of("", ours))
    room_for_all = len(attributes) + wire.MOST_ADDED <= MAX_ATTRIBUTES
    if not room_for_all or size + wire.MOST_ADDED_BYTES > MAX_MESSAGE_BYTES:
        # Nearly every message has more room than ours take at any stage.
        at_hops = {name: value for name, value in ours.items() if name != wire.DELAY_MS}
        at_hops[wire.DUE_AT] = wire.string(str(due_ms))
        # On the due queue of a FIFO endpoint the queue's ids still travel as attributes.
        fifo = wire.DEDUPLICATION_ID in ours
        at_destination = identity(message_id, due_ms, waits=fifo)
        if fifo:
            at_destination |= {n: ours[n] for n in (wire.GROUP_ID, wire.DEDUPLICATION_ID)}
        first = {name: value for name, value in wired.items() if name not in attributes}
        size = wire.check_limits(body, attributes, first, at_hops, at_destination)
    return OutgoingMessage(
        body=body,
        attributes=wired,
        size=size,
        group_id=message_id,
        deduplication_id=(
            send_deduplication_id(message, message_id, ours)
            if chance is None
            # A new one for each call to send: its retries count as one message, and no other does.
            else f"send.{chance:064x}"
        ),
        trace_header=message.trace_header,
    )


def requeued(
    copy: ReceivedMessage,
    message: DelayedMessage,
    remaining_seconds: int,
    *,
    first_sent_ms: int | None = None,
) -> OutgoingMessage:
    """The next copy for the delay queue: due time set once, remaining seconds rewritten.
    ``first_sent_ms``: when the message was first sent, where another copy than this one tells it."""
    attributes = {
        **copy.attributes,
        wire.DELAY_SECONDS: wire.string(str(remaining_seconds)),
        wire.DUE_AT: wire.string(str(message.due_ms)),
    }
    for name in (wire.DELAY_MS, wire.MESSAGE_ID, wire.WAS_DUE_AT):
        attributes.pop(name, None)
    if wire.DUE_AT not in copy.attributes and not fits(copy.body, attributes):
        # A foreign sender left no room: fall back to its own format, which drifts but fits.
        del attributes[wire.DUE_AT]
    size = wire.size_of(copy.body, attributes)
    size = add_message_id(attributes, message.message_id, size=size)
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
    copy: ReceivedMessage, message: DelayedMessage, endpoint: Endpoint, *, delay_seconds: int
) -> OutgoingMessage:
    """A copy from the delay queue as it is for the last leg: in the destination, or in the due queue. The
    destination gets the user's message and its `identity`. What our sender sent has room for that
    (`first_copy`); a foreign message of ten attributes or 1 MiB goes without rather than not at all."""
    ids = received_message.read_fifo_ids(copy) if endpoint.fifo else None
    return last_leg(
        copy.body,
        users_attributes(copy),
        message,
        delay_seconds=delay_seconds,
        ids=ids if isinstance(ids, FifoIds) else None,
        group_id=group_id_of(copy.attributes),
        trace_header=copy.trace_header,
        at_ms=arrival_ms(copy, message.due_ms),
    )


def last_leg(
    body: str,
    attributes: Attributes,
    message: DelayedMessage,
    *,
    delay_seconds: int,
    ids: FifoIds | None,
    group_id: str | None,
    trace_header: str | None,
    at_ms: int,
) -> OutgoingMessage:
    """What a destination gets at ``at_ms``, with a message timer. With the FIFO queue's ``ids`` it is for the
    due queue of a FIFO endpoint, which takes no group."""
    wired = attributes if ids is None else {**attributes, **ids.attributes()}
    return OutgoingMessage(
        body=body,
        attributes=with_identity(body, wired, message, waits=ids is not None),
        delay_seconds=delay_seconds,
        group_id=group_id if ids is None else None,
        trace_header=of_new_trace(trace_header, at_ms=at_ms)
        if ids is None
        else trace_header_to_pass_on(trace_header),
    )


def delivered(copy: ReceivedMessage, ids: FifoIds) -> OutgoingMessage:
    """What the FIFO queue gets of a copy from the due queue."""
    ours = (wire.GROUP_ID, wire.DEDUPLICATION_ID, wire.DUE_AT, wire.WAS_DUE_AT)
    attributes = {name: value for name, value in copy.attributes.items() if name not in ours}
    due_at, due_ms = copy.attributes.get(wire.DUE_AT), due_at_of(copy.attributes)
    if due_at is not None and fits(copy.body, {**attributes, wire.WAS_DUE_AT: due_at}):
        attributes[wire.WAS_DUE_AT] = due_at
    return OutgoingMessage(
        body=copy.body,
        attributes=attributes,
        group_id=ids.group_id,
        deduplication_id=ids.deduplication_id,
        trace_header=of_new_trace(copy.trace_header, at_ms=arrival_ms(copy, due_ms)),
    )


def users_attributes(copy: ReceivedMessage) -> dict[str, Attribute]:
    """The copy's attributes without ours: those of its delay, and those an earlier life left on it."""
    return {
        name: value for name, value in copy.attributes.items() if name not in wire.DELAY_ATTRIBUTES
    }


def group_id_of(attributes: Attributes) -> str | None:
    """The message group that a copy has for its destination; None where it has none that SQS takes."""
    group = wire.text_of(attributes, wire.GROUP_ID)
    return group if group and ID.fullmatch(group) else None


def arrival_ms(copy: ReceivedMessage, due_ms: int | None) -> int:
    """About when a copy arrives that is sent to its destination now, epoch milliseconds."""
    return max(due_ms or 0, copy.first_receive_ms or copy.sent_ms or 0)


def trace_header_to_pass_on(header: str | None) -> str | None:
    """The trace header without the ``Lineage`` part by which Lambda counts recursion: the relay's hops are
    no recursion of the user's functions, and must not count as one."""
    if header is None:
        return None
    parts = [part for part in header.split(";") if not part.strip().startswith("Lineage=")]
    return ";".join(parts) or None
