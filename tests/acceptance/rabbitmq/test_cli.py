"""``sqsdelay rabbitmq`` as processes, on a real broker."""

from __future__ import annotations

import json
from datetime import datetime

import pytest

from sqsdelay.rabbitmq import RabbitMqMessage, RabbitMqSender
from tests.acceptance.rabbitmq.broker import Broker, Inbox
from tests.patience import wait_for
from tests.services.network import TcpProxy
from tests.services.processes import started


def test_from_declare_to_teardown(broker: Broker) -> None:
    """Every command a user types, in the order they type them."""
    assert broker.cli("--prefix", "acme", "declare").stdout == (
        "declared acme.delay-level-27 … acme.delay-delivery\n"
    )
    broker.queue("orders")
    assert broker.cli("--prefix", "acme", "bind", "orders").returncode == 0
    verified = broker.cli("--prefix", "acme", "--management", broker.management_url, "verify")
    assert (verified.returncode, verified.stdout) == (0, "acme: no problems found\n")
    with Inbox(broker.url, "orders") as inbox:
        sent = broker.cli(
            *("--prefix", "acme", "send", "orders", "--body", "hello", "--delay", "2s"),
            *("--header", "tenant=a", "--json"),
        )
        assert sent.returncode == 0, sent.stderr
        shown = json.loads(sent.stdout)
        (arrival,) = inbox.wait(1)
    assert (arrival.body, arrival.properties.headers["tenant"]) == (b"hello", "a")
    assert arrival.properties.message_id == shown["message_id"]
    assert shown["due"][10] == "T"
    assert arrival.at_ms >= datetime.fromisoformat(shown["due"]).timestamp() * 1000
    broker.cli("--prefix", "acme", "send", "orders", "--body", "later", "--delay", "1d")
    refused = broker.cli("--prefix", "acme", "teardown")
    assert refused.returncode == 1
    assert "1 messages wait in the infrastructure 'acme'" in refused.stderr
    typo = broker.cli("--prefix", "acm", "teardown", "--force")
    assert (typo.returncode, typo.stdout) == (1, "")
    assert "there is no infrastructure 'acm'" in typo.stderr
    assert broker.cli("--prefix", "acme", "teardown", "--force").stdout == "deleted acme\n"


def test_a_mistake_is_one_line(broker: Broker) -> None:
    """No traceback, no password, and what to do."""
    send, url = ("send", "orders", "--body", "x"), "http://u:sesame@host"
    for arguments, text in (
        ((*send, "--delay", "9y"), "delay '9y' is not valid"),
        ((*send, "--delay", "268435456"), "exceeds the 268435455 s"),
        ((*send, "--header", "novalue"), "is not NAME=VALUE"),
        (("--url", url, "declare"), "does not start with amqp:// or amqps://"),
        (("transfer", "--to", broker.url), "source and target are both 'sqsdelay'"),
    ):
        done = broker.cli(*arguments)
        assert done.returncode == 2
        assert text in done.stderr
        assert done.stderr.count("\n") == 1
        assert "sesame" not in done.stderr


class Muffled(TcpProxy):
    """Forwards so many answers, and no more. Each confirms 30 of a transfer's messages at the most."""

    left = 25

    def _passes(self, data: bytes, *, answer: bool) -> bool:
        self.left -= answer
        return self.left >= 0


@pytest.mark.parametrize("many", [900, pytest.param(3_000, marks=pytest.mark.nightly)])
def test_an_interrupted_transfer_loses_nothing(shared: Broker, many: int) -> None:
    """Killed half-way and run again: every message is at the target, and none at the source."""
    for prefix in ("old", "new"):
        shared.ready("orders", prefix=prefix)
    with RabbitMqSender(shared.url, prefix="old") as sender:
        results = sender.send_many(
            "orders", [RabbitMqMessage("x", delay=100_000, message_id=str(n)) for n in range(many)]
        )
    assert all(result.error is None for result in results)
    move = ("--prefix", "old", "transfer", "--to-prefix", "new", "--force", "--json", "--to")
    with (
        Muffled(shared.port) as proxy,
        started("rabbitmq", *move, shared.through(proxy), env=shared.environment),
    ):
        wait_for(lambda: shared.count("new.delay-level-16"))
        wait_for(lambda: proxy.left < 0)
    # The broker takes back what the killed process held as soon as it sees the connection end.
    # At most the 30 it had in hand are in both.
    there = range(many, many + 31)
    wait_for(
        lambda: sum(map(shared.count, (f"{p}.delay-level-16" for p in ("old", "new")))) in there
    )
    moved = shared.count("new.delay-level-16")
    assert 0 < moved < many
    again = shared.cli(*move, shared.url)
    assert again.returncode == 0, again.stderr
    assert shared.count("old.delay-level-16") == 0
    arrived = [properties.message_id for _, properties, _ in shared.drain("new.delay-level-16")]
    assert set(arrived) == {str(n) for n in range(many)}
    assert json.loads(again.stdout)["moved"] == len(arrived) - moved
    assert len(arrived) <= many + 30
