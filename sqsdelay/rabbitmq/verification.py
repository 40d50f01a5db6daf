"""What keeps an infrastructure from delaying safely, and how to fix it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Final

import pika
from pika.exceptions import ChannelClosedByBroker, UnroutableError

from sqsdelay.core.readable import Problem
from sqsdelay.errors import QueueMissing
from sqsdelay.rabbitmq import undeliverable
from sqsdelay.rabbitmq.connection import (
    NOT_FOUND,
    PRECONDITION_FAILED,
    Address,
    channel,
    parameters,
)
from sqsdelay.rabbitmq.infrastructure import declare_exchange, declare_queue
from sqsdelay.rabbitmq.management import Management
from sqsdelay.rabbitmq.topology import DELIVERY_LIMIT, LEVELS, MIN_BROKER_VERSION, Topology

HARMFUL_POLICIES: Final = (
    "message-ttl",
    "expires",
    "max-length",
    "max-length-bytes",
    "dead-letter-routing-key",
)
"""Policy keys that end a level's wait early, lose its queue, refuse its messages or send them elsewhere.
Of an argument and a policy the broker takes the argument, but the smaller of two numbers.
Source: rabbitmq.com/docs/policies, "How Policies Interact with Optional Queue Arguments"."""

DELIVERY_LIMITED_VERSION: Final = (4, 0)
"""From here on a quorum queue without a delivery limit has one of 20. Source: as `DELIVERY_LIMIT`."""

STREAM_QUEUE: Final = "stream_queue"
"""The feature flag that at-least-once dead-lettering needs; NServiceBus checks it as well.
Source: rabbitmq.com/docs/quorum-queues, "Activating at-least-once dead-lettering"."""

_Step = Callable[[Any], object]


def verify(
    url: str | Sequence[str],
    topology: Topology | None = None,
    *,
    management_url: str | None = None,
    force: bool = False,
) -> list[Problem]:
    """What is missing, different or in the way; nothing is changed.

    Args:
        management_url: the management API (``http://user:password@host:15672``). Without it neither
            messages in dead-letter hand-over nor version, feature flags, policies and bindings can be
            seen, which is a problem, or a warning with ``force``.

    Raises:
        ConfigurationError: the broker does not let us in.
        QueueUnavailable: the broker, or its management API, cannot be reached.
    """
    given, wanted = parameters(url), topology or Topology()
    problems = list(_differences(given, wanted))
    if management_url is not None:
        problems += _hidden(Management(management_url, given.virtual_host), wanted)
    if not any(problem.fatal for problem in problems):
        problems += _undeliverable(given, wanted)
    if management_url is None:
        problems.append(_unseen(fatal=not force))
    return problems


def _unseen(*, fatal: bool) -> Problem:
    return Problem(
        "management API",
        "messages being handed over (messages_dlx), version, feature flags, policies and bindings were "
        "not checked",
        "give --management http://user:password@host:15672 (the plugin is enabled with: "
        "rabbitmq-plugins enable rabbitmq_management), or skip this check with --force",
        fatal=fatal,
    )


def _differences(given: Address, topology: Topology) -> Iterator[Problem]:
    """What is not there, or there with other arguments. The passive look first: nothing is made."""
    with channel(given) as first:
        for kind, look, declare_equal, name in _looks(topology):
            error = _refusal(first.connection, look) or _refusal(first.connection, declare_equal)
            if error is not None:
                yield _difference(topology, kind, name, error)


def _looks(topology: Topology) -> Iterator[tuple[str, _Step, _Step, str]]:
    """Of each exchange and queue: its kind, a passive and an equal declaration, its name."""
    for exchange in topology.exchanges():
        name = exchange.name
        equal = partial(declare_exchange, exchange=exchange)
        yield "exchange", partial(_look, kind="exchange", name=name), equal, name
    for queue in topology.queues():
        equal = partial(declare_queue, queue=queue)
        yield "queue", partial(_look, kind="queue", name=queue.name), equal, queue.name


def _look(on: Any, *, kind: str, name: str) -> None:
    getattr(on, f"{kind}_declare")(name, passive=True)


def _refusal(connection: pika.BlockingConnection, step: _Step) -> ChannelClosedByBroker | None:
    """Why the broker closes a channel over ``step``, or None where it does not."""
    on = connection.channel()
    try:
        step(on)
        on.close()
    except ChannelClosedByBroker as error:
        return error
    return None


def _difference(topology: Topology, kind: str, name: str, error: ChannelClosedByBroker) -> Problem:
    subject = f"{kind} {name}"
    if error.reply_code == NOT_FOUND:
        # NServiceBus declares no catch-all: its infrastructure delays without one.
        optional = topology.shared and name == topology.undeliverable
        return Problem(subject, "is missing", _declare_command(topology), fatal=not optional)
    if error.reply_code == PRECONDITION_FAILED:
        return Problem(
            subject,
            f"differs from what is expected: {error.reply_text}",
            "use another --prefix, or move its messages away, delete it and declare again",
        )
    return Problem(subject, f"{error.reply_code} {error.reply_text}", "fix this, then verify again")


def _declare_command(topology: Topology) -> str:
    return f"sqsdelay rabbitmq declare --prefix {topology.prefix}"


def _hidden(management: Management, topology: Topology) -> Iterator[Problem]:
    """What AMQP does not show: the version, policies, bindings."""
    version = management.version()
    if _release(version) < MIN_BROKER_VERSION:
        yield Problem(
            "broker",
            f"is RabbitMQ {version}: its quorum queues neither expire messages nor dead-letter them "
            "at least once",
            f"upgrade to {'.'.join(map(str, MIN_BROKER_VERSION))} or newer",
        )
    if management.feature_flags().get(STREAM_QUEUE, "enabled") != "enabled":
        yield Problem(
            f"feature flag {STREAM_QUEUE}",
            "is disabled: without it the broker dead-letters at most once, and loses messages",
            f"rabbitmqctl enable_feature_flag {STREAM_QUEUE}",
        )
    yield from _handed_over(management, topology)
    yield from _policies(management, topology, version)
    yield from _missing_bindings(management, topology)


def _handed_over(management: Management, topology: Topology) -> Iterator[Problem]:
    """Due messages that the next queue has not confirmed: a moment's worth, or stuck."""
    held = management.held()
    for level in reversed(range(LEVELS)):
        name = topology.level_name(level)
        count = held[name].dead_lettering if name in held else 0
        if count:
            yield Problem(
                f"queue {name}",
                f"{count} messages are due, and the broker is handing them over to the next queue "
                "(messages_dlx); if this persists, no queue is bound for them or their queue is full",
                "make room in the endpoint's queue, or create it and bind it with: sqsdelay rabbitmq "
                f"bind NAME --prefix {topology.prefix}; the broker tries again every 3 minutes",
                fatal=False,
            )


def _release(version: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", version)[:2]))


def _policies(management: Management, topology: Topology, version: str) -> Iterator[Problem]:
    """Policies, and the lack of one, that end delays early or lose messages."""
    queues = management.queues()
    for level in range(LEVELS):
        name = topology.level_name(level)
        policies = queues.get(name, {}).get("effective_policy_definition") or {}
        for key in sorted(set(policies) & set(HARMFUL_POLICIES)):
            yield Problem(
                f"queue {name}",
                f"a policy sets {key} to {policies[key]!r}: delays end early, or messages are lost",
                f"change the policy's pattern so that it leaves {topology.prefix}.delay-level- alone",
            )
        limit = policies.get("delivery-limit")
        by_default = topology.shared and _release(version) >= DELIVERY_LIMITED_VERSION
        if limit is None and by_default:
            text = f"has RabbitMQ {version}'s delivery limit of 20"
        elif limit is not None and 0 <= limit < DELIVERY_LIMIT:
            text = f"a policy sets delivery-limit to {limit}"
        else:
            continue
        yield Problem(
            f"queue {name}",
            f"{text}: a message that is looked at more often goes to the next level, and arrives early",
            f"rabbitmqctl set_policy -p '{management.virtual_host}' --apply-to queues --priority 100 "
            f"{topology.prefix}.delay-levels '^{re.escape(topology.prefix)}\\.delay-level-' "
            f"'{{\"delivery-limit\":{DELIVERY_LIMIT}}}'",
        )


def _missing_bindings(management: Management, topology: Topology) -> Iterator[Problem]:
    present = {
        (b["source"], b["destination"], b["routing_key"], b["destination_type"] == "exchange")
        for b in management.bindings()
    }
    for binding in topology.bindings():
        if topology.shared and binding.source == topology.undeliverable:
            continue  # optional there, as its exchange is
        key = (binding.source, binding.destination, binding.routing_key, binding.to_exchange)
        if key not in present:
            yield Problem(
                f"binding {binding.source} -> {binding.destination}",
                f"is missing (key {binding.routing_key})",
                _declare_command(topology),
            )


def uncaught(url: str | Sequence[str], topology: Topology) -> list[Problem]:
    """A warning where messages for an unbound endpoint block all others."""
    return list(_uncaught(parameters(url), topology))


def _uncaught(given: Address, topology: Topology) -> Iterator[Problem]:
    if not _is_caught(given, topology):
        yield Problem(
            f"exchange {topology.delivery_exchange}",
            "has no alternate exchange: messages for an unbound endpoint block all others for "
            "minutes",
            undeliverable.catching_policy(topology, given.virtual_host),
            fatal=False,
        )


def _undeliverable(given: Address, topology: Topology) -> Iterator[Problem]:
    problems = list(_uncaught(given, topology))
    yield from problems
    try:
        found = undeliverable.look(given, topology, probes=0 if problems else 1)
    except QueueMissing:
        return  # reported as missing already
    for endpoint, count in sorted(found.by_endpoint.items()):
        if count:
            yield _uncollected(topology, endpoint, count, found)


def _uncollected(
    topology: Topology, endpoint: str, count: int, found: undeliverable.Undeliverable
) -> Problem:
    part = f" (of the first {found.looked_at} of {found.waiting})"
    return Problem(
        f"endpoint {endpoint}",
        f"{count} messages{part if found.cut_short else ''} were due, but no queue was "
        f"bound for it; they wait in {topology.undeliverable}",
        f"create the queue if it is missing, then: sqsdelay rabbitmq bind '{endpoint}' "
        f"--prefix {topology.prefix}",
        fatal=False,
    )


def _is_caught(given: Address, topology: Topology) -> bool:
    """Whether the delivery exchange has a place for messages of unbound endpoints."""
    probe = undeliverable.probe(topology)
    with channel(given) as on:
        on.confirm_delivery()
        try:
            on.basic_publish(
                probe.exchange, probe.routing_key, probe.body, probe.properties, mandatory=True
            )
        except UnroutableError:
            return False
    return True
