"""Where messages lie: a store's URL, slots of due times, the names of their objects. No call is made here.

A slot is so many seconds long and starts at a multiple of them. Names sort by the slot's start, so that
one listing finds what is due soonest first::

    <prefix><endpoint>/v1/20270114T000000Z-86400/001800000000000-001800086399999-005000-1300000-<name>.jsonl.gz
    <prefix><endpoint>/v1/20270114T000000Z-86400/_001800000000000-001800086399999-005000-1300000-<name>.state

An object's name tells the earliest and the latest due time in it (epoch milliseconds), how many
messages it holds and how many bytes they are: so what an object takes in memory is known before it is
read. The state beside it begins with ``_``, so that Spark, Hive and Athena pass it over.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any, Final
from urllib.parse import SplitResult, parse_qsl, unquote

from sqsdelay.errors import InvalidSetting

MONTH: Final = 30 * 86_400
DAY: Final = 86_400
QUARTER_HOUR: Final = 900
DEFAULT_SLOTS: Final = (MONTH, DAY, QUARTER_HOUR)
"""Seconds, the coarsest first."""

BUCKET: Final = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]", re.ASCII)
"""Source: Amazon S3 User Guide, "General purpose bucket naming rules"."""

_FORMAT: Final = "%Y%m%dT%H%M%SZ"
_NAME: Final = re.compile(
    r"(?P<start>\d{8}T\d{6}Z)-(?P<seconds>\d+)/(?P<state>_?)(?P<first>\d{15})-(?P<last>\d{15})-"
    r"(?P<count>\d{6,})-(?P<size>\d+)-(?P<part>[0-9A-Za-z.]+)(?:~(?P<batch>[0-9A-Za-z.]+))?\.(?:jsonl\.gz|state)"
)


@dataclass(frozen=True, slots=True, order=True)
class Slot:
    """A span of due times: from ``start_ms``, epoch milliseconds, so many seconds."""

    start_ms: int
    seconds: int

    @classmethod
    def of(cls, due_ms: int, seconds: int) -> Slot:
        """The slot of that length that holds a due time."""
        return cls(due_ms - due_ms % (seconds * 1000), seconds)

    @property
    def end_ms(self) -> int:
        return self.start_ms + self.seconds * 1000

    @property
    def name(self) -> str:
        start = datetime.fromtimestamp(self.start_ms / 1000, UTC)
        return f"{start.strftime(_FORMAT)}-{self.seconds}"


@dataclass(frozen=True, slots=True)
class ObjectName:
    """An object of messages: the earliest and the latest due time in it, how many messages it holds, and how
    many bytes its lines are before they are compressed.

    Args:
        part: what makes the name unique; where one of many attempts wrote it, ``<attempt>.<number>``.
        batch: the batch it was written in, which is committed as a whole; empty for an object alone.
    """

    slot: Slot
    first_ms: int
    last_ms: int
    count: int
    size: int
    part: str
    batch: str = ""

    @property
    def attempt(self) -> str:
        """Who of a batch's writers wrote it."""
        return self.part.partition(".")[0]

    @property
    def _stem(self) -> str:
        batch = f"~{self.batch}" if self.batch else ""
        dues = f"{self.first_ms:015d}-{self.last_ms:015d}"
        return f"{dues}-{self.count:06d}-{self.size}-{self.part}{batch}"

    @property
    def path(self) -> str:
        """Below the endpoint's own prefix."""
        return f"{self.slot.name}/{self._stem}.jsonl.gz"

    @property
    def state_path(self) -> str:
        """Of the state that is kept beside it."""
        return f"{self.slot.name}/_{self._stem}.state"


def parse(path: str) -> tuple[ObjectName, bool] | None:
    """The object a path names, and whether the path is its state's; None for what is neither."""
    found = _NAME.fullmatch(path)
    if found is None:
        return None
    start = datetime.strptime(found["start"], _FORMAT).replace(tzinfo=UTC)
    slot = Slot(int(start.timestamp()) * 1000, int(found["seconds"]))
    first, last, count, size = (int(found[n]) for n in ("first", "last", "count", "size"))
    name = ObjectName(slot, first, last, count, size, found["part"], found["batch"] or "")
    return name, bool(found["state"])


def new_part() -> str:
    """A name that nobody else makes up."""
    return secrets.token_hex(8)


def new_batch(last_ms: int, now_ms: int) -> str:
    """A batch's name: it tells the latest due time of its messages, and when it was begun."""
    return f"{last_ms:015d}.{now_ms:015d}.{new_part()}"


def times_of(batch: str) -> tuple[int, int]:
    """Both times that a batch's name tells, epoch milliseconds."""
    last, begun, _ = batch.split(".", 2)
    return int(last), int(begun)


class Hierarchy:
    """Which slot a message waits in: in a coarse one while it is far away."""

    def __init__(self, seconds: Sequence[int] = DEFAULT_SLOTS) -> None:
        pairs = list(pairwise(seconds))
        if not seconds or min(seconds) < 1 or any(a % b or a == b for a, b in pairs):
            shown = ":".join(map(str, seconds))
            raise InvalidSetting(
                f"slots={shown}; give lengths in seconds, the longest first, each a multiple of the "
                f"next, e.g. {':'.join(map(str, DEFAULT_SLOTS))}"
            )
        self.seconds = tuple(seconds)

    def slot(self, due_ms: int, now_ms: int) -> Slot:
        """The coarsest slot that is not to be split yet, else the finest."""
        for length, finer in pairwise(self.seconds):
            slot = Slot.of(due_ms, length)
            if slot.start_ms > now_ms + finer * 1000:
                return slot
        return Slot.of(due_ms, self.seconds[-1])

    def finer(self, slot: Slot) -> int | None:
        """The length of the slots that a slot is split into; None for one of the finest."""
        return next((length for length in self.seconds if length < slot.seconds), None)

    def is_near(self, slot: Slot, now_ms: int) -> bool:
        """Whether a slot is to be split, or its objects merged, by now."""
        return slot.start_ms <= now_ms + (self.finer(slot) or slot.seconds) * 1000


def settings_of(parts: SplitResult) -> dict[str, Any]:
    """The arguments of `S3Store` that a URL gives.

    Raises:
        ConfigurationError: one that is not known.
    """
    settings: dict[str, Any] = {"prefix": unquote(parts.path.strip("/"))}
    for name, value in parse_qsl(parts.query, keep_blank_values=True):
        if name == "lookup" and value in ("on", "off"):
            settings["lookup"] = value == "on"
        elif name == "slots" and re.fullmatch(r"\d{1,9}(:\d{1,9})*", value, re.ASCII):
            settings["slots"] = tuple(int(seconds) for seconds in value.split(":"))
        else:
            # Not shown: it may be a password that got into the wrong URL.
            raise InvalidSetting(
                "the settings behind ? in the store's URL are not understood; an S3 store takes "
                "lookup=on or off, slots=SECONDS:SECONDS:…"
            )
    return settings
