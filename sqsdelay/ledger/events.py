"""The ledger: one event for each thing that befalls a message, as JSON lines of a versioned schema.

docs/fields.md describes the schema for readers in any language.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from enum import StrEnum
from functools import lru_cache
from typing import Any, Final, Protocol

from sqsdelay.core.endpoint import Endpoint
from sqsdelay.core.limits import MAX_DUE_MS
from sqsdelay.core.message import Route
from sqsdelay.core.stored_message import StoredMessage
from sqsdelay.errors import InvalidEndpoint, MalformedEvent
from sqsdelay.ports.queues import Released

logger = logging.getLogger(__name__)

LEDGER_VERSION: Final = 1
"""Fields and kinds may be added within a version; it changes when one of them changes its meaning."""


class EventKind(StrEnum):
    """What happened to a message."""

    SENT = "sent"
    HOP = "hop"
    """It ended one pass through the delay queue and waits on: for another, or in the due queue."""
    FORWARDED = "forwarded"
    """It left the delay queue for the parking queue, to be parked with others."""
    PARKED = "parked"
    RELEASED = "released"
    HANDED_OVER = "handed-over"
    REJECTED = "rejected"
    RECEIVED = "received"
    CANCELLED = "cancelled"
    RESCHEDULED = "rescheduled"


class Source(StrEnum):
    """Who recorded an event."""

    SENDER = "sender"
    CONSUMER = "consumer"
    DISPATCHER = "dispatcher"
    RECEIVER = "receiver"


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One line of a ledger. A field that is None is left out of the line.

    Times are epoch milliseconds of the broker's clock.

    Args:
        kind: what happened; ``event`` in the line.
        at_ms: when it happened.
        endpoint: the endpoint's name.
        message_id: what receivers deduplicate on; SQS's own id of a direct message without one.
        source: who recorded it.
        due_ms: when the message should arrive; the new due time when it was rescheduled.
        size: bytes as SQS counts them.
        batch: messages that shared the request that sent them on, or received them.
        receive_batch: on the consumer's events, messages received (and deleted) together.
        route: on sent.
        timer_seconds: the message timer it was sent with.
        late_ms: how long after its due time the destination shows it; negative is early. What it then
            waits there for its receiver does not count.
        enqueued_ms: on received, when the destination queue took it (``SentTimestamp``); an event
            without it counts the wait for the receiver into its ``late_ms``.
        reason: why it was rejected.
        sqs_message_id: SQS's own id at the queue it was sent to or received from.
    """

    kind: EventKind
    at_ms: int
    endpoint: str
    message_id: str
    source: Source
    due_ms: int | None = None
    size: int | None = None
    batch: int | None = None
    receive_batch: int | None = None
    route: Route | None = None
    timer_seconds: int | None = None
    late_ms: int | None = None
    enqueued_ms: int | None = None
    reason: str | None = None
    sqs_message_id: str | None = None


class Ledger(Protocol):
    """Takes events. Thread-safe."""

    def record(self, events: Sequence[Event]) -> None:
        """Keep these events, in order; whatever it raises is logged, and costs the events only."""


def record_safely(ledger: Ledger, events: Iterable[Event]) -> None:
    """Record what befell some messages, if anything did. Never raises. A ledger that fails loses its events:
    messages are neither lost nor sent twice for it."""
    try:
        gathered = list(events)
        if gathered:
            ledger.record(gathered)
    except Exception as error:
        logger.warning("events are missing in the ledger, it failed: %s", error)


def released(
    messages: Iterable[tuple[StoredMessage, Released | None]], *, at_ms: int
) -> Iterator[Event]:
    """Messages that left their store for their destination just now; how, where the outbox tells."""
    for message, how in messages:
        late_ms = at_ms - message.due_ms
        if how is not None:
            late_ms += 1000 * how.timer_seconds
        yield Event(
            kind=EventKind.RELEASED,
            at_ms=at_ms,
            endpoint=_endpoint_name(message.destination),
            message_id=message.message_id,
            source=Source.DISPATCHER,
            due_ms=message.due_ms,
            batch=None if how is None else how.batch,
            timer_seconds=None if how is None else how.timer_seconds,
            # Ahead of its due time it has a message timer, which this outbox does not tell.
            late_ms=None if how is None and late_ms < 0 else late_ms,
        )


def rejected(messages: Iterable[tuple[StoredMessage, str]], *, at_ms: int) -> Iterator[Event]:
    """Messages that left their store for the error queue, and why."""
    for message, reason in messages:
        yield Event(
            kind=EventKind.REJECTED,
            at_ms=at_ms,
            # A row that is no message may lack either, and an event without them cannot be read back.
            endpoint=_endpoint_name(message.destination) or "-",
            message_id=message.message_id or "-",
            source=Source.DISPATCHER,
            due_ms=message.due_ms if 0 <= message.due_ms <= MAX_DUE_MS else None,
            reason=reason,
        )


@lru_cache
def _endpoint_name(destination: str) -> str:
    """The endpoint of a stored message's destination; a queue that is not SQS's is its own name."""
    try:
        return Endpoint.parse(destination).name
    except InvalidEndpoint:
        return destination


_TEXT: Final = frozenset({"endpoint", "message_id", "reason", "sqs_message_id"})
_ENUMS: Final[Mapping[str, type[StrEnum]]] = {"event": EventKind, "source": Source, "route": Route}
_NAMES: Final = tuple(field.name for field in fields(Event) if field.name != "kind")
_REQUIRED: Final = ("event", "at_ms", "endpoint", "message_id", "source")
_AT_LEAST_1: Final = frozenset({"batch", "receive_batch"})
_SIGNED: Final = frozenset({"at_ms", "due_ms", "late_ms"})
_TIMESTAMPED: Final = re.compile(r"\A\d{4}-\d\d-\d\dT[\d:.,+Z-]+\s+(?=\{)", re.ASCII)

_encoded = json.JSONEncoder(separators=(",", ":"), check_circular=False).encode


def as_fields(event: Event) -> dict[str, Any]:
    """The event as the JSON object of its line."""
    line: dict[str, Any] = {"v": LEDGER_VERSION, "event": event.kind}
    for name in _NAMES:
        value = getattr(event, name)
        if value is not None:
            line[name] = value
    return line


def to_json(event: Event) -> str:
    """The event as one line of JSON, ASCII only, without a line break."""
    return _encoded(as_fields(event))


def from_json(line: str | bytes) -> Event:
    """The event of a line; the inverse of `to_json`.

    The event may be nested under ``ledger`` or ``message``, as Powertools' logger has it, and a
    timestamp may stand before the object, as in an exported CloudWatch log. Fields this version
    does not know are passed over.

    Raises:
        MalformedEvent: what is wrong with the line.
    """
    given = _object(line)
    version = given.get("v")
    if "v" not in given:
        raise MalformedEvent('not a ledger event: it has no "v"')
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise MalformedEvent(f"v={version!r} is not a ledger version; this is {LEDGER_VERSION}")
    if version > LEDGER_VERSION:
        raise MalformedEvent(
            f"v={version}, this sqsdelay reads up to {LEDGER_VERSION}; install a newer one"
        )
    values = {
        name: _value(name, given[name])
        for name in ("event", *_NAMES)
        if given.get(name) is not None
    }
    for name in _REQUIRED:
        if name not in values:
            raise MalformedEvent(f"{name} is missing; every event has {', '.join(_REQUIRED)}")
    return Event(kind=values.pop("event"), **values)


def _object(line: str | bytes) -> dict[str, Any]:
    text = line if isinstance(line, str) else line.decode("utf-8", "replace")
    found = _parsed(_TIMESTAMPED.sub("", text.strip()))
    if "v" in found:
        return found
    for key in ("ledger", "message"):
        nested = found.get(key)
        if isinstance(nested, dict):
            return nested
        if isinstance(nested, str) and nested.startswith("{"):
            return _parsed(nested)
    return found


def _parsed(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise MalformedEvent(f"not a line of JSON: {error}") from error
    if not isinstance(found, dict):
        raise MalformedEvent(f"a JSON {type(found).__name__}, not a JSON object")
    return found


def _value(name: str, value: Any) -> Any:
    if (kind := _ENUMS.get(name)) is not None:
        try:
            return kind(value)
        except ValueError as error:
            raise MalformedEvent(f"{name}={value!r}; known are {', '.join(kind)}") from error
    if name in _TEXT:
        if not isinstance(value, str) or not value:
            raise MalformedEvent(f"{name}={value!r} is not text")
        return value
    if not isinstance(value, int) or isinstance(value, bool):
        raise MalformedEvent(f"{name}={value!r} is not a whole number")
    least = 1 if name in _AT_LEAST_1 else 0
    if name not in _SIGNED and value < least:
        raise MalformedEvent(f"{name}={value}; the minimum is {least}")
    return value
