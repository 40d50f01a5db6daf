"""What several attempts and runs of a job have staged counts once, whatever breaks."""

from __future__ import annotations

import pickle
import threading
import tracemalloc
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from botocore.exceptions import ClientError

from sqsdelay.errors import InvalidSetting, SchemaMismatch, StoreError, StoreUnavailable
from sqsdelay.spark.sink import stored_job
from sqsdelay.spark.sink.job import Sink
from sqsdelay.spark.sink.options import Columns, Options
from sqsdelay.spark.sink.run import JOB_SECONDS, Attempt, TaskReport
from sqsdelay.stores.s3.layout import new_batch, parse
from tests.messages import a_message
from tests.patience import PATIENCE_SECONDS
from tests.unit.staging_driver import DAY, Driver, table


def rows(*ids: str) -> list[pa.RecordBatch]:
    """Due in a week."""
    return [table([("x", 7 * DAY, name, None, None) for name in ids])]


@pytest.fixture
def driver() -> Driver:
    return Driver("orders", "bills")


def pending(driver: Driver) -> list[str]:
    return [each.message_id for each in driver.pending()]


def ran(driver: Driver, batches: list[pa.RecordBatch], job: str | None = "j") -> None:
    """Begin to end, once."""
    driver.begin(job)
    driver.publish(driver.task(batches))


def staged(driver: Driver) -> list[str]:
    """Objects in the store, whether they count or not."""
    return [key for key in driver.s3.objects if "/v1/" in key]


def released(driver: Driver, endpoint: str = "orders") -> list[str]:
    """What a dispatcher gets in a fortnight."""
    driver.clock.advance(14 * DAY)
    store, found = driver.store(endpoint), list[str]()
    while True:
        with store.claim(100, due_by_ms=driver.clock.now_ms()) as claim:
            ids = [each.message_id for each in claim.messages]
            claim.remove(ids)
        if not ids:
            return sorted(found)
        found += ids


def test_only_what_the_committed_attempts_staged_counts(driver: Driver) -> None:
    """A retried task and a speculative one have written twice; before the commit nothing counts."""
    first = driver.task(rows("1", "2"))
    driver.task(rows("1", "2"), attempt=3)
    second = driver.task(rows("3"), part=1)
    assert pending(driver) == []
    driver.publish(first, second)
    assert pending(driver) == ["1", "2", "3"]
    assert released(driver) == ["1", "2", "3"]
    assert staged(driver) == []


@pytest.mark.parametrize("damage", ["{", '{"runs": {"B": {}}}', "version 2"])
def test_a_record_that_cannot_be_read_holds_up_no_other_message(
    driver: Driver, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Cut off, or another sqsdelay's: what the job has stored is skipped and kept until it is back."""
    ran(driver, rows("1"))
    key, record = next(each for each in driver.s3.objects.items() if each[0].endswith("json"))
    other = record.replace(b'1, "attempts": [', b'2, "attempts": {"0": 0}, "were": [')
    text = damage.replace("B", driver.run.batch).encode()
    driver.s3.objects[key] = other if damage == "version 2" else text
    driver.store().store([a_message("2", driver.clock.now_ms() + DAY)])
    assert pending(driver) == ["2"]
    assert "is skipped" in caplog.text
    told = "restore it; delete it only below ids/|another sqsdelay has"
    with pytest.raises(StoreError, match=told):
        driver.job().record()
    driver.clock.advance(2 * DAY)
    with driver.store().claim(1, due_by_ms=0):  # It sweeps.
        pass
    assert key in driver.s3.objects
    driver.s3.objects[key] = record
    assert sorted(pending(driver)) == ["1", "2"]


def test_a_job_run_again_knows_what_it_has_stored(driver: Driver) -> None:
    """And stores the rest, though another process runs it."""
    for ids in (("1", "2"), ("1", "2", "3")):
        ran(driver, rows(*ids))
    assert released(driver) == ["1", "2", "3"]


def test_other_jobs_do_not_know(driver: Driver) -> None:
    """A job of another name, and one without a name, store the same ids again."""
    for name in ("j", "k", None, None):
        ran(driver, rows("1"), name)
    assert driver.store().pending_count() == 4


def test_two_dozen_runs_at_once_with_one_name(driver: Driver) -> None:
    """Two each with the same messages: one run's count, the others are told to begin anew, and store what is
    missing then."""
    ids, told, tasks = [f"m{n % 12:02}" for n in range(24)], list[str](), []
    for each in ids:
        driver.begin("j")
        tasks.append(driver.task(rows("all", each)))
    together = threading.Barrier(len(tasks))

    def publish(task: Any) -> None:
        together.wait(PATIENCE_SECONDS)
        try:
            stored_job.published([task.staged], Options(store="s3://parked", retry_seconds=0))
        except StoreUnavailable as error:
            told.append(str(error))

    with pytest.MonkeyPatch.context() as patch, ThreadPoolExecutor(len(tasks)) as pool:
        patch.setattr(stored_job, "bucket_of", driver.bucket)
        list(pool.map(publish, tasks))
    assert ["at the same time; none of this run's" in each for each in told] == [True] * 23
    assert len(pending(driver)) == 2
    for each in ids:
        ran(driver, rows("all", each))
    assert released(driver) == ["all", *ids[:12]]


def test_a_job_that_took_too_long_is_told(driver: Driver) -> None:
    """What others have given up and deleted cannot be committed."""
    task = driver.task(rows("1"))
    driver.clock.advance(JOB_SECONDS - 60)
    assert pending(driver) == []
    assert staged(driver)
    driver.clock.advance(120)
    assert pending(driver) == []
    assert staged(driver) == []
    with pytest.raises(StoreUnavailable, match="run it again"):
        driver.publish(task)


def test_a_commit_at_the_last_moment_counts_for_all(driver: Driver) -> None:
    """It comes between what a reader finds, no decision, and what he writes, that the job is given up."""
    task = driver.task(rows("1"))
    driver.clock.advance(JOB_SECONDS + 60)
    commits = iter([driver.publish])

    def late(name: str, call: Callable[[], Any]) -> Any:
        if name == "PutObject" and (publish := next(commits, None)) is not None:
            publish(task)
        return call()

    found = driver.store(s3=driver.around(late)).pending(10)
    assert [each.message_id for each in found] == pending(driver) == ["1"]


def test_what_a_failed_job_has_staged_goes(driver: Driver) -> None:
    """At once, that of attempts too which its driver was told nothing of; another run's stays. Spark may have
    it given up twice."""
    task, _ = (driver.task(TWO, attempt=attempt) for attempt in (1, 2))
    assert [driver.give_up(task) for _ in range(2)] == [True, True]
    left = {key.partition("~")[2] for key in driver.s3.objects}
    assert left == {"", "0x1.others.marks", "0x2.others.marks"}
    driver.begin("j")
    again = driver.task(rows("1"))
    driver.publish(again)
    assert (driver.give_up(task), driver.give_up(again)) == (True, False)
    assert pending(driver) == ["1"]


def test_what_does_not_count_hides_nothing_behind_it(driver: Driver) -> None:
    """An attempt's leftovers in the first slot, a year of committed messages behind it: a dispatcher that
    sweeps finds only the former, and forgets no decision."""
    wheel, task = driver.wheel("orders"), driver.task(rows("1"))
    (key,) = staged(driver)
    name, _ = parse(key.removeprefix("orders/v1/")) or pytest.fail("no name")
    tomorrow_ms = driver.clock.now_ms() + DAY * 1000
    left = replace(name, slot=wheel.hierarchy.slot(tomorrow_ms, 0), part="0x2.0")
    wheel.bucket.put(wheel.key(left), b"")
    driver.publish(task)
    driver.clock.advance(3 * DAY)
    with driver.store().claim(1, due_by_ms=driver.clock.now_ms()):
        pass
    assert released(driver) == ["1"]


def swept(driver: Driver, *endpoints: str) -> list[str]:
    """What is left when their dispatchers have swept for some days."""
    for _ in range(3):
        driver.clock.advance(2 * DAY)
        for endpoint in endpoints:
            with driver.store(endpoint).claim(1, due_by_ms=driver.clock.now_ms()):
                pass
    return list(driver.s3.objects)


@pytest.mark.parametrize("job", ["j", None])
def test_a_job_is_forgotten_when_nothing_of_it_waits(driver: Driver, job: str | None) -> None:
    """A day after its last message was due; what one endpoint still holds counts, however long nobody has
    looked there. What a run left that was never decided goes, too."""
    ran(driver, TWO, job)
    driver.begin(job)
    driver.task(rows("2"))
    assert released(driver) == SIX[::2]
    assert [key for key in swept(driver, "orders") if key.endswith("record.json")]
    assert released(driver, "bills") == SIX[1::2]
    assert swept(driver, "orders", "bills") == []


def test_a_sweep_goes_on_while_there_is_time(driver: Driver) -> None:
    """However much many large jobs, and many small batches, have left: all that is old goes, in one sweep."""
    for n in range(30):
        driver.begin(f"j{n}")
        job = driver.job()
        for part in range(100):
            job.leave(f"{part}x1", b"", [])
    last_ms = driver.clock.now_ms() + 1000
    for _ in range(3_000):
        driver.s3.objects[f"orders/decided/{new_batch(last_ms, last_ms - 1000)}"] = b"{}"
    driver.clock.advance(2 * DAY)
    with driver.store().claim(1, due_by_ms=driver.clock.now_ms()):
        pass
    assert list(driver.s3.objects) == []


@pytest.mark.parametrize("step", range(3))
def test_a_driver_that_stood_still_for_days_publishes_nothing(driver: Driver, step: int) -> None:
    """At any step of its commit: what it has staged was given up, deleted, and that is forgotten by now."""
    task, calls, alive = driver.task(rows("1")), iter(range(step + 1)), driver.s3

    def still(_: str, call: Callable[[], Any]) -> Any:
        if next(calls, None) == step:
            assert swept(driver, "orders") == []
        return call()

    driver.s3 = driver.around(still)
    with pytest.raises(StoreUnavailable, match="was given up; none of its messages"):
        driver.publish(task)
    driver.s3 = alive
    ran(driver, rows("1"))
    assert pending(driver) == ["1"]


def test_a_commit_while_a_job_is_forgotten(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    """It keeps the record, and the marks of all runs in it."""
    delete, more = driver.s3.delete_object, iter([rows("1")])

    def late(**given: Any) -> Any:
        for batches in more if given["Key"].endswith("record.json") else ():
            ran(driver, batches)
        return delete(**given)

    monkeypatch.setattr(driver.s3, "delete_object", late)
    ran(driver, TWO)
    assert released(driver) + released(driver, "bills") == SIX[::2] + SIX[1::2]
    ran(driver, rows("1", "2"))
    assert pending(driver) == ["1", "2"]


def test_what_cannot_be_read_counts_when_it_is_restored(driver: Driver) -> None:
    """That its job has committed is not forgotten, though the others of that time have left."""
    ran(driver, rows("1"))
    ran(driver, [table([("x", 10 * DAY + DAY // 2, "2", None, None)])], "k")
    key, store = min(staged(driver)), driver.store()
    found, driver.s3.objects[key] = driver.s3.objects[key], b"x"
    driver.clock.advance(7 * DAY + 100)
    for _ in range(11):
        with suppress(StoreUnavailable), store.claim(1, due_by_ms=driver.clock.now_ms()):
            pass
        driver.clock.advance(DAY / 3)
    driver.s3.objects[key] = found
    assert pending(driver) == ["1", "2"]


def test_another_versions_job_is_refused(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    """In one line, before a task begins, though rows name their endpoints: its marks are not known."""
    driver.publish(driver.task(rows("1")))
    record, found = next(each for each in driver.s3.objects.items() if each[0].endswith("json"))
    driver.begin("j")
    told = "another sqsdelay has run this job: "
    monkeypatch.setattr(stored_job, "bucket_of", driver.bucket)
    options = Options(store="s3://parked", job="j", retry_seconds=0, region="us-east-1")
    sink = Sink(options=options, columns=Columns(names=frozenset()))
    driver.s3.objects[record] = found.replace(b'"version": 1', b'"version": 2')
    for refused in (sink.begin, lambda: driver.task(rows("2"))):
        with pytest.raises(SchemaMismatch, match=f"{told}.*has version 2, .*name another job"):
            refused()


def refused(
    driver: Driver, monkeypatch: pytest.MonkeyPatch, times: int, *, written: bool = False
) -> None:
    """S3 refuses so many writes, or does them without an answer."""
    refusals, put = iter(range(times)), driver.s3.put_object

    def refusing(**given: Any) -> Any:
        if next(refusals, None) is None:
            return put(**given)
        if written:
            put(**given)
        raise ClientError({"Error": {"Code": "SlowDown"}}, "PutObject")

    monkeypatch.setattr(driver.s3, "put_object", refusing)


def test_a_burst_of_refusals_at_the_end(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    """The record is written again for as long as a task writes its objects again."""
    task, slept = driver.task(rows("1")), list[float]()
    refused(driver, monkeypatch, 20)
    driver.publish(task, slept=slept)
    assert len(slept) == 20
    assert pending(driver) == ["1"]


@pytest.mark.parametrize("tasks", [2_000, pytest.param(20_000, marks=pytest.mark.nightly)])
def test_many_tasks_are_committed(
    driver: Driver, monkeypatch: pytest.MonkeyPatch, tasks: int
) -> None:
    """Their reports and the record fit the smallest driver many times over."""
    task = driver.task(rows("1"))
    assert task.staged is not None
    report = TaskReport(Attempt("w" * 32), task.counts.reported(), staged=task.staged)
    options = Options(store="s3://parked", endpoint="orders", parts=tasks)
    sink = Sink(options=options, columns=Columns(names=frozenset()))
    monkeypatch.setattr(stored_job, "bucket_of", driver.bucket)
    tracemalloc.start()
    try:
        reports = [pickle.loads(pickle.dumps(report)) for _ in range(tasks)]
        for number, each in enumerate(reports[1:], 1):
            each.staged = replace(task.staged, attempt=f"{number}x{number}")
        sink.commit(reports)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < tasks * 6_500
    assert pending(driver) == ["1"]


@pytest.mark.parametrize(
    ("number", "job", "gone"),
    [(1, "renewals-2027", False), (2, "j" * 160, True), (50, None, True)],
)
def test_a_report_is_small_however_many_endpoints(number: int, job: str | None, gone: bool) -> None:
    """The rest is in the store. What the driver cannot read there it does not publish; run again, each
    endpoint has its message once."""
    names = [f"endpoint-{n:02}-" + "x" * 56 for n in range(number)]
    driver = Driver(*names)
    batches = [table([("x", 7 * DAY, name, name, None) for name in names])]
    for fails in (True, False) if gone else (False,):
        driver.begin(job)
        task = driver.task(batches)
        task.counts.count_rejected(StoreUnavailable("x" * 1000))
        attempt = Attempt("w" * 32, 123_456, 3, 10**9, 10**13)
        report = TaskReport(attempt, task.counts.reported(), "x" * 48, task.staged, True)
        assert len(pickle.dumps(report)) < 1024
        if fails:
            (left,) = [key for key in driver.s3.objects if ".others" in key]
            del driver.s3.objects[left]
            with pytest.raises(StoreUnavailable, match="is gone; run the job again"):
                driver.publish(task)
        else:
            driver.publish(task)
        pending = Counter(name for name in names for _ in driver.pending(name))
        assert pending == ({} if fails else dict.fromkeys(names, 1))


SIX = [f"m{n}" for n in range(6)]
ONE, TWO = (
    [table([("x", DAY, name, places[n % 2], None) for n, name in enumerate(SIX)])]
    for places in (("orders", "orders"), ("orders", "bills"))
)


def both(driver: Driver) -> list[str]:
    return sorted(m.message_id for name in ("orders", "bills") for m in driver.pending(name))


@pytest.mark.parametrize("job", ["j", None])
@pytest.mark.parametrize("written", [False, True])
def test_one_decision_for_all_endpoints(
    driver: Driver, job: str | None, written: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever S3 refuses, or does without an answer: both endpoints hold their messages or neither does, and
    a run again without a name stores each once."""
    driver.begin(job)
    task = driver.task(TWO)
    with monkeypatch.context() as patch:
        refused(driver, patch, 1000, written=written)
        if written:
            driver.publish(task, slept=[])
        else:
            with pytest.raises(StoreUnavailable):
                driver.publish(task)
    if not written:
        assert both(driver) == []
        ran(driver, TWO, job)
    assert both(driver) == SIX
    driver.clock.advance(2 * DAY)
    assert both(driver) == SIX


@pytest.mark.parametrize("batches", [ONE, TWO], ids=["one", "two"])
@pytest.mark.parametrize("step", range(5))
@pytest.mark.parametrize("answered", [False, True])
def test_killed_at_any_step_of_a_commit(
    driver: Driver, batches: list[pa.RecordBatch], step: int, answered: bool
) -> None:
    """And run again under its name, a day later: each message is there once."""
    task = driver.task(batches)
    calls = iter(range(1000))

    def dying(_: str, call: Callable[[], Any]) -> Any:
        now = next(calls)
        if now >= step and not (answered and now == step):
            raise KeyboardInterrupt
        done = call()
        if now == step:
            raise KeyboardInterrupt
        return done

    alive = driver.s3
    driver.s3 = driver.around(dying)
    with suppress(KeyboardInterrupt):
        driver.publish(task)
    driver.s3 = alive
    assert both(driver) in ([], SIX)
    driver.clock.advance(2 * DAY)
    assert both(driver) in ([], SIX)
    ran(driver, batches)
    assert both(driver) == SIX


@pytest.mark.parametrize("url", ["s3://", "s3://[x", "s3://UPPER/x", "s3://bucket/x#y"])
def test_an_url_that_names_no_bucket_is_refused(url: str) -> None:
    """Before S3 is asked for it, a minute long."""
    with pytest.raises(InvalidSetting, match=r"the store's URL.* is not valid; give"):
        _ = Options(store=url).stages
