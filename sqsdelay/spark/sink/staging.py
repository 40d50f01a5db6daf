"""What one attempt writes to an endpoint's wheel: lines gathered by slot, put as objects of one batch."""

from __future__ import annotations

import zlib
from array import array
from bisect import bisect_left
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from sqsdelay.spark.sink.run import Run, Staged, insist
from sqsdelay.spark.sink.stored_job import Job
from sqsdelay.stores.s3.layout import ObjectName, Slot
from sqsdelay.stores.s3.wheel import MAX_OBJECT_BYTES, MAX_OBJECT_MESSAGES

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


@dataclass(slots=True)
class _Waiting:
    """Lines of one slot."""

    dues: list[pa.Array] = field(default_factory=list)
    lines: list[pa.Array] = field(default_factory=list)
    messages: int = 0
    size: int = 0


class Staging:
    """The objects of one attempt in one wheel; they do not count before the batch is decided. ``known`` is
    a digest of the earlier batches that it knows of."""

    def __init__(
        self,
        job: Job,
        run: Run,
        endpoint: str,
        attempt: str,
        *,
        known: str,
        retry_seconds: int,
    ) -> None:
        self._wheel = job.wheel
        self._job = job
        self._run = run
        self._endpoint = endpoint
        self._attempt = attempt
        self._known = known
        self._retry_seconds = retry_seconds
        self._dues: list[pa.Array] = []
        self._lines: list[pa.Array] = []
        self._gathered = 0
        self._slots: dict[Slot, _Waiting] = {}
        self._kept = 0
        self._ids = array("q")
        self._contents = array("q")
        self._objects = 0
        self._last_ms = 0
        self._pool = ThreadPoolExecutor(_IN_FLIGHT, thread_name_prefix="staging")
        self._writing: set[Future[None]] = set()

    def add(
        self, dues: pa.Int64Array, lines: pa.LargeBinaryArray, ids: array[int], contents: array[int]
    ) -> None:
        """Stage messages: due times (epoch milliseconds), lines as they lie in objects, with their line
        breaks, and marks."""
        self._ids.extend(ids)
        self._contents.extend(contents)
        self._dues.append(dues)
        self._lines.append(lines)
        self._gathered += lines.nbytes
        if self._gathered >= GATHERED_BYTES:
            self._cut()
            self._write_full()

    def close(self) -> Staged | None:
        """Write the rest; what the driver is told, None where nothing was staged. Raises StoreUnavailable."""
        try:
            self._cut()
            for slot in sorted(self._slots):
                self._write(slot, self._slots.pop(slot))
            self._finish(0)
        finally:
            self._pool.shutdown(cancel_futures=True)
        if not self._ids:
            return None
        insist(
            lambda: self._job.mark(self._run.batch, self._attempt, self._ids, self._contents),
            self._retry_seconds,
        )
        return Staged(
            endpoint=self._endpoint,
            run=self._run,
            attempt=self._attempt,
            messages=len(self._ids),
            total=(3 * sum(self._ids) + sum(self._contents)) % _FULL,
            last_ms=self._last_ms,
            known=self._known,
        )

    def give_up(self) -> None:
        """Write nothing more."""
        self._pool.shutdown(cancel_futures=True)

    def _cut(self) -> None:
        """Sort what was gathered into slots: each is a span of due times, so a piece of the order."""
        if not self._dues:
            return
        dues, lines = pa.concat_arrays(self._dues), pa.concat_arrays(self._lines)
        self._dues, self._lines, self._gathered = [], [], 0
        order = pc.sort_indices(dues)
        ordered = array("q", dues.take(order).to_pylist())
        self._last_ms = max(self._last_ms, ordered[-1])
        start = 0
        while start < len(ordered):
            slot = self._wheel.hierarchy.slot(ordered[start], self._run.now_ms)
            end = bisect_left(ordered, slot.end_ms, start)
            piece = order.slice(start, end - start)
            waiting = self._slots.setdefault(slot, _Waiting())
            taken = lines.take(piece)
            waiting.dues.append(dues.take(piece))
            waiting.lines.append(taken)
            waiting.messages += end - start
            waiting.size += taken.nbytes
            self._kept += taken.nbytes
            start = end

    def _write_full(self) -> None:
        for slot in [s for s, w in self._slots.items() if w.messages >= MAX_OBJECT_MESSAGES]:
            self._write(slot, self._slots.pop(slot), keep_rest=True)
        if self._kept > KEPT_BYTES:
            for slot in sorted(self._slots, key=lambda s: self._slots[s].size, reverse=True):
                if self._kept <= KEPT_BYTES // 2:
                    break
                self._write(slot, self._slots.pop(slot))

    def _write(self, slot: Slot, waiting: _Waiting, *, keep_rest: bool = False) -> None:
        """Begin to write objects of a slot; ``keep_rest``: what does not fill one waits for more."""
        dues, lines = pa.concat_arrays(waiting.dues), pa.concat_arrays(waiting.lines)
        self._kept -= waiting.size
        order = pc.sort_indices(dues)
        dues, lines = dues.take(order), lines.take(order)
        for start, end in _portions(lines):
            if keep_rest and end == len(lines) and end - start < MAX_OBJECT_MESSAGES:
                # Copied: a slice would keep the whole in memory.
                rest = pa.array(range(start, end), pa.int64())
                left = lines.take(rest)
                self._slots[slot] = _Waiting([dues.take(rest)], [left], end - start, left.nbytes)
                self._kept += left.nbytes
                return
            part = f"{self._attempt}.{self._objects}"
            self._objects += 1
            first_ms, last_ms = dues[start].as_py(), dues[end - 1].as_py()
            self._finish(_IN_FLIGHT)
            text = _joined(lines, start, end)
            batch = self._run.batch
            name = ObjectName(slot, first_ms, last_ms, end - start, text.size, part, batch)
            self._writing.add(self._pool.submit(self._put, self._wheel.key(name), text))

    def _put(self, key: str, text: pa.Buffer) -> None:
        body = zlib.compress(text, _LEVEL, _GZIP)
        insist(lambda: self._wheel.bucket.put(key, body), self._retry_seconds)

    def _finish(self, most: int) -> None:
        """Wait until no more than so many objects are being written."""
        while len(self._writing) > most:
            done, self._writing = wait(self._writing, return_when="FIRST_COMPLETED")
            for each in done:
                each.result()


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
