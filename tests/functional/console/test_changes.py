"""What the console shows and does, on the local AWS and with each kind of store, as its user sees it."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest

from sqsdelay.console.guard import Access
from sqsdelay.console.messages import Filter, listed
from sqsdelay.console.services import MOST_CHANGED, Services, of_failed
from sqsdelay.console.source import BODY_SHOWN
from sqsdelay.core.endpoint import Endpoint
from sqsdelay.core.message import string
from sqsdelay.errors import SqsDelayError, StoreUnavailable
from sqsdelay.ledger import EventKind, Source, from_json
from sqsdelay.stores import open_store
from sqsdelay.testing.local_aws import LocalAws
from tests.functional.console.conftest import HOUR_MS, Running, visited
from tests.functional.console.page import Page
from tests.messages import a_message

Start = Callable[..., Running]


@pytest.fixture(params=["sqlite", "postgres", "dynamodb"])
def stored(request: pytest.FixtureRequest, start: Start) -> Running:
    """A console on each kind of store."""
    if request.param == "postgres":
        return start(request.getfixturevalue("postgres"))
    return start("dynamodb://{name}?shards=2" if request.param == "dynamodb" else None)


def test_by_forms_from_the_list_to_the_result(stored: Running) -> None:
    """Cancel two, move one, release one: confirmed in words, done, and seen in the store."""
    due_ms = stored.park("a", "b", "c", "d", "e", body=b'{"n": 1}')
    listed = stored.page("/messages")
    assert listed.ids == ["a", "b", "c", "d", "e"], listed.text
    assert "All 5 parked · 0 hop, which SQS cannot list" in listed.text

    asked = listed.press("Cancel…", m=listed.marks("a", "b"))
    assert f"Cancel 2 messages of {stored.endpoint}?" in asked.text
    assert "This cannot be undone." in asked.text
    assert [(row[0], row[2]) for row in asked.rows()] == [
        ("a", 'JSON {"n": 1}'),
        ("b", 'JSON {"n": 1}'),
    ]
    assert [m.message_id for m in stored.store.pending(9)] == list("abcde")
    result = asked.press("Cancel 2 messages")
    assert result.rows() == [["a", "done cancelled"], ["b", "done cancelled"]]
    assert "moved to" in stored.change("Reschedule…", "c", delay="2d").text
    assert "due now" in stored.change("Release now…", "d").text

    waiting = {m.message_id: m.due_ms for m in stored.store.pending(9)}
    assert waiting.keys() == {"c", "d", "e"}
    now_ms = time.time_ns() // 1_000_000
    assert abs(waiting["c"] - now_ms - 48 * HOUR_MS) < 60_000
    assert abs(waiting["d"] - now_ms) < 60_000
    assert waiting["e"] == due_ms
    with (
        closing(open_store(stored.url, endpoint=stored.endpoint)) as store,
        store.claim(9, due_by_ms=now_ms + 60_000) as claim,
    ):
        assert [m.message_id for m in claim.messages] == ["d"], "any dispatcher may claim it"
    kinds = [from_json(line).kind for line in stored.ledger.read_text().splitlines()]
    assert kinds == ["cancelled", "cancelled", "rescheduled", "rescheduled"]


def test_the_same_click_twice_is_one_change(running: Running) -> None:
    """A browser that sends a form again gets the same result, and a message that was stored again
    under this id meanwhile stays; a form is for one change."""
    running.park("a", "b")
    listed = running.page("/messages")
    asked = listed.press("Cancel…", m=listed.marks("a"))
    first = asked.press("Cancel 1 message")
    running.park("a")
    assert asked.press("Cancel 1 message").text == first.text
    assert running.store.pending_count() == 2
    other = asked.press("Cancel 1 message", m=listed.marks("b"))
    assert other.status == 400
    assert "was used for another change" in other.text
    assert running.store.pending_count() == 2


def test_changed_between_confirmation_and_click(running: Running) -> None:
    """The result says that it was gone, or that another console has moved it, and does not undo that."""
    due_ms = running.park("a", "b", "c")
    listed = running.page("/messages")
    asked = {
        "not in the store; if it is in the delay queue, it will be cancelled": ("Cancel…", "a"),
        "it was released or cancelled meanwhile": ("Release now…", "b"),
        "it was moved meanwhile": ("Release now…", "c"),
    }
    forms = {w: listed.press(each, m=listed.marks(name)) for w, (each, name) in asked.items()}
    running.store.cancel(["a", "b"])
    running.store.reschedule("c", due_ms + HOUR_MS)
    for words, form in forms.items():
        result = form.press(next(each.text for each in form.main.all("button")))
        assert words in result.text
        assert "1 done" not in result.text
    assert [m.due_ms for m in running.store.pending(3)] == [due_ms + HOUR_MS]


def test_being_released_at_that_moment(running: Running) -> None:
    """A dispatcher has it in hand: too late, and it says so."""
    running.park("a", due_in_ms=0)
    store = open_store(running.url, endpoint=running.endpoint)
    with store.claim(1, due_by_ms=2**52):
        for button in ("Cancel…", "Release now…"):
            asked = running.page("/message", id="a").press(button, m=":a")
            result = asked.press(next(each.text for each in asked.main.all("button")))
            assert "too late: it is being released at this moment" in result.text
    store.close()


def test_too_far_or_no_time_is_refused(running: Running) -> None:
    """With the reason, before anything happens."""
    due_ms = running.park("a")
    listed = running.page("/messages")
    asked = listed.press("Reschedule…", m=listed.marks("a"))
    for given, words in (
        ({"delay": "soon"}, "'soon'"),
        ({"delay": "1d", "due_at": "2027-01-31T09:00:00Z"}, "give only one"),
    ):
        assert words in asked.press("Continue", **given).text
    far = asked.press("Continue", delay="4000d").press("Move 1 message")
    assert "allows delays of up to" in far.text
    assert [m.due_ms for m in running.store.pending(1)] == [due_ms]


def test_a_thousand_that_match_are_changed_at_once(running: Running) -> None:
    """One confirmation counts them and shows examples, whatever their ids, of any length and script; the
    result lists what could not be done, first."""
    ids = [f"{n:04}".rjust(250, "\U0001d518") for n in range(MOST_CHANGED + 5)]
    running.park(*ids, body=b"find me")
    running.park("other", body=b"leave me")
    found = running.page("/messages", text="FIND")
    asked = found.press("Cancel…", which="all")
    assert "Cancel 1,000 messages" in asked.text
    assert "the first 1,000 that match; there are more" in asked.text
    assert "… and 990 more." in asked.text
    running.store.reschedule(ids[500], time.time_ns() // 1_000_000 + 2 * HOUR_MS)
    result = asked.press("Cancel 1,000 messages")
    assert "999 done 1 not done" in result.text
    assert result.rows()[0][0] == ids[500]
    assert "… and 979 more that were done" in result.text
    assert running.store.pending_count() == 7
    none = running.page("/messages", text="nowhere").press
    with pytest.raises(AssertionError, match="no form has the button"):
        none("Cancel…")


def test_a_filter_by_text_attribute_and_due_time(stored: Running) -> None:
    """Whatever its case; a page of matches leads on to the next."""
    due_ms = time.time_ns() // 1_000_000 + 25 * HOUR_MS
    kept = [
        a_message(
            f"m{n:02}",
            due_ms + n * 1000,
            to=stored.endpoint,
            body=b"<order/>" if n % 2 else b"\xff\x00",
            attributes={"tenant": string("acme" if n < 60 else "other")},
        )
        for n in range(120)
    ]
    for start in range(0, len(kept), 10):
        stored.store.store(kept[start : start + 10])
    stored.services.source(stored.endpoint).changed()
    first = stored.page("/messages", text="ORDER")
    assert first.ids == [f"m{n:02}" for n in range(1, 100, 2)]
    assert {row[-4].split()[0] for row in first.rows("Parked")} == {"XML"}
    assert first.follow("Search on").ids == [f"m{n}" for n in range(101, 120, 2)]
    assert stored.page("/messages", attribute="tenant=other", text="order").ids[0] == "m61"
    assert stored.page("/messages", attribute="tenant=nobody").ids == []
    assert stored.page("/messages", text="m07").ids == ["m07"]
    stored.park("late", due_in_ms=-HOUR_MS)
    for tab, shown in (("Overdue", ["late"]), ("Next 24 hours", []), ("All", ["late", "m00"])):
        found = stored.page("/messages").follow(tab)
        assert found.ids[:2] == shown
        current = [each.text for each in found.main.all("a") if "aria-current" in each.attributes]
        assert current == [tab]
    assert "binary" in stored.page("/messages", text="m10").rows("Parked")[0][2]


def test_a_slow_store_is_listed_in_parts(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where time is up at once (as with bodies of 1 MiB), what was read is looked at, and one can go on."""
    monkeypatch.setattr("sqsdelay.console.messages.SEARCH_SECONDS", 0)
    running.park(*(f"m{n:03}" for n in range(250)))
    page = running.page("/messages")
    assert len(page.ids) == 50
    assert len(page.follow("Next page").ids) == 50
    page = running.page("/messages", text="9")
    assert page.ids == [f"m{n:03}" for n in range(100) if "9" in str(n)]
    more = page.follow("Search on")
    assert more.ids[0] == "m109"
    assert "the next 19 that match; there are more" in more.press("Cancel…", which="all").text
    page = running.page("/messages", text="m20")
    while not page.ids:
        page = page.follow("Search on")
    assert "all that match from here on" in page.text
    assert "Cancel 10 messages of" in page.press("Cancel…", which="all").text
    source, which = running.services.source(None), Filter(text="m0")
    named = listed(source, which, after=None, limit=MOST_CHANGED, bodies=False)
    assert {row.body for row in named.rows} == {b""}, "a thousand bodies are not held to be counted"


def test_pages_of_messages(running: Running) -> None:
    """By due time, from page to page; a cursor that is none is refused."""
    running.park(*(f"m{n:03}" for n in range(120)))
    page = running.page("/messages")
    seen = page.ids
    while "Next page" in page.text:
        page = page.follow("Next page")
        seen += page.ids
    assert seen == [f"m{n:03}" for n in range(120)]
    refused = running.page("/messages", after="nonsense")
    assert refused.status == 400
    assert "is not a cursor" in refused.text


def steps(page: Page) -> dict[str, bool]:
    """The steps of a message's way, and whether they are lit."""
    (way,) = page.main.all("ol", class_="steps")
    return {
        next(each.all("span")).text: "done" in each.attributes["class"] for each in way.all("li")
    }


def test_all_that_is_known_of_a_message(running: Running) -> None:
    """From the store, the error queue and the ledger, and what to say of one that nobody knows."""
    running.send('{"order":7}', delay="3d", id="order-7", attributes="tenant=acme")
    found = running.page("/message", id="order-7")
    assert "It waits in the store" in found.text
    assert next(found.main.all("pre")).raw == '{\n  "order": 7\n}'
    assert found.rows("Attributes") == [["tenant", "String", "acme"]]
    assert steps(found) == {"Sent": True, "Parked": True, "Released": False, "Delivered": False}
    running.park("unrecorded")
    assert steps(running.page("/message", id="unrecorded"))["Sent"], "it is there, so it was sent"
    running.reject("bad", reason="its delay is 'x'", body="b" * 100_000)
    assert "nobody has looked" in running.page("/message", id="bad").text
    running.look()
    found = running.page("/message", id="bad")
    assert "it is in the error queue" in found.text
    assert "its delay is 'x'" in found.notices
    assert "97.7 KiB, cut text" in found.text
    assert next(found.main.all("pre")).raw == "b" * BODY_SHOWN
    assert steps(found) == {"Sent": True, "Error queue": False}
    for kind in EventKind:
        running.record(kind, f"last-{kind}", Source.CONSUMER)
        assert running.page("/message", id=f"last-{kind}").status == 200
    nobody = running.page("/message", id="nobody")
    assert "nothing is known of it" in nobody.text
    assert not steps(nobody)["Sent"]
    running.change("Cancel…", "order-7")
    assert "It was cancelled" in running.page("/message", id="order-7").text


@pytest.mark.parametrize("times", [1, pytest.param(6, marks=pytest.mark.nightly)])
def test_a_body_of_a_mebibyte(running: Running, times: int) -> None:
    """Sent by the form whatever is in it; shown with indents as far as a page goes, however much these
    would make of it."""
    for body, shown in (
        (json.dumps({"n": ["y" * 80] * 2_000 * times}), '{\n  "n": [\n    "yyyy'),
        ("[" + ",".join(["[" * 900 + "]" * 900] * 80 * times) + "]", "[\n  [\n    [\n"),
        ('"' * (2**20 - 1000), '""""'),
    ):
        assert "sent (store)" in running.send(body, delay="1d", id=f"large-{body[:2]}").text
        found = running.page("/message", id=f"large-{body[:2]}")
        assert next(found.main.all("pre")).raw.startswith(shown)
        assert "KiB, cut" in found.text or "1.0 MiB, cut" in found.text
        assert len(found.html) < 8 * BODY_SHOWN


def test_a_copy_that_is_too_old_is_said(aws_here: LocalAws, running: Running) -> None:
    """In the words of the alarm, with the age that CloudWatch tells."""
    queue = Endpoint.parse(running.endpoint).delay_queue.name
    oldest = {
        "MetricName": "ApproximateAgeOfOldestMessage",
        "Dimensions": [{"Name": "QueueName", "Value": queue}],
        "Value": 9000.0,
    }
    aws_here.client("cloudwatch").put_metric_data(Namespace="AWS/SQS", MetricData=[oldest])
    page = running.until(lambda page: page.tiles["Oldest copy"] == "2 h 30 min")
    (condition,) = page.notices
    assert condition == (
        f"a message has been in {queue} for 2 h 30 min: the relay is late, or fails on it. See the delay "
        f"consumer's log; as a worker: sqsdelay consume {running.endpoint}. Alarm: OldestMessage"
    )


def test_what_becomes_due(stored: Running) -> None:
    """Hour by hour, what is overdue apart, by counting or by reading; that with its alarm and remedy."""
    stored.park("a", "b", due_in_ms=HOUR_MS + 60_000)
    stored.park("late", due_in_ms=-HOUR_MS)
    for span, spans in (("hours", 25), ("days", 31), ("months", 13)):
        page = stored.until(lambda page: list(page.main.all("title")), span=span)
        bars = [each.text.rpartition(": ")[2] for each in page.main.all("title")]
        assert (len(bars), bars[0], sum(map(int, bars))) == (spans, "1", 3)
    (condition,) = page.notices
    assert "sqsdelay dispatch" in condition
    assert "Alarm: Overdue" in condition
    assert page.workers["delay consumer"].startswith("idle")
    assert page.workers["dispatcher"].startswith("not seen")


def test_retry_and_discard_by_forms(running: Running) -> None:
    """One of a reason retried, all of another discarded, the third left, two messages of one id apart."""
    running.reject("a", "a", reason="delay of 70 s exceeds 60 s")
    running.reject("b", reason="delay of 80 s exceeds 60 s")
    running.reject("c", reason="no due time", due=False)
    page = running.look()
    assert [(h2.text) for h2 in page.main.all("h2")] == [
        "3 delay of … s exceeds … s",
        "1 no due time",
    ]
    assert running.page("/errors", reason="no due").ids == ["c"]
    assert not running.page("/errors", reason="no due").offers("Retry all 4…")
    every = page.press("Discard all 4…")
    assert [row[0] for row in every.rows()] == ["a", "a", "b", "c"]
    assert every.offers("Discard 4 messages")
    asked = page.press("Retry…", m=page.marks("a")[:1])
    result = asked.press("Retry 1 message")
    assert f"sent to {running.endpoint}" in result.text
    assert len(running.received()) == 1
    asked = running.look().press("Discard…", which="all")
    assert "there is no other copy" in asked.text
    assert [row[0] for row in asked.rows()] == ["a", "b"]
    asked.press("Discard 2 messages")
    for given, words in (({}, "its due time is unknown"), ({"undated_now": "true"}, "1 done")):
        left = running.look()
        assert left.ids == ["c"]
        asked = left.press("Retry…", which="all")
        assert "Deliver messages without a due time at once" in asked.text
        assert words in asked.press("Retry 1 message", **given).text


def test_to_get_a_page_receives_nothing(running: Running) -> None:
    """Any website can make a browser get one, and whoever may only read must not raise receive counts."""
    running.reject("a")
    for path in ("/", "/errors", "/message"):
        assert "too far" not in running.page(path, id="a", again="true").text
    assert running.look().rows("failed")[0][-1] == "1"
    where = {"endpoint": running.endpoint}
    with visited(Services(running.services.settings, Access(read_only=True))) as readers:
        assert not Page(readers, readers.get("/errors", params=where)).offers("Look")
        assert readers.post("/errors/look", data=where).status_code == 403


def test_what_another_console_has_taken_is_not_found(running: Running) -> None:
    """Both looked; the second one's retry says what happened."""
    running.reject("a")
    page = running.look()
    retry, discard = (page.press(each, which="all") for each in ("Retry…", "Discard…"))
    discard.press("Discard 1 message")
    result = retry.press("Retry 1 message")
    assert "1 not done" in result.text
    assert result.rows()[0][0] == "a", "by the id that it has for people"
    assert "not found" in result.text
    assert running.received() == []


def test_all_that_a_stopped_console_discarded_is_told(running: Running) -> None:
    """The others are still there."""
    running.reject(*map(str, range(25)))
    source = running.services.source(None)
    work = of_failed(source, "discard", running.look().marks(), undated_now=False)
    told = [next(work)]
    source.stopping.set()
    with pytest.raises(SqsDelayError, match="without an outcome were not touched"):
        told.extend(work)
    left = {each.message_id for each in source.errors().look(100)}
    assert left == {*map(str, range(25))} - {each.message_id for each in told}


def test_sending_shows_the_way_first(running: Running) -> None:
    """Route, due time and cost; nothing is sent by looking, one message by sending."""
    page = running.page("/send")
    shown = page.press("Show route and cost", body='a "b"\n<c>', delay="3h", id="x-1")
    assert f"into the store of {running.endpoint}" in shown.text
    assert running.store.pending_count() == 0
    for _ in range(2):
        assert "sent (store)" in shown.press("Send it").text
    (parked,) = running.store.pending(9)
    assert (parked.message_id, parked.body) == ("x-1", b'a "b"\n<c>')
    for delay, route, hops in (
        ("10", "direct", None),
        ("2h", "delay-queue", "7"),
        ("3h", "store", None),
    ):
        found = page.press("Show route and cost", body="x", delay=delay).tiles
        assert (found["Route"], found.get("Hops")) == (route, hops)
    assert running.received() == []
    refused = page.press("Show route and cost", body="x", delay="never")
    assert refused.status == 400
    assert "never" in refused.text


def test_the_cost_is_a_recommendation_in_words(running: Running) -> None:
    """With two next best; numbers are taken as they are typed, and refused in words."""
    page = running.page("/cost", delay="30d", messages="1,500,000", size="2048", batch="10")
    assert "For 1,500,000 messages of 2.0 KiB, delayed by 30 d, 10 due together" in page.text
    assert next(page.main.all("h2")).text.startswith("Deploy with ")
    assert len(list(page.main.all("p", class_="next"))) == 2
    for given, words in (
        ({"delay": "never"}, "'never' is not valid"),
        ({"messages": "many"}, "use a whole number, 1 to"),
        ({"batch": "99"}, "use a whole number, 1 to 10"),
        ({"delay": "1h", "messages": "1000000000", "size": "300000"}, "would be lost"),
    ):
        assert words in running.page("/cost", **given).notices[0]


def test_a_lost_store_is_said_and_the_rest_is_shown(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Above every page, with the numbers there were; and it comes back by itself."""
    running.park("a", "b")
    source = running.services.source(running.endpoint)
    listed = running.page("/messages")
    assert running.page("/").status == 200
    place, whole = source.place(), source.place().pending

    def lost(*_: Any, **__: Any) -> Any:
        raise StoreUnavailable("the store at db:5432 is gone")

    for name in ("pending", "find", "cancel", "amend", "count_due", "pending_count"):
        monkeypatch.setattr(place, name, lost)
    source.changed()
    for path in ("/message", "/", "/messages", "/errors", "/send"):
        page = running.page(path, id="a" if path == "/message" else "")
        assert page.text.startswith(f"Store, {running.endpoint}: the store at db:5432 is gone")
    assert running.page("/").tiles["Parked"] == "2"
    assert "The store cannot be shown" in running.page("/messages").text
    assert "is gone" in running.page("/message", id="a").text
    asked = listed.press("Cancel…", m=listed.marks("a"))
    result = asked.press("Cancel 1 message")
    assert "1 not done" in result.text
    assert "perhaps not done" in result.text
    asked = listed.press("Cancel…", m=[f":m{n}" for n in range(9)])
    ended = asked.press("Cancel 9 messages")
    assert "4 not done" in ended.text, "the others were not tried"
    assert "the store at db:5432 is gone" in ended.notices[-1]
    monkeypatch.undo()
    source.changed()
    assert whole(1)
    assert "is gone" not in running.page("/").text
