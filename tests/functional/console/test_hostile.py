"""Whoever may send a message writes ids, bodies, attributes and reasons: every page shows them as text."""

from __future__ import annotations

import re
from itertools import cycle

import pytest

from sqsdelay.console.rendering import wire
from sqsdelay.core.message import string
from sqsdelay.core.readable import one_line, plain
from sqsdelay.ledger import EventKind, Source
from tests.functional.console.conftest import Running
from tests.functional.console.page import Node, parsed
from tests.hostile.strategies import NUMBERS
from tests.messages import a_message

IDS = (
    '<img src=x onerror="alert(1)">', '"><script>alert(1)</script>', "'; DROP TABLE x; --", "a&b=c#d?e",
    "../../etc/passwd", "%2e%2e%2f%00", "{{ 7*7 }}{% raw %}", "\x1b[31mred\x07", "\u202eevil\u2066", "a\r\nb",
    "tab\there", "\u2028line", "\ufeffbom", "e\u0301", "\U0001d518", " padded ", ":", "1:2:3", "a" * 250,
    *(number for number in NUMBERS if 0 < len(number) <= 250),
)  # fmt: skip
BODIES = (
    b"<script>alert(1)</script>", b"\xff\xfe\x00\x1b[2J", b"", b'{"a": 1.10, "a": 2}', b"[" * 5000,
    b"</textarea></pre><b>", "\u202e<i>\u2028".encode(), b"{{ config }}", b"x" * 200_000,
)  # fmt: skip


def check(page: str) -> Node:
    """A page holds nothing but our own tags, and no character that acts on a screen."""
    root = parsed(page)
    for each in root.every():
        assert each.tag not in ("img", "b", "i-evil", "iframe")
        assert not [name for name in each.attributes if name.startswith("on") or name == "style"]
        if each.tag == "script":
            assert each.attributes["src"].startswith("/static/")
        for name in ("href", "src", "action", "hx-get"):
            assert (each.attributes.get(name) or "/").startswith(("/", "#"))
    acting = "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\u2028]"
    assert not re.search(acting, page)
    return root


@pytest.fixture
def hostile(running: Running) -> Running:
    """A store, an error queue and a ledger full of them."""
    messages = [
        a_message(
            each,
            2_000_000_000_000 + n,
            to='<a href="javascript:x">',
            body=BODIES[n % len(BODIES)],
            attributes={"<b>": string("<script>"), "n\u202e": string("\x1b")},
            group_id="<i>",
        )
        for n, each in enumerate(IDS)
    ]
    running.store.store(messages)
    reason = '<script>alert("why")</script> \x1b[31m'
    running.reject("h-1", reason=reason, body="<script>alert(2)</script>")
    for each in IDS:
        running.record(EventKind.REJECTED, each, Source.CONSUMER, reason=f"<b>{each}</b>")
    return running


def test_every_page_shows_it_as_text(hostile: Running) -> None:
    """Lists, details, histories, errors, confirmations, results."""
    client, endpoint = hostile.client, hostile.endpoint
    hostile.look()
    for path in ("/", "/errors", "/messages"):
        answer = client.get(path, params={"endpoint": endpoint})
        assert answer.status_code == 200
        check(answer.text)
    listed = client.get("/messages", params={"endpoint": endpoint})
    shown = check(listed.text)
    links = [a.attributes["href"] for a in shown.all("a") if "/message?" in a.attributes["href"]]
    assert len(links) == len(IDS)
    for link, message_id in zip(links, IDS, strict=True):
        answer = client.get(link)
        page = check(answer.text)
        assert answer.status_code == 200
        assert "waits in the store" in page.raw, message_id
        assert one_line(message_id) in page.raw
        assert plain(f"<b>{message_id}</b>") in page.raw


def test_every_one_can_be_changed_by_its_form(hostile: Running) -> None:
    """The id comes back from the browser as it was."""
    listed = hostile.page("/messages")
    assert [box.partition(":")[2] for box in listed.marks()] == [wire(each) for each in IDS]
    asked = listed.press("Cancel…", m=listed.marks())
    check(asked.html)
    done = asked.press(f"Cancel {len(IDS)} messages")
    check(done.html)
    assert f"{len(IDS)} done" in done.text
    assert hostile.store.pending_count() == 0


def test_what_is_asked_for_may_be_hostile_too(running: Running) -> None:
    """Endpoints, ids, cursors, keys, actions: an error in words, and never one of the server's."""
    client = running.client
    for each in (*IDS[:14], "\ud800", "\x00", "9" * 250):
        query = wire(each)
        for path in (
            f"/messages?endpoint={query}",
            f"/messages?endpoint={running.endpoint}&after={query}",
            f"/messages?endpoint={running.endpoint}&due_from={query}",
            f"/message?endpoint={running.endpoint}&id={query}",
            f"/messages?endpoint={running.endpoint}&text={query}&attribute={query}",
            f"/errors?endpoint={running.endpoint}&text={query}&reason={query}",
            f"/results/{query}",
            f"/?span={query}",
            f"/cost?delay={query}",
        ):
            answer = client.get(path)
            assert answer.status_code < 500, (path, answer.text)
            if "html" in answer.headers.get("content-type", ""):
                check(answer.text)
    page = running.page("/send")
    verbs = cycle(("cancel", "reschedule", "retry", "nonsense"))  # 13 marks: each has others
    for action in ("/confirm", "/do", "/send/do"):
        for mark in (*IDS[:10], "1:\ud800", "9" * 99 + ":x", ":x"):
            key = wire(mark)[:60]
            fields = {"endpoint": running.endpoint, "m": wire(mark), "key": key, "due_at": key}
            fields |= {"csrf": next(page.main.all("input", name="csrf")).attributes["value"]}
            answer = client.post(action, data={**fields, "action": next(verbs), "body": key})
            assert answer.status_code < 500, answer.text
            check(answer.text)
    for content in (b"", b"[" * 99_999, b"csrf=%ff&m=%00"):
        kind = {"content-type": "application/x-www-form-urlencoded"}
        answer = client.post("/do", content=content, headers=kind)
        assert answer.status_code in (400, 403)
    assert client.post("/do", files={"m": ("a.txt", b"x")}).status_code == 415
