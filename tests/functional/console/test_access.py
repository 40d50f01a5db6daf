"""Who may use the console: host, origin, form secret, token, proxy, read-only. Nothing behind it is asked."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any

import pytest
from httpx import Client

from sqsdelay.console.guard import (
    FREE_GUESSES,
    GUESS_SECONDS,
    GUESSES_IN_ALL,
    POLICY,
    SESSION_SECONDS,
    Access,
    Guard,
)
from sqsdelay.console.pages import FORMS
from sqsdelay.console.server import create_app
from sqsdelay.console.services import Services
from sqsdelay.console.source import ConsoleSettings, stores_of
from sqsdelay.errors import ConfigurationError
from sqsdelay.testing import ManualClock
from tests.functional.console.conftest import PORT, browser

CHOSEN = {"endpoint": "orders", "action": "cancel", "m": ":x"}
COOKIE = f"sqsdelay_console_{PORT}"
TOKEN = "correct-horse-battery-staple"


def app_of(tmp_path: Path, clock: ManualClock | None = None, **access: Any) -> Guard:
    """A console of an endpoint that nobody is asked about."""
    settings = ConsoleSettings(
        endpoints=("orders",), stores={"orders": f"sqlite:///{tmp_path}/s.db"}
    )
    return create_app(Services(settings, Access(**access), clock), port=PORT)


def console(tmp_path: Path, **access: Any) -> Client:
    """A browser on it."""
    return browser(app_of(tmp_path, **access))


def tried(app: Guard, caller: str, token: str, forwarded: str = "") -> int:
    """The status of the answer to a token from there."""
    client = browser(app, caller=caller)
    fields = {"csrf": csrf_of(client, "/sign-in"), "token": token}
    headers = [("x-forwarded-for", line) for line in forwarded.splitlines()]
    return int(client.post("/sign-in", data=fields, headers=headers).status_code)


def csrf_of(client: Client, path: str = "/cost") -> str:
    """The secret in a page's forms; the page of the form to send has it always."""
    found = re.search(r'name="csrf" value="([0-9a-f]{64})"', client.get(path).text)
    assert found is not None
    return found[1]


def test_only_its_own_names_are_taken(tmp_path: Path) -> None:
    """A name that an attacker points to this machine (DNS rebinding) gives nothing away."""
    client = console(tmp_path)
    for host in ("evil.example", "127.0.0.1", "127.0.0.1:80", "localhost.evil:8710", ""):
        answer = client.get("/cost", headers={"host": host})
        assert answer.status_code == 421
        assert "--allowed-host" in answer.text
    for host in (f"127.0.0.1:{PORT}", f"localhost:{PORT}", f"[::1]:{PORT}"):
        assert client.get("/cost", headers={"host": host}).status_code == 200


def test_every_page_forbids_what_it_does_not_need(tmp_path: Path) -> None:
    """Also errors, refusals and files; and no page has a script or a style in it."""
    client = console(tmp_path)
    for path in ("/cost", "/nothing", "/static/console.css"):
        answer = client.get(path)
        assert answer.headers["content-security-policy"] == POLICY, path
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["x-frame-options"] == "DENY"
    assert "unsafe" not in POLICY
    page = client.get("/cost").text
    assert not re.findall(r"<script(?![^>]* src=)|<style| style=| on\w+=", page)
    assert not re.findall(r'(?:src|href)="https?:', page)


@pytest.mark.parametrize("path", FORMS)
@pytest.mark.parametrize("csrf", ["", "0" * 64, "é"])
def test_a_form_that_is_not_ours_is_refused(tmp_path: Path, path: str, csrf: str) -> None:
    """Every form there is, also one that is added later."""
    fields = CHOSEN | {"csrf": csrf, "key": "k", "token": TOKEN}
    answer = console(tmp_path).post(path, data=fields)
    assert answer.status_code == 403, answer.text
    assert "form is not from this console" in answer.text


def test_the_secret_is_the_visitors_own(tmp_path: Path) -> None:
    """That of another session is refused, though it is from the same console."""
    app = app_of(tmp_path)
    one, other = (browser(app) for _ in range(2))
    secret = csrf_of(one, "/send")
    fields = CHOSEN | {"csrf": secret}
    assert other.post("/confirm", data=fields).status_code == 403
    assert one.post("/confirm", data=fields).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "https://evil.example"},
        {"origin": "null"},
        {"origin": f"http://127.0.0.1:{PORT + 1}"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
    ],
)
def test_another_site_is_refused(tmp_path: Path, headers: dict[str, str]) -> None:
    """Whatever else it knows."""
    client = console(tmp_path)
    fields = CHOSEN | {"csrf": csrf_of(client, "/send")}
    answer = client.post("/confirm", data=fields, headers=headers)
    assert answer.status_code == 403
    assert "another site" in answer.text


@pytest.mark.parametrize("path", [path for path in FORMS if not path.startswith("/sign")])
def test_read_only_changes_nothing(tmp_path: Path, path: str) -> None:
    """Whatever form it is, and no page offers it."""
    client = console(tmp_path, read_only=True)
    answer = client.post(path, data={"csrf": csrf_of(client, "/send")})
    assert answer.status_code == 403
    assert "--read-only" in answer.text
    assert "/send" not in client.get("/cost").text


def test_a_token_is_asked_for(tmp_path: Path) -> None:
    """Pages lead to the form; a wrong token gives nothing, a right one a session, until it signs out,
    wherever its cookie was copied to."""
    client = console(tmp_path, token=TOKEN)
    assert client.get("/cost").headers["location"] == "/sign-in"
    secret = csrf_of(client, "/sign-in")
    wrong = {"csrf": secret, "token": "wrong", "endpoint": "x"}
    refused = client.post("/sign-in", data=wrong)
    assert refused.status_code == 403
    assert "Wrong token" in refused.text
    assert "orders" not in refused.text, "who has not signed in is not told the endpoints"
    taken = client.post("/sign-in", data={"csrf": secret, "token": TOKEN})
    assert taken.headers["location"] == "/"
    cookie = taken.headers["set-cookie"]
    assert "httponly" in cookie
    assert "samesite=lax" in cookie
    assert client.get("/cost").status_code == 200
    copied = dict(client.cookies)
    client.post("/sign-out", data={"csrf": csrf_of(client)})
    client.cookies.update(copied)
    assert client.get("/cost").status_code == 303


def test_wrong_tokens_slow_down(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Those of one address soon, those of all addresses later; the log names the address."""
    clock = ManualClock()
    app = app_of(tmp_path, clock, token=TOKEN)
    for _ in range(FREE_GUESSES):
        assert tried(app, "10.0.0.1", "wrong") == 403
    assert "a wrong token from 10.0.0.1" in caplog.text
    assert tried(app, "10.0.0.1", TOKEN) == 429
    assert tried(app, "10.0.0.2", TOKEN) == 303
    clock.advance(1)
    assert tried(app, "10.0.0.1", TOKEN) == 303
    for n in range(GUESSES_IN_ALL):
        tried(app, f"10.0.1.{n}", "wrong")
    assert tried(app, "10.0.0.2", TOKEN) == 429
    clock.advance(GUESS_SECONDS)
    assert tried(app, "10.0.0.2", TOKEN) == 303


@pytest.mark.parametrize("between", [", ", "\n"])
def test_behind_a_proxy_each_address_guesses_for_itself(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, between: str
) -> None:
    """The one that the proxy itself adds, last, some proxies as a header of its own; who is no proxy may
    say what they like."""
    app = app_of(tmp_path, token=TOKEN, proxies=("10.0.0.5",))
    for n in range(FREE_GUESSES):
        assert tried(app, "10.0.0.5", "wrong", f"10.9.9.{n}{between}10.0.0.1") == 403
        assert tried(app, "10.0.0.7", "wrong", f"10.9.9.{n}") == 403
    for address in ("10.0.0.1", "10.0.0.7"):
        assert f"a wrong token from {address}" in caplog.text
    assert tried(app, "10.0.0.5", TOKEN, "10.0.0.1") == 429
    assert tried(app, "10.0.0.7", TOKEN, "10.9.9.9") == 429
    assert tried(app, "10.0.0.5", TOKEN, "10.0.0.2") == 303


def test_the_cookie_is_for_tls_behind_tls(tmp_path: Path) -> None:
    """Whoever ends TLS before the console says so in a header."""
    client = console(tmp_path)
    answer = client.get("/cost", headers={"x-forwarded-proto": "https"})
    assert answer.headers["set-cookie"].endswith("; secure")
    assert "secure" not in console(tmp_path).get("/cost").headers["set-cookie"]


def test_a_session_ends(tmp_path: Path) -> None:
    """After twelve hours, whatever the browser does."""
    clock = ManualClock()
    client = browser(app_of(tmp_path, clock, token=TOKEN))
    client.post("/sign-in", data={"csrf": csrf_of(client, "/sign-in"), "token": TOKEN})
    clock.advance(SESSION_SECONDS - 1)
    assert client.get("/cost").status_code == 200
    clock.advance(2)
    assert client.get("/cost").status_code == 303


def test_a_made_up_session_is_none(tmp_path: Path) -> None:
    """Who sets the cookie, or has that of another console, is not signed in by it."""
    client, other = (console(tmp_path, token=TOKEN) for _ in range(2))
    client.post("/sign-in", data={"csrf": csrf_of(client, "/sign-in"), "token": TOKEN})
    for value in ("x" * 43, client.cookies[COOKIE]):
        other.cookies.set(COOKIE, value)
        assert other.get("/cost").status_code == 303


def test_a_proxy_names_the_user(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The log has that name, on one line; nobody else may give it, and it must be there."""
    caplog.set_level(logging.INFO, "sqsdelay.console")
    app = app_of(
        tmp_path, user_header="X-User", proxies=("10.0.0.5",), allowed_hosts=("console.example",)
    )
    through = browser(app, base_url="http://console.example", caller="10.0.0.5")
    named = {"X-User": "ann@example.com"}
    assert "ann@example.com" in through.get("/cost", headers=named).text
    assert through.get("/cost").status_code == 403
    assert browser(app).get("/cost", headers=named).status_code == 403
    secret = re.findall(r'name="csrf" value="(\w+)"', through.get("/send", headers=named).text)[0]
    fields = CHOSEN | {"csrf": secret, "key": "k" * 9}
    assert through.post("/do", data=fields, headers=named).status_code == 303
    assert "cancel orders by ann@example.com: x: not-done" in caplog.text


@pytest.mark.parametrize(
    ("access", "words"),
    [
        ({"host": "0.0.0.0"}, "would be open to the network"),
        ({"host": "::"}, "would be open to the network"),
        ({"host": "console.example"}, "would be open to the network"),
        ({"token": "short"}, "has 5 characters; use 24 or more"),
        ({"token": "a" * 32}, "is made of 1 different characters; use 8 or more"),
        ({"user_header": "X-User"}, "takes both"),
        ({"proxies": ("10.0.0.5",)}, "takes both"),
        ({"user_header": "X-User", "proxies": ("nonsense",)}, "give the IP address"),
    ],
)
def test_what_is_not_safe_does_not_start(access: dict[str, Any], words: str) -> None:
    """And says what to do instead."""
    with pytest.raises(ConfigurationError, match=words):
        Access(**access)
    assert Access(host="0.0.0.0", token=TOKEN).host == "0.0.0.0"


def test_stores_by_endpoint() -> None:
    """One for all, one for each, and what does not fit."""
    both = ("orders", "arn:aws:sqs:eu-west-1:123456789012:invoices")
    assert stores_of(["sqlite:///a.db?x=1"], both) == dict.fromkeys(
        ("orders", "invoices"), "sqlite:///a.db?x=1"
    )
    assert stores_of(["sqlite:///a.db", "invoices=postgresql:///b"], both) == {
        "orders": "sqlite:///a.db",
        "invoices": "postgresql:///b",
    }
    with pytest.raises(ConfigurationError, match="'nope' is not an endpoint of this console"):
        stores_of(["nope=sqlite:///a.db"], both)
    with pytest.raises(ConfigurationError, match="give --store ENDPOINT=URL"):
        stores_of(["sqlite:///a.db", "sqlite:///b.db"], both)
    with pytest.raises(ConfigurationError, match="named twice"):  # One on every page.
        ConsoleSettings(endpoints=("orders", "arn:aws:sqs:eu-west-1:123456789012:orders"))
