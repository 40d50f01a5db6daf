"""The console on stores that are paid for each read, without a dispatcher, and on a FIFO endpoint."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from sqsdelay.testing.local_aws import LocalAws
from tests.functional.console.conftest import HOUR_MS, Running, submitted

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
    client, where = kept.client, {"endpoint": kept.endpoint}
    fifo = kept.endpoint.endswith(".fifo")
    scheduled = kept.url.startswith("scheduler:")
    form = client.get("/send", params=where)
    group = {"group": "customer-7"} if fifo else {}
    shown = submitted(client, form, "Show route and cost", body='{"n": 1}', delay="3d", **group)
    assert f"It goes into the store of {kept.endpoint}" in shown.text
    submitted(client, shown, "Send it")
    (sent,) = kept.get("messages")["messages"]
    for _ in "bc":
        job = kept.done(kept.api("send", body="x", delay="2d", **group))
        assert job["counts"] == {"done": 1}, job
    b, c = (each["id"] for each in kept.get("messages")["messages"][:2])

    listed = client.get("/messages", params=where)
    for each in (b, c, sent["id"]):
        assert f">{each}</a>" in listed.text
    detail = kept.get("message", id=sent["id"])
    assert (detail["where"], detail["body"]) == ("store", '{"n": 1}')
    assert detail["group_id"] == (group["group"] if fifo else None)

    asked = submitted(client, listed, "Cancel…", m=[f":{b}"])
    cancelled = submitted(client, asked, "Cancel 1 message")
    assert "cancelled" in client.get(cancelled.headers["location"]).text
    move = kept.done(kept.api("messages/reschedule", messages=[{"id": c}], delay="5d"))
    assert move["counts"] == {"done": 1}, move
    left = {each["id"]: each["due_ms"] for each in kept.get("messages")["messages"]}
    assert left.keys() == {sent["id"], c}
    assert abs(left[c] - time.time_ns() // 1_000_000 - 5 * 24 * HOUR_MS) < 60_000

    released = kept.done(kept.api("messages/release", messages=[{"id": c}]))
    assert released["counts"] == {"not-done" if scheduled else "done": 1}, released
    again = client.get("/messages", params=where)
    assert ("Release now…" in again.text) != scheduled
    bars = kept.get("outlook", span="days")["bars"]
    assert sum(bar["count"] for bar in bars) == 2
    view = client.get(f"/api/v1/endpoints/{kept.endpoint}").json()
    assert view["trouble"] == []
    assert view["store"] == kept.url.partition(":")[0]
    states = {worker["name"] for worker in view["workers"]}
    assert states == {"delay consumer"} | (set() if scheduled else {"dispatcher"})
    roles = [queue["role"] for queue in view["queues"]]
    assert ("due queue" in roles) == fifo


def test_what_failed_on_a_fifo_endpoint_is_sent_on(start: Start) -> None:
    """To its due queue or the queue itself, in its group."""
    running = start(fifo=True)
    running.reject("a", reason="too far")
    running.look()
    asked = submitted(
        running.client,
        running.client.get("/errors", params={"endpoint": running.endpoint}),
        "Retry all…",
    )
    result = submitted(running.client, asked, "Retry all messages of this reason")
    assert "sent to" in running.client.get(result.headers["location"]).text
    assert running.look()["groups"] == []
