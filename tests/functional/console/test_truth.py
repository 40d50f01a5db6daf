"""A console in trouble: what is old says how old it is, what is not known is not shown as known."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from sqsdelay.console.guard import Access
from sqsdelay.console.services import Services
from sqsdelay.core.endpoint import Endpoint
from sqsdelay.ledger import EventKind, Source
from sqsdelay.testing import ManualClock
from sqsdelay.testing.local_aws import LocalAws
from tests.functional.console.conftest import HOUR_MS, Running, visited
from tests.functional.console.page import Page
from tests.services.network import HoldingProxy

Start = Callable[..., Running]


@pytest.fixture
def slow(aws_here: LocalAws, monkeypatch: pytest.MonkeyPatch) -> Iterator[HoldingProxy]:
    """SQS and DynamoDB behind a proxy that can hold answers back."""
    with HoldingProxy(aws_here.port) as proxy:
        for service in ("SQS", "DYNAMODB"):
            url = f"http://127.0.0.1:{proxy.port}"
            monkeypatch.setenv(f"AWS_ENDPOINT_URL_{service}", url)
        yield proxy


@pytest.fixture
def clock() -> ManualClock:
    """The console's."""
    return ManualClock(time.time_ns() // 1_000_000)


def time_of(clock: ManualClock) -> str:
    """What it shows."""
    return datetime.fromtimestamp(clock.true_ms // 1000, UTC).strftime("%H:%M:%S")


@pytest.fixture
def watched(
    slow: HoldingProxy, start: Start, clock: ManualClock, request: pytest.FixtureRequest
) -> Iterator[Running]:
    """A console of an endpoint whose workers recorded something at this moment."""
    found = start(getattr(request, "param", None), clock=clock)
    found.park("a", "b")
    for source in (Source.CONSUMER, Source.DISPATCHER):
        found.record(EventKind.HOP, "m", source)
    found.until(lambda page: (page.tiles["In queues"], page.tiles["Parked"]) == ("0", "2"))
    yield found
    slow.let_go()


def test_an_sqs_that_is_silent(
    watched: Running, slow: HoldingProxy, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """First on the page; the worker is unknown, never working; the numbers age, and go after a minute."""
    watched.reject("bad")
    watched.services.source(None).changed()
    page = watched.until(lambda page: page.tiles["Errors"] == "1")
    assert page.workers["delay consumer"].startswith("working")
    assert "1 message could not be delivered" in page.notices[0]
    monkeypatch.setattr("sqsdelay.console.sampling.PATIENCE_SECONDS", 0.1)
    slow.hold()
    since = time_of(clock)
    watched.services.source(None).changed()
    gone = f"\u2013 unknown since {since}, then 0"
    aging = ((0, "0"), (5, "0"), (10, "0 15 s old"), (45, "0 1 min old"), (121, gone))
    for seconds, shown in aging:
        clock.advance(seconds)
        # A busy machine's store may not answer within that tenth of a second.
        page = watched.until(lambda page: page.tiles["Parked"] == "2")
        assert page.tiles["In queues"] == shown
        assert page.text.startswith(f"SQS, {watched.endpoint}: no answer for")
        assert page.workers["delay consumer"].startswith(f"unknown since {since}")
        failed = [each for each in page.notices if "1 message could not be delivered" in each]
        assert [" old)" in each for each in failed] == [" old" in shown][: "unknown" not in shown]
        assert "working" not in page.workers["delay consumer"]
    assert "could not be delivered" not in page.text
    listed = watched.page("/messages").text
    assert f"All 2 parked · hop: unknown since {since}, then 0" in listed
    for path in ("/messages", "/errors", "/send"):
        assert watched.page(path).text.startswith(f"SQS, {watched.endpoint}: no answer")
    slow.let_go()
    watched.until(lambda page: page.tiles["In queues"] == "0" and "no answer" not in page.text)


@pytest.mark.parametrize("watched", ["dynamodb://{name}?shards=2"], indirect=True)
def test_a_store_that_is_silent(
    watched: Running, slow: HoldingProxy, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same of its dispatcher; it is asked once a minute, so it may be judged by that for so long."""
    since = time_of(clock)
    clock.advance(55)
    page = watched.page()
    assert page.tiles["Parked"] == "2 55 s old"
    assert page.workers["dispatcher"].startswith("working")
    monkeypatch.setattr("sqsdelay.console.sampling.PATIENCE_SECONDS", 0.1)
    slow.hold()
    clock.advance(10)
    page = watched.page()
    assert page.text.startswith(f"Store, {watched.endpoint}: no answer for")
    assert page.tiles["Parked"] == f"\u2013 unknown since {since}, then 2"
    assert page.workers["dispatcher"].startswith(f"unknown since {since}")
    assert "due in the coming" not in page.text


def test_a_consumer_is_missed_by_who_has_watched(
    aws_here: LocalAws, start: Start, clock: ManualClock
) -> None:
    """What nobody has looked at meanwhile, or is dated ahead of time, tells nothing of it."""
    running = start(clock=clock)
    queue = running.queues.url(Endpoint.parse(running.endpoint).delay_queue)
    sqs = aws_here.client("sqs")
    sqs.set_queue_attributes(QueueUrl=queue, Attributes={"DelaySeconds": "0"})
    ids = {"MessageGroupId": "g", "MessageDeduplicationId": "d"}
    sqs.send_message(QueueUrl=queue, MessageBody="x", **ids)
    ahead_ms = clock.now_ms() + HOUR_MS
    running.record(EventKind.HOP, "m", Source.CONSUMER, at_ms=ahead_ms)
    told = "1 messages can be received"
    for seconds, state in (
        (0, f"idle {told};"),
        (1800, f"idle {told};"),
        *[(8, f"idle {told};")] * 3,
        (8, f"not seen {told}, and none has been for 32 s;"),
    ):
        clock.advance(seconds)
        assert running.page().workers["delay consumer"].startswith(state)
    # As one that was killed leaves it.
    sqs.receive_message(QueueUrl=queue, VisibilityTimeout=600)
    for seconds, state in (
        (8, "working has 1 messages in hand;"),
        (8, "working has 1 messages in hand;"),
        (8, "unknown 1 messages in hand, the same for 16 s;"),
    ):
        clock.advance(seconds)
        assert running.page().workers["delay consumer"].startswith(state)


def test_what_the_ledger_tells_is_dated(watched: Running, clock: ManualClock) -> None:
    """Neither lateness nor an event of yesterday looks like one of now."""
    watched.record(EventKind.HANDED_OVER, "m-1", Source.CONSUMER, late_ms=1500)
    page = watched.page()
    assert page.tiles["Worst"] == "1.50 s"
    assert page.rows("Events")[0][1:3] == ["handed-over", "m-1"]
    assert page.workers["delay consumer"].startswith("working recorded something just now")
    clock.advance(86_400)
    page = watched.page()
    assert "Of the last 1 arrivals in the ledger, the last 1 d ago" in page.text
    assert page.rows("Events")[0][0] == "1 d ago"


def test_what_is_down_is_first_wherever_one_begins(watched: Running, clock: ManualClock) -> None:
    """In its own words, on a console that has asked nothing yet; what was wrong for a time is dated."""
    path = watched.services.settings.stores[watched.endpoint].removeprefix("sqlite:///")
    for each in Path(path).parent.glob("store.db*"):
        each.unlink()
    for first in ("/send", "/errors", "/messages", "/"):
        with visited(Services(watched.services.settings, Access(), clock)) as client:
            page = Page(client, client.get(first))
            assert page.text.startswith(f"Store, {watched.endpoint}: "), page.text
            assert "store.db" in page.notices[0]
            assert first != "/" or page.workers["dispatcher"].startswith("unknown its store")
            clock.advance(300)
            assert "5 min ago" in Page(client, client.get("/cost")).notices[0]


def test_a_message_was_in_the_error_queue_when_it_was_looked_at(
    watched: Running, clock: ManualClock
) -> None:
    """Nothing says that it still is."""
    watched.reject("bad")
    errors = watched.services.source(None).errors_sample
    errors.forget()
    errors.get()
    clock.advance(7200)
    assert "It was in the error queue 2 h ago" in watched.page("/message", id="bad").text
