"""One write of rows: what its driver and its tasks do, however Spark comes to call them.

Spark starts a new Python to begin a write and another to commit it, while all cores wait. So what sends is
imported where it is needed: a commit is spared boto3, pyarrow and the sender.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from sqsdelay.core.endpoint import Endpoint
from sqsdelay.core.message import Route
from sqsdelay.errors import InvalidSetting, NotAllSent
from sqsdelay.spark.locations import opened
from sqsdelay.spark.sink.options import Columns, Options
from sqsdelay.spark.sink.run import (
    Attempt,
    Counts,
    Run,
    Staged,
    TaskReport,
    counted,
    planned_ms,
    run_of,
    total,
    write_summary,
)

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

    from sqsdelay.spark.sink.receipts import Receipts

Reports = Sequence[TaskReport | None]


@dataclass(frozen=True, kw_only=True)
class Times:
    """The instants of a job, epoch milliseconds: what ``delay_seconds`` count from, and its beginning."""

    delay_start_ms: int
    began_ms: int
    run: Run | None = None
    """Of a job that stages rows in an S3 store."""


@dataclass(frozen=True, kw_only=True)
class Sink:
    """What batches and streams have in common."""

    options: Options
    columns: Columns

    def begin(self) -> Times:
        """Find out, on the driver, that the job can be run; the times that it has. Raises
        ConfigurationError, QueueMissing, QueueUnavailable, InvalidEndpoint."""
        from sqsdelay.spark.sink.worker import sender_client

        options = self.options
        if options.rejects is not None:
            RejectsFolder(options.rejects).create()
        if options.summary is not None:
            opened(options.summary, "summary")
        now_ms = planned_ms(options, sender_client(options))
        run = run_of(options, now_ms)
        if options.store is not None and options.endpoint is not None and not options.plan:
            from sqsdelay.spark.sink.worker import check_store

            check_store(options, Endpoint.parse(options.endpoint).name, staging=run is not None)
        start_ms = now_ms
        if options.receipts is not None:
            receipts = _receipts(options.receipts, str(options.job), batch=options.batch)
            kept_ms = receipts.kept_start_ms() if options.plan else receipts.delay_start_ms(now_ms)
            start_ms = now_ms if kept_ms is None else kept_ms
        return Times(delay_start_ms=start_ms, began_ms=now_ms, run=run)

    def send(self, batches: Iterable[pa.RecordBatch], attempt: Attempt, times: Times) -> TaskReport:
        """Send a task's rows, and keep those that cannot be in a file of this attempt."""
        from sqsdelay.spark.sink.rows import Rows
        from sqsdelay.spark.sink.worker import pace, task_of

        attempt = replace(attempt, began_ms=times.began_ms)
        rows = Rows(
            columns=self.columns,
            options=self.options,
            delay_start_ms=times.delay_start_ms,
            refused_before_ms=times.began_ms if self.options.past_due == "reject" else None,
        )
        task, before = task_of(rows, attempt, times.began_ms, times.run), pace().refusals
        part = self._keep(task.send(batches), attempt)
        task.counts.throttled = pace().refusals - before
        staged = attempt.file_name if times.run and self.options.receipts else None
        return TaskReport(attempt.write_id, task.counts.reported(), part, task.staged, staged)

    def _keep(self, rejected: Iterator[pa.RecordBatch], attempt: Attempt) -> str | None:
        first = next(rejected, None)
        if first is None or self.options.rejects is None:
            for _ in rejected:
                pass
            return None
        folder = RejectsFolder(self.options.rejects)
        part = folder.part(attempt.write_id, attempt.partition, attempt.task_id)
        with folder.open(part, first.schema) as file:
            file.write_batch(first)
            for batch in rejected:
                file.write_batch(batch)
        return part

    def commit(self, reports: Reports, summary: str | None) -> None:
        """Keep the rejects and the counts. Raises NotAllSent."""
        options, counts, done = self.options, total(reports), [r for r in reports if r is not None]
        if staged := _staged(reports):
            from sqsdelay.spark.sink.stored_job import published

            if already := published(staged, options):
                counts.routes[str(Route.STORE)] -= already
                counts.already_sent += already
        if names := {report.receipts for report in done if report.receipts is not None}:
            of = {"batch": options.batch, "replay": options.replay}
            _receipts(str(options.receipts), str(options.job), **of).publish(names)
        lost = counts.rejected and options.rejects is None and not options.plan
        if summary is not None:
            write_summary(summary, reports, committed=not lost, told=self.told(counts))
        if lost:
            again = "all rows" if options.receipts is None else "none of the others"
            raise NotAllSent(
                f"{counts.rejected} of {counts.sent + counts.rejected} rows could not be sent, the "
                f"others were: {counts.why()}. Correct them, or give option rejects (a folder) to "
                f"keep them; run again, the job sends {again} again, with the same message ids"
            )
        if options.rejects is not None:
            parts = [report.part for report in done if report.part is not None]
            RejectsFolder(options.rejects).commit(parts, [report.write_id for report in done])

    def told(self, counts: Counts) -> dict[str, Any]:
        """The counts as JSON has them, and of a plan what it comes to."""
        if not self.options.plan:
            return counted(counts)
        from sqsdelay.spark.estimate import plan_of

        return counted(counts) | {"plan": plan_of(counts, self.options)}

    def abort(self, reports: Reports, write_ids: Iterable[str], summary: str | None) -> None:
        """Drop the rejects of a write that failed and what it staged, and say what its finished tasks
        sent."""
        if staged := _staged(reports):
            from sqsdelay.spark.sink.stored_job import given_up

            given_up(staged, self.options)
        if summary is not None:
            write_summary(summary, reports, committed=False, told=self.told(total(reports)))
        if self.options.rejects is not None:
            RejectsFolder(self.options.rejects).drop(write_ids)


def _staged(reports: Reports) -> list[Staged]:
    return [part for report in reports if report is not None for part in report.staged]


def _receipts(folder: str, job: str, **of: int | None) -> Receipts:
    from sqsdelay.spark.sink.receipts import Receipts

    return Receipts(folder, job, **of)


_STAGING: Final = "_staging-"
_AT_A_TIME: Final = 16
"""Files that are moved at a time: of a store of objects each takes some requests."""


class RejectsFolder:
    """Rows that cannot be sent, as Parquet files with the reason. Each attempt on a task writes one of its
    own under a hidden folder; only those of attempts that Spark committed are moved out of it."""

    def __init__(self, path: str) -> None:
        self._fs, self._root = opened(path, "rejects")

    def create(self) -> None:
        """Make the folder; raises ConfigurationError if that cannot be done."""
        try:
            self._fs.create_dir(self._root)
        except OSError as error:
            raise InvalidSetting(f"option rejects={self._root!r}: {error}") from error

    def part(self, write_id: str, partition: int, attempt: int) -> str:
        """Where one attempt on one task writes its file, below the folder."""
        return f"{_STAGING}{write_id}/{partition:05d}-{attempt}.parquet"

    def open(self, part: str, schema: pa.Schema) -> pq.ParquetWriter:
        """Begin a part; close it when the task is done."""
        import pyarrow.parquet as pq

        path = f"{self._root}/{part}"
        self._fs.create_dir(path.rpartition("/")[0])
        return pq.ParquetWriter(path, schema, filesystem=self._fs)

    def commit(self, parts: Iterable[str], write_ids: Iterable[str]) -> None:
        """Make the parts visible, and drop what other attempts left: a write that is run again need not
        have the same tasks."""
        from pyarrow import fs

        at, kept = self._root, {_committed(part): part for part in parts}
        with ThreadPoolExecutor(_AT_A_TIME) as pool:
            list(pool.map(lambda name: self._fs.move(f"{at}/{kept[name]}", f"{at}/{name}"), kept))
        ids = set(write_ids)
        for info in self._fs.get_file_info(fs.FileSelector(self._root, allow_not_found=True)):
            if info.base_name not in kept and _write_of(info.base_name) in ids:
                self._fs.delete_file(info.path)
        self.drop(ids)

    def drop(self, write_ids: Iterable[str]) -> None:
        """Delete all that is not committed."""
        from pyarrow import fs

        for write_id in set(write_ids):
            # Spark's readers pass over a name that starts with '_'.
            staging = f"{self._root}/{_STAGING}{write_id}"
            if self._fs.get_file_info(staging).type is not fs.FileType.NotFound:
                self._fs.delete_dir(staging)


def _committed(part: str) -> str:
    """The name of an attempt's file once it is committed."""
    write_id, _, file = part.removeprefix(_STAGING).rpartition("/")
    return f"part-{write_id}-{file.partition('-')[0]}.parquet"


def _write_of(name: str) -> str:
    """The write that a part belongs to, by its name."""
    return name.removeprefix("part-").rpartition("-")[0]
