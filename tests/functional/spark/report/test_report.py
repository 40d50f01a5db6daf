"""The report of a ledger: what became of each message, in any order of lines, on a page and in tables."""

from __future__ import annotations

import gzip
import json
import random
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyarrow import parquet
from selenium.webdriver.common.by import By
from typer.testing import CliRunner

from benchmarks.spark.report import REPORT
from sqsdelay.cli import app
from sqsdelay.core.message import Route
from sqsdelay.cost import shipped_prices
from sqsdelay.cost.workload import BANDS
from sqsdelay.errors import ConfigurationError, MalformedEvent
from sqsdelay.ledger.events import EventKind, Source, from_json
from sqsdelay.spark.report.charts import cost_chart, moments_chart
from sqsdelay.spark.report.messages import gathered, judged
from sqsdelay.spark.report.read import read_ledger
from sqsdelay.spark.report.write import write_report
from sqsdelay.spark.session import configured
from tests.functional.spark import told
from tests.functional.spark.sent import printed
from tests.services.chromium import chromium

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Reported = tuple[Path, dict[str, Any]]
"""A report's folder, and its figures."""
PRICES = shipped_prices()
STORE = "sqlite"
TABLES = (
    "messages", "summary", "last_seen", "lateness", "cohorts", "cost", "waiting", "bad_lines",
)  # fmt: skip


def table(report: Path, name: str) -> list[dict[str, Any]]:
    """A table's rows, in order, read without Spark."""
    files = sorted((told.tables(report) / name).glob("*.parquet"))
    return [row for file in files for row in parquet.read_table(file).to_pylist()]


@pytest.fixture(scope="module")
def reported(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Reported:
    """The report of a ledger with one of everything, in order."""
    folder = tmp_path_factory.mktemp("report")
    ledger = folder / "ledger.jsonl"
    ledger.write_text("\n".join(told.lines()) + "\n\n")
    figures = write_report(spark, str(ledger), folder / "out", prices=PRICES, store=STORE)
    return folder / "out", figures


def test_each_message_ends_with_the_status_of_its_events(reported: Reported) -> None:
    """Delivered, handed over, pending, lost, cancelled, rejected; duplicated and early beside it."""
    rows = {row["message_id"]: row for row in table(reported[0], "messages")}
    assert {name: row["status"] for name, row in rows.items()} == told.statuses()
    assert [name for name, row in rows.items() if row["duplicated"]] == ["twice"]
    assert [name for name, row in rows.items() if row["early"]] == ["early"]
    assert rows["moved"]["due_ms"] == told.T0 + 20 * told.HOUR
    assert rows["moved"]["delay_seconds"] == 2000
    assert rows["lost-in-queue"]["last_event"] == "handed-over"
    assert rows["lost-in-queue"]["last_seen"] == "destination queue"
    assert rows["lost"]["last_seen"] == "delay queue"
    assert rows["moved"]["last_seen"] == "store"
    assert rows["fine"]["last_seen"] is None
    assert rows["fine"]["hops"] == 2
    assert rows["direct"]["hops"] == 0
    assert rows["received-again"]["copies"] == 1


def test_the_figures_are_the_tables(reported: Reported) -> None:
    """What the command prints, report.json, and the summary's row of all endpoints."""
    report, figures = reported
    assert json.loads((report / "report.json").read_text())["messages"] == figures["messages"] == 13
    (total, *endpoints) = table(report, "summary")
    assert total["endpoint"] is None
    assert [row["endpoint"] for row in endpoints] == ["orders", "silent"]
    for name in ("delivered", "handed_over", "pending", "lost", "cancelled", "rejected", "early"):
        assert figures[name] == total[name] == sum(row[name] for row in endpoints), name
    found = [figures[name] for name in ("delivered", "lost", "duplicated", "early")]
    assert found == [5, 2, 1, 1]


def test_lateness_by_endpoint_and_hour(reported: Reported) -> None:
    """Of arrivals, each with its percentiles; and of all endpoints together."""
    rows = {(row["endpoint"], row["hour"]): row for row in table(reported[0], "lateness")}
    (hour,) = {hour for endpoint, hour in rows if endpoint == "silent"}
    orders, silent, both = (rows[name, hour] for name in ("orders", "silent", None))
    assert (orders["delivered"], orders["lost"], orders["early"]) == (5, 2, 1)
    assert (orders["p50_ms"], orders["max_ms"], orders["waited_p50_ms"]) == (40, 40, 160)
    assert (silent["handed_over"], silent["p99_ms"], silent["waited_max_ms"]) == (1, 40, None)
    assert both["messages"] == orders["messages"] + silent["messages"]
    assert hour.timestamp() * 1000 % told.HOUR == 0


def test_bad_lines_are_kept_aside_with_a_reason(reported: Reported) -> None:
    """Each with its file; none stops the report."""
    report, figures = reported
    rows = table(report, "bad_lines")
    assert sorted(row["line"] for row in rows) == sorted(told.BAD)
    assert figures["bad_lines"] == len(told.BAD) == len(rows)
    reasons = {row["line"]: row["reason"] for row in rows}
    assert "install a newer one" in reasons['{"v": 2, "event": "sent"}']
    assert all(row["file"].endswith("/ledger.jsonl") for row in rows)
    assert all(reasons.values())


def test_the_same_events_in_another_order_and_twice_give_the_same_tables(
    spark: SparkSession, reported: Reported, tmp_path: Path
) -> None:
    """Shuffled, some lines twice, in folders of plain and packed files, wrapped as logs have them."""
    lines = [line for line in told.lines() if line not in told.BAD]
    shuffled = lines + lines[::3]
    random.Random(7).shuffle(shuffled)
    logged = [line for event in shuffled[::4] for line in told.wrapped(event)]
    (tmp_path / "ledger/deep").mkdir(parents=True)
    (tmp_path / "ledger/a.jsonl").write_text("\n".join(shuffled[::2]))
    packed = "\n".join(shuffled[1::2] + logged + told.BAD)
    (tmp_path / "ledger/deep/b.jsonl.gz").write_bytes(gzip.compress(packed.encode()))
    write_report(spark, str(tmp_path / "ledger"), tmp_path / "out", prices=PRICES, store=STORE)
    for name in TABLES:
        first, second = (table(report, name) for report in (reported[0], tmp_path / "out"))
        for row in (*first, *second):
            row.pop("file", None)
        assert first == second, name


def test_what_is_read_is_a_short_plan(spark: SparkSession, tmp_path: Path) -> None:
    """Spark asks for the bad lines after it has read them: a condition that it moves down to the lines stands
    for all that is read in each of its parts, 264,000 characters of it, and its code needs gigabytes."""
    (tmp_path / "ledger.jsonl").write_text("x")
    reading: Any = read_ledger(spark, str(tmp_path / "ledger.jsonl"))
    for table in (reading.events, reading.aside):
        plan = table._jdf.queryExecution().optimizedPlan().toString()
        assert len(plan) < 20_000


@pytest.mark.nightly
def test_the_command_as_it_is_started(tmp_path: Path) -> None:
    """In a process of its own, with Spark's own settings; the bad lines in a file of many."""
    (tmp_path / "ledger").mkdir()
    lines = told.lines()
    for part in range(2):
        (tmp_path / f"ledger/{part}.jsonl").write_text("\n".join(lines[part::2]))
    found = json.loads(printed([*REPORT, "ledger", "--out", "out", "--json"], tmp_path, {}))
    assert (found["lines"], found["bad_lines"]) == (len(lines), len(told.BAD))
    for status, events in told.everything().items():
        messages = {event.message_id for event in events}
        assert found[status.replace("-", "_")] == len(messages), status


@pytest.mark.parametrize("line", told.lines())
def test_what_the_ledger_reads_the_report_reads(line: str) -> None:
    """Corpus of the agreement: the bad lines are bad for both, but numbers out of range."""
    try:
        from_json(line)
    except MalformedEvent:
        assert line in told.BAD
    else:
        assert line not in told.BAD or "000000" in line


def test_what_a_store_releases_has_arrived_or_waits_in_the_due_queue(
    spark: SparkSession, tmp_path: Path
) -> None:
    """A standard endpoint's is at its destination when its timer ends, told or not: never early. A
    FIFO endpoint's is handed over from the due queue, and lost if it is not."""
    parked: dict[str, Any] = {"route": Route.STORE, "batch": None, "delay": 10_000}
    timer: dict[str, Any] = {"timer_seconds": 600, "late_ms": 0}
    events = []
    for endpoint in ("orders", "orders.fifo"):
        for name, known_of_it in (("told", timer), ("untold", {})):
            message = told.sent(name, endpoint=endpoint, **parked)
            release = told.by_sender(message, EventKind.RELEASED, after=9400, due_ms=message.due_ms)
            events += [message, replace(release, source=Source.DISPATCHER, **known_of_it)]
    forwarded = told.sent("forwarded", endpoint="orders.fifo", **parked)
    release = told.by_sender(forwarded, EventKind.RELEASED, after=9400, due_ms=forwarded.due_ms)
    events += [forwarded, release, told.handed_over(forwarded, after=10_000, late_ms=70)]
    # An S3 store's, as a function parks: the parking queue was the last to have it.
    gathered_there = told.sent("gathers", delay=10_000)
    events += [gathered_there, told.consumed(gathered_there, EventKind.FORWARDED, after=900)]
    rows = gathered(read_ledger(spark, told.written(tmp_path, events)).events)
    known = judged(rows, as_of_ms=told.T0 + 20 * told.HOUR, grace_ms=told.HOUR).collect()
    found = {
        (row.endpoint, row.message_id): (row.status, row.early, row.hand_over_late_ms)
        for row in known
    }
    assert found == {
        ("orders", "told"): ("handed-over", False, 0),
        ("orders", "untold"): ("handed-over", False, 0),
        ("orders.fifo", "told"): ("lost", False, None),
        ("orders.fifo", "untold"): ("lost", False, None),
        ("orders.fifo", "forwarded"): ("handed-over", False, 70),
        ("orders", "gathers"): ("lost", False, None),
    }
    (gathers,) = [row for row in known if row.message_id == "gathers"]
    assert (gathers.last_seen, gathers.hops) == ("parking queue", 1)


def test_the_page_shows_its_figures_and_plots(reported: Reported) -> None:
    """In a real browser, by day and by night, with a hostile message id, and nothing from outside."""
    report, figures = reported
    page = (report / "report.html").resolve()
    assert not re.search("http(?!-equiv|://www.w3.org/)", page.read_text())
    with chromium() as browser:
        papers = []
        for scheme in ("light", "dark"):
            media = [{"name": "prefers-color-scheme", "value": scheme}]
            browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": media})
            browser.get(page.as_uri())
            papers.append(browser.find_element(By.TAG_NAME, "body").value_of_css_property("color"))
        assert papers[0] != papers[1]
        for name in ("messages", "delivered", "pending", "lost", "unknown", "duplicated", "early"):
            shown = browser.find_element(By.ID, f"figure-{name}").text
            assert shown == f"{figures[name]:,}", name
        for name in ("lateness", "waiting", "moments", "cost"):
            plot = browser.find_element(By.ID, f"chart-{name}")
            assert plot.size["width"] > 300
            assert plot.size["height"] > 100
            assert plot.accessible_name
            assert plot.find_elements(By.TAG_NAME, "path")
        for width in (1300, 1000, 390):
            browser.set_window_size(width, 900)
            wide = browser.execute_script(
                "const most = document.documentElement.clientWidth;"
                "const right = e => e.getBoundingClientRect().right;"
                "return [...document.querySelectorAll('th, td, dd, p, svg, table')].filter("
                "e => e.offsetParent && (right(e) > most || e.scrollWidth > e.clientWidth + 1 "
                "|| e.matches('table') && right(e) > right(e.parentElement) - 20.5))"
                ".map(e => e.outerHTML.slice(0, 200))"
            )
            assert wide == [], width
            broken = browser.execute_script(
                "return [...document.querySelectorAll('td:not(.text)')].filter(e => {"
                "const text = document.createRange(); text.selectNodeContents(e);"
                "return text.getBoundingClientRect().height > 30; }).map(e => e.outerHTML)"
            )
            assert broken == [], width
        browser.set_window_size(1200, 900)
        order = [row.text for row in browser.find_elements(By.CSS_SELECTOR, "#last-seen tbody th")]
        assert order == sorted(order, key=["Lost", "Unknown", "Pending"].index)
        lost = browser.find_element(By.ID, "lost").text
        assert "lost-in-queue" in lost
        assert told.HOSTILE in browser.find_element(By.ID, "rejected").text
        assert "no <b>due</b> time" in browser.find_element(By.ID, "rejected").text
        assert not browser.find_elements(By.TAG_NAME, "script")
        ids = browser.execute_script("return [...document.querySelectorAll('[id]')].map(e => e.id)")
        assert len(ids) == len(set(ids))
        assert browser.get_log("browser") == []  # type: ignore[no-untyped-call]
        # A table too wide for its place is scrolled in it, and clips nothing.
        wide = browser.execute_script(
            "document.querySelectorAll('#endpoints td').forEach(e => e.textContent = '12,345,678');"
            "const section = document.querySelector('#endpoints').parentElement;"
            "return [section, document.documentElement].map(e => e.scrollWidth > e.clientWidth)"
        )
        assert wide == [True, False]


def moments(*told_ms: tuple[int, int | None, int | None]) -> str:
    """The drawing of hours, each with its median and its 99th percentile."""
    names, always = ("at_ms", "p50_ms", "p99_ms"), {"s": 0.9, "m": 1, "lost": 0}
    rows = [
        dict(zip(names, (told.T0 + hour * told.HOUR, *late), strict=True)) | always
        for hour, *late in told_ms
    ]
    drawn = moments_chart(rows, moment_ms=told.HOUR, within={"s": "1 s", "m": "60 s"})
    return drawn.partition("</svg>")[0]


def test_the_median_is_seen_beside_the_99th_percentile() -> None:
    """40 ms and an hour: neither lies on an axis."""
    late = moments((0, 40, 3_600_000), (1, 40, 3_600_000))
    heights = sorted({float(y) for y in re.findall(r'cy="([\d.]+)" r="2', late)})
    (axis, *_) = sorted((float(y) for y in re.findall(r"M66.0 ([\d.]+)H", late)), reverse=True)
    assert len(heights) == 2
    assert axis - heights[1] > 10, (axis, heights)
    assert "99 of 100" in late


def test_arrivals_that_were_all_early_are_drawn() -> None:
    """Below the axis, whose numbers say how early."""
    late = moments((0, -5000, -3000))
    assert ">-1,000</text>" in late
    assert all(34 <= float(y) <= 268 for y in re.findall(r'cy="([\d.]+)" r="2', late))


def test_the_last_hour_of_all_is_drawn() -> None:
    """By a clock that is wrong; no datetime can name the hour after it."""
    rows = [
        dict.fromkeys(("p50_ms", "p99_ms", "s", "m", "lost"), 1) | {"at_ms": 253_402_297_200_000}
    ]
    drawn = moments_chart(rows, moment_ms=told.HOUR, within={"s": "1 s", "m": "60 s"})
    assert "9999-12-31 23:00" in drawn


def test_no_line_is_drawn_where_nothing_arrived() -> None:
    """Neither over an hour of which nothing is known, nor over one that nothing was due in."""
    late = moments((0, 40, 50), (1, 40, 50), (2, None, None), (3, 40, 50), (9, 40, 50))
    dots = sorted({float(x) for x in re.findall(r'cx="([\d.]+)" cy="[\d.]+" r="2', late)})
    assert dots[3] - dots[2] == pytest.approx(6 * (dots[1] - dots[0]), abs=0.3)
    assert len(re.findall(r"L\d", late)) == 2


def test_ones_own_database_costs_nothing_a_message(reported: Reported) -> None:
    """Parked messages among them, of whom there is one."""
    assert sum(row["parked"] for row in table(reported[0], "cost")) == 1
    assert not any(row["store_cost"] for row in table(reported[0], "cost"))
    told_of_it(reported[0] / "report.html", "SQLite")


def told_of_it(page: Path, store: str) -> None:
    """The page names the store in use, and no other."""
    text = page.read_text()
    assert f"{store}: what parked messages cost there" in text
    assert "DynamoDB" not in text


@pytest.mark.nightly
def test_the_price_of_schedules(spark: SparkSession, tmp_path: Path) -> None:
    """As the cost model has it."""
    message = told.sent("m", route=Route.STORE, batch=None, delay=864_000)
    ledger = told.written(tmp_path, [message])
    write_report(spark, ledger, tmp_path / "out", prices=PRICES, store="scheduler")
    (row,) = table(tmp_path / "out", "cost")
    assert row["store_cost"] > 0
    told_of_it(tmp_path / "out/report.html", "EventBridge")


def test_a_name_is_no_markup() -> None:
    """A price file's currency, and a store's."""
    bands = [(band.name, (1.0, 2.0, 3.0)) for band in BANDS]
    drawn = cost_chart([*bands, (None, (0.0, 0.0, 0.0))], "<i>", "&lt;")
    assert all(f">{name}</text>" in drawn for name in (*dict(bands), "unknown"))
    assert ">&lt;i&gt;</text>" in drawn
    assert ">&amp;lt;</text>" in drawn


def test_a_folder_of_something_else_is_left_alone(
    spark: SparkSession, reported: Reported, tmp_path: Path
) -> None:
    """Refused before anything is read; a report's own folder stays as it was if the next one fails."""
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/thesis.txt").write_text("years of work")
    with pytest.raises(ConfigurationError, match="is not empty and holds no report"):
        write_report(spark, "nowhere", tmp_path / "mine", prices=PRICES)
    assert [path.name for path in tmp_path.rglob("*")] == ["mine", "thesis.txt"]
    before = (reported[0] / "report.json").read_text()
    with pytest.raises(ConfigurationError, match="ledger nowhere: there is no such file"):
        write_report(spark, "nowhere", reported[0], prices=PRICES)
    assert (reported[0] / "report.json").read_text() == before


@pytest.mark.parametrize(
    ("content", "told_by"),
    [
        (b"", "has no events$"),
        (b"not json\n", "has no events; 1 lines are not events, the first: not a line of JSON"),
    ],
)
def test_a_ledger_without_events(
    spark: SparkSession, tmp_path: Path, content: bytes, told_by: str
) -> None:
    """One line says so, and nothing is written, also where Spark plans anew as it goes, its default."""
    (tmp_path / "ledger.jsonl").write_bytes(content)
    adaptive = configured(spark, {"spark.sql.adaptive.enabled": "true"})
    with adaptive, pytest.raises(ConfigurationError, match=told_by):
        write_report(spark, str(tmp_path / "ledger.jsonl"), tmp_path / "out", prices=PRICES)
    assert [path.name for path in tmp_path.iterdir()] == ["ledger.jsonl"]


def test_a_broken_file_is_one_line(spark: SparkSession, tmp_path: Path) -> None:
    """Not a page of Java."""
    (tmp_path / "ledger.jsonl.gz").write_bytes(b"\x1f\x8b no gzip")
    with pytest.raises(ConfigurationError, match=r"^the report of .* failed: [^\n]+$"):
        write_report(spark, str(tmp_path / "ledger.jsonl.gz"), tmp_path / "out", prices=PRICES)


def test_the_command_says_where_the_page_is(reported: Reported, tmp_path: Path) -> None:
    """As of an earlier instant, into the folder of another report, which it replaces: what has been delivered
    since was pending then."""
    ledger, out = reported[0].with_name("ledger.jsonl"), tmp_path / "out"
    shutil.copytree(reported[0], out)
    arguments = ["pipeline", "report", str(ledger), "--out", str(out), "--grace", "100001"]
    done = CliRunner().invoke(app, [*arguments, "--as-of", "2026-09-21T14:30:00Z"])
    assert done.exit_code == 0, done.output
    assert f"{out / 'report.html'}" in done.stdout
    found = json.loads((out / "report.json").read_text())
    assert (found["delivered"], found["lost"], found["duplicated"]) == (1, 0, 0)
    assert found["as_of"] == "2026-09-21T14:30:00.000+00:00"
    assert f"Due more than 100,001 s before {found['as_of']}" in (out / "report.html").read_text()
    rows = {row["message_id"]: row for row in table(out, "messages")}
    assert (rows["twice"]["status"], rows["twice"]["last_event"]) == ("pending", "hop")
