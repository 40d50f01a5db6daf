"""Messages nobody is bound for: they hold up no one, they are shown, and they are sent on."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from typing import Any
from unittest.mock import patch

import pytest
from kombu.connection import Connection
from pika import BasicProperties

from sqsdelay.errors import ConfigurationError, InvalidMessage, QueueMissing, QueueUnavailable
from sqsdelay.rabbitmq import RabbitMqMessage, RabbitMqSender, Topology, bind, declare
from sqsdelay.rabbitmq.connection import parameters
from sqsdelay.rabbitmq.link import BindJob, Link, Publication
from sqsdelay.rabbitmq.publisher import Publisher
from sqsdelay.rabbitmq.topology import routing_key
from tests.acceptance.rabbitmq.broker import QUORUM, Broker, Inbox, check_whole, due
from tests.patience import PATIENCE_SECONDS, wait_for
from tests.services.network import TcpProxy

LOST = 200
HELD_UP_MS = 30_000
"""Without a queue that catches them, fewer than 200 have held up others for longer than this."""


def test_an_unbound_destination_delays_nobody_else(shared: Broker) -> None:
    """200 messages for a queue that has gone; others do not wait for them, and none of the 200 is lost."""
    acme = shared.ready("live", "ghost", prefix="acme")
    for name in ("live", "ghost"):
        bind(shared.url, name, acme)
    shared.delete_queue("ghost")
    with (
        RabbitMqSender(shared.url, prefix="acme", bind=False) as sender,
        Inbox(shared.url, "live") as inbox,
    ):
        ghosts = [RabbitMqMessage(str(n), delay=1, message_id=f"ghost-{n}") for n in range(LOST)]
        assert all(r.error is None for r in sender.send_many("ghost", ghosts))
        for n in range(10):
            due = time.time() * 1000 + (1 + n % 4) * 1000
            sender.send("live", str(n), delay=1 + n % 4, headers={"due-ms": str(due)})
        arrivals = inbox.wait(10)
        assert len(arrivals) == 10
        assert all(0 <= arrival.late_ms < HELD_UP_MS for arrival in arrivals)
    assert shared.wait_count(acme.undeliverable, LOST) == LOST

    wait_for(lambda: len(shared.problems(acme)) == 1)  # the broker's figures are seconds old
    (warning,) = shared.problems(acme)
    assert warning.subject == "endpoint ghost"
    assert warning.text == (
        "200 messages were due, but no queue was bound for it; they wait in acme.delay-undeliverable"
    )
    assert shared.count(acme.undeliverable) == LOST

    shared.queue("ghost")
    assert bind(shared.url, "ghost", acme) == LOST
    assert shared.wait_count(acme.undeliverable, 0) == 0
    arrived = shared.drain("ghost")
    assert sorted(int(body) for _, _, body in arrived) == list(range(LOST))
    assert {p.message_id for _, p, _ in arrived} == {f"ghost-{n}" for n in range(LOST)}


@pytest.mark.parametrize("healthy", [pytest.param(20, marks=pytest.mark.nightly), 2_000])
def test_a_full_destination_holds_up_nobody(broker: Broker, healthy: int) -> None:
    """What a full queue refuses waits for that queue alone, and arrives once there is room."""
    acme = broker.ready("live", prefix="acme")
    full = {**QUORUM, "x-max-length": 10, "x-overflow": "reject-publish"}
    broker.queue("full", full)
    with RabbitMqSender(broker.url, prefix="acme") as sender, Inbox(broker.url, "live") as inbox:
        refused = [RabbitMqMessage(str(n), delay=1) for n in range(LOST)]
        assert all(r.error is None for r in sender.send_many("full", refused))
        wait_for(lambda: broker.count("full") >= 10)
        due = {"due-ms": str(time.time() * 1000 + 3_000)}
        messages = [RabbitMqMessage(str(n), delay=3, headers=due) for n in range(healthy)]
        assert all(r.error is None for r in sender.send_many("live", messages))
        arrivals = inbox.wait(healthy)
    check_whole(arrivals, healthy)

    def found() -> list[tuple[str, bool]]:
        problems = broker.problems(acme)
        return [(each.subject, each.fatal) for each in problems if "refuses them" in each.text]

    wait_for(lambda: found() == [("endpoint full", False)])


def test_a_hand_over_that_stands_on_shared_infrastructure_is_a_problem(broker: Broker) -> None:
    """NServiceBus's levels lead to the endpoints' queues: verify warns before one is full, and fails then."""
    shared = broker.ready(prefix="nsb.v2")
    broker.queue("full", {**QUORUM, "x-max-length": 10, "x-overflow": "reject-publish"})
    bind(broker.url, "full", shared)

    def found(*, fatal: bool) -> list[str]:
        return [each.subject for each in broker.problems(shared) if each.fatal is fatal]

    assert "endpoint full" in found(fatal=False)
    assert found(fatal=True) == []
    with RabbitMqSender(broker.url, prefix="nsb.v2", without_alternate_exchange=True) as sender:
        results = sender.send_many("full", [RabbitMqMessage("x", delay=1) for _ in range(LOST)])
        assert all(result.error is None for result in results)
    wait_for(lambda: found(fatal=True) == ["queue nsb.v2.delay-level-00"])


def test_a_user_who_may_not_declare_binds_an_endpoint_that_is_there(shared: Broker) -> None:
    """Its hand-over queue is made by whoever may; without one, the error says what is not allowed."""
    acme = shared.ready("orders", prefix="acme")
    with RabbitMqSender(shared.user("writer", configure=""), prefix="acme") as sender:
        told = r"access to queue 'acme\.delay-hand-over\.orders"
        with pytest.raises(ConfigurationError, match=told):
            sender.send("orders", "hi", delay=1)
        bind(shared.url, "orders", acme)
        for _ in range(2):
            sender.send("orders", "hi", delay=1)
    assert shared.wait_count("orders", 2) == 2


@pytest.mark.parametrize(
    ("many", "prefix", "name"),
    [(24, "acme", "orders"), (2, "p" * 40, "o" * 196)],
    ids=["many", "names that the refusal cuts"],
)
def test_new_endpoints_cost_one_refusal_together(
    shared: Broker, many: int, prefix: str, name: str
) -> None:
    """Which of them lack their hand-over queues is not found out one by one; a wrong name fails alone."""
    acme = shared.ready(prefix=prefix)
    names = [f"{name}-{number}" for number in range(many)]
    for name in names:
        shared.queue(name, {})

    def message(endpoint: str) -> Publication:
        publication = due(acme.delivery_exchange, endpoint)
        publication.after = BindJob(acme.way(endpoint))
        return publication

    heard = list[float]()

    def on_bound(link: Any, *given: Any, does: Any = Link._on_bound) -> None:
        link._heard_at = 0.0
        does(link, *given)
        heard.append(link._heard_at)

    given, spied = parameters(shared.url), partial(patch.object, Link, autospec=True)
    with (
        closing(Publisher(given, confirm_seconds=PATIENCE_SECONDS)) as publisher,
        spied("_on_binding_refused", side_effect=Link._on_binding_refused) as refused,
        spied("_on_bound", side_effect=on_bound),
    ):
        bound = [message(name) for name in names]
        publisher.publish(bound)
        assert [each.error for each in bound] == [None] * many
        assert refused.call_count == 1
        assert len(heard) >= many
        assert all(heard)  # one that declares for a minute is not taken for a dead one
        bound = [message(name) for name in (*names, "wrong")]
        publisher.publish(bound)
        assert [isinstance(each.error, QueueMissing) for each in bound] == [False] * many + [True]
    for name in names:
        assert shared.wait_count(name, 2) == 2


def test_a_message_that_cannot_be_written_stays_and_holds_up_no_other(shared: Broker) -> None:
    """A large fraction, of another client: pika reads a whole number of more than 64 bits."""
    acme = shared.ready(prefix="acme")
    with Connection(shared.url, transport_options={"confirm_publish": True}) as connection:
        for headers in ({"score": 1e300}, {}):
            connection.Producer().publish(
                "x", routing_key(1, "orders"), exchange=acme.delivery_exchange, headers=headers
            )
    assert shared.wait_count(acme.undeliverable, 2) == 2
    shared.queue("orders")
    with pytest.raises(InvalidMessage, match="cannot be written in AMQP"):
        bind(shared.url, "orders", acme)
    assert shared.wait_count("orders", 1) == 1
    assert shared.wait_count(acme.undeliverable, 1) == 1


def test_a_lost_link_repeats_no_more_than_was_in_hand(broker: Broker) -> None:
    """Acknowledgements leave with each 30 messages, though 500 have arrived and nothing is waited for."""
    acme = broker.ready(prefix="acme")
    publications = [due(acme.delivery_exchange, "ghost") for _ in range(90)]
    with closing(Publisher(parameters(broker.url))) as publisher:
        publisher.publish(publications)
    assert broker.wait_count(acme.undeliverable, 90) == 90
    broker.queue("ghost")
    with TcpProxy(broker.port) as proxy:

        def lose(*_: object) -> None:
            proxy.down()
            raise QueueUnavailable("away")

        steps: Iterator[Any] = iter([Publisher.publish, Publisher.publish, lose])
        with (
            patch.object(Publisher, "publish", lambda *given: next(steps)(*given)),
            pytest.raises(QueueUnavailable),
        ):
            bind(broker.through(proxy), "ghost", acme)
    wait_for(lambda: 0 < broker.count(acme.undeliverable) <= 60)


def test_binding_sends_on_its_own_messages_only(shared: Broker) -> None:
    """What waits for another endpoint stays, through the command line. The second's queue is there, but the
    sender leaves binding it to others. It names its user, whom the broker believes of nobody else."""
    declare(shared.url, Topology("acme"))
    url, properties = shared.user("shop"), BasicProperties(user_id="shop")
    for name in ("second", "first"):
        shared.queue(name)
        with RabbitMqSender(url, prefix="acme", bind=name == "first") as sender:
            sender.send(name, name, delay=1, properties=properties)
    shared.delete_queue("first")
    assert shared.wait_count("acme.delay-undeliverable", 2) == 2
    assert shared.count("second") == 0
    shared.delete_queue("second")
    shown = shared.cli("--prefix", "acme", "verify")
    assert "warning: endpoint first 1 messages were due, but no queue was bound" in shown.stdout
    missing = shared.cli("--prefix", "acme", "bind", "second")
    assert missing.returncode == 1
    assert "no queue 'second'" in missing.stderr
    shared.queue("second")
    bound = shared.cli("--prefix", "acme", "bind", "second")
    assert bound.stdout == "bound second; 1 undeliverable messages forwarded to it\n"
    assert shared.wait_count("second", 1) == 1
    assert shared.wait_count("acme.delay-undeliverable", 1) == 1
