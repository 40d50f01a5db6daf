"""docs/ledger.md's report, docs/spark.md's bill and docs/fields.md's tables, with the demo's ledger."""

from __future__ import annotations

import json
import re
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyarrow import parquet
from typer.testing import CliRunner

from benchmarks.spark.report import generate
from benchmarks.spark.report_rivals import FIGURES, RIVALS
from sqsdelay.cli import app
from sqsdelay.cli.cost import DEFAULT_PARK_AFTER
from sqsdelay.cost import shipped_prices
from sqsdelay.errors import MissingExtra
from sqsdelay.spark.report import messages, tables
from sqsdelay.spark.report.write import write_report
from sqsdelay.spark.session import GRACE_SECONDS
from tests.functional.spark import told

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DOCS = Path(__file__).parents[4] / "docs"
FIELDS = (DOCS / "fields.md").read_text().partition("\n## A reconciliation's columns")[0]
GUIDES = (DOCS / "ledger.md").read_text() + (DOCS / "spark.md").read_text()
COMMANDS = re.findall(r"^sqsdelay (pipeline (?:report|events|cost) .*)$", GUIDES, re.M)


def test_its_commands_and_its_tables(spark: SparkSession, tmp_path: Path) -> None:
    """Every command, on the demo's ledger; each table has the columns it names."""
    ledger = tmp_path / "ledger.jsonl"
    file = tmp_path / "demo.jsonl"
    file.write_text("".join(f'{{"body": "{delay}", "delay": {delay}}}\n' for delay in (0, 1, 5)))
    (tmp_path / "workload.csv").write_text("delay_seconds,size,messages\n86400,500,1000\n")
    arguments = ["demo", "--file", str(file), "--ledger", str(ledger), "--json"]
    demo = CliRunner().invoke(app, arguments)
    assert demo.exit_code == 0, demo.output
    summary = json.loads(demo.stdout)
    assert len(COMMANDS) == 3
    names = ("ledger.jsonl", "workload.csv", "orders-report", "orders-events")
    placed = {name: str(tmp_path / name) for name in names}
    for command in COMMANDS:
        done = CliRunner().invoke(app, [placed.get(word, word) for word in shlex.split(command)])
        assert done.exit_code == 0, done.output
    figures = json.loads((tmp_path / "orders-report/report.json").read_text())
    assert summary["sent"] == figures["messages"] == figures["delivered"] == 3
    for name in ("lost", "duplicated", "early"):
        assert figures[name] == summary[name]
    assert figures["max_ms"] == summary["worst_late_ms"]
    shows((tmp_path / "orders-report/report.html").read_text(), figures)
    described = FIELDS.partition("\n## The report's tables")[2]
    rows = re.findall(r"^\| `(\w+)` \| (?:[^|]+) \| ([\w, ]+) \|$", described, re.M)
    written = {path.name for path in told.tables(tmp_path / "orders-report").iterdir()}
    assert {name for name, _ in rows} == written
    for name, columns in rows:
        (file,) = (told.tables(tmp_path / "orders-report") / name).glob("*.parquet")
        assert parquet.read_schema(file).names == columns.split(", "), name


def shows(page: str, figures: dict[str, Any]) -> None:
    """The demo's own page: its figures, and its plots. (Another one's is looked at in a browser.)"""
    for name in ("messages", "delivered", "lost", "duplicated", "early"):
        assert f'id="figure-{name}">{figures[name]}<' in page
    for name in ("lateness", "waiting", "cost"):
        assert "<path" in page.partition(f'id="chart-{name}"')[2].partition("</svg>")[0]


def test_its_numbers_are_the_codes() -> None:
    """Each stands once in the code; the guide repeats them."""
    for text in (
        f"up to {messages.CLOCK_TOLERANCE_MS:,} ms",
        f"{messages.SHARES:,} to a request",
        f"up to {tables.POINTS + 1} instants",
    ):
        assert text in " ".join(FIELDS.split()), text
    assert f"({GRACE_SECONDS:,} s)" in (DOCS / "ledger.md").read_text()
    assert DEFAULT_PARK_AFTER == ["1h", "8100s", "1d"]
    described = FIELDS.partition("\n## The report's figures")[2]
    statuses = re.findall(r"^\| `([\w-]+)` \| [A-Z]", described, re.M)
    assert sorted(statuses) == sorted(messages.STATUSES)


def test_a_missing_package_is_named_with_its_remedy(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """pip's command, in one line."""
    for name in [name for name in sys.modules if name.startswith("sqsdelay.spark.report.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "jinja2", None)
    done = CliRunner().invoke(app, ["pipeline", "report", "x", "--out", str(tmp_path / "out")])
    assert isinstance(done.exception, MissingExtra)
    assert "pip install 'sqsdelay[spark,report]'" in str(done.exception)


@pytest.mark.nightly
def test_the_benchmark_compares_what_is_equal(spark: SparkSession, tmp_path: Path) -> None:
    """Its rivals and the report find the same in the ledger that the benchmark makes."""
    ledger = tmp_path / "ledger"
    generate(ledger, 8000)
    ours = write_report(spark, str(ledger), tmp_path / "report", prices=shipped_prices())
    assert (ours["messages"], ours["lost"], ours["duplicated"]) == (2000, 2, 4)
    known = {name: ours[name] for name in FIGURES}
    for name, rival in RIVALS.items():
        assert rival(ledger, tmp_path / name) == known, name
