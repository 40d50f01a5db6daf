"""Rows staged column by column are what the sender would have stored, to the byte, and marked alike."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sqsdelay.core.message import Message, checked
from sqsdelay.core.stored_message import as_stored
from sqsdelay.errors import SqsDelayError
from sqsdelay.spark.sink.options import Columns, Options
from sqsdelay.spark.sink.receipts import Mark
from sqsdelay.spark.sink.rows import Rows, lines_of, marks_of, plain_rows
from sqsdelay.spark.sink.run import Run
from sqsdelay.stores.s3.layout import line_of

NOW_MS = 1_800_000_000_000
HOUR_MS = 3_600_000
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12) | st.sampled_from(
    ['{"a": "\\\\\\""}', "\u2028", "\x7f", "\ufffe", "\r\n\t", "\x00", ""]
)
NAME = st.sampled_from(["kind", "a.b", ".a", "aws.x", "AWS.x", "sqsdelay.x", "Sqsdelay.x", "é", ""])
ROW = st.fixed_dictionaries(
    {
        "body": TEXT | st.none(),
        "message_id": TEXT | st.from_regex(r"[!-~]{1,20}", fullmatch=True) | st.none(),
        "endpoint": st.sampled_from([None, "", "orders", "other"]),
        "attributes": st.none() | st.lists(st.tuples(NAME, TEXT | st.none()), max_size=10),
        "key": st.none() | st.integers(0, 9),
        "message_group_id": st.sampled_from([None, None, None, "g"]),
    }
)
DUE_AT = st.none() | st.integers(NOW_MS * 1000 - 10, (NOW_MS + 9 * HOUR_MS) * 1000)
DELAY = st.none() | st.sampled_from([float("nan"), float("inf"), -1.0, 0.0, 1e300, 7200.00049]) | (
    st.floats(0, 40_000)
)  # fmt: skip
TYPES = {
    "attributes": pa.map_(pa.string(), pa.string()),
    "key": pa.int64(),
    "due_at": pa.timestamp("us", "UTC"),
    "delay_seconds": pa.float64(),
}


def read(found: list[dict[str, Any]], after_ms: int) -> tuple[Rows, pa.RecordBatch]:
    names = [*found[0]]
    for row in found:
        unique = dict(row["attributes"] or ())
        row["attributes"] = None if row["attributes"] is None else list(unique.items())
    columns = [pa.array([r[n] for r in found], TYPES.get(n, pa.string())) for n in names]
    options = Options(endpoint="orders", job="j", key="key")
    run = Run(began_ms=NOW_MS, delay_start_ms=NOW_MS, after_ms=after_ms)
    rows = Rows(Columns(names=frozenset(names), key="key"), options, run)
    return rows, rows.resolved(pa.RecordBatch.from_arrays(columns, names=names))


@settings(max_examples=settings().max_examples * 3 // 5)
@pytest.mark.parametrize(("due", "values"), [("due_at", DUE_AT), ("delay_seconds", DELAY)])
@given(data=st.data())
def test_a_plain_row_is_the_line_its_sender_would_store(
    due: str, values: st.SearchStrategy[Any], data: st.DataObject
) -> None:
    """Whatever rows hold; and a row that cannot be sent, or is due soon, is never plain."""
    found = data.draw(
        st.lists(st.builds(_with(due), ROW, values), min_size=1, max_size=12), label="rows"
    )
    rows, batch = read(found, NOW_MS + HOUR_MS)
    plain = plain_rows(rows, batch)
    if plain is None:
        return
    sent = list(rows.read(batch))
    for name in set(plain["endpoints"].to_pylist()):
        here = plain.filter(pa.compute.equal(plain["endpoints"], name))
        columns = lines_of(here, name), here["sizes"], *marks_of(here, rows.since_ms)
        for position, line, size, *mark in zip(
            here["positions"].to_pylist(), *(pa.array(c).to_pylist() for c in columns), strict=True
        ):
            endpoint, message = sent[position]
            assert not isinstance(message, SqsDelayError)
            assert endpoint == name
            assert rows.mark(endpoint, message) == Mark(*mark)
            stored = as_stored(checked(message, fifo=False), endpoint, now_ms=NOW_MS)
            assert stored.due_ms > NOW_MS + HOUR_MS
            assert line == line_of(stored).text + b"\n"
            assert size >= checked(message, fifo=False).size


def _with(due: str) -> Callable[[dict[str, Any], Any], dict[str, Any]]:
    return lambda row, value: row | {due: value}


def test_ordinary_rows_are_plain() -> None:
    """The test above can fail: it looks at rows."""
    row = {
        "body": '{"a": 1}', "message_id": "m", "endpoint": None, "attributes": [("kind", "x")],
        "key": None, "message_group_id": None, "due_at": (NOW_MS + 2 * HOUR_MS) * 1000,
    }  # fmt: skip
    rows, batch = read([row, dict(row, message_id=None, key=3)], NOW_MS)
    plain = plain_rows(rows, batch)
    assert plain is not None
    assert plain["positions"].to_pylist() == [0, 1]
    (first, _) = lines_of(plain, "orders").to_pylist()
    assert json.loads(json.loads(first)["headers"])["attributes"]["kind"]["text"] == "x"
    assert Message('{"a": 1}').body == json.loads(first)["body"]
