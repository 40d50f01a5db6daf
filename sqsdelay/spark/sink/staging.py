"""The part of a task's rows that goes into an S3 store's wheels, staged there until the job commits.

Rows that are plain are staged column by column; others go through the sender, one by one, whose store
is the place that stages them. Whether a row is due far enough ahead is decided by an instant that the
driver fixes: all attempts on a row decide alike. Lines are gathered by slot, and put as objects of one batch.
"""

from __future__ import annotations

import zlib
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import cache, lru_cache, partial
from typing import Final, cast

import pyarrow as pa
import pyarrow.compute as pc

from sqsdelay.core.delay import due_at_ms, utc
from sqsdelay.core.endpoint import Endpoint
from sqsdelay.core.limits import MIN_QUEUE_LIMIT_BYTES
from sqsdelay.core.message import Message, Route
from sqsdelay.core.stored_message import StoredMessage
from sqsdelay.errors import InvalidEndpoint
from sqsdelay.ledger.events import Ledger
from sqsdelay.parking.parking import ParkingSettings
from sqsdelay.ports.queues import Queues
from sqsdelay.ports.stores import ParkingPlace
from sqsdelay.sending.router import SenderSettings
from sqsdelay.sending.sender import QueueSender
from sqsdelay.sending.sizes import SizeLimits
from sqsdelay.spark.sink.receipts import NOTHING_SENT, Mark, ReceiptsWriter, SeenIds, SentBefore
from sqsdelay.spark.sink.rows import Plain, Rows, due_column, plain_rows, spelled
from sqsdelay.spark.sink.run import Counts, Run, Staged, insist
from sqsdelay.spark.sink.stored_job import Job, wheel_of
from sqsdelay.stores.s3 import layout
from sqsdelay.stores.s3.wheel import Wheel

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
_PROBE: Final = "sqsdelay-looks-whether-this-endpoint-can-be-sent-to"
"""The id of a message that is not stored."""


@dataclass
class Bulk:
    """What a task stages. ``queues`` are asked about endpoints. With a ``ledger`` rows are staged one by one,
    as those of a replay. ``sent_before`` is what the receipts show as sent."""

    rows: Rows
    run: Run
    queues: Queues
    attempt: str
    receipts: ReceiptsWriter | None = None
    ledger: Ledger | None = None
    sent_before: SentBefore = NOTHING_SENT
    open_wheel: Callable[[str, str], Wheel] = wheel_of

    def __post_init__(self) -> None:
        options = self.rows.options
        # A replay compares each row with the receipts.
        self._quick = self.ledger is None and options.replay is None
        self._limits = SizeLimits(self.queues)
        self._places: dict[str, Staging] = {}
        self._stored, self._known = NOTHING_SENT, ""
        self._ids, self._contents = array("q"), array("q")
        self._pool = ThreadPoolExecutor(_IN_FLIGHT, thread_name_prefix="staging")
        self._writing: set[Future[object]] = set()
        self._plain_endpoint = cache(self._looked_at)
        settings = SenderSettings(
            hop_seconds=options.hop_seconds,
            max_delay_seconds=options.max_delay_seconds,
            parking=ParkingSettings(lambda name: cast(ParkingPlace, self._place(name)), 0),
            idempotent=True,
            ledger=self.ledger,
        )
        self.sender = QueueSender(self.queues, settings)

    def is_far(self, message: Message) -> bool:
        """Whether a message is to be staged."""
        return message.due_at is not None and due_at_ms(message.due_at) > self.run.after_ms

    def sent(self, endpoint: str, ids: Sequence[int]) -> list[int | None]:
        """The contents that earlier runs of the job have stored under these ids, or sent; ``endpoint`` is any
        of the names of one that has them now."""
        self._place(Endpoint.parse(endpoint).name)  # It tells what was stored.
        if not (self._stored.ids or self.sent_before.ids):
            return [None] * len(ids)
        contents = ((self._stored.content(each), self.sent_before.content(each)) for each in ids)
        return [sent if stored is None else stored for stored, sent in contents]

    def note(self, ids: Sequence[int], contents: Sequence[int]) -> None:
        """Keep the marks of what is staged."""
        self._ids.extend(ids)
        self._contents.extend(contents)

    def take(self, chunk: pa.RecordBatch, seen: SeenIds, counts: Counts) -> list[int]:
        """Stage what is plain; the positions of the rows that are left."""
        every, run = range(chunk.num_rows), self.run
        if not self._quick:
            return list(every)
        batch = spelled(chunk, self.rows.columns.spelled)
        dues = due_column(self.rows, batch)
        plain = plain_rows(self.rows, batch, dues, after_ms=run.after_ms, now_ms=run.began_ms)
        if plain is None:
            return list(every)
        done = list[int]()
        for name in pc.unique(plain.endpoints).to_pylist():
            here = plain.where(pc.equal(plain.endpoints, name))
            endpoint = self._plain_endpoint(name)
            if endpoint is not None and len(here.positions):
                done += self._stage(name, endpoint, here, seen, counts)
        return sorted(set(every).difference(done))

    def _stage(
        self, name: str, endpoint: Endpoint, plain: Plain, seen: SeenIds, counts: Counts
    ) -> list[int]:
        """Stage rows to one endpoint, by its name in them; the positions of those that are done with."""
        longest = pc.max(plain.sizes).as_py()
        if longest > MIN_QUEUE_LIMIT_BYTES:
            limit = self._limits.of(endpoint.queue, size=longest)
            plain = plain.where(pc.less_equal(plain.sizes, limit))
            if not len(plain.positions):
                return []
        place, (ids, contents) = self._place(endpoint.name), plain.marks(self.rows.since_ms)
        sent = self.sent(name, ids)
        # What repeats an id, or is another than was sent, is looked at one by one.
        done = [
            n
            for n, (each, content) in enumerate(zip(ids, contents, strict=True))
            if sent[n] in (None, content) and seen.note(each, content) is None
        ]
        new = [n for n in done if sent[n] is None]
        counts.already_sent += len(done) - len(new)
        if new:
            some = pa.array(new, pa.int64())
            place.add(plain.dues.take(some), plain.lines(endpoint.address).take(some))
            self.note([ids[n] for n in new], [contents[n] for n in new])
            counts.routes[str(Route.STORE)] += len(new)
        if self.receipts is not None:
            texts, dues = plain.ids.to_pylist(), plain.dues.to_pylist()
            for n in done:
                if self.sent_before.content(ids[n]) is None:
                    mark = Mark(ids[n], contents[n])
                    self.receipts.add(name, texts[n], utc(dues[n]), str(Route.STORE), mark)
            self.receipts.flush()
        positions: list[int] = plain.positions.to_pylist()
        return [positions[n] for n in done]

    def close(self) -> Staged | None:
        """Write all that is staged; what the driver is told, None where that is nothing. Raises
        StoreUnavailable."""
        if self.receipts is not None:
            self.receipts.close()
        last_ms = {name: each for name, place in self._places.items() if (each := place.end())}
        self._finish(0)
        if not last_ms:
            return None
        seconds, (endpoint, *others) = self.rows.options.retry_seconds, last_ms
        insist(lambda: self._job.mark(self.attempt, self._ids, self._contents), seconds)
        if others:
            insist(lambda: self._job.leave(self.attempt, others), seconds)
        total = (3 * sum(self._ids) + sum(self._contents)) % _FULL
        told = len(self._ids), total, max(last_ms.values()), self._known, endpoint
        return Staged(self.run, self.attempt, *told, bool(others))

    @property
    def noted(self) -> bool:
        """Whether it has left receipts."""
        return self.receipts is not None and self.receipts.wrote

    def give_up(self) -> None:
        """Write nothing more."""
        self._pool.shutdown(cancel_futures=True)

    def write(self, put: Callable[[], object]) -> None:
        """Write an object, a few at a time."""
        self._writing.add(self._pool.submit(insist, put, self.rows.options.retry_seconds))
        self._finish(_IN_FLIGHT)

    def _finish(self, most: int) -> None:
        """Wait until no more than so many objects are being written."""
        while len(self._writing) > most:
            done, left = wait(self._writing, return_when="FIRST_COMPLETED")
            for each in done:
                each.result()
            # One that failed stays: its lines are nowhere, the task has to fail.
            self._writing = left

    def _place(self, name: str) -> Staging:
        if name not in self._places:
            options = self.rows.options
            wheel = self.open_wheel(str(options.store), name)
            if not self._places:
                self._job, parts = Job(wheel, self.run), options.parts
                # Of rows that come in any order all tasks of a process need all marks, and share them.
                part = 0 if parts == 1 else int(self.attempt.partition("x")[0])
                read = _read_once if parts == 1 else _read
                self._known, self._stored = read(self._job, part, parts)
            self._places[name] = Staging(wheel, self.run, self.attempt, self.write)
        return self._places[name]

    def _looked_at(self, name: str) -> Endpoint | None:
        """The endpoint, if it is one whose rows can be staged without a closer look at each."""
        try:
            endpoint = Endpoint.parse(name)
        except InvalidEndpoint:
            return None
        if endpoint.fifo:
            return None
        probe = Message("x", due_at=utc(self.run.after_ms + 86_400_000), message_id=_PROBE)
        (result,) = self.sender.send_many(name, [probe])
        return endpoint if result.error is None else None


@dataclass
class Staging:
    """An endpoint's wheel, as a task's sender sees its store: the objects of one attempt, which do not count
    before the batch is decided."""

    wheel: Wheel
    run: Run
    attempt: str
    write: Callable[[Callable[[], object]], None]

    soonest_seconds, stored_at_once = 0, None

    def __post_init__(self) -> None:
        self._gathered: list[pa.Table] = []
        self._slots: dict[layout.Slot, list[pa.Table]] = {}
        self._objects = 0
        self._last_ms = 0

    def too_large(self, _: StoredMessage) -> bool:
        return False

    def store(self, messages: Sequence[StoredMessage]) -> list[bool]:
        """Stage messages."""
        if found := [m for m in messages if m.message_id != _PROBE]:
            lines = pa.array([layout.line_of(m).text + b"\n" for m in found], pa.large_binary())
            self.add(pa.array([m.due_ms for m in found], pa.int64()), lines)
        return [True] * len(messages)

    def add(self, dues: pa.Int64Array, lines: pa.LargeBinaryArray) -> None:
        """Stage messages: due times (epoch milliseconds), and lines as they lie in objects, with their line
        breaks."""
        self._gathered.append(pa.table({"due": dues, "line": lines}))
        if _bytes(self._gathered) >= GATHERED_BYTES:
            self._cut()
            self._write_full()

    def end(self) -> int:
        """Write the rest; the latest due time, 0 where nothing was staged. Raises StoreUnavailable."""
        self._cut()
        for slot in sorted(self._slots):
            self._write(slot)
        return self._last_ms

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
            slot = self.wheel.hierarchy.slot(ordered[start], self.run.began_ms)
            end = bisect_left(ordered, slot.end_ms, start)
            self._slots.setdefault(slot, []).append(_copied(rows, start, end))
            start = end

    def _write_full(self) -> None:
        """Write what fills objects; then the largest slots, where too much is kept."""
        for slot, pieces in list(self._slots.items()):
            if sum(piece.num_rows for piece in pieces) >= layout.MAX_OBJECT_MESSAGES:
                self._write(slot, keep_rest=True)
        sizes = {slot: _bytes(pieces) for slot, pieces in self._slots.items()}
        kept = sum(sizes.values())
        most = KEPT_BYTES // 2 if kept > KEPT_BYTES else kept
        for slot in sorted(sizes, key=lambda slot: sizes[slot], reverse=True):
            if kept > most:
                kept -= sizes[slot]
                self._write(slot)

    def _write(self, slot: layout.Slot, *, keep_rest: bool = False) -> None:
        """Begin to write objects of a slot; ``keep_rest``: what does not fill one waits for more."""
        rows = pa.concat_tables(self._slots.pop(slot)).sort_by("due").combine_chunks()
        dues, lines = rows["due"], rows["line"].chunk(0)
        for start, end in _portions(lines):
            if keep_rest and end == len(lines) and end - start < layout.MAX_OBJECT_MESSAGES:
                self._slots[slot] = [_copied(rows, start, end)]
                return
            part = f"{self.attempt}.{self._objects}"
            self._objects += 1
            text = _joined(lines, start, end)
            between = dues[start].as_py(), dues[end - 1].as_py()
            name = layout.ObjectName(slot, *between, end - start, text.size, part, self.run.batch)
            self.write(partial(self._put, self.wheel.key(name), text))

    def _put(self, key: str, text: pa.Buffer) -> None:
        self.wheel.bucket.put(key, zlib.compress(text, _LEVEL, _GZIP))


def _read(job: Job, part: int, parts: int) -> tuple[str, SentBefore]:
    """A digest of the earlier runs of a job, and what they have stored of a task's share."""
    known, ids, contents = job.stored(part, parts)
    return known, SentBefore.of(pa.array(ids, pa.int64()), pa.array(contents, pa.int64()))


_read_once = lru_cache(maxsize=1)(_read)


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
        end = max(start + 1, bisect_left(ends, before + layout.MAX_OBJECT_BYTES + 1, start))
        end = min(end, start + layout.MAX_OBJECT_MESSAGES, len(lines))
        yield start, end
        start = end


def _joined(lines: pa.LargeBinaryArray, start: int, end: int) -> pa.Buffer:
    """The bytes of these lines."""
    portion = pa.LargeListArray.from_arrays(pa.array([start, end], pa.int64()), lines)
    return pc.binary_join(portion, pa.scalar(b"", pa.large_binary()))[0].as_buffer()
