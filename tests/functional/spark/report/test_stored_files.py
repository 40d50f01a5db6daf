"""docs/s3-store.md: what DuckDB and Spark count when they read an S3 store's files as they are."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import pytest

from sqsdelay.core.message import new_message_id
from sqsdelay.core.stored_message import StoredMessage
from sqsdelay.stores import S3Store
from sqsdelay.stores.s3.layout import line_of, new_batch
from sqsdelay.testing import ManualClock
from tests.services.in_memory_s3 import InMemoryS3

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

GUIDE = (Path(__file__).parents[4] / "docs/s3-store.md").read_text()
BUCKET = "s3://my-bucket"
DAY_MS = 86_400_000


class Files:
    """A store whose objects are written to a folder, for engines that read files."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.clock = ManualClock()
        self.s3 = InMemoryS3()
        client: Any = self.s3
        self.store = S3Store(
            "my-bucket", endpoint="orders", prefix="delays", client=client, clock=self.clock
        )

    def message(self, days: int) -> StoredMessage:
        due_ms = self.clock.now_ms() + days * DAY_MS
        return StoredMessage(
            message_id=new_message_id(due_ms), destination="orders", due_ms=due_ms, body=b"x"
        )

    def written(self) -> None:
        for key, content in self.s3.objects.items():
            path = self.folder / key
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)

    def day(self, days: int) -> str:
        return f"{datetime.fromtimestamp(self.clock.now_ms() / 1000 + days * 86_400, UTC):%Y-%m-%d}"


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


def by_duckdb(files: Files) -> dict[str, int]:
    (query,) = re.findall(r"```\n(SELECT .*?)```", GUIDE, re.DOTALL)
    rows = duckdb.execute(query.replace(BUCKET, str(files.folder))).fetchall()
    return {f"{day}": count for day, count in rows}


def by_spark(spark: SparkSession, files: Files) -> int:
    (read,) = re.findall(r"`spark\.read(\.schema\(.*?\)\.json\(.*?\))`", GUIDE)
    rows = eval(f"spark.read{read}".replace(BUCKET, str(files.folder)), {"spark": spark})
    assert rows.where("message_id IS NULL OR due_ms IS NULL OR body IS NULL").count() == 0
    return int(rows.count())


def test_lines_are_counted_as_the_page_says(spark: SparkSession, files: Files) -> None:
    """What waits; and each kind of line that no message waits behind, or the same one twice."""
    store = files.store
    plain = [files.message(40) for _ in range(4)]
    store.store(plain)
    files.written()
    assert by_duckdb(files) == {files.day(40): 4}
    assert by_spark(spark, files) == store.pending_count() == 4

    assert store.cancel([plain[0].message_id]) == [True]
    moved_ms = files.clock.now_ms() + 80 * DAY_MS
    assert store.reschedule(plain[1].message_id, moved_ms)
    store.store([plain[2]])  # Once more, as a worker that was killed before its deletes.
    staged = [files.message(50)]
    wheel = store._wheel
    batch = new_batch(staged[0].due_ms, files.clock.now_ms())
    slot = wheel.hierarchy.slot(staged[0].due_ms, files.clock.now_ms())
    wheel.put(slot, [line_of(each) for each in staged], batch=batch)
    files.written()
    assert by_duckdb(files) == {files.day(40): 5, files.day(80): 1, files.day(50): 1}
    assert by_spark(spark, files) == 7
    assert store.pending_count() == 4
    assert len(store.pending(10)) == 3
