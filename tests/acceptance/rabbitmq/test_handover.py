"""Messages the broker is handing over: no passive declaration shows them, and nothing may lose them."""

from __future__ import annotations

import json

import pytest

from sqsdelay.errors import ConfigurationError
from sqsdelay.rabbitmq import RabbitMqMessage, RabbitMqSender, Topology, declare, teardown, transfer
from sqsdelay.rabbitmq.management import Management
from tests.acceptance.rabbitmq.broker import Broker
from tests.patience import wait_for

MANY = 130
STUCK = Topology("stuck")
HAND_OVER = "stuck.delay-hand-over.ghost"


def stuck(broker: Broker) -> None:
    """130 confirmed messages that are due, and that nobody is bound for; all queues look empty.

    The catch-all is taken away, so that the hand-over queue holds them, as a level does on ``nsb.v2``
    without its policy.
    """
    declare(broker.url, STUCK)
    broker.queue("ghost")
    with RabbitMqSender(broker.url, prefix=STUCK.prefix) as sender:
        results = sender.send_many("ghost", [RabbitMqMessage(str(n), delay=1) for n in range(MANY)])
        assert [result.error for result in results] == [None] * MANY
        broker.delete_queue("ghost")
        broker.delete_queue(STUCK.undeliverable)
    assert broker.wait_count(STUCK.level_name(0), 0) == 0
    # The last of them may have left the level a moment ago and not be in the broker's hands yet.
    assert broker.wait_count(HAND_OVER, 0) == 0


def wait_handed_over(broker: Broker) -> None:
    management = Management(broker.management_url, broker.virtual_host.replace("%20", " "))

    def all_held() -> bool:
        held = management.held().get(HAND_OVER)
        return held is not None and held.dead_lettering == MANY

    wait_for(all_held, "the broker does not report them")


def test_teardown_counts_what_is_handed_over_the_moment_it_looks_empty(broker: Broker) -> None:
    """Counted after the question, not before: the management API's figures are seconds old."""
    stuck(broker)
    refused = broker.cli("--prefix", "stuck", "--management", broker.management_url, "teardown")
    assert refused.returncode == 1
    assert f"{MANY} messages in the infrastructure 'stuck' are being handed over" in refused.stderr
    assert "--force" in refused.stderr
    # So does verify, which cannot see them without.
    unseen = broker.cli("--prefix", "stuck", "verify")
    assert unseen.returncode == 1
    assert "problem: management API messages being handed over (messages_dlx)" in unseen.stdout

    # None was lost: given their catch-all again, the broker delivers them by and by.
    wait_handed_over(broker)
    shown = broker.cli("--prefix", "stuck", "--management", broker.management_url, "verify")
    assert f"endpoint ghost {MANY} messages are due, and wait in {HAND_OVER}" in shown.stdout


def test_teardown_refuses_what_it_cannot_count(broker: Broker) -> None:
    """Over AMQP alone all queues look empty; the remedy is named, and --force is a decision."""
    stuck(broker)
    refused = broker.cli("--prefix", "stuck", "teardown")
    assert refused.returncode == 1
    for part in ("--management http://", "rabbitmq-plugins enable rabbitmq_management", "--force"):
        assert part in refused.stderr
    assert broker.count(STUCK.level_name(0)) == 0  # it is still there
    forced = broker.cli("--prefix", "stuck", "teardown", "--force")
    assert (forced.returncode, forced.stdout) == (0, "deleted stuck\n")


def test_an_empty_infrastructure_is_deleted(broker: Broker) -> None:
    """Also one declared a moment ago, which the management API does not know yet."""
    declare(broker.url, STUCK)
    teardown(broker.url, STUCK, management_url=broker.management_url)
    with pytest.raises(ConfigurationError, match=r"no queue stuck\.delay-level-27"):
        transfer(broker.url, broker.url, source=STUCK, target=Topology("other"), force=True)


def test_transfer_counts_what_it_cannot_move(broker: Broker) -> None:
    """What waits is moved, what is handed over is reported, and the exit code says that some stayed."""
    stuck(broker)
    declare(broker.url, Topology("new"))
    broker.queue("orders")
    with RabbitMqSender(broker.url, prefix="stuck") as sender:
        sender.send("orders", "later", delay=10_000)
    move = ("--prefix", "stuck", "transfer", "--to-prefix", "new", "--to", broker.url, "--json")
    refused = broker.cli(*move)
    assert refused.returncode == 1
    assert "it is unknown what would stay at the source" in refused.stderr
    assert broker.count("stuck.delay-level-13") == 1
    done = broker.cli("--management", broker.management_url, *move)
    assert done.returncode == 1
    shown = json.loads(done.stdout)
    assert shown["moved"] == 1
    ((reason, count),) = shown["left"].items()
    assert count == MANY
    assert "messages_dlx" in reason


def test_verify_without_the_management_api_is_a_decision(broker: Broker) -> None:
    """Everything else is as it should be: with --force it only warns."""
    declare(broker.url)
    refused = broker.cli("verify")
    assert refused.returncode == 1
    assert "rabbitmq-plugins enable rabbitmq_management" in refused.stdout
    forced = broker.cli("verify", "--force")
    assert forced.returncode == 0
    assert "warning: management API messages being handed over" in forced.stdout
    assert broker.cli("--management", broker.management_url, "verify").returncode == 0
