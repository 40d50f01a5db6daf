"""The part of a task's rows that goes into an S3 store's wheels, staged there until the job commits.

Rows that are plain are staged column by column; others go through the sender, one by one, whose store
is the place that stages them. Whether a row is due far enough ahead is decided by an instant that the
driver fixes: all attempts on a row decide alike. Lines are gathered by slot, and put as objects of one batch.
"""

from __future__ import annotations

import gzip
from array import array
from bisect import bisect_left
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cache, partial
from itertools import count
from typing import Final, cast

import pyarrow as pa
import pyarrow.compute as pc

from sqsdelay.core.delay import due_at_ms, utc
from sqsdelay.core.endpoint import Endpoint
from sqsdelay.core.message import Message, Route
from sqsdelay.core.stored_message import StoredMessage
from sqsdelay.errors import SqsDelayError
from sqsdelay.parking.parking import ParkingSettings
from sqsdelay.ports.queues import Queues
from sqsdelay.ports.stores import ParkingPlace
from sqsdelay.sending.router import SenderSettings
from sqsdelay.sending.sender import QueueSender
from sqsdelay.sending.sizes import SizeLimits
from sqsdelay.spark.sink.receipts import Before, Mark, ReceiptsWriter, noted
from sqsdelay.spark.sink.rows import Rows, lines_of, marks_of, plain_rows
from sqsdelay.spark.sink.run import Counts, Run, Staged, insist
from sqsdelay.spark.sink.stored_job import Job
from sqsdelay.stores.s3 import layout
from sqsdelay.stores.s3.bucket import ObjectBucket
from sqsdelay.stores.s3.wheel import Wheel, portions

GATHERED_BYTES: Final = 32 * 2**20
"""Of lines, before they are cut into slots, and those that fill objects are written."""

KEPT_BYTES: Final = 64 * 2**20
"""Of lines that wait for more of their slot; then the largest are written as they are."""

_IN_FLIGHT: Final = 4
"""Objects that are compressed and written at a time, on threads: neither needs the interpreter."""

_LEVEL: Final = 3
"""gzip's: 2.5 % more bytes than its default, in 40 % of the time."""


class Objects:
    """What one attempt writes into an S3 store: lines, gathered by endpoint and slot, as objects that do not
    count before their batch is decided."""

    def __init__(self, run: Run, attempt: str, retry_seconds: int) -> None:
        self._run = run
        self._attempt = attempt
        self._retry_seconds = retry_seconds
        self._slots: dict[tuple[Wheel, layout.Slot], list[pa.Table]] = {}
        self._gathered: dict[Wheel, list[pa.Table]] = {}
        self._gathered_bytes = 0
        self._numbers = count()
        self._pool = ThreadPoolExecutor(_IN_FLIGHT, thread_name_prefix="staging")
        self._writing = deque[Future[object]]()
        self.endpoints: dict[str, None] = {}
        self.last_ms = 0

    def add(self, wheel: Wheel, dues: pa.Int64Array, lines: pa.LargeBinaryArray) -> None:
        """Gather messages of an endpoint: due times (epoch milliseconds), and lines as they lie in objects,
        with their line breaks."""
        rows = pa.table({"due": dues, "line": lines})
        self.endpoints[wheel.batches.endpoint] = None
        self._gathered.setdefault(wheel, []).append(rows)
        self._gathered_bytes += rows.nbytes
        if self._gathered_bytes >= GATHERED_BYTES:
            self._make_room()

    def end(self) -> None:
        """Write the rest. Raises StoreUnavailable."""
        self._cut()
        for place in list(self._slots):
            self._write(place)
        self._finish(0)

    def give_up(self) -> None:
        """Write nothing more."""
        self._pool.shutdown(cancel_futures=True)

    def _cut(self) -> None:
        """Cut what was gathered into slots, spans of due times. A row that is a piece of its own takes ten
        times its bytes: the more rows are cut at a time, the fewer are alone."""
        for wheel, pieces in self._gathered.items():
            rows = pa.concat_tables(pieces).sort_by("due").combine_chunks()
            ordered, start = array("q", rows["due"].to_pylist()), 0
            self.last_ms = max(self.last_ms, ordered[-1])
            while start < len(ordered):
                slot = wheel.hierarchy.slot(ordered[start], self._run.began_ms)
                end = bisect_left(ordered, slot.end_ms, start)
                self._slots.setdefault((wheel, slot), []).append(_copied(rows, start, end))
                start = end
        self._gathered, self._gathered_bytes = {}, 0

    def _make_room(self) -> None:
        """Write what fills objects; then the largest slots, where too much is kept."""
        self._cut()
        for place, pieces in list(self._slots.items()):
            if sum(piece.num_rows for piece in pieces) >= layout.MAX_OBJECT_MESSAGES:
                self._write(place, keep_rest=True)
        sizes = {at: sum(each.nbytes for each in pieces) for at, pieces in self._slots.items()}
        kept = sum(sizes.values())
        for place in sorted(sizes, key=sizes.__getitem__, reverse=True):
            if kept > KEPT_BYTES:
                kept -= sizes[place]
                self._write(place)

    def _write(self, place: tuple[Wheel, layout.Slot], *, keep_rest: bool = False) -> None:
        """Begin to write objects of a slot; ``keep_rest``: what does not fill one waits for more."""
        wheel, slot = place
        rows = pa.concat_tables(self._slots.pop(place)).sort_by("due").combine_chunks()
        dues, lines = rows["due"], rows["line"].chunk(0)
        sizes = pc.binary_length(lines).to_pylist()
        most = layout.MAX_OBJECT_BYTES, layout.MAX_OBJECT_MESSAGES
        for few in portions(range(len(lines)), sizes.__getitem__, *most):
            start, end = few[0], few[-1] + 1
            if keep_rest and end == len(lines) and end - start < layout.MAX_OBJECT_MESSAGES:
                self._slots[place] = [_copied(rows, start, end)]
                return
            part = f"{self._attempt}.{next(self._numbers)}"
            portion = pa.LargeListArray.from_arrays(pa.array([start, end], pa.int64()), lines)
            text = pc.binary_join(portion, pa.scalar(b"", pa.large_binary()))[0].as_buffer()
            between = dues[start].as_py(), dues[end - 1].as_py()
            name = layout.ObjectName(slot, *between, end - start, text.size, part, self._run.batch)
            put = partial(_put, wheel.bucket, wheel.key(name), text)
            self._writing.append(self._pool.submit(insist, put, self._retry_seconds))
            self._finish(_IN_FLIGHT)

    def _finish(self, most: int) -> None:
        """Wait until no more than so many objects are being written."""
        while len(self._writing) > most:
            # One that failed stays: its lines are nowhere, the task has to fail.
            self._writing[0].result()
            self._writing.popleft()


def _put(bucket: ObjectBucket, key: str, text: pa.Buffer) -> None:
    bucket.put(key, gzip.compress(text, _LEVEL, mtime=0))


def _copied(rows: pa.Table, start: int, end: int) -> pa.Table:
    """Some of the rows: a slice would keep the whole in memory."""
    return rows.take(pa.array(range(start, end), pa.int64()))


@dataclass(frozen=True)
class Place:
    """An endpoint's wheel, as a task's sender sees its store."""

    wheel: Wheel
    objects: Objects

    soonest_seconds, stored_at_once = 0, None

    def too_large(self, _: StoredMessage) -> bool:
        return False

    def store(self, messages: Sequence[StoredMessage]) -> list[bool]:
        lines = pa.array([layout.line_of(m).text + b"\n" for m in messages], pa.large_binary())
        self.objects.add(self.wheel, pa.array([m.due_ms for m in messages], pa.int64()), lines)
        return [True] * len(messages)


@dataclass
class Bulk:
    """What a task stages, of what earlier runs have not sent or stored ``before``. ``queues`` are asked about
    endpoints. With a ledger in the ``settings`` rows are staged one by one, as those of a replay."""

    rows: Rows
    job: Job
    queues: Queues
    attempt: str
    receipts: ReceiptsWriter | None = None
    settings: SenderSettings = field(default_factory=SenderSettings)
    before: Before = field(default_factory=Before)

    def __post_init__(self) -> None:
        options = self.rows.options
        # A replay compares each row with the receipts.
        self._quick = self.settings.ledger is None and options.replay is None
        self._limits = SizeLimits(self.queues)
        # An endpoint has one for the whole task: gathered is what has the same wheel.
        self.place = cache(lambda name: Place(self.job.wheel(name), self.objects))
        self.objects = Objects(self.job.run, self.attempt, options.retry_seconds)
        self._ids, self._contents = array("q"), array("q")
        self._plain_endpoint = cache(self._looked_at)
        parking = ParkingSettings(lambda name: cast(ParkingPlace, self.place(name)), 0)
        self.sender = QueueSender(self.queues, replace(self.settings, parking=parking))

    def is_far(self, message: Message) -> bool:
        """Whether a message is to be staged."""
        return message.due_at is not None and due_at_ms(message.due_at) > self.job.run.after_ms

    def note(self, ids: Sequence[int], contents: Sequence[int]) -> None:
        """Keep the marks of what is staged."""
        self._ids.extend(ids)
        self._contents.extend(contents)

    def take(self, chunk: pa.RecordBatch, seen: dict[int, int], counts: Counts) -> list[int]:
        """Stage what is plain; the positions of the rows that are left."""
        every = range(chunk.num_rows)
        if not self._quick or (plain := plain_rows(self.rows, chunk)) is None:
            return list(every)
        done = list[int]()
        for name in pc.unique(plain["endpoints"]).to_pylist():
            here = plain.filter(pc.equal(plain["endpoints"], name))
            done += self._stage(name, here, seen, counts)
        return sorted(set(every).difference(done))

    def _stage(
        self, name: str, plain: pa.RecordBatch, seen: dict[int, int], counts: Counts
    ) -> list[int]:
        """Stage rows to one endpoint, by its name in them; the positions of those that are done with."""
        if (endpoint := self._plain_endpoint(name)) is None or not plain.num_rows:
            return []
        limit = self._limits.of(endpoint.queue, size=pc.max(plain["sizes"]).as_py())
        plain = plain.filter(pc.less_equal(plain["sizes"], limit))
        ids, contents = marks_of(plain, self.rows.since_ms)
        sent = self.before.contents(ids)
        # What repeats an id, or is another than was sent, is looked at one by one.
        done = [
            n
            for n, (each, content) in enumerate(zip(ids, contents, strict=True))
            if sent[n] in (None, content) and noted(seen, each, content) is None
        ]
        new = [n for n in done if sent[n] is None]
        counts.already_sent += len(done) - len(new)
        if new:
            some = pa.array(new, pa.int64())
            lines = lines_of(plain, endpoint.address).take(some)
            self.objects.add(self.place(endpoint.name).wheel, plain["dues"].take(some), lines)
            self.note([ids[n] for n in new], [contents[n] for n in new])
            counts.routes[str(Route.STORE)] += len(new)
        if self.receipts is not None:
            texts, dues = plain["ids"].to_pylist(), plain["dues"].to_pylist()
            for n in done:
                if self.before.sent.content(ids[n]) is None:
                    mark = Mark(ids[n], contents[n])
                    self.receipts.add(name, texts[n], utc(dues[n]), str(Route.STORE), mark)
            self.receipts.flush()
        positions: list[int] = plain["positions"].to_pylist()
        return [positions[n] for n in done]

    def close(self) -> Staged | None:
        """Write all that is staged; what the driver is told, None where that is nothing. Raises
        StoreUnavailable."""
        if self.receipts is not None:
            self.receipts.close()
        self.objects.end()
        if not self.objects.endpoints:
            return None
        endpoint, *others = self.objects.endpoints
        marks = self._ids.tobytes() + self._contents.tobytes()
        leave = partial(self.job.leave, self.attempt, marks, others)
        insist(leave, self.rows.options.retry_seconds)
        told = self.objects.last_ms, self.before.known, endpoint, bool(others)
        return Staged(self.job.run, self.attempt, *told)

    def _looked_at(self, name: str) -> Endpoint | None:
        """The endpoint, if it is one whose rows can be staged without a closer look at each."""
        probe = Message("x", due_at=utc(self.job.run.after_ms + 86_400_000), message_id="x")
        try:
            self.sender.preview(name, probe)
        except SqsDelayError:
            return None
        endpoint = Endpoint.parse(name)
        return None if endpoint.fifo else endpoint
