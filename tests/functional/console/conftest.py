"""A console on the local AWS, asked over a socket as a browser does."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from httpx import Client

from sqsdelay.console import ConsoleSettings
from sqsdelay.console.guard import Access
from sqsdelay.console.server import serving
from sqsdelay.console.services import Services
from sqsdelay.core import message as parts
from sqsdelay.core.delay import Clock
from sqsdelay.core.endpoint import Endpoint
from sqsdelay.core.message import Attribute, string
from sqsdelay.core.received_message import ReceivedMessage
from sqsdelay.core.rejection import rejected
from sqsdelay.ledger import Event, EventKind, FileLedger, Source
from sqsdelay.ports.stores import ParkingPlace
from sqsdelay.sqs import SqsQueues
from sqsdelay.stores import open_place
from sqsdelay.testing.local_aws import LocalAws
from tests.functional.console.page import Page
from tests.messages import a_message
from tests.patience import PATIENCE_SECONDS
from tests.services.endpoints import create_endpoint

HOUR_MS = 3_600_000


def browser(url: str) -> Client:
    """A client with cookies of its own; each of its requests is a new connection, on IPv4."""
    here = url.replace("[::]", "127.0.0.1")
    headers = {"Connection": "close"}
    return Client(base_url=here, headers=headers, timeout=PATIENCE_SECONDS, verify=False)


@contextmanager
def visited(services: Services) -> Iterator[Client]:
    """A browser on a console that listens on a port."""
    with serving(services, port=0) as url, browser(url) as client:
        yield client


@dataclass
class Running:
    """A console of one endpoint with a store, and what stands behind it."""

    endpoint: str
    url: str
    store: ParkingPlace
    queues: SqsQueues
    ledger: Path
    services: Services
    client: Client

    def park(self, *ids: str, due_in_ms: int = 24 * HOUR_MS, body: bytes = b"{}") -> int:
        """Park messages; gives their due time."""
        due_ms = time.time_ns() // 1_000_000 + due_in_ms
        self.store.store([a_message(each, due_ms, to=self.endpoint, body=body) for each in ids])
        self.services.source(self.endpoint).changed()
        return due_ms

    def reject(self, *ids: str, reason: str = "too far", due: bool = True, body: str = "x") -> None:
        """Put messages into the error queue."""
        url = self.queues.url(Endpoint.parse(self.endpoint).error_queue)
        now_ms = time.time_ns() // 1_000_000
        for each in ids:
            attributes: dict[str, Attribute] = {}
            if due:
                attributes |= {parts.DELAY_SECONDS: string("0"), parts.DUE_AT: string(str(now_ms))}
            if self.endpoint.endswith(".fifo"):
                attributes |= {parts.GROUP_ID: string("g"), parts.DEDUPLICATION_ID: string(each)}
            copy = ReceivedMessage(
                body=body, attributes=attributes, receipt_handle="r", sqs_message_id=f"sqs-{each}",
                received_at=0, sent_ms=now_ms, receive_count=1, group_id=each, deduplication_id=each,
            )  # fmt: skip
            self.queues.send_batch(url, [rejected(copy, reason)])
        self.services.source(self.endpoint).changed()

    def record(self, kind: EventKind, message_id: str, by: Source, **more: Any) -> None:
        """Record what befell a message, now unless ``at_ms`` says when."""
        now_ms = self.services.clock.now_ms()
        given: dict[str, Any] = {"at_ms": now_ms, "endpoint": self.endpoint} | more
        event = Event(kind=kind, message_id=message_id, source=by, **given)
        FileLedger(self.ledger).record([event])

    def received(self) -> list[ReceivedMessage]:
        """What is in the destination queue."""
        url = self.queues.url(Endpoint.parse(self.endpoint).queue)
        return list(self.queues.receive_batch(url, wait_seconds=1))

    def page(self, path: str = "/", **query: str) -> Page:
        """A page of this endpoint."""
        given = {"endpoint": self.endpoint, **query}
        return Page(self.client, self.client.get(path, params=given, follow_redirects=True))

    def until(self, holds: Callable[[Page], object], path: str = "/", **query: str) -> Page:
        """The page, once it is so: a store on a busy machine may answer after the page."""
        late = threading.Event()
        for _ in range(10 * PATIENCE_SECONDS):
            page = self.page(path, **query)
            if holds(page):
                return page
            late.wait(0.1)
        raise AssertionError(page.text)

    def change(self, action: str, *ids: str, **given: str) -> Page:
        """Choose messages in the list, press a button, and say yes; gives the result."""
        asked = self.page("/messages")
        asked = asked.press(action, m=asked.marks(*ids))
        if given:
            asked = asked.press("Continue", **given)
        return asked.press(next(each.text for each in asked.main.all("button")))

    def send(self, body: str = "{}", **given: str) -> Page:
        """Send a message by the form; gives the result."""
        shown = self.page("/send").press("Show route and cost", body=body, **given)
        return shown.press("Send it")

    def look(self) -> Page:
        """Look at the error queue; gives what was found."""
        page = self.page("/errors")
        return page.press("Look again" if page.offers("Look again") else "Look")


@pytest.fixture
def aws_here(aws_here: LocalAws, monkeypatch: pytest.MonkeyPatch) -> LocalAws:
    """Pages wait for it as long as a busy machine takes."""
    monkeypatch.setattr("sqsdelay.console.sampling.PATIENCE_SECONDS", PATIENCE_SECONDS)
    return aws_here


@pytest.fixture
def start(aws_here: LocalAws, tmp_path: Path) -> Iterator[Callable[..., Running]]:
    """Start a console of a new endpoint, on a store of that URL."""
    with ExitStack() as running:

        def begin(url: str = "", *, fifo: bool = False, clock: Clock | None = None) -> Running:
            name = f"orders-{uuid.uuid4().hex[:8]}{'.fifo' if fifo else ''}"
            create_endpoint(aws_here.client("sqs"), name)
            url = (url or f"sqlite:///{tmp_path}/store.db").format(name=name)
            store = open_place(url, endpoint=name)
            running.enter_context(closing(store))
            store.set_up()
            ledger = tmp_path / "ledger.jsonl"
            settings = ConsoleSettings(endpoints=(name,), stores={name: url}, ledger=ledger)
            services = Services(settings, Access(), clock)
            queues = SqsQueues(aws_here.client("sqs"))
            client = running.enter_context(visited(services))
            return Running(name, url, store, queues, ledger, services, client)

        yield begin


@pytest.fixture
def running(start: Callable[..., Running]) -> Running:
    """A console on SQLite."""
    return start()
