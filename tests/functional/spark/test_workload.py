"""``sqsdelay pipeline cost``: the bill of a whole table."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyarrow import parquet
from typer.testing import CliRunner

from sqsdelay.cli import app
from sqsdelay.cost import Workload, bills, shipped_prices
from sqsdelay.cost.strategies import ways
from sqsdelay.cost.workload import BANDS, band_of
from sqsdelay.errors import ConfigurationError, InvalidSetting, SqsDelayError
from sqsdelay.spark.estimate import estimate

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PRICES = shipped_prices()
HOUR, DAY = 3600, 24 * 3600
FULL = 2520
"""So many messages fill all batches."""
ROWS = [
    (0, 500, FULL),
    (900, 70_000, FULL),
    (901, 500, FULL),
    (4 * HOUR, 6_500, FULL),
    (DAY, 1_500, 3 * FULL),
    (DAY - 1, 724, FULL),
    (30 * DAY, 200_000, FULL),
    (400 * DAY, 500_000, FULL),
]


def expected(strategy: str, batch: int, above: int | None) -> dict[str, Fraction | None]:
    """By band, from the bills that `sqsdelay cost` prints."""
    sums: dict[str, Fraction | None] = defaultdict(Fraction)
    for delay, size, messages in ROWS:
        parks = above is not None and delay > above
        load = Workload(delay_seconds=delay, messages=messages, message_bytes=size, batch=batch)
        name = "parked" if parks else strategy
        (bill,) = [bill for bill in bills(load, PRICES) if bill.strategy == name]
        band, before = BANDS[band_of(delay)].name, sums[BANDS[band_of(delay)].name]
        impossible = bill.impossible or before is None
        sums[band] = None if impossible else (before or Fraction(0)) + bill.for_messages
    return sums


def test_a_table_costs_what_its_rows_cost(spark: SparkSession, tmp_path: Path) -> None:
    """Every way, band by band: the sum of what `sqsdelay cost` says of each row."""
    compared = ways([HOUR, 8100])
    rows = spark.createDataFrame(ROWS, "delay_seconds bigint, size bigint, messages bigint")
    found = estimate(rows, PRICES, compared)
    for way in compared:
        sums = expected(way.strategy, way.batch, way.parks_above_seconds)
        told = {each["band"]: each for each in found if each["way"] == way.name}
        assert set(told) == set(sums)
        for band, cost in sums.items():
            assert bool(told[band]["impossible"]) == (cost is None), (way.name, band)
            if cost is not None:
                close = pytest.approx(Decimal(float(cost)), rel=Decimal("1e-12"))
                assert told[band]["cost"] == close
    assert not [each for each in found if each["band"] == "up to 7 days" and each["cheapest"]]


def test_the_command_reads_csv_and_writes_parquet(spark: SparkSession, tmp_path: Path) -> None:
    """One cheapest way for each band; a row stands for one message unless it says otherwise."""
    workload = tmp_path / "workload.csv"
    workload.write_text("size,delay_seconds,tenant\n500,60,a\n500,60.5,b\n500,2592000,c\n")
    arguments = ["pipeline", "cost", str(workload), "--park-after", "1h", "--out"]
    done = CliRunner().invoke(app, [*arguments, str(tmp_path / "out"), "--json"])
    assert done.exit_code == 0, done.output
    estimates: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])["estimates"]
    best = {each["band"]: each["way"] for each in estimates if each["cheapest"]}
    assert best["up to 30 days"] == "DynamoDB, parked after 1 h"
    one_each = dict.fromkeys(("up to 1 min", "up to 15 min", "up to 30 days"), 1)
    assert {each["band"]: each["messages"] for each in estimates} == one_each
    assert set(best) == set(one_each)
    (file,) = (tmp_path / "out").glob("*.parquet")
    rows = parquet.read_table(file).to_pylist()
    told = [[(each["band"], each["way"]) for each in found] for found in (rows, estimates)]
    assert told[0] == told[1]
    done = CliRunner().invoke(app, [*arguments, str(tmp_path / "out")])
    assert "exists; name a new folder" in str(done.exception)


@pytest.mark.parametrize("name", ["nope.csv", "broken.csv.gz", "broken.parquet"])
@pytest.mark.usefixtures("spark")
def test_a_workload_that_cannot_be_read_is_told_in_one_line(tmp_path: Path, name: str) -> None:
    """Not there, or not what its name says; no trace."""
    for broken in ("broken.csv.gz", "broken.parquet"):
        (tmp_path / broken).write_bytes(b"\x1f\x8b nothing of the kind")
    done = CliRunner().invoke(app, ["pipeline", "cost", str(tmp_path / name)])
    assert isinstance(done.exception, SqsDelayError)
    assert isinstance(done.exception, InvalidSetting) == (name == "nope.csv")
    assert re.fullmatch(f"[^\n]+{name}[^\n]*", str(done.exception))


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("delay_seconds,body\n60,x\n", "has no column size, .* priced by schedule --plan"),
        ("delay_seconds,size\n-5,100\n60,x\n60,100\n", "2 rows of the workload cannot be priced"),
        ("delay_seconds,size\n", "has no rows"),
    ],
)
def test_what_cannot_be_priced_is_said(
    spark: SparkSession, tmp_path: Path, content: str, told: str
) -> None:
    """Value, limit, remedy, in one line."""
    (tmp_path / "workload.csv").write_text(content)
    rows = spark.read.csv(str(tmp_path / "workload.csv"), header=True)
    with pytest.raises(ConfigurationError, match=told):
        estimate(rows, PRICES, ways([]))
