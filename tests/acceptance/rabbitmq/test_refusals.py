"""What the broker refuses to publish is an error of the configuration, and harms no neighbour."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from urllib.parse import unquote

import pytest
from pika import BasicProperties

from sqsdelay.errors import ConfigurationError
from sqsdelay.rabbitmq import RabbitMqMessage, RabbitMqSender, Topology, bind, declare, link, verify
from sqsdelay.rabbitmq.connection import parameters
from sqsdelay.rabbitmq.link import Publication
from sqsdelay.rabbitmq.publisher import Publisher
from tests.acceptance.rabbitmq.broker import Broker, manage
from tests.patience import PATIENCE_SECONDS, wait_for
from tests.services.network import CountingProxy, HoldingProxy


@pytest.mark.parametrize("many", [3, 3_000])
def test_a_missing_level_is_named_and_harms_no_other(broker: Broker, many: int) -> None:
    """Nothing is declared: sending again would help nobody. What waits for it is not tried one by one."""
    broker.queue("orders")
    with (
        CountingProxy(broker.port) as proxy,
        RabbitMqSender(broker.through(proxy), prefix="typo", bind=False) as sender,
    ):
        messages = [RabbitMqMessage("a", delay=5 * (n % 2)) for n in range(2 * many)]
        results = sender.send_many("orders", messages)
    assert [each.error for each in results[::2]] == [None] * many
    assert broker.wait_count("orders", many) == many
    for result in results[1::2]:
        assert isinstance(result.error, ConfigurationError)
        assert "no exchange 'typo.delay-level-02'" in str(result.error)
        assert "not sent" in str(result.error)
        assert "sqsdelay rabbitmq --prefix typo declare" in str(result.error)
    assert proxy.connections <= 3


def test_a_topic_that_is_not_permitted_is_named_and_not_sent(shared: Broker) -> None:
    """Permission may be for some routing keys of an exchange, which took messages before."""
    shared.ready("orders", "other")
    level = Topology().level_name(9)
    vhost = unquote(shared.virtual_host)
    url = shared.user("topical")
    may = {"exchange": level, "write": "orders$", "read": ".*"}
    manage(shared.management_url, "topic-permissions", vhost, "topical", **may)
    with RabbitMqSender(url, bind=False) as sender:
        for _ in range(2):
            assert sender.send("orders", "a", delay=600).error is None
            with pytest.raises(ConfigurationError, match=r"access to topic .* not sent"):
                sender.send("other", "b", delay=600)
    assert shared.wait_count(level, 2) == 2


@pytest.mark.parametrize("position", [0, 50, 99])
def test_neighbours_of_a_refused_message_arrive_once(broker: Broker, position: int) -> None:
    """The broker ignores what follows a refused message, and forgets its answers to what came before."""
    broker.queue("orders")
    publications = [
        Publication("nowhere" if n == position else "", "orders", b"%d" % n, BasicProperties())
        for n in range(100)
    ]
    with closing(Publisher(parameters(broker.url))) as publisher:
        publisher.publish(publications)
    refused = publications.pop(position)
    assert isinstance(refused.error, ConfigurationError)
    assert [each.error for each in publications] == [None] * 99
    neighbours = [n for n in range(100) if n != position]
    assert [int(body) for _, _, body in broker.drain("orders")] == neighbours


def test_neighbours_are_kept_apart_again_once_a_slow_broker_answers(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While it does not answer, the first to an exchange waits for nobody; that is no state to stay in."""
    broker.queue("orders")

    def to(exchange: str) -> Publication:
        return Publication(exchange, "orders", b"", BasicProperties())

    slow, second, neighbour, refused = to(""), to("amq.topic"), to(""), to("nowhere")
    with (
        HoldingProxy(broker.port) as proxy,
        closing(Publisher(parameters(broker.through(proxy)))) as publisher,
        ThreadPoolExecutor() as threads,
    ):
        publisher.publish([to("")])
        proxy.hold()
        monkeypatch.setattr(link, "FIRST_ANSWER_SECONDS", 0)
        publishing = threads.submit(publisher.publish, [slow, second])
        wait_for(lambda: second.written)
        monkeypatch.setattr(link, "FIRST_ANSWER_SECONDS", PATIENCE_SECONDS)
        proxy.let_go()
        publishing.result(PATIENCE_SECONDS)
        publisher.publish([neighbour, refused])
    assert isinstance(refused.error, ConfigurationError)
    assert (slow.error, neighbour.error) == (None, None)


def test_a_missing_permission_is_named_and_not_sent(shared: Broker) -> None:
    """The user may do anything but write; each attempt says so, and none says "perhaps"."""
    bind(shared.url, "orders", shared.ready("orders", prefix="acme"))
    with RabbitMqSender(shared.user("reader", write=""), prefix="acme", bind=False) as sender:
        for delay in (0, 5, 0, 5):
            with pytest.raises(ConfigurationError, match="ACCESS_REFUSED") as refused:
                sender.send("orders", "a", delay=delay)
            assert "not sent" in str(refused.value)


def test_verify_needs_no_permission_to_configure_or_write(broker: Broker) -> None:
    """Whoever looks after a broker may not be allowed to change it; nothing is published either."""
    declare(broker.url, Topology("acme"))
    url = broker.user("looker", configure="", write="", tags="monitoring")
    management = broker.management_url.replace("guest:guest@", "looker:looker@")
    unread = verify(url, Topology("acme"), management_url=management)  # RabbitMQ 4 shows all
    assert {(each.subject, each.fatal) for each in unread} <= {("feature flag stream_queue", False)}
    (unseen,) = verify(url, Topology("acme"), force=True)
    assert unseen.subject == "management API"
