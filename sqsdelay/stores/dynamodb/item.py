"""A message as an item, and back: short names, the body deflated where that pays."""

from __future__ import annotations

import zlib
from dataclasses import dataclass, replace
from typing import Any, Final

from sqsdelay.core.stored_message import StoredMessage, from_store
from sqsdelay.errors import MessageTooLarge
from sqsdelay.limits import MAX_DYNAMODB_ITEM_BYTES, MAX_MESSAGE_BYTES
from sqsdelay.stores.dynamodb.layout import (
    EXPIRY,
    Item,
    Lane,
    Layout,
    Place,
    expiry,
    place_of,
)

BODY: Final = "b"
DEFLATED: Final = "z"
DESTINATION: Final = "d"
HEADERS: Final = "h"
FAILURES: Final = "f"
HELD_UNTIL: Final = "r"
LOOKED_UP: Final = "l"
"""Present where a look-up item tells of the message."""

_WORTH_DEFLATING_BYTES: Final = 100
_MOST_INFLATED_BYTES: Final = 2 * MAX_MESSAGE_BYTES
"""Longer bodies are not deflated, so that no item grows beyond this when it is read."""

_RAW_DEFLATE: Final = -zlib.MAX_WBITS
"""Without zlib's header and checksum, six bytes that DynamoDB's own make needless."""

_NUMBER_BYTES: Final = 21
"""The most a number takes. Source: DynamoDB guide, "Item sizes and formats"."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A message and where it lies."""

    place: Place
    message: StoredMessage
    looked_up: bool
    held_until_ms: int = 0
    unreadable: Item | None = None
    """The item as it was found, where it is no message: what it holds is kept as it is."""

    @property
    def message_id(self) -> str:
        return self.place.message_id


def item_of(
    layout: Layout,
    place: Place,
    message: StoredMessage,
    *,
    looked_up: bool,
    held_until_ms: int = 0,
) -> Item:
    """A message as an item.

    Raises:
        MessageTooLarge
    """
    item: Item = {**layout.message(place), **_body(message.body)}
    if message.destination != layout.endpoint:
        item[DESTINATION] = {"S": message.destination}
    headers = message.headers()
    if headers != "{}":
        item[HEADERS] = {"S": headers}
    if message.failures:
        item[FAILURES] = number(message.failures)
    if looked_up:
        item[LOOKED_UP] = number(1)
    if held_until_ms:
        item[HELD_UNTIL] = number(held_until_ms)
    if place.lane is Lane.FAR:
        item[EXPIRY] = number(expiry(place.due_ms))
    size = item_bytes(item)
    if size > MAX_DYNAMODB_ITEM_BYTES:
        raise MessageTooLarge(
            f"message {message.message_id} takes {size} bytes; a DynamoDB item holds "
            f"{MAX_DYNAMODB_ITEM_BYTES}; shorten it, store the body elsewhere and send a pointer, "
            "or use a SQLite or PostgreSQL store"
        )
    return item


def entry_of(layout: Layout, item: Item, lane: Lane) -> Entry:
    """The message of an item; the inverse of `item_of`."""
    place = place_of(item, lane)
    message = from_store(
        place.message_id,
        destination_of(layout, item),
        place.due_ms,
        _inflated(item),
        _value(item, HEADERS, "S") if HEADERS in item else "{}",
        _count(item, FAILURES),
    )
    found = item if message.unreadable is not None else None
    return Entry(place, message, LOOKED_UP in item, _count(item, HELD_UNTIL), found)


def moved_item(
    layout: Layout,
    entry: Entry,
    place: Place,
    *,
    looked_up: bool,
    failures: int,
    held_until_ms: int = 0,
) -> Item:
    """A message as an item at another place.

    Raises:
        MessageTooLarge
    """
    if entry.unreadable is None:
        message = replace(entry.message, due_ms=place.due_ms, failures=failures)
        return item_of(layout, place, message, looked_up=looked_up, held_until_ms=held_until_ms)
    item = {**entry.unreadable, **layout.message(place), FAILURES: number(failures)}
    for name in (EXPIRY, LOOKED_UP, HELD_UNTIL):
        item.pop(name, None)
    if looked_up:
        item[LOOKED_UP] = number(1)
    if held_until_ms:
        item[HELD_UNTIL] = number(held_until_ms)
    if place.lane is Lane.FAR:
        item[EXPIRY] = number(expiry(place.due_ms))
    return item


def destination_of(layout: Layout, item: Item) -> str | None:
    """Where a message goes; None where somebody wrote by hand what is no text."""
    return _value(item, DESTINATION, "S") if DESTINATION in item else layout.endpoint


def _value(item: Item, name: str, kind: str) -> Any:
    """An attribute's value; None where it is missing or of another type."""
    return item.get(name, {}).get(kind)


def _count(item: Item, name: str) -> int:
    text = _value(item, name, "N") or ""
    return int(text) if text.isdigit() else 0


def item_bytes(item: Item) -> int:
    """The size of an item as DynamoDB counts it. Source: guide, "Item sizes and formats"."""
    return sum(len(name.encode()) + _value_bytes(value) for name, value in item.items())


def number(value: int) -> Item:
    """A number in DynamoDB's shape."""
    return {"N": str(value)}


def _value_bytes(value: Item) -> int:
    if "S" in value:
        return len(value["S"].encode())
    if "B" in value:
        return len(value["B"])
    return min(_NUMBER_BYTES, len(value["N"]) // 2 + 2)


def _body(body: bytes) -> Item:
    if _WORTH_DEFLATING_BYTES <= len(body) <= _MOST_INFLATED_BYTES:
        deflater = zlib.compressobj(wbits=_RAW_DEFLATE)
        deflated = deflater.compress(body) + deflater.flush()
        if len(deflated) < len(body):
            return {DEFLATED: {"B": deflated}}
    return {BODY: {"B": body}}


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
