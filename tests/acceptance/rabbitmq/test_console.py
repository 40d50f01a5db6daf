"""The console on a real RabbitMQ: its queues counted, messages sent and, from a store, changed."""

from __future__ import annotations

import time
from contextlib import closing
from pathlib import Path

import pytest
from httpx import Client

from sqsdelay.console import ConsoleSettings
from sqsdelay.console.guard import Access
from sqsdelay.console.services import Services
from sqsdelay.core.stored_message import StoredMessage
from sqsdelay.rabbitmq import RabbitMqSender, bind, declare
from sqsdelay.stores import open_store
from tests.acceptance.rabbitmq.broker import Broker
from tests.functional.console.conftest import visited
from tests.functional.console.page import Page
from tests.patience import wait_for
from tests.services.network import DeafProxy


def page(client: Client, path: str) -> Page:
    """A page."""
    return Page(client, client.get(path))


def test_counts_sends_and_changes(shared: Broker, tmp_path: Path) -> None:
    """No AWS is asked: there is none."""
    url = f"sqlite:///{tmp_path}/store.db"
    with shared.channel() as channel:
        channel.queue_declare("orders", durable=True)
        channel.queue_declare("orders-delay-error", durable=True)
        channel.basic_publish("", "orders-delay-error", b"failed")
    declare(shared.url)
    bind(shared.url, "orders")
    settings = ConsoleSettings(endpoints=("orders",), stores={"orders": url}, rabbitmq=shared.url)
    services = Services(settings, Access())
    with closing(open_store(url, endpoint="orders")) as store, visited(services) as client:
        store.set_up()
        due_ms = time.time_ns() // 1_000_000 + 86_400_000
        message = StoredMessage(message_id="a", destination="orders", due_ms=due_ms, body=b"x")
        store.store([message])
        form = page(client, "/send")
        for delay, route in (("1d", "delay-level"), ("", "direct")):
            shown = form.press("Show route and cost", body="x", delay=delay)
            assert shown.tiles["Route"] == route
            assert "1 done" in shown.press("Send it").text
        services.source("orders").changed()
        view = page(client, "/")
        assert [view.tiles[name] for name in ("In queues", "Errors", "Parked")] == ["1", "1", "1"]
        assert view.workers.keys() == {"dispatcher"}
        (error,) = view.notices
        assert "1 message could not be delivered" in error
        listed = page(client, "/messages")
        assert "1 hop, which RabbitMQ cannot list" in listed.text
        asked = listed.press("Reschedule…", m=listed.marks("a")).press("Continue", delay="2d")
        assert "1 done" in asked.press("Move 1 message").text
        listed = page(client, "/messages")
        asked = listed.press("Cancel…", m=listed.marks("a"))
        assert "1 done" in asked.press("Cancel 1 message").text
        assert store.pending_count() == 0
        for path in ("/", "/messages", "/errors", "/send"):
            assert client.get(path).status_code == 200


def test_advice_repeats_the_prefix(shared: Broker) -> None:
    """Without it, `bind` would send on nothing: another infrastructure's messages."""
    acme = shared.ready("orders", prefix="acme corp")
    with RabbitMqSender(shared.url, prefix=acme.prefix, bind=False) as sender:
        sender.send("orders", "lost", delay=1)
    assert shared.wait_count(acme.undeliverable, 1) == 1
    settings = ConsoleSettings(endpoints=("orders",), rabbitmq=shared.url, prefix=acme.prefix)
    with visited(Services(settings, Access())) as client:
        (notice,) = page(client, "/").notices
    assert "sqsdelay rabbitmq --prefix 'acme corp' bind ENDPOINT" in notice


def test_a_broker_that_hangs_is_said(
    broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It accepts connections and never answers; the store is shown."""
    monkeypatch.setattr("sqsdelay.console.sampling.PATIENCE_SECONDS", 0.5)
    url = f"sqlite:///{tmp_path}/store.db"
    with DeafProxy(broker.port) as proxy:
        proxy.swallowing.set()
        hangs = broker.through(proxy)
        settings = ConsoleSettings(endpoints=("orders",), stores={"orders": url}, rabbitmq=hangs)
        with (
            closing(open_store(url, endpoint="orders")) as store,
            visited(Services(settings, Access())) as client,
        ):
            store.set_up()
            # Until a busy machine's store has answered, it is said of both.
            wait_for(lambda: page(client, "/").text.startswith("RabbitMQ, orders: no answer"))
            for path in ("/", "/messages", "/errors", "/send"):
                assert client.get(path).status_code == 200


def test_a_broker_that_is_gone_is_said(tmp_path: Path) -> None:
    """And the page is shown."""
    settings = ConsoleSettings(endpoints=("orders",), rabbitmq="amqp://127.0.0.1:1/")
    with visited(Services(settings, Access())) as client:
        assert page(client, "/").text.startswith("RabbitMQ, orders: ")
        assert client.get("/").status_code == 200
