"""A message as it waits in a delayed message store; and amendments: cancellations and new due times, left in
the store for copies in a delay queue."""

from __future__ import annotations

import base64
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from sqsdelay.core import message as wire
from sqsdelay.core import outgoing
from sqsdelay.core.endpoint import Endpoint
from sqsdelay.core.limits import MAX_DUE_MS, MAX_RETENTION_SECONDS, MAX_STORED_ID_CHARS
from sqsdelay.core.message import Attribute, CheckedMessage, Message, as_json, checked, string
from sqsdelay.core.received_message import DelayedMessage, ReceivedMessage
from sqsdelay.errors import InvalidMessage

_NAMES: Final = ("type", "text", "base64")
"""What a store's headers call an attribute's type, text and bytes."""

_UNFIT: Final = re.compile("[\0\ud800-\udfff]")


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredMessage:
    """A message, its destination and its due time.

    Args:
        message_id: the store's key: the same id stored twice is one message.
        destination: what the dispatcher's outbox takes, e.g. an SQS queue's name, URL or ARN.
        due_ms: when it should arrive, epoch milliseconds, UTC.
        body: the body's bytes; for SQS the UTF-8 of its text.
        attributes: message attributes (headers) in boto3's shape; for a FIFO queue also
            ``sqsdelay.MessageDeduplicationId``.
        group_id: message group at the destination.
        trace_header: X-Ray trace header.
        failures: how often its release has failed; counted by the store.
        unreadable: why the store's row of it is no message; no outbox gets it but to reject it. Its
            other fields are as they were found, as far as their types allow, and are not checked.

    Raises:
        InvalidMessage: an empty or too long id, an empty destination, a body that is no ``bytes``,
            a due time outside 1970 to 9999.
    """

    message_id: str
    destination: str
    due_ms: int
    body: bytes
    attributes: Mapping[str, Attribute] = field(default_factory=dict)
    group_id: str | None = None
    trace_header: str | None = None
    failures: int = 0
    unreadable: str | None = None

    def __post_init__(self) -> None:
        if self.unreadable is not None:
            return
        check_stored_id(self.message_id)
        check_stored_due(self.due_ms)
        if not isinstance(self.destination, str) or not self.destination:
            raise InvalidMessage(f"destination {self.destination!r} is empty; name a queue")
        if not isinstance(self.body, bytes):
            raise InvalidMessage(
                f"body is {type(self.body).__name__}; a store keeps bytes: encode it, e.g. as UTF-8"
            )

    def headers(self) -> str:
        """All but id, destination, due time, body and failures, as JSON for a store's column."""
        if not (self.attributes or self.group_id or self.trace_header):
            return "{}"
        known = {
            "attributes": {n: as_json(a, *_NAMES) for n, a in self.attributes.items()},
            "group_id": self.group_id,
            "trace_header": self.trace_header,
        }
        return json.dumps({name: value for name, value in known.items() if value})


def text_for_sqs(message: StoredMessage) -> str:
    """The body. Raises InvalidMessage: it is not UTF-8."""
    try:
        return message.body.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidMessage(
            f"the stored body of {message.message_id} is not UTF-8 ({error}); SQS accepts only text: "
            "store it as base64"
        ) from error


def from_store(
    message_id: Any, destination: Any, due_ms: Any, body: Any, headers: Any, failures: Any
) -> StoredMessage:
    """The message of a store's row; the inverse of `StoredMessage.headers`. A row that somebody wrote by hand
    may hold anything. What is no message says so in ``unreadable``, and a dispatcher puts it aside."""
    counted = failures if isinstance(failures, int) else 0
    try:
        known = {} if headers == "{}" else _known(headers)
        return StoredMessage(
            message_id=message_id,
            destination=destination,
            due_ms=due_ms,
            body=body,
            failures=counted,
            **known,
        )
    except InvalidMessage as error:
        unreadable = f"its row in the store is not a message: {error}"
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        unreadable = f"its headers in the store cannot be read: {error!r}"[:200]
    if not isinstance(body, bytes):
        body = _as_text(body).encode("utf-8", "surrogateescape")
    return StoredMessage(
        message_id=_as_text(message_id),
        destination=_as_text(destination),
        due_ms=due_found(due_ms),
        body=body,
        failures=counted,
        unreadable=unreadable,
    )


def from_rows(rows: Iterable[Sequence[Any]]) -> list[StoredMessage]:
    """The messages of a store's rows, each as `from_store` makes it; further columns are left alone."""
    return [from_store(*row[:6]) for row in rows]


def _as_text(found: Any) -> str:
    if isinstance(found, bytes):
        return found.decode("utf-8", "replace")
    return "" if found is None else str(found)


def due_found(found: Any) -> int:
    """A row's due time if it is any number; what is none was due long ago, so that it goes aside now."""
    if isinstance(found, float) and not math.isfinite(found):
        return 0
    return int(found) if isinstance(found, int | float) else 0


def _known(headers: Any) -> dict[str, Any]:
    """What the headers say; raises many things if they are none: one bad row must not stop a dispatcher."""
    known = json.loads(headers)
    texts = {name: known.get(name) for name in ("group_id", "trace_header")}
    for text in texts.values():
        if not isinstance(text, str | None):
            raise TypeError(f"{type(text).__name__} instead of text")
    attributes = {name: _from_json(a) for name, a in (known.get("attributes") or {}).items()}
    return {"attributes": attributes, **{name: text or None for name, text in texts.items()}}


def to_store(message: Message, destination: str, *, now_ms: int) -> StoredMessage:
    """A sender's message, checked now for what would keep it from being sent when it is due.
    ``destination``: the queue's name, URL or ARN. ``now_ms``: where a ``delay`` counts from, epoch
    milliseconds; also due when it has neither. Raises InvalidDelay, InvalidMessage, InvalidEndpoint."""
    fifo = Endpoint.parse(destination).fifo
    return as_stored(checked(message, fifo=fifo), destination, now_ms=now_ms)


def as_stored(message: CheckedMessage, destination: str, *, now_ms: int) -> StoredMessage:
    """A checked message as it waits in a store; see `to_store`. Raises InvalidDelay, InvalidMessage."""
    due_ms = message.due.due_ms(now_ms)
    message_id, deduplication_id = message.ids(due_ms)
    attributes = dict(message.attributes)
    fifo_ids: dict[str, Attribute] = {}
    if deduplication_id is not None:
        attributes[wire.DEDUPLICATION_ID] = string(deduplication_id)
        fifo_ids = {wire.GROUP_ID: string(message.group_id or "")}
    wire.check_limits(message.body, attributes, fifo_ids | outgoing.identity(message_id, due_ms))
    return StoredMessage(
        message_id=message_id,
        destination=destination,
        due_ms=due_ms,
        body=message.body.encode("utf-8"),
        attributes=attributes,
        group_id=message.group_id,
        trace_header=message.trace_header,
    )


def parked(copy: ReceivedMessage, message: DelayedMessage, destination: str) -> StoredMessage:
    """A copy from the delay queue as it waits in a store: what a hand-over would send is kept."""
    attributes = outgoing.users_attributes(copy)
    if wire.DEDUPLICATION_ID in copy.attributes:
        attributes[wire.DEDUPLICATION_ID] = copy.attributes[wire.DEDUPLICATION_ID]
    return StoredMessage(
        message_id=message.message_id,
        destination=destination,
        due_ms=message.due_ms,
        body=copy.body.encode("utf-8", "surrogatepass"),
        attributes=attributes,
        group_id=outgoing.group_id_of(copy.attributes),
        trace_header=outgoing.trace_header_to_pass_on(copy.trace_header),
    )


def check_stored_id(message_id: str) -> None:
    """Refuse an id that a store cannot keep. Raises InvalidMessage."""
    if (
        not isinstance(message_id, str)
        or not 1 <= len(message_id) <= MAX_STORED_ID_CHARS
        # What is printable throughout is fit: quicker than looking for what is not.
        or (not message_id.isprintable() and _UNFIT.search(message_id))
    ):
        raise InvalidMessage(
            f"cannot be stored; use 1 to {MAX_STORED_ID_CHARS} characters (no NUL, no lone surrogate)",
            message_id=message_id,
        )


def check_stored_due(due_ms: int) -> None:
    """Refuse a due time that a store cannot keep. Raises InvalidMessage."""
    if not isinstance(due_ms, int) or not 0 <= due_ms <= MAX_DUE_MS:
        raise InvalidMessage(
            f"is outside 0 to {MAX_DUE_MS} (1970 to 9999); give epoch milliseconds, UTC",
            due_ms=due_ms,
        )


def _from_json(shaped: Mapping[str, str]) -> Attribute:
    data_type, value = shaped["type"], shaped["base64" if "base64" in shaped else "text"]
    if not (isinstance(data_type, str) and isinstance(value, str)):
        raise TypeError("an attribute's type or value is not text")
    if "base64" in shaped:
        return {"DataType": data_type, "BinaryValue": base64.b64decode(value)}
    return {"DataType": data_type, "StringValue": value}


AMENDMENT_LIFETIME_SECONDS: Final = MAX_RETENTION_SECONDS + 24 * 3600
"""How long an amendment is kept. A copy in the delay queue meets the delay consumer, and so its
amendment, before its retention ends; the extra day covers the batch that was in hand when the amendment
was left. It must never change: SQL stores keep only the end of the lifetime."""

AMENDMENT_LIFETIME_MS: Final = AMENDMENT_LIFETIME_SECONDS * 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Amendment:
    """A cancellation or a new due time, for copies first sent before it was left. A message sent later is a
    different one, even with the same id. ``at_ms``: when it was left, on the broker's clock, epoch
    milliseconds. ``due_ms``: the new due time, the same; None cancels the message. ``cancelled_ms``: set by
    stores on a new due time: when a message of this id was cancelled earlier; copies first sent by then stay
    cancelled. Raises InvalidMessage: a store cannot keep the id or the due time."""

    message_id: str
    at_ms: int
    due_ms: int | None = None
    cancelled_ms: int | None = None

    def __post_init__(self) -> None:
        check_stored_id(self.message_id)
        if self.due_ms is not None:
            check_stored_due(self.due_ms)

    @property
    def until_ms(self) -> int:
        """When it may be deleted, epoch milliseconds."""
        return self.at_ms + AMENDMENT_LIFETIME_MS

    def cancels(self, first_sent_ms: int | None) -> bool:
        """Whether it cancels a copy; None was first sent before any amendment."""
        cancelled_ms = self.at_ms if self.due_ms is None else self.cancelled_ms
        return cancelled_ms is not None and (first_sent_ms is None or first_sent_ms <= cancelled_ms)

    def new_due_ms(self, first_sent_ms: int | None) -> int | None:
        """A copy's new due time; None if it keeps its own or is cancelled. See `cancels`."""
        if self.cancels(first_sent_ms):
            return None
        applies = first_sent_ms is None or first_sent_ms <= self.at_ms
        return self.due_ms if applies else None

    def after(self, earlier: Amendment | None) -> Amendment:
        """This amendment, with any cancellation that an earlier one made."""
        if earlier is None or self.due_ms is None:
            return self
        cancelled_ms = earlier.at_ms if earlier.due_ms is None else earlier.cancelled_ms
        return replace(self, cancelled_ms=cancelled_ms)


def latest_amendments(amendments: Iterable[Amendment]) -> dict[str, Amendment]:
    """Each message's latest amendment, with any earlier cancellation."""
    last: dict[str, Amendment] = {}
    for amendment in amendments:
        last[amendment.message_id] = amendment.after(last.get(amendment.message_id))
    return last


def amendment_from_row(
    message_id: str, due_ms: int | None, until_ms: int, cancelled_ms: int | None = None
) -> Amendment:
    """An amendment from a row of a SQL store."""
    at_ms = until_ms - AMENDMENT_LIFETIME_MS
    return Amendment(message_id=message_id, at_ms=at_ms, due_ms=due_ms, cancelled_ms=cancelled_ms)
