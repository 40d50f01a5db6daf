"""Three nodes: a sender outlives the death of the node that leads a level."""

from __future__ import annotations

import re
import time
from collections import Counter

import pytest

from benchmarks import rabbitmq_cluster
from sqsdelay.rabbitmq import RabbitMqMessage, RabbitMqSender, Topology, declare
from sqsdelay.rabbitmq.management import Management
from tests.acceptance.rabbitmq.broker import REGISTERED_SECONDS
from tests.services.rabbitmq import three_nodes

RESUMED_SECONDS = 30
"""A busy machine's patience; the survivors elect within a few."""


MESSAGES = [RabbitMqMessage("a", delay=600) for _ in range(20)]


@pytest.mark.nightly  # three brokers beside all the others' tests
def test_senders_outlive_the_death_of_a_levels_leader() -> None:
    """A channel from before the kill, and those opened during the election, are confirmed again."""
    with three_nodes() as (survivor, leader, _):
        acme = Topology("acme")
        declare(leader.url, acme)  # the node that declares a quorum queue leads it
        time.sleep(REGISTERED_SECONDS)
        queue = Management(survivor.management_url, "/").named("queues")[acme.level_name(9)]
        assert queue["leader"] == leader.name
        senders = [
            RabbitMqSender(survivor.url, prefix="acme", bind=False, confirm_seconds=3)
            for _ in range(4)
        ]
        outcomes = [Counter[str]() for _ in senders]
        try:
            assert _sent(senders[0]) == {"confirmed": len(MESSAGES)}
            leader.kill()
            for number in range(1, len(senders)):
                outcomes[number] += _sent(senders[number])
            resumed = [_resumes(*each) for each in zip(senders, outcomes, strict=True)]
        finally:
            for sender in senders:
                sender.close()
    assert all(resumed), outcomes


def _resumes(sender: RabbitMqSender, outcomes: Counter[str]) -> bool:
    """True as soon as all that is sent is confirmed; False if it never is."""
    deadline = time.monotonic() + RESUMED_SECONDS
    while time.monotonic() < deadline:
        sent = _sent(sender)
        outcomes += sent
        if sent == {"confirmed": len(MESSAGES)}:
            return True
    return False


def _sent(sender: RabbitMqSender) -> Counter[str]:
    results = sender.send_many("orders", MESSAGES)
    return Counter(type(each.error).__name__ if each.error else "confirmed" for each in results)


@pytest.mark.nightly
@pytest.mark.timeout(1800)  # five minutes on an idle machine
def test_four_kills_lose_nothing_while_20_000_wait_and_others_are_published(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing confirmed is lost or early; the benchmark tells how late it was, and sends go on."""
    monkeypatch.setattr("sys.argv", ["rabbitmq_cluster", "--timeouts", "10"])
    rabbitmq_cluster.main()
    told = capsys.readouterr().out
    assert len(re.findall(r"sending again [\d.]+ s later", told)) == 4, told
    assert re.search(r"[\d,]{6} confirmed: 0 lost, 0 early, \d+ twice", told), told
