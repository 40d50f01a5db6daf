"""What the management API shows, judged."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from sqsdelay.errors import ConfigurationError, QueueUnavailable
from sqsdelay.rabbitmq.management import Management
from sqsdelay.rabbitmq.topology import Topology
from sqsdelay.rabbitmq.verification import _hidden


class Broker(Management):
    """A management API that answers from memory."""

    def __init__(
        self,
        version: str,
        *,
        bindings: list[dict[str, Any]],
        queues: Sequence[dict[str, Any]] = (),
    ) -> None:
        super().__init__("http://localhost", "/")
        self._answers: dict[str, Any] = {
            "/overview": {"rabbitmq_version": version},
            "/queues/%2F": list(queues),
            "/queues/%2F?columns=name,reductions,messages_unacknowledged,messages_dlx": [],
            "/feature-flags": [{"name": "stream_queue", "state": "enabled"}],
        }
        self._answers["/bindings/%2F"] = bindings

    def _get(self, path: str) -> Any:
        return self._answers[path]


def bindings(topology: Topology) -> list[dict[str, Any]]:
    return [
        {
            "source": each.source,
            "destination": each.destination,
            "routing_key": each.routing_key,
            "destination_type": "exchange" if each.to_exchange else "queue",
        }
        for each in topology.bindings()
    ]


@pytest.mark.parametrize(
    ("version", "old"), [("3.9.13", True), ("3.10.0-rc.1", False), ("3.13.7", False)]
)
def test_a_broker_that_is_too_old_is_named(version: str, old: bool) -> None:
    """Before 3.10, quorum queues cannot do what a level needs."""
    problems = list(
        _hidden(Broker(version, bindings=bindings(Topology("nsb.v2"))), Topology("nsb.v2"))
    )
    assert [p.text.startswith(f"is RabbitMQ {version}") for p in problems] == [True] * old


@pytest.mark.parametrize(
    ("version", "prefix", "policy", "fatal"),
    [
        ("3.13.7", "nsb.v2", {}, False),
        ("4.0.5", "nsb.v2", {}, True),
        ("4.0.5", "nsb.v2", {"delivery-limit": 2**31 - 1}, False),
        ("4.0.5", "nsb.v2", {"delivery-limit": -1}, False),
        ("4.0.5", "acme", {}, False),
        ("4.0.5", "acme", {"delivery-limit": 20}, True),
        ("3.10.8", "acme", {"delivery-limit": 20}, True),
    ],
)
def test_levels_that_would_be_early_after_some_looks_are_found(
    version: str, prefix: str, policy: dict[str, int], fatal: bool
) -> None:
    """A level's delivery limit dead-letters to the next level; the remedy is the policy, whole."""
    topology = Topology(prefix)
    queues = [
        {"name": queue.name, "effective_policy_definition": policy} for queue in topology.queues()
    ]
    broker = Broker(version, bindings=bindings(topology), queues=queues)
    problems = list(_hidden(broker, topology))
    assert [problem.fatal for problem in problems] == [True] * 28 * fatal
    for problem in problems:
        assert "arrives early" in problem.text
        assert problem.remedy.startswith("rabbitmqctl set_policy -p '/' --apply-to queues")
        assert problem.remedy.endswith("'{\"delivery-limit\":2147483647}'")


def test_a_missing_binding_is_found() -> None:
    """Without it, delays with that bit would be lost; the catch-all's is optional where shared."""
    present = [b for b in bindings(Topology("nsb.v2")) if b["routing_key"] not in ("*.*.*.1.#", "")]
    (problem,) = _hidden(Broker("3.10.8", bindings=present), Topology("nsb.v2"))
    assert problem.subject == "binding nsb.v2.delay-level-24 -> nsb.v2.delay-level-24"
    assert problem.remedy == "sqsdelay rabbitmq declare --prefix nsb.v2"
    acme = Topology("acme")
    present = [b for b in bindings(acme) if b["routing_key"]]
    (problem,) = _hidden(Broker("3.10.8", bindings=present), acme)
    assert problem.subject == "binding acme.delay-undeliverable -> acme.delay-undeliverable"


def test_management_urls_that_are_none_do_not_show_their_password() -> None:
    """Nor does one where nothing answers."""
    with pytest.raises(ConfigurationError, match="does not start with http") as caught:
        Management("amqp://u:sesame@host", "/")
    assert "sesame" not in str(caught.value)
    with pytest.raises(QueueUnavailable, match="cannot be reached") as unreachable:
        Management("http://u:sesame@127.0.0.1:1", "/").version()
    assert "sesame" not in str(unreachable.value)
