"""Rows are read as messages, and sent in pieces that fit into memory."""

from __future__ import annotations

import hashlib
import json
import math
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from sqsdelay.core.limits import MAX_DUE_MS
from sqsdelay.core.message import Message
from sqsdelay.errors import ConfigurationError, SqsDelayError
from sqsdelay.spark.sink import task
from sqsdelay.spark.sink.options import Columns, Options
from sqsdelay.spark.sink.rows import Rows, derived_id
from sqsdelay.spark.sink.run import Run, micro_batch_ms
from sqsdelay.spark.sink.task import chunks

NOW_MS = 1_800_000_000_000
RUN = Run(began_ms=NOW_MS, delay_start_ms=NOW_MS)


def read(columns: dict[str, Any], key: str | None = None, **options: str) -> list[Any]:
    """Messages as they are, errors as their text."""
    given = Options.parse({"endpoint": "orders"} | options)
    batch = pa.RecordBatch.from_pydict(columns)
    rows = Rows(Columns(names=frozenset(columns), key=key), given, RUN)
    return [
        str(message) if isinstance(message, SqsDelayError) else (endpoint, message)
        for endpoint, message in rows.read(rows.resolved(batch))
    ]


def due(value: Any, name: str = "delay_seconds", kind: pa.DataType | None = None) -> Any:
    (found,) = read({"body": ["x"], "message_id": ["m"], name: pa.array([value], kind)})
    return found if isinstance(found, str) else found[1].due_at


def test_all_columns_become_a_message() -> None:
    """Optional ones that are NULL are not given."""
    columns = {
        "body": ["x", "y"],
        "delay_seconds": [60, 1],
        "endpoint": ["eu", None],
        "message_id": ["m1", "m2"],
        "attributes": pa.array([[("a", "b")], None], pa.map_(pa.string(), pa.string())),
        "message_group_id": ["g", None],
        "message_deduplication_id": ["d", None],
    }
    at = datetime.fromtimestamp(NOW_MS / 1000, UTC)
    assert read(columns) == [
        (
            "eu",
            Message(
                "x",
                due_at=at + timedelta(seconds=60),
                attributes={"a": "b"},
                message_id="m1",
                message_group_id="g",
                message_deduplication_id="d",
            ),
        ),
        ("orders", Message("y", due_at=at + timedelta(seconds=1), message_id="m2")),
    ]


def test_delays_count_from_the_jobs_instant_and_are_rounded_up() -> None:
    """Never early: fractions of a millisecond count as one."""
    assert due(0.0001) == datetime.fromtimestamp(NOW_MS / 1000, UTC) + timedelta(milliseconds=1)
    assert due(0) == datetime.fromtimestamp(NOW_MS / 1000, UTC)


@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin", "America/Los_Angeles"])
def test_a_timestamp_is_an_instant_whatever_its_zone(zone: str) -> None:
    """Microseconds are rounded up to a millisecond; the past before 1970 is simply overdue."""
    kind = pa.timestamp("us", zone)
    assert due(1_900_000_000_000_001, "due_at", kind) == datetime(
        2030, 3, 17, 17, 46, 40, 1000, tzinfo=UTC
    )
    assert due(-1, "due_at", kind) == datetime(1970, 1, 1, tzinfo=UTC)


def test_due_times_that_are_none_are_the_rows_fault() -> None:
    """Nothing is sent at once because its due time could not be worked out."""
    assert "delay_seconds is NULL" in due(None, kind=pa.int64())
    assert "due_at is NULL" in due(None, "due_at", pa.timestamp("us", "UTC"))
    assert "negative" in due(-1)
    assert "not finite" in due(math.nan)
    assert "year 9999" in due(MAX_DUE_MS * 1000 + 1, "due_at", pa.timestamp("us", "UTC"))


def test_ids_are_made_of_job_and_key_only() -> None:
    """The guide's formula; an integer key and its text are the same key; a given id wins."""
    expected = hashlib.sha256(b"renewals\x0042").hexdigest()
    assert derived_id("renewals", 42) == derived_id("renewals", "42") == expected
    columns = {"body": ["x"] * 3, "delay_seconds": [60] * 3, "k": [42, 43, None]}
    given = columns | {"message_id": [None, "mine", None]}
    (_, first), (_, second), third = read(given, key="k", job="renewals")
    assert (first.message_id, second.message_id) == (expected, "mine")
    assert "k is NULL" in third


def test_lines_that_spark_could_not_read_are_rejected() -> None:
    """Spark's own column for them says which; of a line that it read otherwise, these columns are named."""
    columns = {
        "body": [None],
        "message_id": ["m"],
        "delay_seconds": [1],
        "_corrupt_record": ["{oops"],
    }
    assert read(columns) == ["Spark could not read this line: {oops"]
    dues = pa.array([None], pa.timestamp("us", "UTC"))
    columns = {"body": ["x"], "message_id": ["m"], "due_at": dues, "_corrupt_record": ["m,soon,x"]}
    assert read(columns) == ["Spark could not read due_at of this line: m,soon,x"]


def test_names_of_columns_have_no_case() -> None:
    """As everywhere in Spark; the table keeps its own spelling in the rejects."""
    batch = pa.RecordBatch.from_pydict({"Body": ["x"], "MESSAGE_ID": ["m"], "delay_seconds": [1]})
    names = {"Body": "body", "MESSAGE_ID": "message_id"}
    columns = Columns(names=frozenset({"body", "message_id", "delay_seconds"}), spelled=names)
    rows = Rows(columns, Options(endpoint="o"), RUN)
    ((_, message),) = rows.read(rows.resolved(batch))
    assert isinstance(message, Message)
    assert (message.body, message.message_id) == ("x", "m")


def test_what_is_past_is_rejected_where_that_was_asked_for() -> None:
    """With how late it is; what is due at that very instant is not past."""
    kind = pa.timestamp("us", "UTC")
    dues = pa.array([(NOW_MS - 1500) * 1000, NOW_MS * 1000], kind)
    batch = pa.RecordBatch.from_pydict(
        {"body": ["x"] * 2, "message_id": ["a", "b"], "due_at": dues}
    )
    columns = Columns(names=frozenset(batch.schema.names))
    for past_due, late in (("send", False), ("reject", True)):
        rows = Rows(columns, Options(endpoint="o", past_due=past_due), RUN)
        (_, first), (_, second) = rows.read(rows.resolved(batch))
        assert isinstance(second, Message)
        assert ("was 1.5 s past" in str(first)) == late


def test_batches_of_large_rows_are_read_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of about so many bytes, at least a row each, none lost."""
    batch = pa.RecordBatch.from_pydict({"body": ["x" * 1000] * 100})
    assert [piece.num_rows for piece in chunks(batch)] == [100]
    monkeypatch.setattr(task, "CHUNK_BYTES", 10_100)
    assert sum(piece.num_rows for piece in chunks(batch)) == 100
    assert {piece.num_rows for piece in chunks(batch)} <= {10, 1}
    monkeypatch.setattr(task, "CHUNK_BYTES", 10)
    assert [piece.num_rows for piece in chunks(batch)] == [1] * 100


def test_a_micro_batchs_time_is_the_checkpoints(tmp_path: Path) -> None:
    """As Spark writes it; what cannot be read is told, with another way."""
    (tmp_path / "offsets").mkdir()
    metadata = json.dumps({"batchWatermarkMs": 0, "batchTimestampMs": NOW_MS, "conf": {}})
    (tmp_path / "offsets" / "7").write_text(f'v1\n{metadata}\n{{"logOffset":0}}')
    assert micro_batch_ms(str(tmp_path), 7) == NOW_MS
    assert micro_batch_ms(f"file://{tmp_path}", 7) == NOW_MS
    (tmp_path / "offsets" / "8").write_text("v9\nsomething else")
    for batch_id in (8, 9):
        with pytest.raises(ConfigurationError, match=f"offsets/{batch_id} .*current_timestamp"):
            micro_batch_ms(str(tmp_path), batch_id)
    with pytest.raises(ConfigurationError, match="on the query itself"):
        micro_batch_ms(None, 0)
