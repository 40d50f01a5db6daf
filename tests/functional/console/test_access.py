"""Who may use the console: host, origin, form secret, token, proxy, read-only. Nothing behind it is asked."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from httpx import Client
from starlette.routing import Route

from sqsdelay.console import ConsoleSettings, guard, stores_of
from sqsdelay.console.guard import FREE_GUESSES, GUESS_SECONDS, POLICY, Access
from sqsdelay.console.pages import ROUTES
from sqsdelay.console.server import serving
from sqsdelay.console.services import Services
from sqsdelay.errors import ConfigurationError
from sqsdelay.testing import ManualClock
from tests.functional.console.conftest import browser, visited

CHOSEN = {"endpoint": "orders", "action": "cancel", "m": ":x"}
TOKEN = "correct-horse-battery-staple"
FORMS = [each.path for each in ROUTES if isinstance(each, Route) and "POST" in (each.methods or ())]


def console(clock: ManualClock | None = None, **access: Any) -> Services:
    """A console of an endpoint that nobody is asked about."""
    settings = ConsoleSettings(endpoints=("orders",), stores={"orders": "sqlite:////nowhere/s.db"})
    return Services(settings, Access(**access), clock)


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """One that is open to this machine; most of these tests ask it."""
    with serving(console(), port=0) as found:
        yield found


@pytest.fixture
def client(url: str) -> Iterator[Client]:
    """A browser on that."""
    with browser(url) as found:
        yield found


@pytest.fixture(scope="module")
def readers() -> Iterator[Client]:
    """A browser on one that changes nothing."""
    with visited(console(read_only=True)) as found:
        yield found


@contextmanager
def asking(clock: ManualClock | None = None, **access: Any) -> Iterator[Client]:
    """A browser on one that asks for a token."""
    with visited(console(clock, token=TOKEN, **access)) as found:
        yield found


def tried(client: Client, token: str, *told: str) -> int:
    """The status of the answer to a token; told of its caller, as a proxy does, in a header each."""
    fields = {"csrf": csrf_of(client, "/sign-in"), "token": token}
    headers = [("x-forwarded-for", each) for each in told]
    return client.post("/sign-in", data=fields, headers=headers).status_code


def csrf_of(client: Client, path: str = "/cost", **headers: str) -> str:
    """The secret in a page's forms; the page of the form to send has it always."""
    found = re.search(r'name="csrf" value="([0-9a-f]{64})"', client.get(path, headers=headers).text)
    assert found is not None
    return found[1]


def test_only_its_own_names_are_taken(client: Client) -> None:
    """A name that an attacker points to this machine (DNS rebinding) gives nothing away."""
    port = client.base_url.port
    for host in ("evil.example", "127.0.0.1", "127.0.0.1:80", f"localhost.evil:{port}", ""):
        answer = client.get("/cost", headers={"host": host})
        assert answer.status_code == 421
        assert "--allowed-host" in answer.text
    for host in (f"127.0.0.1:{port}", f"localhost:{port}", f"[::1]:{port}"):
        assert client.get("/cost", headers={"host": host}).status_code == 200


def test_every_page_forbids_what_it_does_not_need(client: Client) -> None:
    """Also errors, refusals and files; and no page has a script or a style in it."""
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
def test_a_form_that_is_not_ours_is_refused(client: Client, path: str, csrf: str) -> None:
    """Every form there is, also one that is added later."""
    fields = CHOSEN | {"csrf": csrf, "key": "k", "token": TOKEN}
    answer = client.post(path, data=fields)
    assert answer.status_code == 403, answer.text
    assert "form is not from this console" in answer.text


def test_the_secret_is_the_visitors_own(client: Client, url: str) -> None:
    """That of another session is refused, though it is from the same console."""
    fields = CHOSEN | {"csrf": csrf_of(client, "/send")}
    with browser(url) as other:
        assert other.post("/confirm", data=fields).status_code == 403
    assert client.post("/confirm", data=fields).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [{"origin": each} for each in ("https://evil.example", "null", "http://127.0.0.1:1")]
    + [{"sec-fetch-site": each} for each in ("cross-site", "same-site")],
)
def test_another_site_is_refused(client: Client, headers: dict[str, str]) -> None:
    """Whatever else it knows."""
    fields = CHOSEN | {"csrf": csrf_of(client, "/send")}
    answer = client.post("/confirm", data=fields, headers=headers)
    assert answer.status_code == 403
    assert "another site" in answer.text


@pytest.mark.parametrize("path", [path for path in FORMS if not path.startswith("/sign")])
def test_read_only_changes_nothing(readers: Client, path: str) -> None:
    """Whatever form it is, and no page offers it."""
    answer = readers.post(path, data={"csrf": csrf_of(readers, "/send")})
    assert answer.status_code == 403
    assert "--read-only" in answer.text
    assert "/send" not in readers.get("/cost").text


def test_what_costs_cannot_be_told_is_named_as_its_field_is(client: Client) -> None:
    """And not as Python's argument."""
    for typed, told in (
        ("size=2000000", "Bytes of a message: 2000000; use a whole number, 1 to 1048495"),
        ("messages=many", "Messages: many; use a whole number"),
        ("batch=11", "Due together, in a request: 11; use a whole number, 1 to 10"),
        ("delay=soon", "is not valid; use seconds"),
    ):
        assert told in client.get(f"/cost?{typed}").text


def test_a_token_is_asked_for() -> None:
    """Pages lead to the form; a wrong token gives nothing, a right one a session, until it signs out,
    wherever its cookie was copied to."""
    with asking() as client:
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


def test_wrong_tokens_slow_down(caplog: pytest.LogCaptureFixture) -> None:
    """Those of one address soon, those of all addresses later; the log names the address: of what a proxy
    says it is the last, which the proxy itself adds, some as a header of its own."""
    clock = ManualClock()
    with asking(clock, proxies=("127.0.0.1",)) as client:
        for caller, *before in (["10.0.0.1"], ["10.0.0.2", "10.9.9.1"]):
            for n in range(FREE_GUESSES):
                assert tried(client, "wrong", *before, f"10.9.9.{n}, {caller}:{4000 + n}") == 403
            assert f"a wrong token from {caller}" in caplog.text
            assert tried(client, TOKEN, *before, caller) == 429
        assert tried(client, TOKEN, "10.0.0.3") == 303
        clock.advance(1)
        assert tried(client, TOKEN, "10.0.0.1") == 303
        for n in range(guard.GUESSES_IN_ALL):
            tried(client, "wrong", f"10.0.1.{n}")
        assert tried(client, TOKEN, "10.0.0.3") == 429
        clock.advance(GUESS_SECONDS)
        assert tried(client, TOKEN, "10.0.0.3") == 303


def test_who_is_no_proxy_may_say_what_they_like(caplog: pytest.LogCaptureFixture) -> None:
    """Their guesses are those of the address that they call from."""
    with asking(proxies=("10.0.0.5",)) as client:
        for n in range(FREE_GUESSES):
            assert tried(client, "wrong", f"10.9.9.{n}") == 403
        assert "a wrong token from 127.0.0.1" in caplog.text
        assert tried(client, TOKEN, "10.9.9.9") == 429


@pytest.mark.parametrize("told", ["https", "HTTPS, http"])
def test_the_cookie_is_for_tls_behind_tls(client: Client, told: str) -> None:
    """Whoever ends TLS before the console says so in a header, and may not be the last to write there."""
    answer = client.get("/cost", headers={"x-forwarded-proto": told})
    assert answer.headers["set-cookie"].endswith("; secure")
    assert "secure" not in client.get("/cost").headers["set-cookie"]


def test_a_session_ends_and_a_made_up_one_is_none() -> None:
    """After twelve hours, whatever the browser does; a cookie of another console's signs nobody in."""
    clock = ManualClock()
    with asking(clock) as client, asking() as other:
        client.post("/sign-in", data={"csrf": csrf_of(client, "/sign-in"), "token": TOKEN})
        for value in ("x" * 43, *client.cookies.values()):
            other.cookies.set(f"sqsdelay_console_{other.base_url.port}", value)
            assert other.get("/cost").status_code == 303
        clock.advance(guard.SESSION_SECONDS - 1)
        assert client.get("/cost").status_code == 200
        clock.advance(2)
        assert client.get("/cost").status_code == 303


@pytest.mark.parametrize("host", ["127.0.0.1", "::"])
def test_a_proxy_names_the_user(host: str, caplog: pytest.LogCaptureFixture) -> None:
    """The log has that name, on one line; nobody else may give it, and it must be there."""
    caplog.set_level(logging.INFO, "sqsdelay.console")
    proxied: dict[str, Any] = {"host": host, "user_header": "X-User"}
    proxied["allowed_hosts"] = ("console.example",)
    named = {"X-User": "ann@example.com"}
    with visited(console(**proxied, proxies=("127.0.0.1",))) as through:
        through.headers["host"] = "console.example"
        assert "ann@example.com" in through.get("/cost", headers=named).text
        assert through.get("/cost").status_code == 403
        fields = CHOSEN | {"csrf": csrf_of(through, "/send", **named), "key": "k" * 9}
        assert through.post("/do", data=fields, headers=named).status_code == 303
    assert "cancel orders by ann@example.com: x: not-done" in caplog.text
    with visited(console(**proxied, proxies=("10.0.0.5",))) as client:
        assert client.get("/cost", headers=named).status_code == 403


@pytest.mark.parametrize(
    ("access", "words"),
    [
        ({"host": "0.0.0.0"}, "would be open to the network"),
        ({"host": "::"}, "would be open to the network"),
        ({"host": "console.example"}, "would be open to the network"),
        ({"token": "short"}, "has 5 characters, 5 of them different; use at least 24"),
        ({"token": "a" * 32}, "has 32 characters, 1 of them different"),
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
    one, other = "sqlite:///a.db?x=1", "postgresql:///b"
    assert stores_of([one], both) == {"orders": one, "invoices": one}
    assert stores_of([one, f"invoices={other}"], both) == {"orders": one, "invoices": other}
    with pytest.raises(ConfigurationError, match="'nope' is not an endpoint of this console"):
        stores_of([f"nope={one}"], both)
    with pytest.raises(ConfigurationError, match="give --store ENDPOINT=URL"):
        stores_of([one, other], both)
    with pytest.raises(ConfigurationError, match="named twice"):  # One on every page.
        ConsoleSettings(endpoints=("orders", "arn:aws:sqs:eu-west-1:123456789012:orders"))
