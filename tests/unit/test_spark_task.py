"""A task of the Spark sink under throttling: slow is no failure, and what was taken is not sent again."""

from __future__ import annotations

import errno
import gc
import heapq
import pickle
import tracemalloc
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sqsdelay.core.message import OutgoingMessage
from sqsdelay.errors import ConfigurationError, QueueUnavailable, SchemaMismatch, StoreUnavailable
from sqsdelay.ports.queues import Failure, SendReceipt
from sqsdelay.sending.router import SenderSettings
from sqsdelay.sending.sender import QueueSender
from sqsdelay.spark.sink import worker
from sqsdelay.spark.sink.data_source import BatchWriter
from sqsdelay.spark.sink.job import Sink
from sqsdelay.spark.sink.options import Columns, Options
from sqsdelay.spark.sink.receipts import Before, Mark, Receipts, SentBefore, noted
from sqsdelay.spark.sink.rows import Rows
from sqsdelay.spark.sink.run import Attempt, Run, TaskReport
from sqsdelay.spark.sink.task import Task
from sqsdelay.spark.sink.worker import CallPace, pace, sent_before, task_of
from sqsdelay.testing import InMemoryQueues, ManualClock
from tests.services.s3_server import running_s3

ROWS = 300


class ThrottlingQueues(InMemoryQueues):
    """Takes one batch call, then refuses until so many seconds have passed."""

    seconds_a_call = 40.0
    taken: Counter[str]
    free_at = 0.0

    def send_batch(
        self, queue_url: str, entries: Sequence[OutgoingMessage]
    ) -> list[SendReceipt | Failure]:
        now = self.clock.monotonic()
        if now < self.free_at:
            error = QueueUnavailable("RequestThrottled")
            return [Failure("RequestThrottled", error, transient=True)] * len(entries)
        self.free_at = now + self.seconds_a_call
        self.taken.update(entry.group_id or "" for entry in entries)
        return super().send_batch(queue_url, entries)


def one_task(clock: ManualClock, queues: InMemoryQueues | None = None, **more: Any) -> Task:
    queues = queues or InMemoryQueues(clock)
    queues.create_endpoint("orders")
    columns = Columns(names=frozenset({"body", "delay_seconds", "message_id"}))
    rows = Rows(columns, Options(endpoint="orders"), Run(began_ms=0, delay_start_ms=clock.now_ms()))
    sender = QueueSender(queues, SenderSettings(concurrency=1))
    return Task(rows=rows, sender=sender, clock=clock, sleep=clock.advance, **more)


def of_ids(ids: list[str], bodies: list[str]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(
        {"body": bodies, "delay_seconds": [86_400] * len(ids), "message_id": ids}
    )


def table() -> pa.RecordBatch:
    return of_ids([f"m{row}" for row in range(ROWS)], ["x"] * ROWS)


def test_a_slow_service_is_no_outage() -> None:
    """Thirty calls at 40 s each take twenty minutes: the limit counts from the last row taken."""
    clock = ManualClock()
    queues = ThrottlingQueues(clock)
    queues.taken = Counter()
    task = one_task(clock, queues)
    assert list(task.send([table()])) == []
    assert queues.taken == {f"m{row}": 1 for row in range(ROWS)}
    assert task.counts.sent == ROWS


def test_a_service_that_takes_nothing_fails_the_task() -> None:
    """After retry_seconds without a single row taken, with the number of rows that are left."""
    clock = ManualClock()
    queues = ThrottlingQueues(clock)
    queues.taken = Counter()
    queues.seconds_a_call = 10_000.0
    task = one_task(clock, queues)
    with pytest.raises(QueueUnavailable, match=r"290 rows for orders .* 60 s .* none was"):
        list(task.send([table()]))
    assert queues.taken == {f"m{row}": 1 for row in range(10)}


def test_a_repeated_id_is_counted_and_another_content_rejected() -> None:
    """A copy would be dropped by SQS or the receiver; another body under one id would be lost."""
    task = one_task(ManualClock())
    (kept,) = task.send([of_ids(["a", "b", "a"], ["x", "y", "x"]), of_ids(["b"], ["other"])])
    assert (task.counts.sent, task.counts.repeated, task.counts.rejected) == (2, 2, 1)
    assert kept.column("body").to_pylist() == ["other"]
    assert "id 'b' came with another body" in kept.column("reason")[0].as_py()


def test_a_process_opens_each_endpoints_store_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before its first row; opened for each chunk, 200 of them took most of a task."""
    opened = Mock()
    monkeypatch.setattr(worker, "open_store", opened)
    for each in (*range(200), *range(200)):
        worker.check_store(Options(store="sqlite:///x.db"), f"orders-{each}")
    assert opened.call_count == 200


def test_a_rate_is_kept(tmp_path: Path) -> None:
    """300 messages at 30 a second: the last begin in the tenth second. Were the job killed now, what it sent
    before the last second stands in its receipts."""
    clock, receipts, noted = ManualClock(), Receipts(str(tmp_path), "job"), list[int]()
    writer = receipts.writer(Attempt("w"), 1, clock.monotonic)
    task = one_task(clock, rate=30.0, slice_rows=30, receipts=writer)

    def sleep(seconds: float) -> None:
        noted.append(len(receipts.load().ids))
        clock.advance(seconds)

    task.sleep, began = sleep, clock.monotonic()
    assert list(task.send([table()])) == []
    assert clock.monotonic() - began == pytest.approx(9, abs=0.1)
    assert noted == [0, *range(60, 300, 30)]


def test_a_job_that_is_run_again_sends_only_the_rest(tmp_path: Path) -> None:
    """What its receipts show is skipped; the same id with another body is not taken for it."""
    clock = ManualClock()
    receipts = Receipts(str(tmp_path), "a/job")
    first = one_task(clock, receipts=receipts.writer(Attempt("w")), slice_rows=10)
    assert list(first.send([of_ids(["a", "b"], ["x", "y"])])) == []
    cut_off = tmp_path / "a%2Fjob/parts=1/part=0/part-w-00001-1.parquet"
    cut_off.write_bytes(b"PAR1 killed")
    second = one_task(clock, before=Before(sent=receipts.load()))
    (kept,) = second.send([of_ids(["a", "b", "c"], ["x", "other", "z"])])
    assert (second.counts.sent, second.counts.already_sent) == (1, 1)
    assert "an earlier run of this job" in kept.column("reason")[0].as_py()
    cut_off.unlink()
    cut_off.mkdir()
    with pytest.raises(OSError, match="is a directory"):
        receipts.load()


def test_a_slow_tasks_receipts_are_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file a second while it runs; a job of hours leaves as many files as tasks. What a folder that is gone
    for a moment did not take comes with the next, and what it does not give back at the end counts."""
    clock, folder, receipts = ManualClock(), tmp_path / "job", Receipts(str(tmp_path), "job")
    writer = receipts.writer(Attempt("w"), 1, clock.monotonic)

    def add(number: int) -> None:
        due_at = datetime(2035, 1, 1, tzinfo=UTC)
        writer.add("orders", "a", due_at, "delay-queue", Mark(number, 7))

    add(3)
    clock.advance(1)
    folder.touch()
    with pytest.raises(NotADirectoryError):
        writer.flush()
    folder.unlink()
    for number in range(3):
        add(number)
        writer.flush()
        clock.advance(1)
        writer.flush()
    add(4)
    with monkeypatch.context() as patch:
        patch.setattr(pq, "read_table", Mock(side_effect=TimeoutError))
        with pytest.raises(TimeoutError):
            writer.close()
    for files in (4, 1):
        assert len(list(folder.rglob("*.parquet"))) == files
        assert [receipts.load().content(number) for number in range(6)] == [7] * 5 + [None]
        writer.close()


@pytest.mark.parametrize(("first", "second"), [(64, 64), (16, 64), (64, 16)])
def test_a_job_run_again_lists_its_share(
    first: int, second: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each task finds what it needs without a look at all others' receipts: of a store of objects a job would
    otherwise list as many as the square of its tasks."""
    receipts = Receipts(str(tmp_path), "job")
    for part in range(first):
        writer = receipts.writer(Attempt("w", part), first)
        writer.add("orders", "a", None, "delay-queue", Mark(part, 7))
        writer.close()
    listed: list[str] = []
    look = Receipts._listed

    def counted(self: Receipts, *where: Any, **how: Any) -> list[Any]:
        found = look(self, *where, **how)
        listed.extend(each.path for each in found)
        return found

    monkeypatch.setattr(Receipts, "_listed", counted)
    found = [set(receipts.load(part, second).ids) for part in range(second)]
    common = min(first, second)
    assert found == [set(range(p % common, first, common)) for p in range(second)]
    assert len(listed) <= 3 * (first + second)


def test_a_job_has_one_instant(tmp_path: Path) -> None:
    """Its delays count from its first run, whenever it is run again; another job's from its own. What another
    version left is refused: its marks mean something else."""
    assert Receipts(str(tmp_path), "job").kept_start_ms(1000) == 1000
    assert Receipts(str(tmp_path), "job").kept_start_ms(9000) == 1000
    assert Receipts(str(tmp_path), "other").kept_start_ms(9000) == 9000
    for text, error, told in (
        ("{", ConfigurationError, "delete that file if it is damaged"),
        ('{"delay_start_ms": 1000}', SchemaMismatch, "another .* no version, .* name another job"),
        ('{"version": 2, "delay_start_ms": 1000}', SchemaMismatch, " has version 2"),
    ):
        (tmp_path / "job" / "_job.json").write_text(text)
        with pytest.raises(error, match=told):
            Receipts(str(tmp_path), "job").kept_start_ms(9000)


def test_a_plan_counts_from_the_jobs_instant(tmp_path: Path) -> None:
    """Of a job that was killed, or stopped by Ctrl-C, it plans the rest: its receipts have the due times of
    the first run. Of one that never ran, it leaves nothing."""
    options = Options(job="job", receipts=str(tmp_path), plan=True, region="us-east-1")
    sink = Sink(options=options, columns=Columns(names=frozenset({"body", "due_at"})))
    assert sink.begin().delay_start_ms > 1000
    assert list(tmp_path.iterdir()) == []
    receipts = Receipts(str(tmp_path), "job")
    receipts.kept_start_ms(1000)
    receipts.stop()
    times = sink.begin()
    assert times.delay_start_ms == 1000
    rows = pa.RecordBatch.from_pydict({"body": [""], "due_at": [datetime(2035, 1, 1, tzinfo=UTC)]})
    assert sink.send([rows], Attempt("w"), times).counts.rejected == 1
    assert receipts.stopped()


def test_no_task_begins_without_a_store_that_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Be it an empty text: not each task, after the job has begun."""
    monkeypatch.setattr("sqsdelay.spark.sink.job.planned_ms", lambda *_: 0)
    options = Options(endpoint="orders", store="", region="us-east-1")
    columns = Columns(names=frozenset({"body", "due_at"}))
    with pytest.raises(ConfigurationError, match="the store's URL is not valid"):
        Sink(options=options, columns=columns).begin()


def test_marks_are_not_copied_while_they_are_read() -> None:
    """A worker that keeps a billion of them has no room for as many again."""
    ids = pa.array(range(100_000), pa.int64())
    tracemalloc.start()
    found = SentBefore.of(ids, ids)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (found.content(99_999), most < 18 * len(ids)) == (99_999, True)


def test_a_micro_batch_that_is_run_again_keeps_and_reads_its_receipts(tmp_path: Path) -> None:
    """Its name is the same, the worker may be, and of a driver that was started again the task's number."""
    options = Options(job="j", batch=7, receipts=str(tmp_path))
    receipts = Receipts.of(options)
    found = []
    for began_ms in (1000, 1000, 2000):
        attempt = Attempt("j-7", began_ms=began_ms)
        found.append(len(sent_before(receipts, None, options, attempt).sent.ids))
        writer = receipts.writer(attempt)
        writer.add("orders", f"m{began_ms}", None, "delay-queue", Mark(began_ms, 7))
        writer.close()
    assert found == [0, 0, 1]
    assert len(receipts.load().ids) == 2


def test_a_task_begins_in_a_burst_of_refusals(monkeypatch: pytest.MonkeyPatch) -> None:
    """It asks S3 again for what the job has stored: failing four times would end hours of staging."""
    error, slept = StoreUnavailable("slow down"), list[float]()
    error.__cause__ = OSError()
    monkeypatch.setattr("time.sleep", slept.append)
    job = Mock(stored=Mock(side_effect=[error] * 5 + [("7", SentBefore())]))
    assert sent_before(None, job, Options(store="s3://bucket"), Attempt("burst")).known == "7"
    assert len(slept) == 5


def test_two_writes_keep_both_rejects(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of one job, as where a micro-batch is sent in two parts; and each once, though it is run again and its
    rows come in another order."""
    number = Mock(return_value=0)
    context = Mock(partitionId=number, attemptNumber=number, taskAttemptId=number)
    monkeypatch.setattr("pyspark.TaskContext.get", lambda: context)
    monkeypatch.setattr("sqsdelay.spark.sink.worker.pace", lambda: CallPace())
    columns = Columns(names=frozenset({"body", "due_at", "message_id"}))
    options = Options(job="j", batch=7, rejects=str(tmp_path), region="us-east-1")
    for bodies in (["a", "A"], ["b"], ["A", "a"], ["b"]):
        dues, ids = [datetime(2035, 1, 1, tzinfo=UTC)] * len(bodies), [""] * len(bodies)
        rows = pa.RecordBatch.from_pydict({"body": bodies, "due_at": dues, "message_id": ids})
        writer = BatchWriter(Sink(options=options, columns=columns))
        writer.commit([writer.write(iter([rows]))])
    assert sorted(pq.read_table(tmp_path)["body"].to_pylist()) == ["A", "a", "b"]


def test_a_task_remembers_its_first_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many as fit its memory: what is among them is noticed when it comes again."""
    monkeypatch.setattr("sqsdelay.spark.sink.receipts._TRACKED", 64)
    seen = dict[int, int]()
    assert {noted(seen, each, each) for each in range(1000)} == {None}
    assert [noted(seen, each, 7) for each in range(1000)] == [*range(64), *[None] * 936]


def test_a_report_is_small_whatever_was_sent() -> None:
    """Spark keeps the reports of all tasks in the driver: 20,000 of them are a few megabytes."""
    task = one_task(ManualClock())
    rows = 17_000
    bodies = ["x"] * rows
    bodies[::1000] = ["\x00" * 100] * len(bodies[::1000])
    ids = [f"m{n}" for n in range(rows)]
    ids[1::1000] = [f"{n}" + "😀" * 1000 for n in range(17)]
    kept = sum(batch.num_rows for batch in task.send([of_ids(ids, bodies)]))
    attempt = Attempt("w" * 200, 123_456, 3, 10**9, 10**13)
    report = TaskReport(attempt, task.counts.reported(), rejects="x" * 250, receipts=True)
    assert kept == task.counts.rejected == 34
    assert len(pickle.dumps(report)) < 1024


LATENCY_SECONDS = 0.02
FASTEST = 450
"""Calls a second that one process makes where nothing holds it up."""


def job(executors: int, each: int, quota: float, calls: int) -> tuple[float, float]:
    """Of executors with so many processes, which share a quota of calls a second, of which one second's is
    saved: the share of their calls that is refused, and how many times as long they take as they must."""
    now, filled_at, tokens, processes = 100.0, 0.0, quota, executors * each
    clock: Any = SimpleNamespace(monotonic=lambda: now)
    paces = [CallPace(clock=clock) for _ in range(executors)]
    left, waits = [calls] * processes, [True] * processes
    events = [(now + process / 100, process, "turn", 0.0) for process in range(processes)]
    while events:
        now, process, what, cut_at = heapq.heappop(events)
        pace = paces[process % executors]
        if what == "turn" or (what == "call" and cut_at != pace.cut_at()):
            heapq.heappush(events, (pace.turn(now), process, "call", pace.cut_at()))
            continue
        if what == "call":
            left[process] -= 1
            waits[process] = False
            tokens, filled_at = min(quota, tokens + (now - filled_at) * quota), now
            if tokens < 1:
                heapq.heappush(events, (now + LATENCY_SECONDS, process, "refused", 0.0))
            else:
                tokens -= 1
        else:
            pace.refused("RequestThrottled")
            left[process] += 1
        if left[process] and not waits[process]:
            waits[process] = True
            again = now + 1 / FASTEST if what == "call" else now
            heapq.heappush(events, (again, process, "turn", 0.0))
    refusals = sum(pace.refusals for pace in paces)
    everything = processes * calls
    return refusals / (refusals + everything), (now - 100) / max(1, (everything - quota) / quota)


@pytest.mark.parametrize(
    ("executors", "each", "quota", "calls"),
    [
        *[(1, 8, 5, 13), (1, 32, 10, 15), (1, 8, 30, 250), (1, 16, 30, 150), (1, 8, 300, 500)],
        *[(2, 4, 10, 25), (2, 4, 30, 250), (2, 8, 300, 1_000)],
    ],
)
def test_few_calls_are_refused_and_the_quota_is_used(
    executors: int, each: int, quota: float, calls: int
) -> None:
    """In jobs of a quarter of a minute and more; what nobody refuses takes half a second more, once."""
    refused, times = job(executors, each, quota, calls)
    assert refused <= 0.03
    assert times <= 1.15
    refused, seconds = job(1, 2, 10_000, 2_000)
    assert refused == 0
    assert seconds < 2_000 / FASTEST + 0.6


def test_calls_come_no_faster_after_a_pause() -> None:
    """Of a stream between micro-batches, where nobody is refused since nobody calls."""
    spans = list[float]()
    for now in (110, 710):
        pace = CallPace(clock=Mock(monotonic=lambda: 100.0))
        pace.turn(100)
        pace.refused("SlowDown")
        spans.append(-pace.turn(now) + [pace.turn(now) for _ in range(99)][-1])
    assert spans[0] == pytest.approx(spans[1])


def test_what_would_fail_later_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a hole of it on a full disk the first call would end the worker by SIGBUS, and where nothing can be
    locked each call by an error: such a process has a pace of its own."""
    CallPace(str(tmp_path / "pace"))
    assert (tmp_path / "pace").stat().st_blocks
    unlockable = OSError(errno.ENOLCK, "No locks available")
    monkeypatch.setattr("fcntl.flock", Mock(side_effect=unlockable))
    monkeypatch.setattr("pyspark.TaskContext.get", Mock())
    monkeypatch.setattr("pyspark.SparkFiles.getRootDirectory", lambda: str(tmp_path))
    assert pace.__wrapped__().turn(7) == 7


def test_the_collector_passes_over_the_client(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its model of SQS is most of what stays for good."""
    options = Options(endpoint="orders", region="us-east-1")
    rows = Rows(Columns(names=frozenset({"body"})), options, Run(began_ms=0, delay_start_ms=0))
    monkeypatch.setattr("sqsdelay.spark.sink.worker._spare_the_collector", gc.freeze)
    try:
        task = task_of(rows, Attempt("w"))
        assert task.sender not in gc.get_objects()
    finally:
        gc.unfreeze()


def test_what_is_throttled_holds_up_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQS limits each queue, S3 each bucket: of two, one may take four calls a second, the other all. Calls
    on one keep the same pace, in all processes of an executor."""
    paces = [CallPace(str(tmp_path / "pace")) for _ in range(2)]
    monkeypatch.setattr(worker, "pace", lambda: paces[0])
    clients = (
        worker._client.__wrapped__(Options()),
        worker._bucket.__wrapped__("s3://parked").client,
    )
    given = ("sqs.SendMessageBatch", "QueueUrl"), ("s3.PutObject", "Bucket")
    for client, (call, name) in zip(clients, given, strict=True):
        event = f"provide-client-params.{call}"
        client.meta.events.emit(event, params={name: "slow"})
        paces[1].about(params={name: "slow"}, event_name=event)
        assert (paces[0].turn(7), paces[1].turn(7)) == (7, 7 + 1 / 42)
        paces[0].about(params={name: "healthy"}, event_name=event)
        assert paces[0].turn(7) == 7


def test_writes_that_s3_refuses_come_at_a_pace(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each attempt of botocore's, too; what S3 answers with SlowDown cuts it."""
    clock = ManualClock()
    pace, began = CallPace(clock=clock), clock.monotonic()
    pace.sleep = clock.advance
    monkeypatch.setattr(worker, "pace", lambda: pace)
    with running_s3() as server:
        monkeypatch.setenv("AWS_ENDPOINT_URL_S3", server.url)
        server.before = Mock(side_effect=[OSError] * 2 + [None] * 40)
        bucket = worker._bucket.__wrapped__("s3://parked")
        for number in range(40):
            bucket.put(f"key-{number}", b"")
        bucket.close()
    assert pace.refusals == 2
    assert clock.monotonic() - began > 41 / 45


def test_processes_of_an_executor_take_turns(tmp_path: Path) -> None:
    """By a file: a cut of one holds up all, and none waits for what a clock before the last start said."""
    clock = ManualClock()
    paces = [CallPace(str(tmp_path / "pace"), clock=clock) for _ in range(3)]
    now = clock.monotonic()
    turns = [pace.turn(now) for pace in paces * 8]
    assert turns == sorted(set(turns))
    paces[0].refused("RequestThrottled")
    assert [pace.refusals for pace in paces] == [1, 0, 0]
    assert paces[2].turn(turns[-1]) - turns[-1] > turns[-1] - turns[-2]
    assert paces[1].turn(now - 10_000) == now - 10_000
    before = paces[1].turn(now - 10_000)
    restarted: Any = SimpleNamespace(monotonic=lambda: before)
    CallPace(str(tmp_path / "pace"), clock=restarted).refused("RequestThrottled")
    assert paces[1].turn(before) - before > before - (now - 10_000)


def test_threads_take_turns_and_other_errors_are_no_refusals() -> None:
    """A thread that waits keeps the others in line, so that a cut holds them up, too."""
    clock, slept = ManualClock(), list[float]()

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        clock.advance(seconds)

    pace = CallPace(clock=clock)
    pace.sleep = sleep
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: pace.wait(), range(8)))
    assert len(slept) >= 7
    assert slept == sorted(slept, reverse=True)
    pace.answered(response=(None, {"Error": {"Code": "AccessDenied"}}))
    pace.answered(response=None)
    assert pace.refusals == 0
    pace.answered(response=(None, {"Error": {"Code": "RequestThrottled"}}))
    pace.wait()
    assert pace.refusals == 1
    assert slept[-1] > slept[-2]
