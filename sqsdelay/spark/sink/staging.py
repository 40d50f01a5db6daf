"""What one attempt writes to an endpoint's wheel: lines gathered by slot, put as objects of one batch."""

from __future__ import annotations

import sys
import zlib
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from functools import lru_cache
from hashlib import blake2b
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from sqsdelay.core.stored_message import StoredMessage
from sqsdelay.spark.sink.options import Options
from sqsdelay.spark.sink.receipts import Mark, SentBefore, number
from sqsdelay.spark.sink.run import Run, Staged, insist
from sqsdelay.spark.sink.stored_job import Job
from sqsdelay.stores.s3.layout import ObjectName, Slot, line_of
from sqsdelay.stores.s3.wheel import MAX_OBJECT_BYTES, MAX_OBJECT_MESSAGES, Wheel

GATHERED_BYTES: Final = 32 * 2**20
"""Of lines, before they are cut into slots: a piece for each slot is copied then."""

KEPT_BYTES: Final = 64 * 2**20
"""Of lines that wait for more of their slot; then the largest are written as they are."""

_IN_FLIGHT: Final = 4
"""Objects that are compressed and written at a time, on threads: neither needs the interpreter."""

_LEVEL: Final = 3
"""gzip's: 2.5 % more bytes than its default, in 40 % of the time."""

_GZIP: Final = 31
_FULL: Final = 1 << 64


PROBE: Final = "sqsdelay-looks-whether-this-endpoint-can-be-sent-to"
"""The id of a message that is not stored."""


@dataclass
class Staging:
    """An endpoint's wheel, as a task's sender sees its store: the objects of one attempt, which do not count
    before the batch is decided. What is marked is due so long after ``since_ms``."""

    wheel: Wheel
    run: Run
    endpoint: str
    attempt: str
    options: Options
    since_ms: int

    soonest_seconds, stored_at_once = 0, None

    def __post_init__(self) -> None:
        self.job = Job(self.wheel, self.run.job)
        # Of rows that come in any order all tasks of a process need all marks, and share them.
        read, parts = _read_once if self.options.parts == 1 else _read, self.options.parts
        part = 0 if parts == 1 else int(self.attempt.partition("x")[0])
        self._known, self.stored = read(self.wheel, self.run, part, parts)
        self._gathered: list[pa.Table] = []
        self._slots: dict[Slot, list[pa.Table]] = {}
        self._ids = array("q")
        self._contents = array("q")
        self._objects = 0
        self._last_ms = 0
        self._pool = ThreadPoolExecutor(_IN_FLIGHT, thread_name_prefix="staging")
        self._writing: set[Future[None]] = set()

    def too_large(self, _: StoredMessage) -> bool:
        return False

    def store(self, messages: Sequence[StoredMessage]) -> list[bool]:
        """Stage messages."""
        if found := [m for m in messages if m.message_id != PROBE]:
            marks = [mark_of(m, self.since_ms) for m in found]
            self.add(
                pa.array([m.due_ms for m in found], pa.int64()),
                pa.array([_line(m) for m in found], pa.large_binary()),
                [mark.message_id for mark in marks],
                [mark.content for mark in marks],
            )
        return [True] * len(messages)

    def add(
        self, dues: pa.Int64Array, lines: pa.LargeBinaryArray, ids: list[int], contents: list[int]
    ) -> None:
        """Stage messages: due times (epoch milliseconds), lines as they lie in objects, with their line
        breaks, and marks."""
        self._ids.extend(ids)
        self._contents.extend(contents)
        self._gathered.append(pa.table({"due": dues, "line": lines}))
        if _bytes(self._gathered) >= GATHERED_BYTES:
            self._cut()
            self._write_full()

    def close(self) -> Staged | None:
        """Write the rest; what the driver is told, None where nothing was staged. Raises StoreUnavailable."""
        try:
            self._cut()
            for slot in sorted(self._slots):
                self._write(slot)
            self._finish(0)
        finally:
            self._pool.shutdown(cancel_futures=True)
        if not self._ids:
            return None
        batch, retry_seconds = self.run.batch, self.options.retry_seconds
        insist(lambda: self.job.mark(batch, self.attempt, self._ids, self._contents), retry_seconds)
        total = (3 * sum(self._ids) + sum(self._contents)) % _FULL
        told = len(self._ids), total, self._last_ms, self._known
        return Staged(self.endpoint, self.run, self.attempt, *told)

    def give_up(self) -> None:
        """Write nothing more."""
        self._pool.shutdown(cancel_futures=True)

    def _cut(self) -> None:
        """Sort what was gathered into slots: each is a span of due times, so a piece of the order."""
        if not self._gathered:
            return
        rows = pa.concat_tables(self._gathered).sort_by("due").combine_chunks()
        self._gathered = []
        ordered = array("q", rows["due"].to_pylist())
        self._last_ms = max(self._last_ms, ordered[-1])
        start = 0
        while start < len(ordered):
            slot = self.wheel.hierarchy.slot(ordered[start], self.run.now_ms)
            end = bisect_left(ordered, slot.end_ms, start)
            self._slots.setdefault(slot, []).append(_copied(rows, start, end))
            start = end

    def _write_full(self) -> None:
        """Write what fills objects; then the largest slots, where too much is kept."""
        for slot, pieces in list(self._slots.items()):
            if sum(piece.num_rows for piece in pieces) >= MAX_OBJECT_MESSAGES:
                self._write(slot, keep_rest=True)
        sizes = {slot: _bytes(pieces) for slot, pieces in self._slots.items()}
        kept = sum(sizes.values())
        most = KEPT_BYTES // 2 if kept > KEPT_BYTES else kept
        for slot in sorted(sizes, key=lambda slot: sizes[slot], reverse=True):
            if kept > most:
                kept -= sizes[slot]
                self._write(slot)

    def _write(self, slot: Slot, *, keep_rest: bool = False) -> None:
        """Begin to write objects of a slot; ``keep_rest``: what does not fill one waits for more."""
        rows = pa.concat_tables(self._slots.pop(slot)).sort_by("due").combine_chunks()
        dues, lines = rows["due"], rows["line"].chunk(0)
        for start, end in _portions(lines):
            if keep_rest and end == len(lines) and end - start < MAX_OBJECT_MESSAGES:
                self._slots[slot] = [_copied(rows, start, end)]
                return
            part = f"{self.attempt}.{self._objects}"
            self._objects += 1
            self._finish(_IN_FLIGHT)
            text = _joined(lines, start, end)
            between = dues[start].as_py(), dues[end - 1].as_py()
            name = ObjectName(slot, *between, end - start, text.size, part, self.run.batch)
            self._writing.add(self._pool.submit(self._put, self.wheel.key(name), text))

    def _put(self, key: str, text: pa.Buffer) -> None:
        body = zlib.compress(text, _LEVEL, _GZIP)
        insist(lambda: self.wheel.bucket.put(key, body), self.options.retry_seconds)

    def _finish(self, most: int) -> None:
        """Wait until no more than so many objects are being written."""
        while len(self._writing) > most:
            done, self._writing = wait(self._writing, return_when="FIRST_COMPLETED")
            for each in done:
                each.result()


def _read(wheel: Wheel, run: Run, part: int, parts: int) -> tuple[str, SentBefore]:
    """What earlier runs have stored of a task's share, and a digest of these runs."""
    known, ids, contents = Job(wheel, run.job).stored(part, parts)
    return known, SentBefore.of(pa.array(ids, pa.int64()), pa.array(contents, pa.int64()))


_read_once = lru_cache(maxsize=16)(_read)


def _line(message: StoredMessage) -> bytes:
    return line_of(message).text + b"\n"


def mark_of(message: StoredMessage, since_ms: int) -> Mark:
    """A message's mark, its due time counted from an instant."""
    since = replace(message, due_ms=max(0, message.due_ms - since_ms))
    return Mark(number(message.message_id.encode()), number(_line(since)))


def numbers(texts: Iterable[bytes]) -> list[int]:
    """The `number` of each."""
    found = array("q", b"".join([blake2b(text, digest_size=8).digest() for text in texts]))
    if sys.byteorder == "little":
        found.byteswap()
    return found.tolist()


def _bytes(pieces: Iterable[pa.Table]) -> int:
    return sum(piece.nbytes for piece in pieces)


def _copied(rows: pa.Table, start: int, end: int) -> pa.Table:
    """Some of the rows: a slice would keep the whole in memory."""
    return rows.take(pa.array(range(start, end), pa.int64()))


def _portions(lines: pa.LargeBinaryArray) -> Iterator[tuple[int, int]]:
    """So many lines as fit into an object."""
    ends = pc.cumulative_sum(pc.binary_length(lines)).to_pylist()
    start = 0
    while start < len(lines):
        before = ends[start - 1] if start else 0
        end = max(start + 1, bisect_left(ends, before + MAX_OBJECT_BYTES + 1, start))
        end = min(end, start + MAX_OBJECT_MESSAGES, len(lines))
        yield start, end
        start = end


def _joined(lines: pa.LargeBinaryArray, start: int, end: int) -> pa.Buffer:
    """The bytes of these lines, which lie one after the other."""
    _, offsets, values = lines.buffers()
    assert offsets is not None, "an array of lines has places"
    assert values is not None, "and bytes"
    places = memoryview(offsets).cast("q")
    first, last = places[lines.offset + start], places[lines.offset + end]
    return values.slice(first, last - first)
