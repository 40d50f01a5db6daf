"""Where things lie in the table. Pure: no call is made here.

============  =========================  ==========================  ==============================
what          partition key ``p``        sort key ``s``              attributes
============  =========================  ==========================  ==============================
far message   endpoint/hour/shard        ms within the hour, id      body, headers, ``t``
near message  endpoint/near/shard        due ms, id                  body, headers, held until
look-up       endpoint/id/id             ``=``                       lane and due ms, ``t``
hour          endpoint/hours             hour                        ``t``
lease         endpoint/leases            ``shard`` and its number    owner, until, cursor, taken up to
shards        endpoint/leases            ``count`` and the number    since when they are written to
format        endpoint/leases            ``format``                  version, written before anything else
amendment     endpoint/mark/id           ``=``                       left at, due, cancelled, ``t``
amended       endpoint/marks             ``=``                       ``t``
============  =========================  ==========================  ==============================

Far messages wait in the partition of the hour they are due in; a shard's cursor passes them once they
are released, and time to live deletes them, which is free. Near messages are due soon, or are held for
a retry: no cursor passes those, they are deleted when they are released.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from sqsdelay.errors import InvalidSetting
from sqsdelay.limits import MAX_MESSAGE_TIMER_SECONDS, MAX_RETENTION_SECONDS

PARTITION: Final = "p"
SORT: Final = "s"
EXPIRY: Final = "t"
"""The attribute DynamoDB's time to live reads: epoch seconds."""

HOUR_MS: Final = 3_600_000
ONLY: Final = "="
"""The sort key of what is alone in its partition."""

CLAIMED_AHEAD_MS: Final = (MAX_MESSAGE_TIMER_SECONDS + 1) * 1000
"""The furthest ahead of DynamoDB's clock that a cursor may be: the longest message timer, and the
second by which an HTTP date is cut off."""

MARGIN_MS: Final = 60_000
"""How far beyond any cursor a far message must be due when DynamoDB confirms it. It covers what the
clocks of DynamoDB's own hosts may differ by; AWS keeps them within milliseconds."""

FAR_MS: Final = CLAIMED_AHEAD_MS + MARGIN_MS
"""A message due less than this after DynamoDB has confirmed it must be a near one."""

FAR_FROM_MS: Final = FAR_MS + 40_000
"""From here on a message is written as a far one: time for the write before it would be too late."""

KEPT_SECONDS: Final = MAX_RETENTION_SECONDS
"""A far message is left to time to live so long after it is due: as long as SQS keeps one at most. A
dispatcher that stands still for longer loses messages."""

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


def due_ms_of(text: str) -> int:
    """The due time of a position."""
    return int(text[:15])


def shard_of(message_id: str, shards: int) -> int:
    """The shard of a message while there are so many."""
    return zlib.crc32(message_id.encode()) % shards


def expiry(due_ms: int) -> int:
    """When what is due then may be forgotten, epoch seconds."""
    return -(-due_ms // 1000) + KEPT_SECONDS


class Layout:
    """The keys of one endpoint.

    Raises:
        ConfigurationError: a name that holds a ``/``.
    """

    def __init__(self, endpoint: str) -> None:
        if not endpoint or "/" in endpoint:
            raise InvalidSetting(
                f"endpoint {endpoint!r} cannot be kept in a DynamoDB table; use a name without '/'"
            )
        self.endpoint = endpoint
        self.leases = f"{endpoint}/leases"
        self.hours = f"{endpoint}/hours"

    def far(self, hour: int, shard: int) -> str:
        """The partition of messages due in an hour."""
        return f"{self.endpoint}/{hour}/{shard}"

    def near(self, shard: int) -> str:
        """The partition of messages due soon, or held."""
        return f"{self.endpoint}/near/{shard}"

    def message(self, place: Place) -> Key:
        """The key of a message."""
        if place.lane is Lane.NEAR:
            return key(self.near(place.shard), place.position)
        hour, within = divmod(place.due_ms, HOUR_MS)
        return key(self.far(hour, place.shard), far_sort(within, place.message_id))

    def lookup(self, message_id: str) -> Key:
        """The key of the item that tells where a message with an id of the user's own lies."""
        return key(f"{self.endpoint}/id/{message_id}", ONLY)

    def amendment(self, message_id: str) -> Key:
        """The key of an amendment."""
        return key(f"{self.endpoint}/mark/{message_id}", ONLY)

    @property
    def amended(self) -> Key:
        """The key of the item that says that there are amendments."""
        return key(f"{self.endpoint}/marks", ONLY)

    def lease(self, shard: int) -> Key:
        """The key of a shard's lease."""
        return key(self.leases, f"shard {shard:05d}")

    def count(self, shards: int) -> Key:
        """The key of the item that says that so many shards are written to."""
        return key(self.leases, f"count {shards:05d}")

    @property
    def format(self) -> Key:
        """The key of the item that says in which version of this layout things lie."""
        return key(self.leases, "format")

    def waiting(self, owner: str) -> Key:
        """The key of the item that says that a dispatcher found no free shard."""
        return key(self.leases, f"waits {owner}")

    def hour(self, hour: int) -> Key:
        """The key of the item that says that messages are due in an hour."""
        return key(self.hours, f"{hour:08d}")


def key(partition: str, sort: str) -> Key:
    """A key in DynamoDB's shape."""
    return {PARTITION: {"S": partition}, SORT: {"S": sort}}


def far_sort(within_ms: int, message_id: str = "") -> str:
    """A far message's sort key."""
    return f"{within_ms:07d}{message_id}"


def place_of(item: Item, lane: Lane) -> Place:
    """The place of an item by its key."""
    partition, sort = item[PARTITION]["S"], item[SORT]["S"]
    _, bucket, shard = partition.rsplit("/", 2)
    if lane is Lane.NEAR:
        return Place(int(sort[:15]), sort[15:], lane, int(shard))
    return Place(int(bucket) * HOUR_MS + int(sort[:7]), sort[7:], lane, int(shard))
