"""What lateness is: of arrivals, from the later of due and sent, to the destination queue; and what requests
and an S3 store cost."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from sqsdelay.core.message import Route
from sqsdelay.cost import Workload, bills, shipped_prices
from sqsdelay.cost.workload import DELAY_ATTRIBUTES_BYTES
from sqsdelay.ledger.events import Event, EventKind
from sqsdelay.spark.report.charts import lateness_chart
from sqsdelay.spark.report.write import write_report
from tests.functional.spark import told
from tests.functional.spark.report.test_report import Reported, table, told_of_it

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LATE = 3_600_000
PRICES = shipped_prices()
LOAD = Workload(delay_seconds=2700, messages=10, message_bytes=10_000, batch=10)


def hollow() -> list[Event]:
    """1,000 messages handed over on time; 10 are received, the last of them 5 s after."""
    events = []
    for number in range(1000):
        message = told.sent(f"m{number}", endpoint="hollow")
        events += [message, told.handed_over(message, late_ms=100)]
        if number < 10:
            events.append(told.received(message, late_ms=5100 if number == 9 else 130))
    return events


def sent_too_late() -> list[Event]:
    """An hour after they were due: straight to the queue; into a store; and a change to a past time."""
    past: dict[str, Any] = {"endpoint": "past", "delay": -3600}
    direct = told.sent("direct", **past, route=Route.DIRECT, timer_seconds=0)
    taken_ms = told.T0 + 700  # by the broker's clock; the sender's is behind
    arrival = replace(told.received(direct), due_ms=None, late_ms=None, enqueued_ms=taken_ms)
    stored = told.sent("stored", **past, route=Route.STORE, batch=None)
    release = told.handed_over(stored, after=2, late_ms=LATE + 2000)
    release = replace(release, kind=EventKind.RELEASED)
    moved = told.sent("moved", endpoint="past", route=Route.STORE, batch=None, delay=90_000)
    now = told.by_sender(moved, EventKind.RESCHEDULED, after=60, due_ms=told.T0)
    after = told.handed_over(replace(moved, due_ms=told.T0), after=61, late_ms=61_000)
    return [
        direct, replace(arrival, at_ms=taken_ms + 90_000),
        stored, release, received(stored, release, waited_ms=0),
        moved, now, after, received(moved, after, waited_ms=30),
    ]  # fmt: skip


def received(of: Event, shown: Event, *, waited_ms: int) -> Event:
    """As a receiver tells it who knows no more than the copy."""
    assert shown.timer_seconds is not None
    at_ms = shown.at_ms + 1000 * shown.timer_seconds + waited_ms
    seen = replace(told.received(of), at_ms=at_ms, due_ms=shown.due_ms, late_ms=shown.late_ms)
    return replace(seen, enqueued_ms=shown.at_ms)


def undated() -> list[Event]:
    """A hop that does not say when its message is due."""
    return [replace(told.hop(told.sent("undated", endpoint="undated")), due_ms=None)]


def relayed() -> list[Event]:
    """Ten messages of two hops in one batch."""
    size = LOAD.message_bytes + DELAY_ATTRIBUTES_BYTES
    messages = [told.sent(f"m{n}", endpoint="relay", delay=2700, size=size) for n in range(10)]
    return [e for each in messages for e in (each, told.hop(each), told.handed_over(each))]


@pytest.fixture(scope="module")
def reported(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Reported:
    folder = tmp_path_factory.mktemp("lateness")
    newest = told.sent("newest", endpoint="undated", after=36_000)
    events = [*hollow(), *sent_too_late(), *undated(), *relayed(), newest]
    ledger = told.written(folder, events)
    figures = write_report(spark, ledger, folder / "out", prices=PRICES, store="s3://bucket/d")
    return folder / "out", figures


def rows(report: Path, name: str, *key: str) -> dict[Any, dict[str, Any]]:
    found = table(report, name)
    return {tuple(row[n] for n in key) if len(key) > 1 else row[key[0]]: row for row in found}


def test_what_never_arrived_has_no_lateness(reported: Reported) -> None:
    """990 of 1,000 lost: the percentiles are of the ten, and 1 % came within a second, not all."""
    report, figures = reported
    hollow = rows(report, "summary", "endpoint")["hollow"]
    assert (hollow["lost"], hollow["delivered"]) == (990, 10)
    assert hollow["p50_ms"] == hollow["max_ms"] == 100
    assert hollow["within_1s"] == hollow["within_60s"] == 0.01
    assert (hollow["waited_p50_ms"], hollow["waited_max_ms"]) == (30, 5000)
    messages = rows(report, "messages", "endpoint", "message_id")
    assert messages["hollow", "m10"]["late_ms"] is None
    assert messages["hollow", "m10"]["hand_over_late_ms"] == 100
    seen = rows(report, "last_seen", "endpoint", "status")
    assert seen["hollow", "lost"]["last_seen"] == "destination queue"
    assert seen["hollow", "lost"]["messages"] == 990 == figures["last_seen"][0]["messages"]
    page = (report / "report.html").read_text()
    assert page.index("figure-lost") < page.index("figure-delivered") < page.index("figure-pending")
    assert "the 990 lost are not in it" in page
    assert '<td data-name="Messages" class=" bad">990</td>' in page


def test_percentiles_are_some_messages_lateness(reported: Reported) -> None:
    """Not a mean of two: of ten, the 99th of a hundred is the last."""
    hollow = rows(reported[0], "summary", "endpoint")["hollow"]
    assert {hollow[f"p{n}_ms"] for n in (50, 90, 99)} == {100}
    past = rows(reported[0], "summary", "endpoint")["past"]
    assert (past["p50_ms"], past["p90_ms"], past["max_ms"]) == (1000, 2000, 2000)


def test_late_counts_from_the_sending_if_that_is_later(reported: Reported) -> None:
    """Or from the change of the due time; and to the queue, where the rest is a wait."""
    messages = rows(reported[0], "messages", "endpoint", "message_id")
    found = {
        name: (messages["past", name]["late_ms"], messages["past", name]["waited_ms"])
        for name in ("direct", "stored", "moved")
    }
    assert found == {"direct": (0, 90_000), "stored": (2000, 0), "moved": (1000, 30)}
    assert messages["past", "stored"]["due_ms"] == told.T0 - LATE
    assert messages["past", "stored"]["late_from_ms"] == told.T0
    assert not any(row["early"] for row in messages.values())


def test_without_a_due_time_it_is_unknown(reported: Reported) -> None:
    """Neither pending nor lost can be said of it."""
    report, figures = reported
    row = rows(report, "messages", "endpoint", "message_id")["undated", "undated"]
    assert (row["status"], row["last_seen"], row["due_ms"]) == ("unknown", "delay queue", None)
    assert figures["unknown"] == 1


def test_cohorts_are_bands_of_delays(reported: Reported) -> None:
    """Of each endpoint, and of all together."""
    cohorts = rows(reported[0], "cohorts", "endpoint", "delay")
    assert cohorts["hollow", "up to 1 h"]["lost"] == 990
    assert cohorts[None, "up to 1 h"]["messages"] == 1011
    assert cohorts[None, None]["unknown"] == 1


def test_requests_cost_what_the_cost_model_says(reported: Reported) -> None:
    """The bill of a relay without its logs, to the last digit; and the price is that of the store in use."""
    (relay,) = [bill for bill in bills(LOAD, PRICES) if bill.strategy == "relay"]
    costs = rows(reported[0], "cost", "endpoint", "delay")
    row = costs["relay", "up to 1 h"]
    assert row["hops"] == LOAD.hops * 10 == 20
    logs = sum(line.amount for line in relay.lines if line.what.startswith("Logs"))
    assert row["sqs_cost"] + row["lambda_cost"] == pytest.approx(
        float(relay.for_messages - logs), rel=1e-12
    )
    quantities = {line.what: line.quantity for line in relay.lines}
    assert row["fifo_requests"] == quantities["SQS FIFO requests (send, receive, delete a hop)"]
    assert all((each["store_cost"] > 0) == (each["parked"] > 0) for each in costs.values())
    assert any(each["parked"] for each in costs.values())
    told_of_it(reported[0] / "report.html", "S3")


def test_the_chart_has_bins_of_equal_width_and_says_the_rest() -> None:
    """Early and late ones have a bar of their own."""
    drawn = lateness_chart({-1: 1, 0: 1, 2: 1, 3: 1}, 100, 3)
    assert "of all arrivals" in drawn
    assert "early: 1, 0 to 100 ms: 1, 200 to 300 ms: 1, later: 1." in drawn
    assert lateness_chart({}, 1, 1) == ""
