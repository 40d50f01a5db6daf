"""Messages the broker is handing over: no passive declaration shows them, and nothing may lose them."""

from __future__ import annotations

import json
from unittest.mock import patch
from urllib.parse import unquote

import pytest

from sqsdelay.errors import ConfigurationError
from sqsdelay.rabbitmq import (
    RabbitMqMessage,
    RabbitMqSender,
    Topology,
    bind,
    declare,
    teardown,
    transfer,
)
from sqsdelay.rabbitmq.connection import Session
from sqsdelay.rabbitmq.management import Management
from tests.acceptance.rabbitmq.broker import Broker
from tests.patience import wait_for

MANY = 130
STUCK = Topology("stuck")
HAND_OVER = "stuck.delay-hand-over.ghost"


def stuck(broker: Broker) -> None:
    """130 confirmed messages that are due, and whose queue is gone; all queues look empty.

    The catch-all is taken away, so that the hand-over queue holds them, as a level does on ``nsb.v2``
    without its policy.
    """
    broker.ready("ghost", prefix="stuck")
    bind(broker.url, "ghost", STUCK)
    for queue in ("ghost", STUCK.undeliverable):
        broker.delete_queue(queue)
    with RabbitMqSender(broker.url, prefix=STUCK.prefix, bind=False) as sender:
        results = sender.send_many("ghost", [RabbitMqMessage(str(n), delay=1) for n in range(MANY)])
        assert [result.error for result in results] == [None] * MANY
    assert broker.wait_count(STUCK.level_name(0), 0) == 0
    # The last of them may have left the level a moment ago and not be in the broker's hands yet.
    assert broker.wait_count(HAND_OVER, 0) == 0


def wait_handed_over(broker: Broker) -> None:
    management = Management(broker.management_url, unquote(broker.virtual_host))

    def all_held() -> bool:
        held = management.held().get(HAND_OVER)
        return held is not None and held["messages_dlx"] == MANY

    wait_for(all_held, "the broker does not report them")


def test_what_is_handed_over_is_counted_or_its_loss_is_a_decision(broker: Broker) -> None:
    """Counted after the question, not before: the management API's figures are seconds old. Over AMQP alone
    all queues look empty: the remedy is named."""
    stuck(broker)

    def commanded(*words: str, management: bool) -> tuple[int, str]:
        api = ("--management", broker.management_url) if management else ()
        done = broker.cli("--prefix", "stuck", *api, *words)
        return done.returncode, done.stdout + done.stderr

    code, told = commanded("teardown", management=True)
    assert code == 1
    assert f"{MANY} messages in the infrastructure 'stuck' are being handed over" in told
    assert "--force" in told
    code, told = commanded("teardown", management=False)
    assert code == 1
    for part in ("--management http://", "rabbitmq-plugins enable rabbitmq_management", "--force"):
        assert part in told

    # None was lost, and it is all still there.
    wait_handed_over(broker)
    _, told = commanded("verify", management=True)
    assert f"endpoint ghost {MANY} messages are due, and wait in {HAND_OVER}" in told

    # What waits is moved, what is handed over is reported, and the exit code says that some stayed.
    broker.ready("orders", prefix="new")
    with RabbitMqSender(broker.url, prefix="stuck") as sender:
        sender.send("orders", "later", delay=10_000)
    move = ("transfer", "--to-prefix", "new", "--to", broker.url, "--json")
    code, told = commanded(*move, management=False)
    assert code == 1
    assert "it is unknown what would stay at the source" in told
    assert broker.count("stuck.delay-level-13") == 1
    code, told = commanded(*move, management=True)
    assert code == 1
    shown, _ = json.JSONDecoder().raw_decode(told)  # the progress follows
    assert shown["moved"] == 1
    ((reason, count),) = shown["left"].items()
    assert count == MANY
    assert "messages_dlx" in reason
    assert commanded("teardown", "--force", management=False) == (0, "deleted stuck\n")


def test_what_a_slow_queue_does_not_count_is_moved_and_not_deleted(broker: Broker) -> None:
    """Over AMQP the broker says 0 of a quorum queue that does not answer it within a quarter of a second."""
    broker.ready("orders", prefix="stuck")
    broker.ready("orders", prefix="new")
    with RabbitMqSender(broker.url, prefix="stuck") as sender:
        sender.send("orders", "later", delay=10_000)
    words = r"^1 messages in .* or wait, and would be lost; .* or move them first with: .* transfer"
    told = pytest.raises(ConfigurationError, match=words)
    with patch.object(Session, "count", return_value=0):
        with told:
            teardown(broker.url, STUCK, management_url=broker.management_url)
        new = Topology("new")
        assert transfer(broker.url, broker.url, source=STUCK, target=new, force=True).moved == 1
    assert broker.count("new.delay-level-13") == 1


def test_an_empty_infrastructure_is_deleted(broker: Broker) -> None:
    """Also one declared a moment ago, which the management API does not know yet."""
    declare(broker.url, STUCK)
    teardown(broker.url, STUCK, management_url=broker.management_url)
    with pytest.raises(ConfigurationError, match=r"no queue stuck\.delay-level-27"):
        transfer(broker.url, broker.url, source=STUCK, target=Topology("other"), force=True)


def test_an_interrupted_teardown_goes_on(broker: Broker) -> None:
    """Exchanges go from the lowest level up: as long as one is left, so is the infrastructure."""
    declare(broker.url, STUCK)
    with broker.channel() as on:
        for queue in STUCK.queues():
            on.queue_delete(queue.name)
        on.exchange_delete(STUCK.level_name(0))
    teardown(broker.url, STUCK, force=True)
    with pytest.raises(ConfigurationError, match="there is no infrastructure"):
        teardown(broker.url, STUCK, force=True)


def test_verify_without_the_management_api_is_a_decision(broker: Broker) -> None:
    """Everything else is as it should be: with --force it only warns."""
    declare(broker.url)
    for words, code, told in (((), 1, "problem"), (("--force",), 0, "warning")):
        done = broker.cli("verify", *words)
        assert done.returncode == code
        assert f"{told}: management API messages being handed over" in done.stdout
        assert "rabbitmq-plugins enable rabbitmq_management" in done.stdout
    assert broker.cli("--management", broker.management_url, "verify").returncode == 0
