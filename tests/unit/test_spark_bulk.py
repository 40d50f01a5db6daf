"""What a task stages: by slot, in due order, in objects that are neither small nor too large."""

from __future__ import annotations

import gzip
import json
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any
from unittest.mock import DEFAULT, Mock

import pyarrow as pa
import pytest
from pyspark.sql.types import StructType

from sqsdelay.core.delay import utc
from sqsdelay.core.endpoint import QueueRef
from sqsdelay.core.message import Message
from sqsdelay.errors import StoreUnavailable
from sqsdelay.spark.sink import staging
from sqsdelay.spark.sink.data_source import SqsDelayDataSource
from sqsdelay.spark.sink.receipts import Mark, Receipts, SentBefore
from sqsdelay.spark.sink.run import Attempt, Counts, TaskReport
from sqsdelay.stores.s3.layout import parse
from tests.patience import PATIENCE_SECONDS
from tests.services.in_memory_s3 import InMemoryS3
from tests.unit.staging_driver import ATTEMPT, DAY, Driver, table


def test_endpoints_and_routes_of_all_kinds() -> None:
    """FIFO and standard, by name and by URL, in one task; what is a reject leaves its id to other rows."""
    driver = Driver("orders", "bills.fifo")
    url = driver.queues.url(QueueRef("orders"))
    rows = [
        ("a", DAY, "1", None, None),
        ("b", DAY, "2", url, None),
        ("c", DAY, "3", "bills.fifo", "g"),
        ("d", DAY, "4", "no queue", None),
        ("", DAY, "5", "bills.fifo", "g"),
        ("e", DAY, "5", "bills.fifo", "g"),
        ("f", 0, "4", None, None),
        ("a", DAY, "1", None, None),
        ("other", DAY, "1", None, None),
    ]
    task = driver.task([table(rows)])
    driver.publish(task)
    assert sorted(m.message_id for m in driver.pending()) == ["1", "2"]
    fifo = driver.pending("bills.fifo")
    assert sorted((m.message_id, m.group_id) for m in fifo) == [("3", "g"), ("5", "g")]
    assert [row["message_id"] for row in driver.rejected] == ["4", "5", "1"]
    assert (task.counts.sent, task.counts.repeated, task.counts.rejected) == (5, 2, 3)


def test_a_row_that_its_queue_would_not_take_is_rejected() -> None:
    """Alone in its task or not; the others are staged."""
    driver = Driver()
    driver.queues.create_queue("orders", MaximumMessageSize="2048")
    driver.queues.create_endpoint("orders")
    large, small = ("x" * 4000, DAY, "1", None, None), ("x", DAY, "2", None, None)
    for rows in ([large], [small, large]):
        driver.publish(driver.task([table(rows)]))
        assert [row["message_id"] for row in driver.rejected] == ["1"]
    assert [m.message_id for m in driver.pending()] == ["2"]


def stage(receipts: Receipts, attempt: Attempt) -> Attempt:
    """Note a message, marked 5."""
    staged = receipts.staging(attempt)
    staged.add("orders", "1", None, "store", Mark(5, 5))
    staged.close()
    return attempt


def test_receipts_count_once_the_job_is_committed(tmp_path: Path) -> None:
    """Of rows staged in either way, marked as those that are sent; what another attempt noted is gone."""
    receipts = Receipts(str(tmp_path), "j")
    rows = [("a", DAY, "1", None, None), ("b", DAY, "2", None, "g")]
    stage(receipts, Attempt("w", 0, 0, 3))
    driver = Driver("orders")
    driver.publish(driver.task([table(rows)], receipts))
    assert not receipts.load().ids
    receipts.publish([ATTEMPT])
    receipts.drop(["w"])
    due_at = utc(driver.clock.now_ms() + DAY * 1000)
    sent = [Message(b, due_at=due_at, message_id=n, message_group_id=g) for b, _, n, _, g in rows]
    marks = dict(driver.bulk().rows.mark("orders", message) for message in sent)
    assert dict(zip(receipts.load().ids, receipts.load().contents, strict=True)) == marks
    assert not list((tmp_path / "j").rglob("_*"))
    driver.begin("renamed")
    again = driver.task([table(rows)], receipts)
    assert (again.counts.sent, again.counts.already_sent, again.staged) == (0, 2, None)


def test_a_micro_batchs_staged_receipts_count(tmp_path: Path) -> None:
    """A stream's options do not name it: what its tasks staged is published where they staged it."""
    options = {"endpoint": "orders", "job": "j", "store": "s3://bucket", "receipts": str(tmp_path)}
    source = SqsDelayDataSource(options)
    schema = StructType().add("body", "string").add("due_at", "timestamp")
    schema.add("message_id", "string")
    receipts = Receipts(str(tmp_path), "j", batch=3)
    report = TaskReport(stage(receipts, ATTEMPT), Counts(), receipts=True)
    source.streamWriter(schema, False).commit([report], 3)
    assert receipts.load().content(5) == 5
    with pytest.raises(FileNotFoundError, match="00000-7"):  # Of tasks on another disk.
        source.streamWriter(schema, False).commit([report], 3)


def test_receipts_of_many_tasks_are_published_side_by_side(tmp_path: Path) -> None:
    """To a store of objects each task's folder is some requests, as its file is."""
    receipts = Receipts(str(tmp_path), "j")
    attempts = [stage(receipts, Attempt("w", part)) for part in range(4)]
    together = threading.Barrier(len(attempts))
    mocked = Mock(wraps=receipts.system)
    mocked.create_dir.side_effect = lambda _: (together.wait(PATIENCE_SECONDS), DEFAULT)[1]
    receipts.system = mocked
    receipts.publish(attempts, len(attempts))
    assert len(list((tmp_path / "j").rglob("part-w-*-staged.parquet"))) == len(attempts)


def shared(rows: int, parts: int) -> list[list[pa.RecordBatch]]:
    """What Spark makes of rows: each in the task of the remainder of its hash."""
    given = [("a", DAY, f"m{n}", None, None) for n in range(rows)]
    return [[table(given[part::parts])] for part in range(parts)]


@pytest.mark.parametrize(("first", "second"), [(8, 8), (4, 16), (16, 4)])
def test_a_job_run_again_reads_each_mark_once(
    first: int, second: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Requests grow with the number of tasks, and a task holds the ids of its share: run with as many, with
    more and with fewer tasks, and twice, so that there are marks of two runs."""
    driver = Driver("orders")
    asked, held = list[str](), list[int]()

    def run_again(rows: int, parts: int) -> tuple[int, int]:
        driver.begin("j")
        each = enumerate(shared(rows, parts))
        tasks = [driver.task(batches, part=n, parts=parts) for n, batches in each]
        driver.publish(*tasks)
        return sum(t.counts.sent for t in tasks), sum(t.counts.already_sent for t in tasks)

    assert run_again(800, first) == (800, 0)
    assert run_again(960, first) == (160, 800)
    get, of = driver.s3.get_object, SentBefore.of

    def got(**where: str) -> dict[str, Any]:
        asked.append(where["Key"])
        return get(**where)

    def kept(ids: pa.Int64Array, contents: pa.Int64Array) -> SentBefore:
        held.append(len(ids))
        return of(ids, contents)

    monkeypatch.setattr(driver.s3, "get_object", got)
    monkeypatch.setattr(SentBefore, "of", kept)
    assert run_again(1000, second) == (40, 960)
    marks = [key for key in asked if key.endswith(".marks")]
    assert len(marks) == 2 * max(first, second)
    assert len(asked) <= 8 * max(first, second)
    assert max(held) == 960 // min(first, second)
    assert len(driver.pending()) == 1000


def test_rows_in_any_order_read_all_marks_once_in_a_process() -> None:
    """As those of format("sqsdelay") come, which nobody has shared out; and a wheel is opened once."""
    driver = Driver("orders")
    bucket = driver.bucket()
    driver.bucket = lambda *_: bucket  # type: ignore[method-assign]
    driver.publish(driver.task([table([("a", DAY, "1", None, None)])]))
    driver.begin("j")
    before = driver.s3.requests["GetObject"]
    rows = [table([("a", DAY, "1", None, None), ("b", DAY, "2", None, None)])]
    counts = [driver.task(rows, part=part).counts.already_sent for part in range(5)]
    assert counts == [1] * 5
    assert driver.s3.requests["GetObject"] - before == 2  # record, marks
    assert driver.s3.requests["ListObjectsV2"] == 1


def test_objects_are_full_and_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of all slots in any order, more than are kept in memory: objects of one slot each."""
    monkeypatch.setattr(staging, "GATHERED_BYTES", 200_000)
    monkeypatch.setattr(staging, "KEPT_BYTES", 400_000)
    monkeypatch.setattr("sqsdelay.stores.s3.layout.MAX_OBJECT_MESSAGES", 500)
    driver = Driver("orders")
    rows = [
        (json.dumps({"n": n}), DAY // 2 + (n * 7_919_777) % (300 * DAY), f"m{n}", None, None)
        for n in range(9_000)
    ]
    batches = [table(rows[start : start + 1000]) for start in range(0, len(rows), 1000)]
    driver.publish(driver.task(batches))
    assert {m.message_id for m in driver.pending()} == {f"m{n}" for n in range(9_000)}
    keys = [key for key in driver.s3.objects if key.endswith(".gz")]
    assert len(keys) < 120
    for key in keys:
        name, _ = parse(key.removeprefix("orders/v1/")) or pytest.fail("no name")
        lines = gzip.decompress(driver.s3.objects[key]).splitlines()
        dues = [json.loads(line)["due_ms"] for line in lines]
        assert dues == sorted(dues)
        assert (dues[0], dues[-1], len(dues)) == (name.first_ms, name.last_ms, name.count)
        assert name.slot.start_ms <= dues[0] <= dues[-1] < name.slot.end_ms
        assert len(dues) <= 500


def test_endpoints_share_one_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many a task has rows for: what is gathered of all of them is as much as of one. Rows that come
    one by one are few pieces: a row alone takes ten times its bytes."""
    monkeypatch.setattr(staging, "GATHERED_BYTES", 20_000)
    monkeypatch.setattr(staging, "KEPT_BYTES", 40_000)
    driver = Driver()
    objects, dues = driver.bulk().objects, pa.array([driver.clock.now_ms() + DAY * 1000])
    wheels = [driver.wheel(f"orders-{n}") for n in range(50)]
    for n in range(500):
        objects.add(wheels[n // 10], dues, pa.array([b"x" * 1000], pa.large_binary()))
        kept = [piece.nbytes for pieces in objects._slots.values() for piece in pieces]
        assert sum(kept) + objects._gathered_bytes <= 40_000 + 2 * 20_000
        assert len(kept) < 10
    objects.end()
    assert len(driver.s3.objects) == 50


def test_an_object_that_s3_does_not_take_fails_the_task() -> None:
    """Spark tries it again; nothing is committed."""
    driver = Driver("orders")
    driver.s3 = InMemoryS3(around=lambda name, call: _refused() if name == "PutObject" else call())
    with pytest.raises(StoreUnavailable, match="slow"):
        driver.task([table([("a", DAY, "1", None, None)])])


def test_an_object_not_taken_fails_the_task_at_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Though S3 takes all others, and the sender tries rows again: the lines of that one are nowhere."""
    monkeypatch.setattr(staging, "GATHERED_BYTES", 0)
    monkeypatch.setattr(staging, "KEPT_BYTES", 0)
    monkeypatch.setattr(staging, "_IN_FLIGHT", 1)
    driver, fails = Driver("orders"), iter([_refused])
    driver.s3 = driver.around(lambda name, do: next(fails, do)() if name == "PutObject" else do())
    objects, wheel = driver.bulk().objects, driver.wheel("orders")
    for n in range(1, 7):
        dues, lines = [driver.clock.now_ms() + n * DAY * 1000], pa.array([b""], pa.large_binary())
        with suppress(StoreUnavailable):
            objects.add(wheel, pa.array(dues), lines)
    with pytest.raises(StoreUnavailable, match="slow"):
        objects.end()


def _refused() -> Any:
    raise StoreUnavailable("slow down")
