"""The timeout manager on a real broker: from its queues to the store and on to the destination."""

from __future__ import annotations

import json
import os
import re
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from pika import BasicProperties

from sqsdelay.core.delay import SystemClock
from sqsdelay.core.stored_message import StoredMessage
from sqsdelay.errors import InvalidDelay, QueueMissing, QueueUnavailable
from sqsdelay.rabbitmq import RabbitMqMessage, RabbitMqTimeouts, create_timeout_queues
from sqsdelay.rabbitmq.connection import parameters
from sqsdelay.rabbitmq.timeouts import QueueConsumer
from sqsdelay.stores import open_store
from sqsdelay.testing import InMemoryStore, ManualClock
from sqsdelay.timeouts import TimeoutSender
from sqsdelay.timeouts.manager import TimeoutManager, TimeoutSettings, TimeoutStatus
from tests.acceptance.rabbitmq.broker import Broker, Inbox
from tests.messages import a_message
from tests.patience import PATIENCE_SECONDS, wait_for
from tests.services.network import DeafProxy, TcpProxy
from tests.services.processes import FORKS, started

TIMEOUTS = "orders.Timeouts"
DISPATCHER = "orders.TimeoutsDispatcher"
ERRORS = "orders-delay-error"
GUIDE = (Path(__file__).parents[3] / "docs/timeout-manager.md").read_text()
QUICK = TimeoutSettings(wait_seconds=1)


@pytest.fixture
def transport(broker: Broker) -> Iterator[RabbitMqTimeouts]:
    create_timeout_queues(broker.url, "orders")
    with closing(RabbitMqTimeouts(broker.url, "orders")) as transport:
        transport.check()
        yield transport


class Served:
    """A timeout manager whose tasks are taken turn by turn, and what it told."""

    def __init__(
        self, store: Any, transport: RabbitMqTimeouts, settings: TimeoutSettings = QUICK
    ) -> None:
        self.told: list[tuple[str, str]] = []
        self.manager = TimeoutManager(store, transport, settings=settings, on_done=self._done)

    def turns_until(self, reached: Callable[[], bool]) -> None:
        """Turns of the announcer, which tries again, and of dispatch, which waits for ids."""

        def turned() -> bool:
            self.manager.announce()
            self.manager.dispatch()
            return reached()

        assert reached() or wait_for(turned)

    def until_told(self, task: Callable[[], object]) -> None:
        """Turns of a task: a busy broker may deliver nothing within one."""
        before = len(self.told)
        wait_for(lambda: (task(), len(self.told) > before)[1])

    def _done(self, status: TimeoutStatus, ids: Any) -> None:
        self.told += [(str(status), message_id) for message_id in ids]


def send(
    broker: Broker,
    headers: dict[str, Any],
    to: str = TIMEOUTS,
    body: bytes = b"\x00\xff",
    **properties: Any,
) -> None:
    given = BasicProperties(headers=headers, message_id="m-1", **properties)
    with broker.channel() as on:
        on.basic_publish("", to, body, given, mandatory=True)


def users(properties: Any) -> dict[str, Any]:
    """The headers without what the quorum queue we read from adds itself, in version 3.10 always."""
    return {n: value for n, value in properties.headers.items() if n != "x-delivery-count"}


def due(in_ms: int) -> dict[str, Any]:
    now_ms = SystemClock().now_ms()
    return {"sqsdelay.Destination": "orders", "sqsdelay.DueAt": str(now_ms + in_ms)}


def test_the_guides_message_arrives_when_it_is_due(broker: Broker, tmp_path: Path) -> None:
    """Set up and served by the command: stored, announced, dispatched, on time; queues are quorum."""
    env = {
        "SQSDELAY_TIMEOUT_MANAGER_TO": broker.url,
        "SQSDELAY_STORE": f"sqlite:///{tmp_path}/store.db",
    }
    serve = ("timeout-manager", "orders", "--set-up", "--wait", "1", "--json")
    (sending,) = [
        b for b in re.findall(r"```python\n(.*?)```", GUIDE, re.DOTALL) if "RabbitMqTimeouts" in b
    ]
    names: dict[str, Any] = {}
    with started(*serve, env=env) as process:
        assert process.stderr is not None
        assert f"serving {TIMEOUTS} and {DISPATCHER}" in process.stderr.readline()
        with Inbox(broker.url, "orders") as inbox:
            exec(sending.replace("amqp://guest:guest@localhost:5672/%2f", broker.url), names)
            (arrival,) = inbox.wait(1)
        assert arrival.at_ms >= names["sent"].due.timestamp() * 1000
        assert (arrival.body, arrival.properties.message_id) == (b'{"order": 7}', "order-7")
        process.send_signal(signal.SIGTERM)
        printed, errors = process.communicate(timeout=PATIENCE_SECONDS)
        assert process.returncode == 0, errors
    told = [json.loads(line)["status"] for line in printed.splitlines()]
    assert told == ["stored", "announced", "dispatched"]
    assert [broker.count(q) for q in (TIMEOUTS, DISPATCHER, ERRORS)] == [0, 0, 0]
    assert create_timeout_queues(broker.url, "orders") == []
    # Declared again as they should be: anything else would be refused.
    for queue in (TIMEOUTS, DISPATCHER):
        broker.queue(queue, {"x-queue-type": "quorum", "x-delivery-limit": 2**31 - 1})


def test_due_already_is_sent_on_intact(broker: Broker, transport: RabbitMqTimeouts) -> None:
    """At once, not stored; headers keep their types, and properties their values. So is NServiceBus's own."""
    store = InMemoryStore(SystemClock())
    served = Served(store, transport)
    headers = due(-1000) | {"n": 7, "raw": b"\x00\xff", "yes": True, "deep": {"list": [1, "a"]}}
    user = urlsplit(broker.url).username
    send(broker, headers, content_type="text/x", correlation_id="c", reply_to="r", user_id=user)
    served.until_told(served.manager.store_arrivals)
    assert served.told == [("sent-on", "m-1")]
    assert store.pending_count() == 0
    ((_, properties, body),) = broker.drain("orders")
    assert (body, properties.message_id, properties.delivery_mode) == (b"\x00\xff", "m-1", 2)
    assert (properties.content_type, properties.correlation_id) == ("text/x", "c")
    assert (properties.reply_to, properties.user_id) == ("r", None)
    was_due = {"sqsdelay.WasDueAt": headers.pop("sqsdelay.DueAt")}
    wanted = {name: value for name, value in headers.items() if name != "sqsdelay.Destination"}
    assert users(properties) == wanted | was_due
    theirs = {
        "NServiceBus.Timeout.RouteExpiredTimeoutTo": "orders",
        "NServiceBus.Timeout.Expire": "2020-01-31 09:00:00:000000 Z",
    }
    send(broker, theirs)
    served.until_told(served.manager.store_arrivals)
    ((_, properties, _),) = broker.drain("orders")
    assert users(properties) == theirs | {"sqsdelay.WasDueAt": "1580461200000"}
    assert broker.wait_count(TIMEOUTS, 0) == 0


def test_a_senders_messages_arrive_intact(broker: Broker, transport: RabbitMqTimeouts) -> None:
    """As NServiceBus sends them: many headers, bytes, properties; what cannot be sent fails alone."""
    sender = TimeoutSender(transport)
    own: dict[str, Any] = {f"NServiceBus.{n}": str(n) for n in range(20)} | {"n": 7}
    message = RabbitMqMessage(
        b"\x00\xff", delay=1, headers=own, properties=BasicProperties(content_type="text/x")
    )
    good, bad = sender.send_many("orders", [message, RabbitMqMessage(b"x", delay=-1)])
    assert (good.error, type(bad.error)) == (None, InvalidDelay)
    served = Served(InMemoryStore(SystemClock()), transport)
    served.until_told(served.manager.store_arrivals)
    served.turns_until(lambda: ("dispatched", good.message_id) in served.told)
    ((_, properties, body),) = broker.drain("orders")
    told = (body, properties.content_type, properties.message_id)
    assert told == (b"\x00\xff", "text/x", good.message_id)
    arrived = users(properties)
    assert {name: arrived[name] for name in own} == own
    assert arrived["NServiceBus.Timeout.RouteExpiredTimeoutTo"] == "orders"
    assert good.due is not None
    assert int(arrived["sqsdelay.WasDueAt"]) == round(good.due.timestamp() * 1000)


def test_what_cannot_be_read_is_rejected(broker: Broker, transport: RabbitMqTimeouts) -> None:
    """With the reason, body and headers as they were, also where they leave no room for it."""
    send(broker, {"tenant": "acme"})
    send(broker, {"big": "x" * 120_000})
    send(broker, due(0) | {"sqsdelay.Destination": "a.#"})
    send(broker, {}, to=DISPATCHER, body=b"\xff")
    served = Served(InMemoryStore(SystemClock()), transport)
    while broker.count(ERRORS) < 3:
        served.manager.store_arrivals()
    while broker.count(ERRORS) < 4:
        served.manager.dispatch()
    assert served.told == []
    plain, big, wildcard, no_id = broker.drain(ERRORS)
    assert plain[1].headers["tenant"] == "acme"
    assert plain[2] == b"\x00\xff"
    reasons = [e[1].headers["sqsdelay.Error"] for e in (plain, wildcard, no_id)]
    assert "neither sqsdelay.Destination nor" in reasons[0]
    assert "wildcard" in reasons[1]
    assert "was not sent by a timeout manager" in reasons[2]
    assert json.loads(big[2])["body"] == "AP8="
    assert broker.wait_count(TIMEOUTS, 0) == 0


def test_a_worker_killed_before_it_acknowledges_a_stored_message(
    broker: Broker, transport: RabbitMqTimeouts, tmp_path: Path
) -> None:
    """The broker delivers it again, the store has it once, and it is sent once."""
    url = f"sqlite:///{tmp_path}/store.db"
    with closing(open_store(url, endpoint="orders")) as store:
        store.set_up()
        send(broker, due(3_600_000))
        assert die(broker, url, "store_arrivals") == -signal.SIGKILL
        assert broker.wait_count(TIMEOUTS, 1) == 1
        assert store.pending_count() == 1
        served = Served(store, transport)
        served.until_told(served.manager.store_arrivals)
        assert store.pending_count() == 1
        assert store.reschedule("m-1", SystemClock().now_ms())
        served.turns_until(lambda: store.pending_count() == 0)
    assert served.told == [("stored", "m-1"), ("announced", "m-1"), ("dispatched", "m-1")]
    assert len(broker.drain("orders")) == 1


def test_a_worker_killed_before_it_acknowledges_a_dispatched_id(
    broker: Broker, transport: RabbitMqTimeouts, tmp_path: Path
) -> None:
    """The id is delivered again, finds nothing in the store, and is dropped: sent once."""
    url = f"sqlite:///{tmp_path}/store.db"
    with closing(open_store(url, endpoint="orders")) as store:
        store.set_up()
        store.store([due_in("m-1")])
        served = Served(store, transport)
        assert served.manager.announce() == 1
        assert die(broker, url, "dispatch") == -signal.SIGKILL
        assert broker.wait_count(DISPATCHER, 1) == 1
        served.until_told(served.manager.dispatch)
        transport.close()
    assert served.told == [("announced", "m-1"), ("dropped", "m-1")]
    assert len(broker.drain("orders")) == 1
    assert broker.wait_count(DISPATCHER, 0) == 0


def test_a_deleted_destination_starves_nobody_and_ends_in_the_error_queue(
    broker: Broker, transport: RabbitMqTimeouts
) -> None:
    """150 ids of it, more than the broker delivers at once, in front of a healthy one's."""
    store = InMemoryStore(SystemClock())
    store.store([*(a_message(f"m-{n:03}", 1, to="gone") for n in range(150)), due_in("well")])
    served = Served(store, transport, replace(QUICK, number_of_retries=1))
    while served.manager.announce():
        pass
    served.manager.dispatch()
    served.turns_until(lambda: ("dispatched", "well") in served.told)
    served.turns_until(lambda: store.pending_count() == 0)
    rejected = broker.drain(ERRORS)
    assert len(rejected) == 150
    reason = json.loads(rejected[0][1].headers["sqsdelay.Error"])["reason"]
    assert re.match(r"QueueMissing: RabbitMQ at .*: no queue 'gone'", reason)
    assert sum(status == "announced" for status, _ in served.told) == 151
    assert broker.count(DISPATCHER) == 0


def test_an_announcement_by_a_clock_ahead_waits_for_ours(
    broker: Broker, transport: RabbitMqTimeouts
) -> None:
    """Two processes' clocks differ: the message is as late as that, and not dropped."""
    ahead = ManualClock(SystemClock().now_ms() + 1500)
    store = InMemoryStore(SystemClock())
    store.store([due_in("m-1", 1400)])
    with closing(RabbitMqTimeouts(broker.url, "orders", clock=ahead)) as early:
        assert Served(store, early).manager.announce() == 1
    served = Served(store, transport)
    served.until_told(served.manager.dispatch)
    assert served.told == [("dispatched", "m-1")]


def test_a_lost_connection_is_opened_again(broker: Broker, transport: RabbitMqTimeouts) -> None:
    """What was received over it comes again; what is not there or not reached is named."""
    transport.announce(["m"])
    with (
        TcpProxy(broker.port) as proxy,
        closing(RabbitMqTimeouts(broker.through(proxy), "orders")) as cut,
    ):
        (delivery,) = cut.receive_due_ids(wait_seconds=PATIENCE_SECONDS)
        proxy.down()
        with pytest.raises(QueueUnavailable, match="cannot be reached"):
            cut.receive_due_ids(wait_seconds=5)
        proxy.up()
        (again,) = cut.receive_due_ids(wait_seconds=PATIENCE_SECONDS)
        assert again.content == "m"
        cut.settle([delivery, again])
    assert broker.wait_count(DISPATCHER, 0) == 0
    broker.delete_queue(DISPATCHER)
    with pytest.raises(QueueMissing, match=DISPATCHER):
        transport.receive_due_ids(wait_seconds=0)
    with pytest.raises(QueueMissing, match=DISPATCHER):
        transport.check()


def test_a_connection_that_goes_silent_keeps_nobody(
    broker: Broker, transport: RabbitMqTimeouts
) -> None:
    """Neither who closes it nor who opens another waits for answers that do not come."""
    transport.announce(["m"])
    with DeafProxy(broker.port) as proxy:
        given = parameters(broker.through(proxy))
        consumer = QueueConsumer(given, DISPATCHER)
        (received,) = consumer.receive(wait_seconds=PATIENCE_SECONDS)
        proxy.swallowing.set()
        closing_it = threading.Thread(target=consumer.close, daemon=True)
        closing_it.start()
        closing_it.join(45)  # heartbeats would end it after more than a minute
        assert not closing_it.is_alive()
        proxy.swallowing.clear()
        (again,) = consumer.receive(wait_seconds=PATIENCE_SECONDS)
        assert again.body == received.body
        consumer.close()


def test_a_refused_login_is_an_outage(broker: Broker) -> None:
    """The manager's check has found it let in, so it may be again: nothing ends for it."""
    refused = QueueConsumer(parameters(broker.url.replace(":guest@", ":sesame@")), TIMEOUTS)
    with pytest.raises(QueueUnavailable, match="refused the user 'guest'"):
        refused.receive(wait_seconds=0)


def test_a_queue_deleted_while_it_is_received_from(
    broker: Broker, transport: RabbitMqTimeouts
) -> None:
    """The receiver is told, and does not wait for messages that can never come."""
    assert transport.receive_timeouts(wait_seconds=0) == []
    broker.delete_queue(TIMEOUTS)
    with pytest.raises(QueueUnavailable, match=f"ended the delivery from {TIMEOUTS}"):
        transport.receive_timeouts(wait_seconds=PATIENCE_SECONDS)
    with pytest.raises(QueueMissing, match=TIMEOUTS):
        transport.receive_timeouts(wait_seconds=5)


def due_in(message_id: str, milliseconds: int = 0) -> StoredMessage:
    return a_message(message_id, SystemClock().now_ms() + milliseconds)


def die(broker: Broker, store_url: str, task: str) -> int | None:
    """The exit code of a worker that is killed where it would acknowledge what it has done."""
    process = FORKS.Process(target=_dying, args=(broker.url, store_url, task))
    process.start()
    process.join(PATIENCE_SECONDS)
    return process.exitcode


def _dying(url: str, store_url: str, task: str) -> None:
    transport = RabbitMqTimeouts(url, "orders")
    killed = partial(os.kill, os.getpid(), signal.SIGKILL)
    transport.settle = lambda deliveries: deliveries and killed()  # type: ignore[assignment,method-assign]
    getattr(TimeoutManager(open_store(store_url, endpoint="orders"), transport), task)()
