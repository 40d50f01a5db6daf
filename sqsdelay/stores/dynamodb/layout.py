"""Where things lie in the table, and what an item holds. Pure: no call is made here.

============  =========================  ==========================  ==============================
what          partition key ``p``        sort key ``s``              attributes
============  =========================  ==========================  ==============================
far message   endpoint/hour/shard        ms within the hour, id      body, headers, ``t``
near message  endpoint/near/shard        due ms, id                  body, headers, held until
look-up       endpoint/id/id             ``=``                       lane and due ms, ``t``
hour          endpoint/hours             hour                        ``t``
lease         endpoint/leases            ``shard`` and its number    owner, until, cursor, taken up to
waiting       endpoint/leases            ``waits`` and an owner      until when it is left room for
shards        endpoint/leases            ``count`` and the number    since when they are written to
format        endpoint/leases            ``format``                  version, written before anything else
amendment     endpoint/mark/id           ``=``                       left at, due, cancelled, ``t``
amended       endpoint/marks             ``=``                       ``t``
============  =========================  ==========================  ==============================

A shard's cursor passes far messages once they are released, and time to live deletes them, which is free.
Near messages are due soon, or are held for a retry: they are deleted when they are released. Names are
short, since each byte is billed, and a body is deflated where that pays.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Final

from sqsdelay.core import limits
from sqsdelay.core.stored_message import StoredMessage, from_store
from sqsdelay.errors import InvalidSetting, MessageTooLarge

PARTITION: Final = "p"
SORT: Final = "s"
EXPIRY: Final = "t"
"""The attribute DynamoDB's time to live reads: epoch seconds."""

HOUR_MS: Final = 3_600_000
ONLY: Final = "="
"""The sort key of what is alone in its partition."""

CLAIMED_AHEAD_MS: Final = (limits.MAX_MESSAGE_TIMER_SECONDS + 1) * 1000
"""The furthest ahead of DynamoDB's clock that a cursor may be: the longest message timer, and the
second by which an HTTP date is cut off."""

FAR_MS: Final = CLAIMED_AHEAD_MS + 60_000
"""A message due less than this after DynamoDB has confirmed it must be a near one. The minute covers what
the clocks of DynamoDB's own hosts may differ by; AWS keeps them within milliseconds."""

FAR_FROM_MS: Final = FAR_MS + 40_000
"""From here on a message is written as a far one: time for the write before it would be too late."""

BODY: Final = "b"
DEFLATED: Final = "z"
DESTINATION: Final = "d"
HEADERS: Final = "h"
FAILURES: Final = "f"
HELD_UNTIL: Final = "r"
LOOKED_UP: Final = "l"
"""Present where a look-up item tells of the message."""

_WORTH_DEFLATING_BYTES: Final = 100
_MOST_INFLATED_BYTES: Final = 2 * limits.MAX_MESSAGE_BYTES
"""Longer bodies are not deflated, so that no item grows beyond this when it is read."""

_RAW_DEFLATE: Final = -zlib.MAX_WBITS
"""Without zlib's header and checksum, six bytes that DynamoDB's own make needless."""

_NUMBER_BYTES: Final = 21
"""The most a number takes. Source: DynamoDB guide, "Item sizes and formats"."""

_NEAR: Final = "near"
"""In a partition's key, where a far message has its hour."""

_LANE: Final = "w"
_DUE: Final = "u"
_SHARD: Final = "n"
"""Of a look-up item."""

Key = dict[str, dict[str, str]]
Item = dict[str, Any]


class Lane(StrEnum):
    """Which of the two kinds of partition a message lies in."""

    FAR = "f"
    NEAR = "n"


@dataclass(frozen=True, slots=True, order=True)
class Place:
    """Where a message lies: orders like due time and id."""

    due_ms: int
    message_id: str
    lane: Lane
    shard: int

    @property
    def position(self) -> str:
        """Due time and id as text that sorts like them, as cursors have it."""
        return position(self.due_ms, self.message_id)


def position(due_ms: int, message_id: str = "") -> str:
    """Due time and id as text that sorts like them; without an id, before all that are due then."""
    return f"{due_ms:015d}{message_id}"


def due_ms_of(position: str) -> int:
    return int(position[:15])


def shard_of(message_id: str, shards: int) -> int:
    """The shard of a message while there are so many."""
    return zlib.crc32(message_id.encode()) % shards


def expiry(due_ms: int) -> int:
    """When what is due then may be forgotten, epoch seconds: after as long as SQS keeps a message at most. A
    dispatcher that stands still for longer loses messages."""
    return -(-due_ms // 1000) + limits.MAX_RETENTION_SECONDS


def key(partition: str, sort: str) -> Key:
    return {PARTITION: {"S": partition}, SORT: {"S": sort}}


def far_sort(within_ms: int, message_id: str = "") -> str:
    return f"{within_ms:07d}{message_id}"


def number(value: int) -> Item:
    return {"N": str(value)}


@dataclass(frozen=True, slots=True)
class Entry:
    """A message where it lies; ``unreadable`` is the item as it was found, where it is no message."""

    place: Place
    message: StoredMessage
    looked_up: bool
    held_until_ms: int = 0
    unreadable: Item | None = None

    @property
    def message_id(self) -> str:
        return self.place.message_id

    def at(self, place: Place, *, failed: int = 0, held_until_ms: int = 0) -> Entry:
        """The message at another place, ``failed`` added to its failures."""
        failures = self.message.failures + failed
        message = replace(self.message, due_ms=place.due_ms, failures=failures)
        return replace(self, place=place, message=message, held_until_ms=held_until_ms)


class Layout:
    """The keys and items of one endpoint, as the table above has them. Raises ConfigurationError: a name
    that holds a ``/``."""

    def __init__(self, endpoint: str) -> None:
        if not endpoint or "/" in endpoint:
            raise InvalidSetting(
                f"endpoint {endpoint!r} cannot be kept in a DynamoDB table; use a name without '/'"
            )
        self.endpoint = endpoint
        self.leases = f"{endpoint}/leases"
        self.hours = f"{endpoint}/hours"
        self.format = key(self.leases, "format")
        self.amended = key(f"{endpoint}/marks", ONLY)

    def far(self, hour: int, shard: int) -> str:
        return f"{self.endpoint}/{hour}/{shard}"

    def near(self, shard: int) -> str:
        return f"{self.endpoint}/{_NEAR}/{shard}"

    def message(self, place: Place) -> Key:
        if place.lane is Lane.NEAR:
            return key(self.near(place.shard), place.position)
        hour, within = divmod(place.due_ms, HOUR_MS)
        return key(self.far(hour, place.shard), far_sort(within, place.message_id))

    def lookup(self, message_id: str) -> Key:
        return key(f"{self.endpoint}/id/{message_id}", ONLY)

    def amendment(self, message_id: str) -> Key:
        return key(f"{self.endpoint}/mark/{message_id}", ONLY)

    def leased(self, kind: str, name: int | str) -> Key:
        """Beside the leases: that of a ``shard``, a ``count`` of shards, an owner who ``waits``."""
        return key(self.leases, f"{kind} {name:05d}" if isinstance(name, int) else f"{kind} {name}")

    def hour(self, hour: int) -> Key:
        return key(self.hours, f"{hour:08d}")

    def item(self, entry: Entry) -> Item:
        """A message as an item. What somebody wrote by hand is kept as it is, but for its place. Raises
        MessageTooLarge."""
        message, item = entry.message, entry.unreadable
        if item is not None:
            of_its_place = (EXPIRY, LOOKED_UP, HELD_UNTIL)
            item = {name: value for name, value in item.items() if name not in of_its_place}
        else:
            item = _body(message.body)
            if message.destination != self.endpoint:
                item[DESTINATION] = {"S": message.destination}
            if (headers := message.headers()) != "{}":
                item[HEADERS] = {"S": headers}
        if message.failures:
            item[FAILURES] = number(message.failures)
        item |= self.message(entry.place)
        if entry.looked_up:
            item[LOOKED_UP] = number(1)
        if entry.held_until_ms:
            item[HELD_UNTIL] = number(entry.held_until_ms)
        if entry.place.lane is Lane.FAR:
            item[EXPIRY] = number(expiry(entry.place.due_ms))
        if entry.unreadable is None and (size := item_bytes(item)) > limits.MAX_DYNAMODB_ITEM_BYTES:
            raise MessageTooLarge(
                f"message {message.message_id} takes {size} bytes; a DynamoDB item holds "
                f"{limits.MAX_DYNAMODB_ITEM_BYTES}; shorten it, store the body elsewhere and send a pointer, "
                "or use a SQLite or PostgreSQL store"
            )
        return item

    def entry(self, item: Item) -> Entry:
        """The message of an item; the inverse of `item`."""
        place = place_of(item)
        message = from_store(
            place.message_id,
            self.destination(item),
            place.due_ms,
            _inflated(item),
            _value(item, HEADERS, "S") if HEADERS in item else "{}",
            _count(item, FAILURES),
        )
        found = item if message.unreadable is not None else None
        return Entry(place, message, LOOKED_UP in item, _count(item, HELD_UNTIL), found)

    def lookup_item(self, place: Place) -> Item:
        """The look-up item of a message: where it lies, when its id does not tell."""
        return {
            **self.lookup(place.message_id),
            _LANE: {"S": place.lane.value},
            _DUE: number(place.due_ms),
            _SHARD: number(place.shard),
            EXPIRY: number(expiry(place.due_ms)),
        }

    def destination(self, item: Item) -> str | None:
        """Where a message goes; None where somebody wrote by hand what is no text."""
        return _value(item, DESTINATION, "S") if DESTINATION in item else self.endpoint


def place_of(item: Item) -> Place:
    """Where a message's item lies, by its keys."""
    (_, bucket, shard), sort = item[PARTITION]["S"].rsplit("/", 2), item[SORT]["S"]
    if bucket == _NEAR:
        return Place(int(sort[:15]), sort[15:], Lane.NEAR, int(shard))
    return Place(int(bucket) * HOUR_MS + int(sort[:7]), sort[7:], Lane.FAR, int(shard))


def looked_up(item: Item, message_id: str) -> Place:
    """The place that a look-up item tells."""
    return Place(int(item[_DUE]["N"]), message_id, Lane(item[_LANE]["S"]), int(item[_SHARD]["N"]))


def _value(item: Item, name: str, kind: str) -> Any:
    """An attribute's value; None where it is missing or of another type."""
    return item.get(name, {}).get(kind)


def _count(item: Item, name: str) -> int:
    text = _value(item, name, "N") or ""
    return int(text) if text.isdigit() else 0


def item_bytes(item: Item) -> int:
    """The size of an item as DynamoDB counts it. Source: guide, "Item sizes and formats"."""
    size = 0
    for name, typed in item.items():
        ((kind, value),) = typed.items()
        of_number = min(_NUMBER_BYTES, len(value) // 2 + 2)
        size += len(name.encode())
        size += of_number if kind == "N" else len(value.encode() if kind == "S" else value)
    return size


def _body(body: bytes) -> Item:
    worth_it = _WORTH_DEFLATING_BYTES <= len(body) <= _MOST_INFLATED_BYTES
    deflated = zlib.compress(body, wbits=_RAW_DEFLATE) if worth_it else body
    return {DEFLATED: {"B": deflated}} if len(deflated) < len(body) else {BODY: {"B": body}}


def _inflated(item: Item) -> bytes | None:
    """The body; None where there is none, as somebody may have written by hand."""
    kept = _value(item, DEFLATED if DEFLATED in item else BODY, "B")
    if kept is None or DEFLATED not in item:
        return None if kept is None else bytes(kept)
    inflater = zlib.decompressobj(wbits=_RAW_DEFLATE)
    try:
        return inflater.decompress(bytes(kept), _MOST_INFLATED_BYTES)
    except zlib.error:
        return None
