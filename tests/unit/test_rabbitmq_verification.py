"""What the management API shows, judged; its counts are used once they are newer than the question."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from email.message import Message
from io import BytesIO
from typing import Any
from unittest.mock import patch
from urllib.error import HTTPError

import pytest

from sqsdelay.core.readable import Problem
from sqsdelay.errors import ConfigurationError, QueueUnavailable
from sqsdelay.rabbitmq.management import FRESH_SECONDS, Management, held
from sqsdelay.rabbitmq.topology import Topology
from sqsdelay.rabbitmq.verification import _handed_over, _hidden


class Broker(Management):
    """A management API that answers from memory."""

    def __init__(
        self,
        topology: Topology,
        version: str = "3.10.8",
        *,
        bindings: list[dict[str, Any]] | None = None,
        queues: Sequence[dict[str, Any]] = (),
        nodes: Sequence[dict[str, Any]] = (),
    ) -> None:
        super().__init__("http://localhost", "/")
        caught = {"name": "nsb.v2.delay-delivery", "type": "topic", "policy": "caught"}
        self._answers: dict[str, Any] = {
            "/overview": {"rabbitmq_version": version},
            "/queues/%2F": list(queues),
            "/queues/%2F?columns=name,reductions,messages_ready,messages_unacknowledged,messages_dlx": [],
            "/feature-flags": [{"name": "stream_queue", "state": "enabled"}],
            "/bindings/%2F": bindings_of(topology) if bindings is None else bindings,
            "/exchanges/%2F": [caught],
            "/policies/%2F/caught": {"definition": {"alternate-exchange": "any"}},
            "/nodes": nodes,
        }
        self._topology = topology

    def get(self, path: str) -> Any:
        return self._answers[path]

    def problems(self) -> list[Problem]:
        listed = {kind: self.named(f"{kind}s") for kind in ("exchange", "queue")}
        return list(_hidden(self, self._topology, listed))


def bindings_of(topology: Topology) -> list[dict[str, Any]]:
    return [
        {
            "source": each.source,
            "destination": each.destination,
            "routing_key": each.routing_key,
            "destination_type": each.kind,
        }
        for each in topology.bindings()
    ]


@pytest.mark.parametrize(
    ("version", "old"), [("3.9.13", True), ("3.10.0-rc.1", False), ("3.13.7", False)]
)
def test_a_broker_that_is_too_old_is_named(version: str, old: bool) -> None:
    """Before 3.10, quorum queues cannot do what a level needs."""
    problems = Broker(Topology("nsb.v2"), version).problems()
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
        {"name": each.name, "arguments": each.arguments, "effective_policy_definition": policy}
        for each in topology.queues()
    ]
    problems = Broker(topology, version, queues=queues).problems()
    assert [problem.fatal for problem in problems] == [True] * 28 * fatal
    for problem in problems:
        assert "arrives early" in problem.text
        assert problem.remedy.startswith("rabbitmqctl set_policy -p '/' --apply-to queues")
        assert problem.remedy.endswith("'{\"delivery-limit\":2147483647}'")


@pytest.mark.parametrize(
    ("policy", "fatal"),
    [
        ({"max-length": 10, "overflow": "reject-publish"}, True),
        ({"expires": 1000}, True),
        ({"message-ttl": 1000, "delivery-limit": 20}, False),
    ],
)
def test_a_policy_for_an_endpoint_is_found_on_its_hand_over_queue(
    policy: dict[str, Any], fatal: bool
) -> None:
    """Its pattern may match both. With a limit the hand-over queue, too, refuses, and holds up everyone."""
    name = "acme.delay-hand-over.orders"
    queues = [{"name": name, "effective_policy_definition": policy}]
    problems = Broker(Topology("acme"), queues=queues).problems()
    assert [(each.subject, each.fatal) for each in problems] == [(f"queue {name}", True)] * fatal


def test_a_missing_binding_is_found() -> None:
    """Without it, delays with that bit would be lost; the catch-all's is optional where shared."""
    shared, acme = Topology("nsb.v2"), Topology("acme")
    present = [b for b in bindings_of(shared) if b["routing_key"] not in ("*.*.*.1.#", "")]
    (problem,) = Broker(shared, bindings=present).problems()
    assert problem.subject == "binding nsb.v2.delay-level-24 -> nsb.v2.delay-level-24"
    assert problem.remedy == "sqsdelay rabbitmq --prefix nsb.v2 declare"
    present = [b for b in bindings_of(acme) if b["routing_key"]]
    (problem,) = Broker(acme, bindings=present).problems()
    assert problem.subject == "binding acme.delay-undeliverable -> acme.delay-undeliverable"


@pytest.mark.parametrize(
    ("members", "online", "text", "fatal"),
    [
        (0, 0, "has 0 of the 3 members that a cluster of 3 nodes allows", True),
        (1, 1, "has 1 of the 3 members that a cluster of 3 nodes allows", True),
        (3, 2, "has 2 of its 3 members online", False),
        (3, 1, "has 1 of its 3 members online", True),
    ],
)
def test_levels_that_one_node_may_take_along_are_found(
    members: int, online: int, text: str, fatal: bool
) -> None:
    """On a cluster of three a level has three members, and most of them are there."""
    topology, names = Topology("acme"), ["a", "b", "c"]
    name = topology.level_name(3)
    queue = {"name": name, "members": names[:members], "online": names[:online]}
    nodes = [{"name": name} for name in names]
    (problem,) = Broker(topology, queues=[queue], nodes=nodes).problems()
    assert (problem.subject, problem.fatal) == ("queue acme.delay-level-03", fatal)
    assert problem.text.startswith(text)


def test_an_endpoint_that_may_refuse_is_warned_of_where_it_would_hold_up_others() -> None:
    """On NServiceBus's topology a level hands over to endpoints' queues; on ours it does not."""
    full = {"source": "nsb.v2.delay-delivery", "destination": "orders", "routing_key": "#.orders"}
    arguments = {"x-max-length": 10, "x-overflow": "reject-publish"}
    queues = [{"name": "orders", "arguments": arguments}]
    for prefix, warned in (("nsb.v2", ["endpoint orders"]), ("acme", [])):
        present = [*bindings_of(Topology(prefix)), {**full, "destination_type": "queue"}]
        problems = Broker(Topology(prefix), bindings=present, queues=queues).problems()
        assert [(each.subject, each.fatal) for each in problems] == [(w, False) for w in warned]


def test_an_alarm_is_told() -> None:
    """It stops everyone's messages, on whichever node it is."""
    nodes = [{"name": "a", "mem_alarm": True}, {"name": "b", "disk_free_alarm": False}]
    (problem,) = Broker(Topology("acme"), nodes=nodes).problems()
    assert (problem.subject, problem.fatal) == ("node a", True)
    assert "memory alarm" in problem.text


def test_management_urls_that_are_none_do_not_show_their_password() -> None:
    """Nor does one where nothing answers. One that fails says nothing about them."""
    for url in ("amqp://u:sesame@host", "http://u:1/sesame@host", "http://u:sesame@host:0"):
        with pytest.raises(ConfigurationError, match="does not start with http") as caught:
            Management(url, "/")
        assert "sesame" not in str(caught.value)
    with pytest.raises(QueueUnavailable, match="cannot be reached") as unreachable:
        Management("http://u:sesame@127.0.0.1:1", "/").named("queues")
    assert "sesame" not in str(unreachable.value)
    failed = HTTPError("", 500, "Internal Server Error", Message(), BytesIO())
    with (
        patch("urllib.request.urlopen", side_effect=failed),
        pytest.raises(QueueUnavailable, match=r"500 Internal Server Error to .*; try again later"),
    ):
        Management("http://u:sesame@127.0.0.1:1", "/").named("queues")


LEVEL = "acme.delay-level-00"


class Counting(Management):
    """A management API whose answers are given; the last is repeated."""

    def __init__(self, *rows: dict[str, Any] | None) -> None:
        super().__init__("http://u:sesame@localhost", "/")
        self._rows: Iterator[dict[str, Any] | None] = iter(rows)
        self._last: dict[str, Any] | None = None
        self.seconds = 0.0

    def get(self, path: str) -> Any:
        self._last = next(self._rows, self._last)
        return [] if self._last is None else [{"name": LEVEL, **self._last}]

    def sleep(self, seconds: float) -> None:
        self.seconds += seconds

    def monotonic(self) -> float:
        return self.seconds


def count(management: Counting) -> int:
    with patch("sqsdelay.rabbitmq.management.time", management):
        return held(management, [LEVEL])[LEVEL][-1]["messages_dlx"]


def row(mark: int, dead_lettering: int = 0) -> dict[str, Any]:
    return {"reductions": mark, "messages_dlx": dead_lettering}


@pytest.mark.parametrize(
    ("rows", "counted"),
    [
        ((row(1), row(1), row(2), row(3, 130)), 130),
        ((row(1, 7), row(2, 7), row(3)), 0),
        ((None, None, row(1), row(2), row(3)), 0),
    ],
    ids=["old count of nothing", "old count of something", "just declared"],
)
def test_a_count_is_believed_once_it_is_new(rows: tuple[Any, ...], counted: int) -> None:
    """Not an old one, nor the first new one: it may have been on its way when the question was asked."""
    assert count(Counting(*rows)) == counted


def test_a_management_api_that_does_not_know_the_queue() -> None:
    """Another broker's, or one without statistics: the error says which, and not the password."""
    management = Counting(None)
    with pytest.raises(ConfigurationError, match=f"not count the messages of {LEVEL}") as caught:
        count(management)
    assert management.seconds >= FRESH_SECONDS
    assert "sesame" not in str(caught.value)


def test_figures_that_stand_still_are_not_taken_for_new() -> None:
    """An error, not a count of long ago."""
    with pytest.raises(QueueUnavailable, match="did not change for 60 s"):
        count(Counting(row(1)))


@pytest.mark.parametrize(
    ("counts", "told"),
    [
        ((5, 5, 5, 5, 7), [("7 messages", True)]),
        ((5, 5, 5, 5, 4), [("4 messages", False)]),
        ((5, 6, 4, 6, 6), [("6 messages", False)]),
        ((5, 0, 0, 0, 0), []),
    ],
)
def test_a_hand_over_stands_if_no_newer_count_is_lower(
    counts: tuple[int, ...], told: list[tuple[str, bool]]
) -> None:
    """One that goes on holds messages too, but not ever more; what has gone meanwhile is not told."""
    rows = [row(mark, count) for mark, count in enumerate((counts[0], *counts))]
    management = Counting(*rows)
    with patch("sqsdelay.rabbitmq.management.time", management):
        problems = list(_handed_over(management, Topology("acme")))
    assert [(each.text.partition(" are due")[0], each.fatal) for each in problems] == told
    assert all(("got nowhere" in each.text) is each.fatal for each in problems)
    assert list(_handed_over(Counting(row(1)), Topology("acme"))) == []
