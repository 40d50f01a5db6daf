"""From a store to RabbitMQ as time passes: on time, and through missing queues."""

from __future__ import annotations

import os
import re
import signal
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from sqsdelay.core.delay import SystemClock
from sqsdelay.core.stored_message import StoredMessage
from sqsdelay.dispatching.dispatcher import DelayedDelivery, DispatchSettings
from sqsdelay.rabbitmq import RabbitMqOutbox
from sqsdelay.stores import open_store
from sqsdelay.testing import InMemoryStore
from tests.acceptance.rabbitmq.broker import Broker, Inbox, check_whole
from tests.messages import a_message
from tests.patience import ended, wait_for
from tests.services.processes import run, running

GUIDE = Path(__file__).parents[3] / "docs/rabbitmq-stores.md"


def spread(
    count: int, *, over_ms: int, first_ms: int = 500, to: str = "orders"
) -> list[StoredMessage]:
    """Messages due one after the other from now on; the body is the number."""
    start_ms = SystemClock().now_ms() + first_ms
    return [
        a_message(f"{to}-{n}", start_ms + n * over_ms // count, to=to, body=str(n).encode())
        for n in range(count)
    ]


@pytest.mark.parametrize("database", ["sqlite", "postgresql"])
def test_a_thousand_messages_are_released_when_due(
    broker: Broker, request: pytest.FixtureRequest, tmp_path: Path, database: str
) -> None:
    """Stored by one process, released by another: none lost, none early, none twice."""
    broker.queue("orders")
    url = f"sqlite:///{tmp_path}/store.db"
    if database == "postgresql":
        url = request.getfixturevalue("postgres")
    url += "?table=to_rabbitmq"
    with closing(open_store(url, endpoint="orders")) as store:
        store.set_up()
        command = ("dispatch", "orders", "--store", url, "--to", broker.url)
        with running(*command, env={}) as dispatcher, Inbox(broker.url, "orders") as inbox:
            dispatcher.wait_for("dispatching orders")
            store.store(spread(1000, over_ms=3000, first_ms=1000))
            arrivals = inbox.wait(1000)
            dispatcher.process.send_signal(signal.SIGTERM)
            assert dispatcher.end() == 0, dispatcher.text
        assert store.pending_count() == 0
    assert "stopped; 1000 released" in dispatcher.text
    check_whole(arrivals, 1000)


def test_a_destination_that_is_missing_for_a_while(broker: Broker) -> None:
    """Its messages are tried again and arrive late; those of others do not wait for them."""
    broker.queue("orders")
    store = InMemoryStore(SystemClock())
    with (
        closing(RabbitMqOutbox(broker.url, "orders")) as outbox,
        DelayedDelivery(store, outbox, settings=DispatchSettings(number_of_retries=99)) as delivery,
    ):
        delivery.store(spread(200, over_ms=1, first_ms=0, to="later"))
        delivery.store(spread(100, over_ms=1000))
        with Inbox(broker.url, "orders") as inbox:
            arrivals = inbox.wait(100)
        check_whole(arrivals, 100)
        wait_for(lambda: store.pending_count() == 200)
        broker.queue("later")
        with Inbox(broker.url, "later") as inbox:
            check_whole(inbox.wait(200), 200)
    assert broker.count("orders-delay-error") == 0


def test_a_destination_that_stays_missing(broker: Broker) -> None:
    """After the last retry its messages are in the error queue, and none is in the store."""
    broker.queue("orders")
    store = InMemoryStore(SystemClock())
    with (
        closing(RabbitMqOutbox(broker.url, "orders")) as outbox,
        DelayedDelivery(store, outbox, settings=DispatchSettings(number_of_retries=1)) as delivery,
    ):
        delivery.store(spread(5, over_ms=1, first_ms=0, to="nowhere"))
        assert broker.wait_count("orders-delay-error", 5) == 5
    assert store.pending_count() == 0
    reasons = [p.headers["sqsdelay.Error"] for _, p, _ in broker.drain("orders-delay-error")]
    assert all("no queue 'nowhere'" in reason for reason in reasons)


def test_the_guides_example(
    broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """docs/rabbitmq-stores.md: from a store to a queue with a dot in its name."""
    blocks = re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    (example,) = [block for block in blocks if "RabbitMqOutbox" in block]
    monkeypatch.chdir(tmp_path)
    broker.queue("eu.orders")
    names: dict[str, Any] = {}
    exec(example.replace("amqp://guest:guest@localhost:5672/%2f", broker.url), names)
    names["store"].close()
    ((_, properties, body),) = broker.drain("eu.orders")
    assert (body, properties.message_id) == (b"\x00\x01", "order-7")
    assert properties.headers["tenant"] == "acme"


def test_a_mistake_is_one_line(broker: Broker, tmp_path: Path) -> None:
    """What is wrong, and what to do; no traceback, no password."""
    nowhere = "amqp://guest:sesame@127.0.0.1:1"
    for to, arguments, code, told in (
        ("http://u:sesame@host", [], 2, "does not start with amqp:// or amqps://"),
        (broker.url, ["--release-ahead", "5"], 2, "timers allow 0 to 0"),
        (broker.url, [], 1, "no queue 'orders'"),
        (nowhere, [], 1, "127.0.0.1:1 (virtual host '/') cannot be reached: [Errno 111]"),
    ):
        url = f"sqlite:///{tmp_path}/store.db"
        with closing(open_store(url, endpoint="orders")) as store:
            store.set_up()
        done = run("dispatch", "orders", "--store", url, "--to", to, *arguments, env={})
        assert done.returncode == code
        (line,) = [x for x in done.stderr.splitlines() if not x.startswith("dispatching")]
        assert told in line
        assert "sesame" not in line


@pytest.mark.parametrize("command", ["dispatch orders", "rabbitmq declare"])
def test_without_the_extra(tmp_path: Path, command: str) -> None:
    """One line that says what to install; the URL may stand in the environment."""
    code = "import sys; sys.modules['pika'] = None; from sqsdelay.cli import main; main()"
    url = f"sqlite:///{tmp_path}/store.db"
    with closing(open_store(url, endpoint="orders")) as store:
        store.set_up()
    names = ("SQSDELAY_DISPATCH_TO", "SQSDELAY_RABBITMQ_URL")
    env = {**os.environ, "SQSDELAY_STORE": url, **dict.fromkeys(names, "amqp://localhost")}
    done = ended([sys.executable, "-c", code, *command.split()], env=env)
    assert done.returncode == 1
    assert done.stderr == (
        "sqsdelay: RabbitMQ needs pika, which is not installed; run: pip install 'sqsdelay[rabbitmq]'\n"
    )
