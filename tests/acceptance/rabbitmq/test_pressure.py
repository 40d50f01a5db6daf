"""Brokers that are away, blocked, deaf or full: nothing waits for ever, and nothing is written in vain."""

from __future__ import annotations

import os
import threading
import time
from collections import Counter, deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import UTC, datetime, timedelta
from math import inf
from unittest.mock import Mock

import pytest
from pika import BasicProperties

from sqsdelay.errors import QueueUnavailable, SendFailed, Unconfirmed
from sqsdelay.rabbitmq import RabbitMqMessage, RabbitMqSender, bind, verify
from sqsdelay.rabbitmq.administration import PREFETCH, undeliverable
from sqsdelay.rabbitmq.connection import Session, Wire, parameters
from sqsdelay.rabbitmq.link import DRAIN_SECONDS, Jobs, Link, Publication
from sqsdelay.rabbitmq.publisher import Publisher
from tests.acceptance.rabbitmq.broker import Broker, Inbox, due, until_confirmed
from tests.patience import PATIENCE_SECONDS, wait_for
from tests.services.network import CountingProxy, DeafProxy, StallingProxy, TcpProxy

AWAY_SECONDS = 4
MANY = 20_000


def test_a_due_time_holds_while_the_broker_is_away(shared: Broker) -> None:
    """What is left of the delay is counted when the message is written, not when it is handed in."""
    shared.ready("orders")
    with (
        TcpProxy(shared.port) as proxy,
        RabbitMqSender(shared.through(proxy)) as sender,
        Inbox(shared.url, "orders") as inbox,
        ThreadPoolExecutor() as threads,
    ):
        sender.send("orders", "bound", delay=1)
        due = datetime.now(UTC).replace(microsecond=0) + timedelta(seconds=AWAY_SECONDS + 4)
        header = {"due-ms": str(due.timestamp() * 1000)}
        message = RabbitMqMessage("x", due_at=due, headers=header)
        proxy.down()
        sending = threads.submit(sender.send_many, "orders", [message])
        time.sleep(AWAY_SECONDS)
        proxy.up()
        assert [result.error for result in sending.result()] == [None]
        arrival = inbox.wait(2)[-1]
    assert arrival.body == b"x"
    assert arrival.late_ms >= 0
    bits = arrival.routing_key.rpartition(".")[0]
    assert int("0" + bits.replace(".", ""), 2) <= 4
    assert arrival.properties.headers["sqsdelay.WasDueAt"] == str(int(due.timestamp() * 1000))


def test_a_queue_made_anew_is_bound_anew(shared: Broker) -> None:
    """A deployment deletes it and creates it again between two sends: the binding went with it."""
    shared.ready("orders")
    with RabbitMqSender(shared.url) as sender:
        sender.send("orders", "first", delay=100)
        shared.delete_queue("orders")
        shared.queue("orders")
        sender.send("orders", "second", delay=1)
    assert shared.wait_count("orders", 1) == 1


def test_a_call_has_one_deadline(broker: Broker) -> None:
    """However many messages it has: a deaf broker took 2,000 of them per 30 s, and 25 minutes for all."""
    broker.queue("orders")
    with (
        DeafProxy(broker.port) as proxy,
        RabbitMqSender(broker.through(proxy), connect_seconds=1, confirm_seconds=1) as sender,
    ):
        until_confirmed(sender, "heard")
        proxy.swallowing.set()
        results = sender.send_many("orders", [RabbitMqMessage("x") for _ in range(MANY // 4)])
    kinds = {type(result.error) for result in results}
    assert kinds == {Unconfirmed, QueueUnavailable}
    assert sum(isinstance(result.error, Unconfirmed) for result in results) <= 4_000


def test_large_messages_fill_a_window_of_bytes(broker: Broker) -> None:
    """2,000 messages of 16 MiB in flight would be 32 GiB in our memory, and in the broker's."""
    broker.queue("orders")
    body = b"x" * (6 * 1024 * 1024)
    with (
        DeafProxy(broker.port) as proxy,
        RabbitMqSender(broker.through(proxy), confirm_seconds=PATIENCE_SECONDS) as sender,
        ThreadPoolExecutor() as threads,
    ):
        sender.send("orders", "heard")
        proxy.swallowing.set()
        sending = threads.submit(sender.send_many, "orders", [RabbitMqMessage(body)] * 8)
        assert broker.wait_count("orders", 3) == 3  # the small one and two of 6 MiB
        time.sleep(1)
        assert broker.count("orders") == 3
        proxy.swallowing.clear()
        proxy.down()
        proxy.up()
        results = sending.result()
    assert [type(result.error) for result in results] == [Unconfirmed] * 2 + [type(None)] * 6


def test_a_confirm_is_due_from_when_the_socket_has_taken_the_message(broker: Broker) -> None:
    """Not from when it has taken all: behind a slow link the buffer may never be empty."""
    broker.queue("orders")
    bodies = b"first", b"x", b"x" * 15 * 2**20
    first, small, large = (Publication("", "orders", each, BasicProperties()) for each in bodies)
    jobs = Jobs(publications=deque([first]))
    with StallingProxy(broker.port) as proxy, closing(Wire()) as wire:
        link = Link(parameters(broker.through(proxy)), wire, jobs, confirm_seconds=1000)
        serving = threading.Thread(target=link.serve)
        serving.start()
        assert broker.wait_count("orders", 1) == 1
        proxy.stalled.set()
        jobs.publications.extend([small, large])
        wire.loop.add_callback_threadsafe(link.pump)
        wait_for(lambda: small.written_at < inf)
        assert large.written_at == inf
        assert wire.unwritten
        proxy.down()
        serving.join()


def test_a_full_queue_costs_fewer_connections_and_a_new_leader_waits_5_s(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It refuses for hours, as a dead leader does until the next: a new connection helps the latter alone,
    and only one made after the election, however long that took. A second passes with each message."""
    clock = Mock(monotonic=Mock(return_value=0.0))
    monkeypatch.setattr("sqsdelay.rabbitmq.link.time", clock)
    broker.queue("full", {"x-max-length": 0, "x-overflow": "reject-publish"})
    sent_on = Counter[int]()
    with CountingProxy(broker.port) as proxy, RabbitMqSender(broker.through(proxy)) as sender:
        for _ in range(60):
            with pytest.raises(SendFailed, match="nack"):
                sender.send("full", "x")
            sent_on[proxy.connections] += 1
            clock.monotonic.return_value += 1.0
    assert len(sent_on) <= 20
    assert max(sent_on.values()) - 1 + DRAIN_SECONDS <= 5


def test_administration_has_a_deadline(broker: Broker) -> None:
    """pika's blocking calls have none; a queue without a leader answers nothing, for ever."""
    told = pytest.raises(QueueUnavailable, match="no answer within 1 s")
    with (
        DeafProxy(broker.port) as proxy,
        told,
        Session(parameters(broker.through(proxy)), seconds=1) as session,
    ):
        proxy.swallowing.set()
        session.count("orders")


def test_an_interrupted_opening_leaves_no_file_open(broker: Broker) -> None:
    """Ctrl-C while the broker is asked for a channel ends the connection and its loop."""

    def interrupt(_: Session) -> None:
        raise KeyboardInterrupt

    before = os.listdir("/proc/self/fd")
    with pytest.raises(KeyboardInterrupt):
        Session(parameters(broker.url), set_up=interrupt)
    assert os.listdir("/proc/self/fd") == before


def test_twenty_thousand_undeliverable_messages(shared: Broker) -> None:
    """Counted, and sent on to the queue that they are for, pipelined; others stay where they are."""
    acme = shared.ready(prefix="acme")
    names = ("ghost" if n % 10 else "other" for n in range(MANY))
    publications = [due(acme.delivery_exchange, name) for name in names]
    with closing(Publisher(parameters(shared.url))) as publisher:
        publisher.publish(publications)
    assert [p for p in publications if p.error is not None] == []
    with Session(parameters(shared.url)) as session:
        next(undeliverable(session, acme))
        # All together, 20,000 of 1 MiB would be 20 GiB on their way, and the broker out of memory.
        assert shared.count(acme.undeliverable) >= MANY - PREFETCH
    assert shared.wait_count(acme.undeliverable, MANY) == MANY
    texts = {problem.subject: problem.text for problem in verify(shared.url, acme)}
    ghost, other = (texts[f"endpoint {name}"] for name in ("ghost", "other"))
    if f" of {MANY}) were due" not in ghost:  # a busy broker does not give all within ten seconds
        assert ghost.startswith("18000 messages were due")
        assert other.startswith("2000 messages were due")
    shared.queue("ghost")
    assert bind(shared.url, "ghost", acme) == 18_000
    assert shared.wait_count("ghost", 18_000) == 18_000
    assert shared.wait_count(acme.undeliverable, 2_000) == 2_000
