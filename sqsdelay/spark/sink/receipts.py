"""Ids: which a task came across, and which a job has sent, kept in files so that the job, run again, goes on
where it was killed.

``<receipts>/<job>/_job.json`` holds the instant that the job's ``delay_seconds`` count from; beside it are
Parquet files of what SQS or the store has taken, in a folder for each task, so that a task of another run
lists and reads its share only. A file that is cut off counts as none: its rows are sent again, with the same
ids and due times.
"""

from __future__ import annotations

import json
import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime
from hashlib import blake2b
from itertools import chain
from math import gcd
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import fs

from sqsdelay.errors import ConfigurationError
from sqsdelay.spark.session import file_name
from sqsdelay.spark.sink.options import Options
from sqsdelay.spark.sink.run import AT_A_TIME, JOB_VERSION, Attempt, AttemptFiles, check_version

_TRACKED: Final = 1 << 19
"""Ids a task remembers, about 50 MB: the first that it came across."""


class Mark(NamedTuple):
    """A message's id and its content, as numbers of 64 bits with a sign. Two rows with one id and one content
    are copies; with another content one of them is wrong."""

    message_id: int
    content: int


def number(text: bytes) -> int:
    """64 bits of its BLAKE2b hash, with a sign."""
    return int.from_bytes(blake2b(text, digest_size=8).digest(), signed=True)


def noted(seen: dict[int, int], message_id: int, content: int) -> int | None:
    """The content that came with this id before; None if it is the first. ``seen`` are the contents of the
    ids that one task came across, as many as it can remember. Nobody else is told."""
    before = seen.get(message_id)
    if before is None and len(seen) < _TRACKED:
        seen[message_id] = content
    return before


_FLUSH_SECONDS: Final = 1.0
"""A task that is killed sends again what it sent since the last file, at most."""

_SCHEMA: Final = pa.schema(
    {
        "message_id": pa.string(),
        "endpoint": pa.string(),
        "route": pa.string(),
        "due_at": pa.timestamp("ms", "UTC"),
        "id_mark": pa.int64(),
        "content_mark": pa.int64(),
    }
)
_MARKS: Final = ["id_mark", "content_mark"]


@dataclass(frozen=True)
class SentBefore:
    """The marks of messages that were taken, by id."""

    ids: Sequence[int] = ()
    contents: Sequence[int] = ()

    @classmethod
    def of(cls, ids: pa.Int64Array, contents: pa.Int64Array) -> SentBefore:
        """Of marks in any order: 16 bytes are kept of each."""
        order = pc.sort_indices(ids)
        sorted_ = (column.take(order).buffers()[1] or b"" for column in (ids, contents))
        return cls(*(memoryview(each)[: 8 * len(ids)].cast("q") for each in sorted_))

    def content(self, message_id: int) -> int | None:
        """The content that was sent under this id; None if none was."""
        place = bisect_left(self.ids, message_id)
        found = place < len(self.ids) and self.ids[place] == message_id
        return self.contents[place] if found else None


@dataclass(kw_only=True)
class Before:
    """What earlier runs of a job have ``sent``, by their receipts, and ``stored``, by the job's record in an
    S3 store; a digest of the runs that were ``known`` there; and of a replay, what the job has sent."""

    sent: SentBefore = field(default_factory=SentBefore)
    stored: SentBefore = field(default_factory=SentBefore)
    known: str = ""
    original: SentBefore = field(default_factory=SentBefore)

    def contents(self, ids: Sequence[int]) -> list[int | None]:
        """The contents that came under these ids; None where none did."""
        if not (self.sent.ids or self.stored.ids):
            return [None] * len(ids)
        found = ((self.stored.content(each), self.sent.content(each)) for each in ids)
        return [sent if stored is None else stored for stored, sent in found]


def job_folder(folder: str, job: str) -> str:
    """Where the receipts of a job are in the folder of all."""
    return f"{folder.rstrip('/')}/{file_name(job)}"


class Receipts(AttemptFiles):
    """The receipts of one job, or of one micro-batch or replay (by its beginning, epoch milliseconds) of
    it. Raises ConfigurationError."""

    def __init__(
        self, folder: str, job: str, *, batch: int | None = None, replay: int | None = None
    ) -> None:
        super().__init__(folder, "receipts")
        self.root = job_folder(self.root, job)
        self._stop = f"{self.root}/_stop"
        if batch is not None:
            self.root += f"/batch={batch}"
        if replay is not None:
            self.root += f"/replay={replay}"

    @classmethod
    def of(cls, options: Options) -> Receipts:
        folder, job = str(options.receipts), str(options.job)
        return cls(folder, job, batch=options.batch, replay=options.replay)

    def stop(self) -> None:
        """Tell the job's tasks to note what they have sent, and to send nothing more; raises OSError."""
        self.system.open_output_stream(self._stop).close()

    def stopped(self) -> bool:
        return bool(self.system.get_file_info(self._stop).type is not fs.FileType.NotFound)

    def kept_start_ms(self, now_ms: int | None = None) -> int | None:
        """The instant that the job's first run left here; None if the job never ran with receipts. A run that
        begins tells the time: it is left where there is none, and what was stopped may go on. Raises
        ConfigurationError where it cannot be read or written, SchemaMismatch where another sqsdelay has left
        it."""
        path = f"{self.root}/_job.json"
        try:
            if now_ms is not None and self.stopped():
                self.system.delete_file(self._stop)
            if self.system.get_file_info(path).type is not fs.FileType.NotFound:
                with self.system.open_input_stream(path) as stream:
                    found = json.loads(stream.read())
                check_version(found.get("version"), path)
                return int(found["delay_start_ms"])
            if now_ms is not None:
                self.system.create_dir(self.root)
                with self.system.open_output_stream(path) as stream:
                    told = {"version": JOB_VERSION, "delay_start_ms": now_ms}
                    stream.write(json.dumps(told).encode() + b"\n")
            return now_ms
        except (OSError, ValueError, LookupError, AttributeError) as error:
            raise ConfigurationError(
                f"the job's instant cannot be kept in {path} ({error}); give option receipts "
                "a folder that can be written, or delete that file if it is damaged"
            ) from error

    def load(self, part: int = 0, parts: int = 1) -> SentBefore:
        """All that is recorded, or what task ``part`` may need of it where rows are shared out among
        ``parts``."""
        folders = list[str]()
        for run in self._listed(self.root):
            name, _, number = run.base_name.partition("=")
            if name == "parts":
                common = gcd(int(number), parts)
                shares = range(part % common, int(number), common)
                folders += [f"{run.path}/part={each}" for each in shares]
        with ThreadPoolExecutor(AT_A_TIME) as pool:
            found = chain(*pool.map(self._listed, folders))
            files = [each.path for each in found if each.base_name.startswith("part-")]
            tables = [table for table in pool.map(self._read, files) if table is not None]
        if not tables:
            return SentBefore()
        rows = pa.concat_tables(tables).combine_chunks()
        return SentBefore.of(*(rows.column(name).combine_chunks() for name in _MARKS))

    def writer(self, attempt: Attempt, parts: int = 1, *more: Any) -> ReceiptsWriter:
        """A writer of one attempt on a task. Its rows, shared out among ``parts``, may be any task's where
        there is one part."""
        return ReceiptsWriter(self.system, self._part(attempt, parts), *more)

    def staging(self, attempt: Attempt) -> ReceiptsWriter:
        """A writer of an attempt whose rows are staged: they count when the driver commits it."""
        return ReceiptsWriter(self.system, self.hidden(attempt))

    def publish(self, attempts: Iterable[Attempt], parts: int = 1) -> None:
        """Let what these attempts have staged count."""
        self.move({self.hidden(each): self._part(each, parts, "-staged") for each in attempts})

    def _part(self, attempt: Attempt, parts: int, staged: str = "") -> str:
        folder = f"{self.root}/parts={parts}/part={attempt.partition % parts}"
        number = f"{attempt.partition:05d}-{attempt.began_ms}{attempt.task_id}"
        return f"{folder}/part-{attempt.write_id}-{number}{staged}.parquet"

    def _listed(self, folder: str) -> list[fs.FileInfo]:
        return list(self.system.get_file_info(fs.FileSelector(folder, allow_not_found=True)))

    def _read(self, path: str) -> pa.Table | None:
        """None where it is gone by now, or was cut off. What else keeps it from being read is an error:
        rows would be sent again."""
        try:
            with self.system.open_input_file(path) as file:
                content = file.read_buffer()
        except FileNotFoundError:
            return None
        try:
            return pq.read_table(pa.BufferReader(content), columns=_MARKS)
        except (OSError, pa.ArrowException):
            return None


@dataclass
class ReceiptsWriter:
    """Records what one attempt on a task sent: a file a second, and a single one at its end."""

    _system: fs.FileSystem
    _path: str
    _monotonic: Callable[[], float] = time.monotonic
    wrote: bool = False

    def __post_init__(self) -> None:
        self._flushed_at = self._monotonic()
        self._rows: list[tuple[Any, ...]] = []
        self._pieces: list[str] = []

    def add(
        self, endpoint: str, message_id: str | None, due_at: datetime | None, route: str, mark: Mark
    ) -> None:
        self._rows.append((message_id, endpoint, route, due_at, *mark))

    def flush(self, *, after_seconds: float = _FLUSH_SECONDS) -> None:
        """Write what was noted, if so many seconds have passed since the last time."""
        if self._rows and self._monotonic() - self._flushed_at >= after_seconds:
            piece = f"{self._path.removesuffix('.parquet')}-{len(self._pieces):05d}.parquet"
            self._write(self._noted(), piece)
            self._pieces.append(piece)
            self._rows, self._flushed_at = [], self._monotonic()

    def close(self) -> None:
        """Write the rest, and make one file of all."""
        if self._pieces:
            # Before others are read: what was sent counts, even if that fails.
            self.flush(after_seconds=0)
        tables = [pq.read_table(piece, filesystem=self._system) for piece in self._pieces]
        if self._rows:
            tables = [self._noted()]
        if tables:
            self._write(pa.concat_tables(tables), self._path)
        for piece in self._pieces:
            self._system.delete_file(piece)
        self._rows, self._pieces = [], []

    def _noted(self) -> pa.Table:
        columns = zip(*self._rows, strict=True)
        arrays = [pa.array(c, f.type) for c, f in zip(columns, _SCHEMA, strict=True)]
        return pa.table(arrays, schema=_SCHEMA)

    def _write(self, table: pa.Table, path: str) -> None:
        sink = pa.BufferOutputStream()
        pq.write_table(table, sink)
        if not self.wrote:
            self._system.create_dir(path.rpartition("/")[0])
        with self._system.open_output_stream(path) as stream:
            stream.write(sink.getvalue())
        self.wrote = True
