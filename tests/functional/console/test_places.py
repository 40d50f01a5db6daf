"""The console on stores that are paid for each read, without a dispatcher, and on a FIFO endpoint."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from sqsdelay.testing.local_aws import LocalAws
from tests.functional.console.conftest import HOUR_MS, Running

Start = Callable[..., Running]

ROLE = "arn:aws:iam::000000000000:role/scheduler"


@pytest.fixture(params=["s3", "scheduler", "fifo"])
def kept(request: pytest.FixtureRequest, start: Start, aws_here: LocalAws) -> Running:
    """A console on a bucket, on a schedule group, and of a FIFO endpoint."""
    if request.param == "s3":
        aws_here.client("s3").create_bucket(Bucket="console-parked")
        return start("s3://console-parked/{name}")
    if request.param == "scheduler":
        return start(f"scheduler://{{name}}?role={ROLE}")
    return start(fifo=True)


def test_from_sending_to_the_result(kept: Running) -> None:
    """Sent by the form, listed, found, moved, cancelled, counted; who releases it is said as it is."""
    fifo, scheduled = kept.endpoint.endswith(".fifo"), kept.url.startswith("scheduler:")
    group = {"group": "customer-7"} if fifo else {}
    form = kept.page("/send")
    shown = form.press("Show route and cost", body='{"n":1}', delay="3d", **group)
    assert f"It goes into the store of {kept.endpoint}" in shown.text
    shown.press("Send it")
    soon = form.press("Show route and cost", body="x", delay="10", **group)
    way = "to the due queue of" if fifo else "straight to"
    assert f"It goes {way} {kept.endpoint}, where a" in soon.text
    for _ in "bc":
        assert "1 done" in kept.send("x", delay="2d", **group).text
    listed = kept.page("/messages")
    b, c, first = listed.ids
    detail = kept.page("/message", id=first)
    assert next(detail.main.all("pre")).text == '{ "n": 1 }'
    assert detail.tiles.get("Group") == group.get("group")

    asked = listed.press("Cancel…", m=[f":{b}"])
    assert "cancelled" in asked.press("Cancel 1 message").text
    assert "1 done" in kept.change("Reschedule…", c, delay="5d").text
    assert kept.page("/messages").ids == [first, c]
    due_ms = kept.store.pending(9)[1].due_ms
    assert abs(due_ms - time.time_ns() // 1_000_000 - 5 * 24 * HOUR_MS) < 60_000

    again = kept.page("/messages")
    assert again.offers("Release now…") != scheduled
    if not scheduled:
        assert "1 done" in kept.change("Release now…", c).text
    page = kept.page("/", span="days")
    bars = [int(each.text.rpartition(": ")[2]) for each in page.main.all("title")]
    assert sum(bars) == 2
    assert not any(each.startswith(("Store", "SQS")) for each in page.notices)
    assert page.workers.keys() == {"delay consumer"} | (set() if scheduled else {"dispatcher"})
    assert ("due queue" in [row[1] for row in page.rows("Queues")]) == fifo


def test_what_failed_on_a_fifo_endpoint_is_sent_on(start: Start) -> None:
    """To its due queue or the queue itself, in its group."""
    running = start(fifo=True)
    running.reject("a", reason="too far")
    asked = running.look().press("Retry…", which="all")
    assert "sent to" in asked.press("Retry 1 message").text
    assert running.look().ids == []
