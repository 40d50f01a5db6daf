"""Messages nobody is bound for: they hold up no one, they are shown, and they are sent on."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from urllib.parse import unquote

import pytest

from sqsdelay.errors import ConfigurationError
from sqsdelay.rabbitmq import RabbitMqMessage, RabbitMqSender, Topology, bind, declare, verify
from sqsdelay.rabbitmq.connection import parameters
from sqsdelay.rabbitmq.link import Binder, Link
from sqsdelay.rabbitmq.publisher import Publisher
from tests.acceptance.rabbitmq.broker import QUORUM, Broker, Inbox, manage
from tests.patience import PATIENCE_SECONDS, wait_for
from tests.services.rabbitmq import NEWER, RabbitNode

LOST = 200
MOST_LOOKS = 20
"""RabbitMQ 4's delivery limit where a queue has none."""
HELD_UP_MS = 30_000
"""Without a queue that catches them, fewer than 200 have held up others for longer than this."""


def look_often(broker: Broker, on: Topology) -> int:
    """Take a delayed message and give it back, twice as often as the limit; how often it was there."""
    with RabbitMqSender(
        broker.url, prefix=on.prefix, without_alternate_exchange=True, bind=False
    ) as sender:
        sender.send("orders", "looked at", delay=1000)
    with broker.channel() as channel:
        for number in range(2 * MOST_LOOKS):
            method, _, _ = channel.basic_get(on.level_name(9))
            if method is None:
                return number
            channel.basic_nack(method.delivery_tag, requeue=True)
    return 2 * MOST_LOOKS


def test_an_unbound_destination_delays_nobody_else(broker: Broker) -> None:
    """200 messages for a queue that has gone; others do not wait for them, and none of the 200 is lost."""
    acme = broker.ready("live", "ghost", prefix="acme")
    with RabbitMqSender(broker.url, prefix="acme") as sender, Inbox(broker.url, "live") as inbox:
        ghosts = [RabbitMqMessage(str(n), delay=2, message_id=f"ghost-{n}") for n in range(LOST)]
        assert all(r.error is None for r in sender.send_many("ghost", ghosts))
        broker.delete_queue("ghost")
        for n in range(10):
            due = time.time() * 1000 + (1 + n % 4) * 1000
            sender.send("live", str(n), delay=1 + n % 4, headers={"due-ms": str(due)})
        arrivals = inbox.wait(10)
        assert len(arrivals) == 10
        assert all(0 <= arrival.late_ms < HELD_UP_MS for arrival in arrivals)
    assert broker.wait_count(acme.undeliverable, LOST) == LOST

    (warning,) = broker.problems(acme)
    assert warning.subject == "endpoint ghost"
    assert warning.text == (
        "200 messages were due, but no queue was bound for it; they wait in acme.delay-undeliverable"
    )
    assert broker.count(acme.undeliverable) == LOST

    broker.queue("ghost")
    assert bind(broker.url, "ghost", acme) == LOST
    assert broker.wait_count(acme.undeliverable, 0) == 0
    arrived = broker.drain("ghost")
    assert sorted(int(body) for _, _, body in arrived) == list(range(LOST))
    assert {p.message_id for _, p, _ in arrived} == {f"ghost-{n}" for n in range(LOST)}


@pytest.mark.parametrize("healthy", [20, 2_000])
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
        arrivals = inbox.wait(healthy, seconds=HELD_UP_MS / 1000)
    assert sorted(int(arrival.body) for arrival in arrivals) == list(range(healthy))
    assert min(arrival.late_ms for arrival in arrivals) >= 0

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


def test_a_user_who_may_not_declare_binds_an_endpoint_that_is_there(broker: Broker) -> None:
    """Its hand-over queue is made by whoever may; without one, the error says what is not allowed."""
    acme = broker.ready("orders", prefix="acme")
    with RabbitMqSender(broker.user("writer", configure=""), prefix="acme") as sender:
        with pytest.raises(
            ConfigurationError, match=r"access to queue 'acme\.delay-hand-over\.orders"
        ):
            sender.send("orders", "hi", delay=1)
        bind(broker.url, "orders", acme)
        for _ in range(2):
            sender.send("orders", "hi", delay=1)
    assert broker.wait_count("orders", 2) == 2


def _noting(noted: list[object], does: Callable[..., object]) -> Callable[..., None]:
    return lambda *args: noted.append(does(*args))


@pytest.mark.parametrize("many", [1, 24])
def test_new_endpoints_cost_one_refusal_together(
    broker: Broker, many: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which of them lack their hand-over queues is not found out one by one; a wrong name fails alone."""
    acme = broker.ready(prefix="acme")
    names = [f"orders-{number}" for number in range(many)]
    for name in names:
        broker.queue(name, {})
    refused: list[object] = []
    heard: list[object] = []
    for noted, by, name in ((refused, Binder, "_on_closed"), (heard, Link, "note_heard")):
        monkeypatch.setattr(by, name, _noting(noted, getattr(by, name)))
    given = parameters(broker.url)
    with closing(Publisher(given, confirm_seconds=PATIENCE_SECONDS)) as publisher:
        assert publisher.bind(names, acme) == {}
        assert len(refused) == 1
        assert len(heard) >= many  # one that declares for a minute is not taken for a dead one
        assert [*publisher.bind([*names, "wrong"], acme)] == ["wrong"]
    with RabbitMqSender(broker.url, prefix="acme", bind=False) as sender:
        for name in names:
            sender.send(name, "hi", delay=1)
    for name in names:
        assert broker.wait_count(name, 1) == 1


def test_binding_sends_on_its_own_messages_only(broker: Broker) -> None:
    """What waits for another endpoint stays, through the command line. The second's queue is there, but the
    sender leaves binding it to others."""
    declare(broker.url, Topology("acme"))
    for name in ("second", "first"):
        broker.queue(name)
        with RabbitMqSender(broker.url, prefix="acme", bind=name == "first") as sender:
            sender.send(name, name, delay=1)
    broker.delete_queue("first")
    assert broker.wait_count("acme.delay-undeliverable", 2) == 2
    assert broker.count("second") == 0
    broker.delete_queue("second")
    shown = broker.cli("--prefix", "acme", "verify")
    assert "warning: endpoint first 1 messages were due, but no queue was bound" in shown.stdout
    missing = broker.cli("--prefix", "acme", "bind", "second")
    assert missing.returncode == 1
    assert "no queue 'second'" in missing.stderr
    broker.queue("second")
    bound = broker.cli("--prefix", "acme", "bind", "second")
    assert bound.stdout == "bound second; 1 undeliverable messages forwarded to it\n"
    assert broker.wait_count("second", 1) == 1
    assert broker.wait_count("acme.delay-undeliverable", 1) == 1


def test_on_shared_infrastructure_a_policy_catches_them(
    fragile: RabbitNode, fragile_broker: Broker
) -> None:
    """Where NServiceBus may declare the exchange, verify warns and names the command that helps."""
    shared = fragile_broker.ready(prefix="nsb.v2")
    (warning,) = fragile_broker.problems(shared)
    assert not warning.fatal
    assert "block all others" in warning.text
    command, *arguments = shlex.split(warning.remedy)
    assert command == "rabbitmqctl"
    fragile.ctl(*arguments)
    assert fragile_broker.problems(shared) == []

    fragile_broker.queue("ghost")
    with RabbitMqSender(fragile_broker.url, prefix="nsb.v2") as sender:
        sender.send("ghost", "boo", delay=1)
        fragile_broker.delete_queue("ghost")
    assert fragile_broker.wait_count("nsb.v2.delay-undeliverable", 1) == 1


def test_a_policy_that_shortens_delays_is_found(
    fragile: RabbitNode, fragile_broker: Broker
) -> None:
    """The broker takes the smaller of the level's time and a policy's: messages would be early."""
    declare(fragile_broker.url)
    policy = (fragile.management_url, "policies", unquote(fragile_broker.virtual_host), "short")
    pattern = r"^sqsdelay\.delay-level-2"
    manage(*policy, pattern=pattern, definition={"message-ttl": 5000})
    try:

        def found() -> list[str]:
            problems = fragile_broker.problems(Topology())
            return [p.subject for p in problems if p.fatal and "message-ttl to 5000" in p.text]

        levels = [f"queue sqsdelay.delay-level-{level}" for level in range(20, 28)]
        # The broker puts a policy on one queue after another.
        wait_for(lambda: found() == levels)
    finally:
        manage(*policy, method="DELETE")


def test_a_policy_that_limits_deliveries_is_found_and_its_remedy_helps(
    fragile: RabbitNode, fragile_broker: Broker
) -> None:
    """The level's 21st look would send a message on to the next level: early. Exit 1, and a command."""
    declare(fragile_broker.url, Topology("nsb.v2"))
    policy = (fragile.management_url, "policies", unquote(fragile_broker.virtual_host), "few")
    manage(*policy, pattern=".*", definition={"delivery-limit": 20}, priority=1)

    def problems() -> list[str]:
        found = fragile_broker.problems(Topology("nsb.v2"))
        return [p.remedy for p in found if p.fatal and "delivery-limit to 20" in p.text]

    wait_for(lambda: len(problems()) == 28)
    assert look_often(fragile_broker, Topology("nsb.v2")) == MOST_LOOKS + 1
    verified = fragile_broker.cli(
        "--prefix", "nsb.v2", "--management", fragile_broker.management_url, "verify"
    )
    assert verified.returncode == 1
    command, *arguments = shlex.split(problems()[0])
    assert command == "rabbitmqctl"
    fragile.ctl(*arguments)
    wait_for(lambda: not problems())
    assert look_often(fragile_broker, Topology("nsb.v2")) == 2 * MOST_LOOKS


def test_looking_sends_nothing_on_early(broker: Broker) -> None:
    """Our own levels say how often: on RabbitMQ 4 the default is 20, and the next level the next place."""
    declare(broker.url)
    assert look_often(broker, Topology()) == 2 * MOST_LOOKS


@pytest.mark.skipif(NEWER is not None, reason="RabbitMQ 4 has no such flag to disable")
def test_a_disabled_stream_queue_flag_is_found(tmp_path: Path) -> None:
    """Without it the broker dead-letters at most once; NServiceBus refuses such a broker as well."""
    node = RabbitNode(tmp_path, feature_flags="quorum_queue")
    try:
        node.start()
        acme = Topology("acme")
        declare(node.url, acme)
        (problem,) = verify(node.url, acme, management_url=node.management_url)
        assert problem.fatal
        assert problem.subject == "feature flag stream_queue"
        command, *arguments = shlex.split(problem.remedy)
        assert command == "rabbitmqctl"
        node.ctl(*arguments)
        assert verify(node.url, acme, management_url=node.management_url) == []
    finally:
        node.stop()
