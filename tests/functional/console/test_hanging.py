"""Servers that accept connections and never answer, while the console is open: a page is there in
seconds and says which one hangs, what does not hang is shown and changed, and it recovers by itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any
from urllib.parse import urlsplit

import pytest

from sqsdelay.testing.local_aws import LocalAws
from tests.functional.console.conftest import Running, browser
from tests.functional.console.page import Page
from tests.patience import PATIENCE_SECONDS
from tests.services.network import DeafProxy

Start = Callable[..., Running]
one, parked = (f'<dd class="">{n}</dd>' for n in (1, 2))
FOREVER = 10 * PATIENCE_SECONDS
"""What a driver would wait: a test that depends on it does not end in time."""


@pytest.fixture(autouse=True)
def forever(monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver's patience has no end."""
    for name in ("sqs.client", "stores.dynamodb.table"):
        monkeypatch.setattr(f"sqsdelay.{name}.ANSWER_SECONDS", FOREVER)
    monkeypatch.setattr("sqsdelay.stores.postgres.pool.POSTGRES_ANSWER_SECONDS", FOREVER)


Deaf = Callable[[str], DeafProxy]


@pytest.fixture
def deaf(aws_here: LocalAws, monkeypatch: pytest.MonkeyPatch) -> Iterator[Deaf]:
    """A service of AWS behind a proxy that can stop to answer."""
    with ExitStack() as open_:

        def place(service: str) -> DeafProxy:
            proxy = open_.enter_context(DeafProxy(aws_here.port))
            url = f"http://127.0.0.1:{proxy.port}"
            monkeypatch.setenv(f"AWS_ENDPOINT_URL_{service.upper()}", url)
            return proxy

        yield place


Ask = Callable[[Callable[[], Any]], Any]


@pytest.fixture
def in_time() -> Iterator[Ask]:
    """Call something that must not take as long as a driver's patience."""
    pool = ThreadPoolExecutor(1)
    yield lambda call: pool.submit(call).result(PATIENCE_SECONDS)
    pool.shutdown(wait=False, cancel_futures=True)


def shown(running: Running, path: str, *words: str, gone: str = "", **query: str) -> Page:
    """A page of this endpoint, once it says this, and that no more: what does not hang may be slow."""

    def says(page: Page) -> bool:
        assert page.status == 200, page.text
        return all(word in page.html for word in words) and not (gone and gone in page.html)

    return running.until(says, path, **query)


def hang(proxy: DeafProxy, running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on there is no answer, which a page waits for a moment; before, a busy machine may be slow."""
    monkeypatch.setattr("sqsdelay.console.sampling.PATIENCE_SECONDS", 0.5)
    monkeypatch.setattr("sqsdelay.console.source.AGES_PATIENCE_SECONDS", 0.1)
    proxy.swallowing.set()
    running.services.source(running.endpoint).changed()


@pytest.mark.parametrize("kind", ["postgres", "dynamodb"])
def test_a_store_that_hangs(
    kind: str,
    start: Start,
    request: pytest.FixtureRequest,
    deaf: Callable[[str], DeafProxy],
    in_time: Ask,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The queues, the error queue and what can be done there are as ever; more visitors do not make it
    worse; once the store answers again, it is shown again."""
    with ExitStack() as running_:
        if kind == "postgres":
            conninfo = request.getfixturevalue("postgres")
            proxy = running_.enter_context(DeafProxy(urlsplit(conninfo).port or 0))
            url = urlsplit(conninfo)._replace(netloc=f"postgres@127.0.0.1:{proxy.port}").geturl()
        else:
            proxy, url = deaf("dynamodb"), "dynamodb://{name}?shards=2"
        running = start(url)
        running.park("a")
        running.reject("bad")
        while shown(running, "/").html.count(one) != 2:
            pass
        listed = shown(running, "/messages", ">a</a>")
        hang(proxy, running, monkeypatch)

        page = in_time(lambda: shown(running, "/", f"Store, {running.endpoint}: no answer for"))
        assert page.html.count(one) == 2, "what was known, and the error queue"
        hangs = f"the store of {running.endpoint} has not answered"
        in_time(lambda: shown(running, "/messages", hangs))
        in_time(lambda: shown(running, "/message", hangs, id="a"))
        in_time(lambda: running.page("/send").press("Show route and cost", body="x", delay="1d"))
        in_time(running.look)
        in_time(lambda: shown(running, "/errors", ">bad</a>"))
        asked = in_time(lambda: running.page("/errors").press("Retry…", which="all"))
        assert "1 done" in in_time(lambda: asked.press("Retry 1 message")).text
        cancel = in_time(lambda: listed.press("Cancel…", m=listed.marks("a")))
        result = in_time(lambda: cancel.press("Cancel 1 message"))
        assert "perhaps not done, look again" in result.text

        url = str(running.client.base_url)
        with ThreadPoolExecutor(12) as pool:
            path = f"/messages?endpoint={running.endpoint}"
            answers = [pool.submit(browser(url).get, path) for _ in range(12)]
            assert {each.result(PATIENCE_SECONDS).status_code for each in answers} == {200}

        monkeypatch.setattr("sqsdelay.console.sampling.PATIENCE_SECONDS", PATIENCE_SECONDS)
        proxy.swallowing.clear()
        proxy.down()
        proxy.up()
        shown(running, "/", gone="Store,")
        running.park("b")
        shown(running, "/messages", ">b</a>")


@pytest.mark.parametrize("service", ["sqs", "cloudwatch"])
def test_aws_that_hangs(
    service: str, start: Start, deaf: Deaf, in_time: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is parked is shown and changed."""
    proxy = deaf(service)
    running = start()
    running.park("a", "b")
    if service == "sqs":
        shown(running, "/", parked, "idle")
    hang(proxy, running, monkeypatch)
    if service == "sqs":
        in_time(lambda: shown(running, "/", f"SQS, {running.endpoint}: no answer", parked))
        in_time(running.look)
        in_time(lambda: shown(running, "/errors", "no answer"))
        send = running.page("/send")
        refused = in_time(lambda: send.press("Show route and cost", body="x", delay="1d"))
        assert "SQS has not answered" in refused.text
    else:
        ages = f"Ages of the oldest messages, {running.endpoint}: no answer"
        in_time(lambda: shown(running, "/", ages, parked, gone="SQS,"))
    in_time(lambda: shown(running, "/messages", ">a</a>"))
    in_time(lambda: shown(running, "/message", "waits in the store", id="a"))
    assert "1 done" in in_time(lambda: running.change("Reschedule…", "a", delay="2d")).text
    assert "1 done" in in_time(lambda: running.change("Cancel…", "b")).text
    assert [each.message_id for each in running.store.pending(9)] == ["a"]
