"""What the broker refuses to publish is an error of the configuration, and harms no neighbour."""

from __future__ import annotations

import pytest
from pika import BasicProperties

from sqsdelay.errors import ConfigurationError
from sqsdelay.rabbitmq import RabbitMqMessage, RabbitMqSender, Topology, bind, declare, verify
from sqsdelay.rabbitmq.confirms import Publication
from sqsdelay.rabbitmq.connection import parameters
from sqsdelay.rabbitmq.publisher import Publisher
from tests.acceptance.rabbitmq.broker import Broker


def test_a_missing_level_is_named_and_not_sent(broker: Broker) -> None:
    """Nothing is declared: sending again would help nobody."""
    with RabbitMqSender(broker.url, prefix="typo", bind=False) as sender:
        results = sender.send_many("orders", [RabbitMqMessage("a", delay=5) for _ in range(3)])
    for result in results:
        assert isinstance(result.error, ConfigurationError)
        assert "no exchange 'typo.delay-level-02'" in str(result.error)
        assert "not sent" in str(result.error)
        assert "sqsdelay rabbitmq --prefix typo declare" in str(result.error)


@pytest.mark.parametrize("position", [0, 50, 99])
def test_neighbours_of_a_refused_message_arrive_once(broker: Broker, position: int) -> None:
    """The broker ignores what follows a refused message, and forgets its answers to what came before."""
    broker.queue("orders")
    publisher = Publisher(parameters(broker.url))
    try:
        publications = [
            Publication("nowhere" if n == position else "", "orders", b"%d" % n, BasicProperties())
            for n in range(100)
        ]
        publisher.publish(publications)
    finally:
        publisher.close()
    refused = publications.pop(position)
    assert isinstance(refused.error, ConfigurationError)
    assert [each.error for each in publications] == [None] * 99
    neighbours = [n for n in range(100) if n != position]
    assert [int(body) for _, _, body in broker.drain("orders")] == neighbours


@pytest.mark.parametrize("delay", [0, 5])
def test_a_missing_permission_is_named_and_not_sent(broker: Broker, delay: int) -> None:
    """The user may do anything but write; each attempt says so, and none says "perhaps"."""
    declare(broker.url, Topology("acme"))
    broker.queue("orders")
    bind(broker.url, "orders", Topology("acme"))
    with RabbitMqSender(broker.user("reader", write=""), prefix="acme", bind=False) as sender:
        for _ in range(2):
            with pytest.raises(ConfigurationError, match="ACCESS_REFUSED") as refused:
                sender.send("orders", "a", delay=delay)
            assert "not sent" in str(refused.value)


def test_verify_needs_no_permission_to_configure_or_write(broker: Broker) -> None:
    """Whoever looks after a broker may not be allowed to change it; nothing is published either."""
    declare(broker.url, Topology("acme"))
    url = broker.user("looker", configure="", write="", tags="monitoring")
    management = broker.management_url.replace("guest:guest@", "looker:looker@")
    (unread,) = verify(url, Topology("acme"), management_url=management)
    assert (unread.subject, unread.fatal) == ("feature flag stream_queue", False)
    (unseen,) = verify(url, Topology("acme"), force=True)
    assert unseen.subject == "management API"
