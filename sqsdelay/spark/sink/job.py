"""One write of rows: what its driver and its tasks do, however Spark comes to call them.

Spark starts a new Python to begin a write and another to commit it, while all cores wait. So what sends is
imported where it is needed: a commit is spared boto3, pyarrow and the sender.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING, Any

from sqsdelay.core.endpoint import Endpoint
from sqsdelay.errors import ConfigurationError, NotAllSent
from sqsdelay.spark.session import file_name, opened
from sqsdelay.spark.sink.options import Columns, Options
from sqsdelay.spark.sink.run import AttemptFiles, Counts, TaskReport, insist, planned_ms, run_of

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

    from sqsdelay.spark.sink.receipts import Receipts
    from sqsdelay.spark.sink.run import Attempt, Run

Reports = Sequence[TaskReport | None]
"""None stands for a task that failed."""


@dataclass(frozen=True, kw_only=True)
class Sink:
    """What batches and streams have in common."""

    options: Options
    columns: Columns
    stream: bool = False
    """A micro-batch that is run again is a write of the same name."""

    def begin(self, *, on_client: bool = False) -> Run:
        """Find out, on the driver, that the job can be run; the run that begins. A client of Spark Connect
        need not reach the store: there the tasks find out. Raises ConfigurationError, QueueMissing,
        QueueUnavailable, InvalidEndpoint."""
        from sqsdelay.spark.sink.receipts import Receipts
        from sqsdelay.spark.sink.stored_job import Job
        from sqsdelay.spark.sink.worker import check_store, sender_client

        options = self.options
        if options.rejects is not None:
            opened(options.rejects, "rejects", make=True)
        if options.summary is not None:
            self._summarise([], Counts(), committed=False)
        run = run_of(options, planned_ms(options, sender_client(options)))
        if options.store is not None and not (options.plan or on_client):
            name = None if options.endpoint is None else Endpoint.parse(options.endpoint).name
            if options.stages:
                job = Job(options.store, run)
                insist(job.record, options.retry_seconds)
                if name is not None:
                    insist(lambda: job.wheel(name), options.retry_seconds)
            elif name is not None:
                check_store(options, name)
        if options.receipts is None:
            return run
        receipts = Receipts.of(replace(options, replay=None))
        kept_ms = receipts.kept_start_ms(None if options.plan else run.began_ms)
        return run if kept_ms is None else replace(run, delay_start_ms=kept_ms)

    def send(self, batches: Iterable[pa.RecordBatch], attempt: Attempt, run: Run) -> TaskReport:
        """Send a task's rows, and keep those that cannot be in a file of this attempt."""
        from sqsdelay.spark.sink.rows import Rows
        from sqsdelay.spark.sink.worker import pace, task_of

        task, before = task_of(Rows(self.columns, self.options, run), attempt), pace().refusals
        kept = self._keep(task.send(batches), attempt)
        task.counts.throttled = pace().refusals - before
        noted = bool(task.bulk and task.bulk.receipts and task.bulk.receipts.wrote)
        return TaskReport(attempt, task.counts.reported(), kept, task.staged, noted)

    def _keep(self, rejected: Iterator[pa.RecordBatch], attempt: Attempt) -> str:
        """Write them; the name that they are to have, empty if there are none."""
        from sqsdelay.spark.sink.receipts import number

        first, options = next(rejected, None), self.options
        if first is None or options.rejects is None:
            deque(rejected, 0)
            return ""
        name, content = attempt.write_id, 0
        with RejectsFolder(options.rejects).open(attempt, first.schema) as file:
            for batch in chain([first], rejected):
                file.write_batch(batch)
                if options.batch is not None and not self.stream:
                    # Sent by foreachBatch, maybe in parts: run again, the same rows are the same file.
                    rows = batch.select(batch.schema.names[:-1]).to_pylist()
                    content += sum(number(repr((options.endpoint, row)).encode()) for row in rows)
                    name = f"{file_name(str(options.job))}-{options.batch}-{content % 2**64:016x}"
        return f"part-{name}-{attempt.partition:05d}.parquet"

    def commit(self, reports: Reports) -> dict[str, Any]:
        """Keep the rejects and the counts, which it returns as JSON has them. Raises NotAllSent."""
        options, counts, done = self.options, total(reports), [r for r in reports if r is not None]
        write_ids = {report.attempt.write_id for report in done}
        if staged := [report.staged for report in done if report.staged]:
            from sqsdelay.spark.sink.stored_job import published

            published(staged, options)
        if receipts := self._staged_receipts():
            receipts.publish([each.attempt for each in done if each.receipts], options.parts)
            receipts.drop(write_ids)
        # Before the summary, which may fail: the other rows are sent, and what Spark aborts is dropped.
        if options.rejects is not None:
            rejected = {report.attempt: report.rejects for report in done if report.rejects}
            RejectsFolder(options.rejects).commit(rejected, write_ids)
        lost = counts.rejected and options.rejects is None and not options.plan
        told = self._summarise(reports, counts, committed=not lost)
        if lost:
            again = "all rows" if options.receipts is None else "none of the others"
            raise NotAllSent(
                f"{counts.rejected} of {counts.sent + counts.rejected} rows could not be sent, the "
                f"others were: {counts.why()}. Correct them, or give option rejects (a folder) to "
                f"keep them; run again, the job sends {again} again, with the same message ids"
            )
        return told

    def abort(self, reports: Reports, write_ids: Iterable[str]) -> None:
        """Drop what a write that failed has rejected and staged; say what its finished tasks sent."""
        options = self.options
        if staged := [each.staged for each in reports if each is not None and each.staged]:
            from sqsdelay.spark.sink.stored_job import given_up

            given_up(staged, options)
        if receipts := self._staged_receipts():
            receipts.drop(write_ids)
        if options.rejects is not None:
            RejectsFolder(options.rejects).drop(write_ids)
        self._summarise(reports, total(reports), committed=False)

    def _staged_receipts(self) -> Receipts | None:
        """Those of the job that count once it is committed."""
        if self.options.receipts is None or not self.options.stages:
            return None
        from sqsdelay.spark.sink.receipts import Receipts

        return Receipts.of(self.options)

    def _summarise(self, reports: Reports, counts: Counts, *, committed: bool) -> dict[str, Any]:
        """The counts, and of a plan what it comes to: left in a JSON file, for Spark commits in a process of
        its own."""
        told = counts.told()
        if self.options.plan:
            from sqsdelay.spark.estimate import plan_of

            told["plan"] = plan_of(counts, self.options)
        if self.options.summary is not None:
            tasks = {"tasks": len(reports), "tasks_failed": list(reports).count(None)}
            text = json.dumps({"committed": committed} | tasks | told, ensure_ascii=False, indent=2)
            system, file = opened(self.options.summary, "summary")
            try:
                system.create_dir(file.rpartition("/")[0])
                with system.open_output_stream(file) as stream:
                    stream.write(text.encode() + b"\n")
            except OSError as error:
                why = f"option summary={file!r}: {error}; give a file that can be written"
                raise ConfigurationError(why) from error
        return told


def total(reports: Reports) -> Counts:
    """All tasks' counts together."""
    counts = Counts()
    for report in reports:
        if report is not None:
            counts.add(report.counts)
    return counts


class RejectsFolder(AttemptFiles):
    """Rows that cannot be sent, as Parquet files with the reason."""

    def open(self, attempt: Attempt, schema: pa.Schema) -> pq.ParquetWriter:
        """Begin an attempt's file; close it when the task is done."""
        import pyarrow.parquet as pq

        path = self.hidden(attempt)
        self.system.create_dir(path.rpartition("/")[0])
        return pq.ParquetWriter(path, schema, filesystem=self.system)

    def commit(self, names: Mapping[Attempt, str], write_ids: Iterable[str]) -> None:
        """Make these attempts' files visible, and drop what others left: a write that is run again need not
        have the same tasks."""
        from pyarrow import fs

        self.move({self.hidden(each): f"{self.root}/{name}" for each, name in names.items()})
        kept = set(names.values())
        ids = {f"part-{each}" for each in write_ids}
        for info in self.system.get_file_info(fs.FileSelector(self.root, allow_not_found=True)):
            if info.base_name not in kept and info.base_name.rpartition("-")[0] in ids:
                self.system.delete_file(info.path)
        self.drop(write_ids)
