"""What the console does, on the local AWS and with each kind of store, by its forms and by its API."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest

from sqsdelay.console.services import Services
from sqsdelay.console.settings import Access
from sqsdelay.core.delay import utc
from sqsdelay.errors import StoreUnavailable
from sqsdelay.ledger import from_json
from sqsdelay.stores import open_store
from tests.functional.console.conftest import HOUR_MS, Running, client_of, submitted

Start = Callable[..., Running]


@pytest.fixture(params=["sqlite", "postgres", "dynamodb"])
def stored(request: pytest.FixtureRequest, start: Start) -> Running:
    """A console on each kind of store."""
    if request.param == "postgres":
        return start(request.getfixturevalue("postgres"))
    return start("dynamodb://{name}" if request.param == "dynamodb" else None)


def pages(running: Running, path: str, **query: str) -> Any:
    """A page of this endpoint."""
    return running.client.get(path, params={"endpoint": running.endpoint, **query})


def marked(due_ms: int, *ids: str) -> list[str]:
    """The values of the boxes before these messages."""
    return [f"{due_ms}:{each}" for each in ids]


def test_by_forms_from_the_list_to_the_result(stored: Running) -> None:
    """Cancel two, move one, release one: confirmed in words, done, and seen in the store."""
    due_ms = stored.park("a", "b", "c", "d", "e")
    client = stored.client
    listed = pages(stored, "/messages")
    for each in "abcde":
        assert f">{each}</a>" in listed.text

    asked = submitted(client, listed, "Cancel…", m=marked(due_ms, "a", "b"))
    assert f"Cancel 2 messages of {stored.endpoint}?" in asked.text
    assert "This cannot be undone." in asked.text
    assert [m.message_id for m in stored.store.pending(9)] == list("abcde")
    result = submitted(client, asked, "Cancel 2 messages")
    assert "cancelled" in client.get(result.headers["location"]).text

    asked = submitted(client, listed, "Reschedule…", m=marked(due_ms, "c"))
    asked = submitted(client, asked, "Continue", delay="2d")
    moved = submitted(client, asked, "Move 1 message")
    assert "moved to" in client.get(moved.headers["location"]).text

    asked = submitted(client, listed, "Release now…", m=marked(due_ms, "d"))
    assert "become due at once" in asked.text
    submitted(client, asked, "Release 1 message now")

    waiting = {m.message_id: m.due_ms for m in stored.store.pending(9)}
    assert waiting.keys() == {"c", "d", "e"}
    now_ms = time.time_ns() // 1_000_000
    assert abs(waiting["c"] - now_ms - 48 * HOUR_MS) < 60_000
    assert abs(waiting["d"] - now_ms) < 60_000
    assert waiting["e"] == due_ms
    kinds = [from_json(line).kind for line in stored.ledger.read_text().splitlines()]
    assert kinds == ["cancelled", "cancelled", "rescheduled", "rescheduled"]


def test_what_was_released_now_is_a_dispatchers_at_once(running: Running) -> None:
    """Whoever dispatches may claim it."""
    running.park("soon", "later")
    running.done(running.api("messages/release", messages=[{"id": "soon"}]))
    now_ms = time.time_ns() // 1_000_000
    with (
        closing(open_store(running.url, endpoint=running.endpoint)) as store,
        store.claim(9, due_by_ms=now_ms + 60_000) as claim,
    ):
        assert [m.message_id for m in claim.messages] == ["soon"]


def test_the_same_click_twice_is_one_change(running: Running) -> None:
    """A browser that sends a form again gets the same result, and a message that was stored again
    under this id meanwhile stays."""
    due_ms = running.park("a")
    asked = submitted(running.client, pages(running, "/messages"), "Cancel…", m=marked(due_ms, "a"))
    first = submitted(running.client, asked, "Cancel 1 message")
    running.park("a")
    again = submitted(running.client, asked, "Cancel 1 message")
    assert first.headers["location"] == again.headers["location"]
    assert running.store.pending_count() == 1


def test_a_key_is_for_one_change(running: Running) -> None:
    """Another change with it is refused, not answered with the first one's result."""
    running.park("a")
    chosen = [{"id": "a"}]
    running.done(running.api("messages/release", messages=chosen, key="mine"))
    refused = running.api("messages/cancel", messages=chosen, key="mine")
    assert refused.status_code == 400
    assert "another change" in refused.json()["message"]
    running.park("b")
    refused = running.api("messages/release", messages=[{"id": "b"}], key="mine")
    assert refused.status_code == 400


def test_two_consoles_on_one_message(running: Running, start: Start) -> None:
    """The second is told that the first has moved it, and does not undo that."""
    due_ms = running.park("a")
    seen = [{"id": "a", "due_ms": due_ms}]
    asked = submitted(
        running.client, pages(running, "/messages"), "Release now…", m=marked(due_ms, "a")
    )
    later = utc(due_ms + HOUR_MS).isoformat()
    moved = running.done(running.api("messages/reschedule", messages=seen, due_at=later))
    assert moved["counts"] == {"done": 1}
    result = submitted(running.client, asked, "Release 1 message now")
    text = running.client.get(result.headers["location"]).text
    assert "it was moved meanwhile" in text
    assert [m.due_ms for m in running.store.pending(1)] == [due_ms + HOUR_MS]


@pytest.mark.parametrize(
    ("action", "words"),
    [
        ("messages/cancel", "it is not in the store"),
        ("messages/release", "it was released or cancelled meanwhile"),
    ],
)
def test_released_between_confirmation_and_click(running: Running, action: str, words: str) -> None:
    """The result says that it was gone."""
    due_ms = running.park("a")
    running.store.cancel(["a"])
    job = running.done(running.api(action, messages=[{"id": "a", "due_ms": due_ms}]))
    assert words in job["outcomes"][0]["text"]
    assert job["counts"].get("done") is None


def test_being_released_at_that_moment(running: Running) -> None:
    """A dispatcher has it in hand: too late, and it says so."""
    running.park("a", due_in_ms=0)
    store = open_store(running.url, endpoint=running.endpoint)
    with store.claim(1, due_by_ms=2**52):
        for action in ("cancel", "release"):
            job = running.done(running.api(f"messages/{action}", messages=[{"id": "a"}]))
            assert "too late: it is being released at this moment" in job["outcomes"][0]["text"]
    store.close()


def test_too_far_or_no_time_is_refused(running: Running) -> None:
    """With the reason, before anything happens."""
    due_ms = running.park("a")
    seen = [{"id": "a"}]
    for given, words in (
        ({"delay": "4000d"}, "allows delays of up to"),
        ({"delay": "soon"}, "'soon'"),
        ({}, "give either a delay"),
        ({"delay": "1d", "due_at": "2027-01-31T09:00:00Z"}, "give either a delay"),
    ):
        answer = running.api("messages/reschedule", messages=seen, **given)
        assert answer.status_code == 400
        assert words in answer.json()["message"]
    assert [m.due_ms for m in running.store.pending(1)] == [due_ms]


def test_all_that_is_known_of_a_message(running: Running) -> None:
    """From the store, the error queue and the ledger, and what to say of one that nobody knows."""
    running.done(running.api("send", body='{"order": 7}', delay="3d", id="order-7"))
    found = running.get("message", id="order-7")
    assert found["where"] == "store"
    assert found["body"] == '{"order": 7}'
    assert found["route"] == "store"
    assert [event["event"] for event in found["history"]] == ["sent"]
    running.reject("bad", reason="its delay is 'x'")
    running.look()
    found = running.get("message", id="bad")
    assert found["where"] == "error queue"
    assert found["reason"] == "its delay is 'x'"
    assert running.get("message", id="nobody")["where"] == "unknown"
    running.done(running.api("messages/cancel", messages=[{"id": "order-7"}]))
    assert running.get("message", id="order-7")["where"] == "cancelled"


def test_pages_of_messages(running: Running) -> None:
    """By due time, from cursor to cursor, within due times; a cursor that is none is refused."""
    first = running.park(*(f"m{n:02}" for n in range(7)))
    running.park("later", due_in_ms=30 * HOUR_MS)
    seen: list[str] = []
    after = None
    while True:
        page = running.get("messages", limit=3, **({"after": after} if after else {}))
        seen += [each["id"] for each in page["messages"]]
        after = page["next"]
        if after is None:
            break
    assert seen == [*(f"m{n:02}" for n in range(7)), "later"]
    running.park("late", due_in_ms=-HOUR_MS)
    filtered = pages(running, "/messages", when="overdue").text
    assert (">late</a>" in filtered, ">m00</a>" in filtered) == (True, False)
    filtered = pages(running, "/messages", when="day").text
    assert (">late</a>" in filtered, ">later</a>" in filtered) == (False, False)
    assert 'Overdue <span class="n">1</span>' in filtered
    running.store.cancel(["late"])
    until = running.get("messages", due_before=utc(first + 1).isoformat())
    assert len(until["messages"]) == 7
    refused = pages(running, "/messages", after="nonsense")
    assert refused.status_code == 400
    assert "is not a cursor" in refused.text


def test_what_becomes_due(stored: Running) -> None:
    """Hour by hour, what is overdue apart, by counting or by reading."""
    stored.park("a", "b", due_in_ms=HOUR_MS + 60_000)
    stored.park("late", due_in_ms=-HOUR_MS)
    for span, spans in (("hours", 25), ("days", 31), ("months", 13)):
        found = stored.get("outlook", span=span)
        assert len(found["bars"]) == spans
        assert found["bars"][0] | {"count": 1, "overdue": True} == found["bars"][0]
        assert sum(bar["count"] for bar in found["bars"]) == 3


def test_overdue_is_said_with_its_remedy(running: Running) -> None:
    """In the words of the alarm, and that no dispatcher was seen."""
    running.park("late", due_in_ms=-HOUR_MS)
    view = running.client.get("/api/v1/overview").json()["endpoints"][0]
    (condition,) = view["conditions"]
    assert condition["alarm"] == "Overdue"
    assert "sqsdelay dispatch" in condition["remedy"]
    states = {worker["name"]: worker["state"] for worker in view["workers"]}
    assert states == {"delay consumer": "idle", "dispatcher": "not seen"}


def test_retry_and_discard_by_forms(running: Running) -> None:
    """One of a reason retried, all of another discarded, the third left, two messages of one id apart."""
    running.reject("a", "a", reason="delay of 70 s exceeds 60 s")
    running.reject("b", reason="delay of 80 s exceeds 60 s")
    running.reject("c", reason="no due time", due=False)
    client = running.client
    view = running.look()
    assert [(g["reason"], len(g["messages"])) for g in view["groups"]] == [
        ("delay of … s exceeds … s", 3),
        ("no due time", 1),
    ]
    page = pages(running, "/errors")
    first = next(e["key"] for e in view["groups"][0]["messages"] if e["id"] == "a")
    asked = submitted(client, page, "Retry chosen…", m=[first])
    result = submitted(client, asked, "Retry 1 message")
    assert f"sent to {running.endpoint}" in client.get(result.headers["location"]).text
    assert len(running.received()) == 1
    looked = submitted(client, pages(running, "/errors"), "Look again")
    asked = submitted(client, client.get(looked.headers["location"]), "Discard all…")
    assert "there is no other copy" in asked.text
    submitted(client, asked, "Discard all messages of this reason")
    left = running.look()["groups"]
    assert [e["id"] for group in left for e in group["messages"]] == ["c"]


def test_to_get_a_page_receives_nothing(running: Running) -> None:
    """Any website can make a browser get one, and whoever may only read must not raise receive counts."""
    running.reject("a")
    for path in ("/", "/errors", "/message"):
        assert "too far" not in pages(running, path, id="a", again="true").text
    (group,) = running.look()["groups"]
    assert [e["receives"] for e in group["messages"]] == [1]
    readers = client_of(Services(running.services.settings, Access(read_only=True)))
    where = {"endpoint": running.endpoint}
    assert "<button>Look" not in readers.get("/errors", params=where).text
    assert readers.post("/errors/look", data=where).status_code == 403


def test_an_undated_message_stays_or_goes_at_once(running: Running) -> None:
    """As the form's box says."""
    running.reject("c", reason="no due time", due=False)
    running.look()
    asked = submitted(running.client, pages(running, "/errors"), "Retry all…")
    assert "Deliver messages without a due time at once" in asked.text
    stayed = running.done(running.api("errors/retry", all=True))
    assert "its due time is unknown" in stayed["outcomes"][0]["text"]
    went = running.done(running.api("errors/retry", all=True, undated_now=True))
    assert went["counts"] == {"done": 1}


def test_what_another_console_has_taken_is_not_found(running: Running) -> None:
    """Both looked; the second one's retry says what happened."""
    running.reject("a")
    key = running.look()["groups"][0]["messages"][0]["key"]
    running.done(running.api("errors/discard", keys=[key]))
    job = running.done(running.api("errors/retry", keys=[key]))
    assert job["counts"] == {"not-done": 1}
    assert "not found" in job["outcomes"][0]["text"]
    assert running.received() == []


def test_sending_shows_the_way_first(running: Running) -> None:
    """Route, due time and cost; nothing is sent by looking, one message by sending."""
    page = pages(running, "/send")
    shown = submitted(
        running.client, page, "Show route and cost", body='a "b"\n<c>', delay="3h", id="x-1"
    )
    assert f"into the store of {running.endpoint}" in shown.text
    assert running.store.pending_count() == 0
    for _ in range(2):
        sent = submitted(running.client, shown, "Send it")
    assert "sent (store)" in running.client.get(sent.headers["location"]).text
    (parked,) = running.store.pending(9)
    assert (parked.message_id, parked.body) == ("x-1", b'a "b"\n<c>')
    for delay, route, hops in (("10", "direct", 0), ("2h", "delay-queue", 7), ("3h", "store", 0)):
        found = running.api("send/preview", body="x", delay=delay).json()
        assert (found["route"], found["hops"]) == (route, hops)
    assert running.received() == []
    refused = submitted(running.client, page, "Show route and cost", body="x", delay="never")
    assert refused.status_code == 400
    assert "never" in refused.text


def test_a_lost_store_is_said_and_the_rest_is_shown(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On every page, with the numbers there were; and it comes back by itself."""
    running.park("a", "b")
    source = running.services.source(running.endpoint)
    assert running.client.get("/").status_code == 200
    place, whole = source.place(), source.place().pending

    def lost(*_: Any, **__: Any) -> Any:
        raise StoreUnavailable("the store at db:5432 is gone")

    for name in ("pending", "find", "cancel", "amend", "count_due", "pending_count"):
        monkeypatch.setattr(place, name, lost)
    source.changed()
    overview = running.client.get("/")
    assert "the store at db:5432 is gone" in overview.text
    assert "<dd>2</dd>" in overview.text
    listed = pages(running, "/messages")
    assert listed.status_code == 200
    assert "The store cannot be shown." in listed.text
    assert "is gone" in pages(running, "/message", id="a").text
    job = running.done(running.api("messages/cancel", messages=[{"id": "a"}, {"id": "b"}]))
    assert job["counts"] == {"not-done": 2}
    assert "perhaps not done" in job["outcomes"][0]["text"]
    many = [{"id": f"m{n}"} for n in range(9)]
    ended = running.done(running.api("messages/cancel", messages=many))
    assert ended["counts"] == {"not-done": 3}, "the others were not tried"
    assert "is gone" in ended["error"]
    assert running.client.get(f"/api/v1/endpoints/{running.endpoint}/messages").status_code == 503
    monkeypatch.undo()
    source.changed()
    assert whole(1)
    assert "is gone" not in running.client.get("/").text
