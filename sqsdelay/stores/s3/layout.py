"""What lies in a bucket: slots, the names of their objects, their lines, and the state beside each. No call
is made here; docs/s3-store.md shows names and lines.

A slot is so many seconds long and starts at a multiple of them. Names sort by the slot's start, so that
one listing finds what is due soonest first, and tell how many bytes the lines are: what an object takes in
memory is known before it is read. A state's name begins with ``_``: Spark, Hive and Athena pass it over.
"""

from __future__ import annotations

import base64
import binascii
import gzip
import hashlib
import json
import re
import secrets
import zlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import count, pairwise
from typing import Any, Final

from sqsdelay.core.stored_message import StoredMessage, from_store
from sqsdelay.errors import InvalidSetting

MONTH: Final = 30 * 86_400
DEFAULT_SLOTS: Final = (MONTH, 86_400, 900)
"""Seconds, the coarsest first."""

BUCKET: Final = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]", re.ASCII)
"""Source: Amazon S3 User Guide, "General purpose bucket naming rules"."""

_FORMAT: Final = "%Y%m%dT%H%M%SZ"
BATCH: Final = re.compile(r"\d{15}\.\d{15}\.[0-9A-Za-z]+(?:\.[0-9a-f]{40})?")
_NAME: Final = re.compile(
    r"(?P<start>\d{8}T\d{6}Z)-(?P<seconds>\d+)/(?P<state>_?)(?P<first>\d{15})-(?P<last>\d{15})-"
    r"(?P<count>\d{6,})-(?P<size>\d+)-(?P<part>[0-9A-Za-z.]+)"
    rf"(?:~(?P<batch>{BATCH.pattern}))?\.(?:jsonl\.gz|state)"
)

JOBS: Final = ".jobs/"
RECORD: Final = "record.json"
"""What jobs of Spark's have stored, beside the endpoints' folders."""

MAX_OBJECT_MESSAGES: Final = 5_000
"""Messages in one object: what one dispatcher leases at once, and a hot slot is spread by."""

MAX_OBJECT_BYTES: Final = 8 * 2**20
"""Bytes in one object, before it is compressed, unless a single message is larger."""

_LINE_BYTES: Final = 300
"""What a line takes in memory besides its text."""

_LEVEL: Final = 6
_GZIP: Final = 31
"""For zlib: with gzip's header."""


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


@dataclass(frozen=True, slots=True)
class ObjectName:
    """An object of messages: the earliest and the latest due time in it, how many messages it holds, and how
    many bytes its lines are before they are compressed. ``part`` makes the name unique: where one of many
    attempts wrote it, ``<attempt>.<number>``. ``batch`` is committed as a whole; empty: an object alone."""

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
    def memory(self) -> int:
        """Bytes that its lines take in memory."""
        return self.size + self.count * _LINE_BYTES

    def path(self, *, state: bool = False) -> str:
        """Below the endpoint's own prefix; or that of the state that is kept beside it."""
        start = datetime.fromtimestamp(self.slot.start_ms / 1000, UTC).strftime(_FORMAT)
        mark, kind = ("_", "state") if state else ("", "jsonl.gz")
        batch = f"~{self.batch}" if self.batch else ""
        rest = f"{self.count:06d}-{self.size}-{self.part}{batch}.{kind}"
        return f"{start}-{self.slot.seconds}/{mark}{self.first_ms:015d}-{self.last_ms:015d}-{rest}"


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


def digest(text: str) -> str:
    """A short name for text that cannot be a key itself."""
    return hashlib.sha256(text.encode()).hexdigest()[:40]


BATCH_SECONDS: Final = 900
"""How long a batch may be written to before anyone may give it up: longer than any call, and the time
limit of a function."""


def new_batch(last_ms: int, now_ms: int) -> str:
    """A batch's name: it tells the latest due time of its messages, and when it was begun. A job's batch
    also tells the job's folder, where it is decided."""
    return f"{last_ms:015d}.{now_ms:015d}.{new_part()}"


def times_of(batch: str) -> tuple[int, int]:
    """Both times that a batch's name tells, epoch milliseconds."""
    last, begun, _ = batch.split(".", 2)
    return int(last), int(begun)


def job_of(batch: str) -> str:
    """The folder of the job whose batch it is; empty for none."""
    return batch.split(".", 3)[3] if batch.count(".") == 3 else ""


class Hierarchy:
    """Which slot a message waits in: in a coarse one while it is far away."""

    def __init__(self, seconds: Sequence[int] = DEFAULT_SLOTS) -> None:
        pairs = list(pairwise(seconds))
        if not seconds or min(seconds) < 1 or any(a % b or a == b for a, b in pairs):
            shown = ":".join(map(str, seconds))
            raise InvalidSetting(
                "give lengths in seconds, the longest first, each a multiple of the next, e.g. "
                + ":".join(map(str, DEFAULT_SLOTS)),
                slots=shown,
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


@dataclass(frozen=True, slots=True, order=True)
class Line:
    """A message as it lies in an object, read as far as it must be to be put elsewhere."""

    due_ms: int
    message_id: str
    text: bytes

    @property
    def place(self) -> tuple[int, str]:
        """In a listing."""
        return self.due_ms, self.message_id


def line_of(message: StoredMessage, *, found_by_id: bool = False) -> Line:
    """A message as a line; ``found_by_id`` where an object below ``ids/`` tells when it is due."""
    fields: dict[str, Any] = {
        "message_id": message.message_id,
        "due_ms": message.due_ms,
        "destination": message.destination,
    }
    try:
        fields["body"] = message.body.decode("utf-8")
    except UnicodeDecodeError:
        fields["body_base64"] = base64.b64encode(message.body).decode("ascii")
    headers = message.headers()
    rest = {
        "headers": "" if headers == "{}" else headers,
        "failures": message.failures,
        "found_by_id": found_by_id,
    }
    fields |= {name: value for name, value in rest.items() if value}
    text = json.dumps(fields, ensure_ascii=False, separators=(",", ":")).encode("utf-8")
    return Line(message.due_ms, message.message_id, text)


def message_of(line: Line, failures: int = 0) -> StoredMessage:
    """The message of a line; what somebody wrote there by hand may be none, and says so. ``failures``:
    counted since it was written."""
    found = _fields(line.text)
    body = found.get("body")
    if isinstance(body, str):
        body = body.encode("utf-8", "surrogatepass")
    elif isinstance(found.get("body_base64"), str):
        try:
            body = base64.b64decode(found["body_base64"], validate=True)
        except (binascii.Error, ValueError):
            body = None
    message_id, to, due_ms = (found.get(name) for name in ("message_id", "destination", "due_ms"))
    headers, before = found.get("headers", "{}"), found.get("failures", 0)
    message = from_store(message_id, to, due_ms, body, headers, before)
    return replace(message, failures=message.failures + failures)


def is_found_by_id(line: Line) -> bool:
    return _fields(line.text).get("found_by_id") is True


def packed(lines: Sequence[Line]) -> bytes:
    """An object's bytes."""
    gzipped = zlib.compressobj(_LEVEL, wbits=_GZIP)
    # Line by line: they are not to be in memory a second time.
    parts = [gzipped.compress(text) for line in lines for text in (line.text, b"\n")]
    return b"".join((*parts, gzipped.flush()))


def size_of(lines: Iterable[Line]) -> int:
    """How many bytes lines are, with their line breaks."""
    return sum(len(line.text) + 1 for line in lines)


def unpacked(body: bytes) -> list[Line]:
    """The lines of an object. Raises EOFError: there are none, and none was written so."""
    lines = []
    for text in gzip.decompress(body).splitlines():
        found = _fields(text)
        due_ms = told if isinstance(told := found.get("due_ms"), int) else 0
        lines.append(Line(due_ms, str(found.get("message_id", "")), text))
    if not lines:
        raise EOFError("it has no lines")
    return lines


def _fields(text: bytes) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


@dataclass(frozen=True, slots=True)
class State:
    """What has become of an object's messages, by position; written only under conditions. ``owner``: who
    leases it; empty for nobody. ``until_ms``: the lease's end by S3's clock, epoch milliseconds. ``hand``:
    what the owner may be sending at this moment. ``gone``: what was released, cancelled or rejected.
    ``held``: until when a message is not to be released. ``failures``: counted since the object was written.
    ``moved``: messages written elsewhere by a batch, which may not be committed yet. ``moving``: the batch
    that writes all of them elsewhere; empty for none."""

    owner: str = ""
    until_ms: int = 0
    hand: frozenset[int] = frozenset()
    gone: frozenset[int] = frozenset()
    held: Mapping[int, int] = field(default_factory=dict)
    failures: Mapping[int, int] = field(default_factory=dict)
    moved: Mapping[int, str] = field(default_factory=dict)
    moving: str = ""

    def leased(self, now_ms: int) -> bool:
        """Whether somebody has it now."""
        return bool(self.owner) and now_ms < self.until_ms

    def freed(self) -> State:
        """Nobody has it."""
        return replace(self, owner="", until_ms=0, hand=frozenset())

    def kept(self, positions: Collection[int], until_ms: int, failed: int) -> State:
        """They are not in hand, and not to be released until then; ``failed`` is added to their failures."""
        held = {**self.held, **dict.fromkeys(positions, until_ms)}
        more = {n: self.failures.get(n, 0) + failed for n in positions if failed}
        hand, failures = self.hand.difference(positions), {**self.failures, **more}
        return replace(self, held=held, hand=hand, failures=failures)

    def without(self, positions: Iterable[int]) -> State:
        """They have left the object."""
        left = frozenset(positions)
        return replace(
            self,
            gone=self.gone | left,
            hand=self.hand - left,
            held={n: until for n, until in self.held.items() if n not in left},
            failures={n: count for n, count in self.failures.items() if n not in left},
            moved={n: batch for n, batch in self.moved.items() if n not in left},
        )

    def fields(self) -> dict[str, Any]:
        """As an object of JSON holds them."""
        upto = next(n for n in count() if n not in self.gone)
        written = {name: getattr(self, name) for name in self.__slots__} | {
            "hand": sorted(self.hand),
            "upto": upto,
            "gone": sorted(n for n in self.gone if n > upto),
        }
        return {name: value for name, value in written.items() if value}

    @classmethod
    def of(cls, found: dict[str, Any]) -> State:
        """The inverse of `fields`."""
        found.pop("write", None)
        hand, gone = (frozenset(found.pop(name, ())) for name in ("hand", "gone"))
        for name in ("held", "failures", "moved"):
            found[name] = {int(n): value for n, value in found.get(name, {}).items()}
        return cls(hand=hand, gone=gone.union(range(found.pop("upto", 0))), **found)
