"""The console on a real RabbitMQ: its queues counted, messages sent and, from a store, changed."""

from __future__ import annotations

import time
from contextlib import closing
from pathlib import Path
from urllib.parse import urlsplit

import pika
import pytest

from sqsdelay.console.services import Services
from sqsdelay.console.settings import Access, ConsoleSettings
from sqsdelay.core.stored_message import StoredMessage
from sqsdelay.rabbitmq import bind, declare
from sqsdelay.stores import open_store
from tests.acceptance.rabbitmq.broker import Broker
from tests.functional.console.conftest import client_of
from tests.services.network import DeafProxy


def test_counts_sends_and_changes(broker: Broker, tmp_path: Path) -> None:
    """No AWS is asked: there is none."""
    url = f"sqlite:///{tmp_path}/store.db"
    with closing(pika.BlockingConnection(pika.URLParameters(broker.url))) as connection:
        channel = connection.channel()
        channel.queue_declare("orders", durable=True)
        channel.queue_declare("orders-delay-error", durable=True)
        channel.basic_publish("", "orders-delay-error", b"failed")
    declare(broker.url)
    bind(broker.url, "orders")
    settings = ConsoleSettings(endpoints=("orders",), stores={"orders": url}, rabbitmq=broker.url)
    services = Services(settings, Access())
    with closing(services), closing(open_store(url, endpoint="orders")) as store:
        store.set_up()
        due_ms = time.time_ns() // 1_000_000 + 86_400_000
        message = StoredMessage(message_id="a", destination="orders", due_ms=due_ms, body=b"x")
        store.store([message])
        client = client_of(services)
        place = "/api/v1/endpoints/orders"
        preview = client.post(f"{place}/send/preview", json={"body": "x", "delay": "1d"}).json()
        assert preview["route"] == "delay-level"
        for delay in ("1d", None):
            sent = client.post(f"{place}/send", json={"body": "x", "delay": delay}).json()
            assert sent["counts"] == {"done": 1}, sent
        view = client.get(place).json()
        assert view["broker"] == "rabbitmq"
        assert (view["pending"], view["errors"], view["parked"]) == (1, 1, 1)
        assert view["trouble"] == []
        assert [w["name"] for w in view["workers"]] == ["dispatcher"]
        chosen = {"messages": [{"id": "a", "due_ms": due_ms}]}
        moved = client.post(f"{place}/messages/reschedule", json=chosen | {"delay": "2d"}).json()
        assert moved["counts"] == {"done": 1}, moved
        cancelled = client.post(f"{place}/messages/cancel", json={"messages": [{"id": "a"}]}).json()
        assert cancelled["counts"] == {"done": 1}, cancelled
        assert store.pending_count() == 0
        refused = client.post(f"{place}/errors/retry", json={"all": True})
        assert refused.status_code == 400
        for path in ("/", "/messages", "/errors", "/send"):
            assert client.get(path).status_code == 200


def test_a_broker_that_hangs_is_said(
    broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It accepts connections and never answers; the store is shown."""
    monkeypatch.setattr("sqsdelay.console.sampling.PATIENCE_SECONDS", 0.5)
    url = f"sqlite:///{tmp_path}/store.db"
    with DeafProxy(urlsplit(broker.url).port or 0) as proxy:
        proxy.swallowing.set()
        hangs = urlsplit(broker.url)._replace(netloc=f"guest:guest@127.0.0.1:{proxy.port}").geturl()
        settings = ConsoleSettings(endpoints=("orders",), stores={"orders": url}, rabbitmq=hangs)
        with (
            closing(open_store(url, endpoint="orders")) as store,
            closing(Services(settings, Access())) as services,
        ):
            store.set_up()
            client = client_of(services)
            view = client.get("/api/v1/endpoints/orders").json()
            assert any(each.startswith("RabbitMQ: no answer") for each in view["trouble"])
            for path in ("/", "/messages", "/errors", "/send"):
                assert client.get(path).status_code == 200


def test_a_broker_that_is_gone_is_said(tmp_path: Path) -> None:
    """And the page is shown."""
    settings = ConsoleSettings(endpoints=("orders",), rabbitmq="amqp://127.0.0.1:1/")
    with closing(Services(settings, Access())) as services:
        client = client_of(services)
        assert "RabbitMQ: " in client.get("/api/v1/endpoints/orders").json()["trouble"][0]
        assert client.get("/").status_code == 200
