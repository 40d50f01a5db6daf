"""What keeps an infrastructure from delaying safely, and how to fix it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

from pika.exceptions import ChannelClosedByBroker

from sqsdelay.core.readable import Problem
from sqsdelay.errors import ConfigurationError
from sqsdelay.rabbitmq import connection
from sqsdelay.rabbitmq.administration import look, make
from sqsdelay.rabbitmq.connection import Session, parameters
from sqsdelay.rabbitmq.management import STANDING, Management, hand_overs, held
from sqsdelay.rabbitmq.topology import DELIVERY_LIMIT, LEVELS, PROBE, Topology, command, uncaught

MIN_BROKER_VERSION: Final = (3, 10)
"""At-least-once dead-lettering and message TTL in quorum queues.
Source: rabbitmq.com/blog/2022/03/29/at-least-once-dead-lettering."""

REPLICAS: Final = 3
"""Members that outlive one node's loss. Source: rabbitmq.com/docs/quorum-queues, "Replication Factor"."""

HARMFUL_POLICIES: Final = {
    "message-ttl",
    "expires",
    "max-length",
    "max-length-bytes",
    "dead-letter-routing-key",
}
"""Policy keys that end a level's wait early, lose its queue, refuse its messages or send them elsewhere.
Of an argument and a policy the broker takes the argument, but the smaller of two numbers.
Source: rabbitmq.com/docs/policies, "How Policies Interact with Optional Queue Arguments"."""

DELIVERY_LIMITED_VERSION: Final = (4, 0)
"""From here on a quorum queue without a delivery limit has one of 20. Source: as `DELIVERY_LIMIT`."""

STREAM_QUEUE: Final = "stream_queue"
"""The feature flag that at-least-once dead-lettering needs; NServiceBus checks it as well.
Source: rabbitmq.com/docs/quorum-queues, "Activating at-least-once dead-lettering"."""


def verify(
    url: str | Sequence[str],
    topology: Topology | None = None,
    *,
    management_url: str | None = None,
    force: bool = False,
) -> list[Problem]:
    """What is missing, different or in the way. Nothing is changed or published, and no permission to
    configure or write is needed.

    Args:
        management_url: the management API (``http://user:password@host:15672``). Without it neither
            messages in dead-letter hand-over nor arguments, version, alarms, feature flags, policies,
            bindings and replicas can be seen, which is a problem, or a warning with ``force``.

    Raises:
        ConfigurationError: the broker does not let us in.
        QueueUnavailable: the broker, or its management API, cannot be reached.
    """
    given, wanted = parameters(url), topology or Topology()
    management = Management(management_url, given.virtual_host) if management_url else None
    with Session(given) as session:
        problems = list(_declared(session, wanted, management))
        if management is not None:
            problems += _hidden(management, wanted)
        if not any(problem.fatal for problem in problems):
            problems += _undeliverable(session, wanted)
    if management is None:
        unseen = Problem(
            "management API",
            "messages being handed over (messages_dlx), arguments, version, alarms, feature flags, "
            "policies, bindings and replicas were not checked",
            "give --management http://user:password@host:15672 (the plugin is enabled with: "
            "rabbitmq-plugins enable rabbitmq_management), or skip this check with --force",
            fatal=not force,
        )
        problems.append(unseen)
    return problems


def _declared(
    session: Session, topology: Topology, management: Management | None
) -> Iterator[Problem]:
    """What is missing, or was declared with other arguments. Without the management API these are compared
    by declaring it again, as far as this user may."""
    listed: dict[str, Any] = {}
    if management is not None:
        listed = {kind: management.named(f"{kind}s") for kind in ("exchange", "queue")}
    for each in (*topology.exchanges(), *topology.queues()):
        subject, difference = f"{each.kind} {each.name}", ""
        if session.found(f"{each.kind}_declare", each.name) is None:
            # NServiceBus declares no catch-all: its infrastructure delays without one.
            optional = topology.shared and each.name == topology.undeliverable
            yield Problem(subject, "is missing", command(topology, "declare"), fatal=not optional)
        elif management is None:
            try:
                make(session, each)
            except ChannelClosedByBroker as error:
                if error.reply_code == connection.PRECONDITION_FAILED:
                    difference = str(error.reply_text)
                elif error.reply_code != connection.ACCESS_REFUSED:
                    raise
        elif found := listed[each.kind].get(each.name):  # which knows of it after some seconds
            there = {"type": found.get("type", each.type), **(found.get("arguments") or {})}
            expected = {"type": each.type, **each.arguments}
            difference = "; ".join(
                f"{name} is {there.get(name)!r} instead of {expected.get(name)!r}"
                for name in sorted(there | expected)
                if there.get(name) != expected.get(name)
            )
        if difference:
            yield Problem(
                subject,
                f"differs from what is expected: {difference}",
                "use another --prefix, or move its messages away, delete it and declare again",
            )


def _hidden(management: Management, topology: Topology) -> Iterator[Problem]:
    """What AMQP does not show."""
    version = str(management.get("/overview")["rabbitmq_version"])
    release = tuple(map(int, re.findall(r"\d+", version)[:2]))
    if release < MIN_BROKER_VERSION:
        yield Problem(
            "broker",
            f"is RabbitMQ {version}: its quorum queues neither expire messages nor dead-letter them "
            "at least once",
            f"upgrade to {'.'.join(map(str, MIN_BROKER_VERSION))} or newer",
        )
    yield from _feature_flags(management)
    nodes = management.get("/nodes")
    for node in nodes:
        for resource, name in (("mem", "memory"), ("disk_free", "disk")):
            if node.get(f"{resource}_alarm"):
                yield Problem(
                    f"node {node['name']}",
                    f"has a {name} alarm: the broker takes no messages from anyone, on any node",
                    "free memory or disk space on it; rabbitmq-diagnostics alarms shows the limits",
                )
    yield from _handed_over(management, topology)
    queues, bindings = management.named("queues"), management.of("bindings")
    limited = topology.shared and release >= DELIVERY_LIMITED_VERSION
    default = f"has RabbitMQ {version}'s delivery limit of 20" if limited else ""
    for name in (queue.name for queue in topology.queues()):
        found = queues.get(name, {})
        yield from _of_queue(name, found, len(nodes), default, management, topology)
    present = {
        (b["source"], b["destination"], b["routing_key"], b["destination_type"] == "exchange")
        for b in bindings
    }
    for each in topology.bindings():
        # The catch-all's is optional where shared, as its exchange is.
        optional = topology.shared and each.source == topology.undeliverable
        if each not in present and not optional:
            yield Problem(
                f"binding {each.source} -> {each.destination}",
                f"is missing (key {each.routing_key})",
                command(topology, "declare"),
            )
    if topology.shared:
        yield from _holding_up(management, queues, bindings, topology)


def _feature_flags(management: Management) -> Iterator[Problem]:
    subject = f"feature flag {STREAM_QUEUE}"
    try:
        states = {each["name"]: each["state"] for each in management.get("/feature-flags")}
    except ConfigurationError as error:  # RabbitMQ shows them to its administrators only
        remedy = f"let an administrator run: rabbitmqctl list_feature_flags | grep {STREAM_QUEUE}"
        yield Problem(subject, f"was not checked: {error}", remedy, fatal=False)
        return
    if states.get(STREAM_QUEUE, "enabled") != "enabled":
        yield Problem(
            subject,
            "is disabled: without it the broker dead-letters at most once, and loses messages",
            f"rabbitmqctl enable_feature_flag {STREAM_QUEUE}",
        )


def _handed_over(management: Management, topology: Topology) -> Iterator[Problem]:
    """Due messages that the next queue has not confirmed: a moment's worth, or a hand-over that stands."""
    now = {name: each.dead_lettering for name, each in management.held().items()}
    now = {name: count for name, count in now.items() if count}
    for name, endpoint in hand_overs(now, topology).items():
        yield Problem(
            f"endpoint {endpoint}",
            f"{now[name]} messages are due, and wait in {name}; if this persists, its queue refuses them: "
            "it is full, or has no leader",
            "make room in it; the broker tries again every 3 minutes",
            fatal=False,
        )
    names = [topology.level_name(level) for level in reversed(range(LEVELS))]
    waiting = [name for name in names if name in now]
    for name, counts in held(management, waiting, changes=STANDING).items():
        seen = [now[name], *(each.dead_lettering for each in counts)]
        stands = seen == sorted(seen)
        nowhere = (
            "; it has got nowhere while this looked: no queue is bound for them, or it refuses them, and "
            "all messages behind them wait too"
        )
        if seen[-1]:  # not all are handed over by now
            yield Problem(
                f"queue {name}",
                f"{seen[-1]} messages are due, and the broker is handing them over to the next queue "
                f"(messages_dlx){nowhere if stands else ''}",
                "make room in the endpoint's queue, or create it and bind it with: "
                f"{command(topology, 'bind', 'NAME')}; the broker tries again every 3 minutes",
                fatal=stands,
            )


def _of_queue(
    name: str, found: Mapping[str, Any], nodes: int, default: str, of: Management, on: Topology
) -> Iterator[Problem]:
    """Members that are missing or not online; policies that end a level's delays early or lose messages."""
    queue = f"queue {name}"
    members, most = len(found.get("members") or ()), min(nodes, REPLICAS)
    online = len(found.get("online", found.get("members")) or ())  # not told at first
    if found.get("members") is not None and members < most:
        yield Problem(
            queue,
            f"has {members} of the {most} members that a cluster of {nodes} nodes allows: its messages "
            "may be lost, or wait, with one node",
            f"rabbitmq-queues grow <node> all --vhost-pattern '{of.virtual_host}' "
            f"--queue-pattern '{re.escape(on.prefix)}\\.delay-', for each other node",
        )
    elif online < members:
        yield Problem(
            queue,
            f"has {online} of its {members} members online",
            "start the other nodes, or remove those that are gone for good with: rabbitmq-queues "
            "shrink <node>",
            fatal=online <= members // 2,
        )
    if name == on.undeliverable:
        return
    policy, limited = found.get("effective_policy_definition") or {}, default
    for key in sorted(policy.keys() & HARMFUL_POLICIES):
        yield Problem(
            queue,
            f"a policy sets {key} to {policy[key]!r}: delays end early, or messages are lost",
            f"change the policy's pattern so that it leaves {on.prefix}.delay-level- alone",
        )
    if (limit := policy.get("delivery-limit")) is not None:
        limited = f"a policy sets delivery-limit to {limit}" if 0 <= limit < DELIVERY_LIMIT else ""
    if limited:
        yield Problem(
            queue,
            f"{limited}: a message that is looked at more often goes to the next level, and arrives early",
            f"rabbitmqctl set_policy -p '{of.virtual_host}' --apply-to queues --priority 100 "
            f"{on.prefix}.delay-levels '^{re.escape(on.prefix)}\\.delay-level-' "
            f"'{{\"delivery-limit\":{DELIVERY_LIMIT}}}'",
        )


def _holding_up(
    management: Management,
    queues: Mapping[str, Any],
    bindings: Sequence[Mapping[str, Any]],
    topology: Topology,
) -> Iterator[Problem]:
    """On NServiceBus's topology: what can make one endpoint's messages hold up all others."""
    name = management.named("exchanges").get(topology.delivery_exchange, {}).get("policy")
    policy: Mapping[str, Any] = {}
    with suppress(ConfigurationError):  # RabbitMQ shows it to those who may set policies
        policy = (management.of("policies", name).get("definition") or {}) if name else {}
    if "alternate-exchange" not in policy:
        yield uncaught(topology, management.virtual_host)
    for binding in bindings:
        queue = queues.get(binding["destination"], {})
        arguments = {k[2:]: v for k, v in (queue.get("arguments") or {}).items()}
        settings = {**(queue.get("effective_policy_definition") or {}), **arguments}
        limits = sorted(settings.keys() & {"max-length", "max-length-bytes"})
        refuses = limits and str(settings.get("overflow", "")).startswith("reject-publish")
        if refuses and binding["source"] == topology.delivery_exchange:
            yield Problem(
                f"endpoint {binding['destination']}",
                f"refuses messages at {limits[0]} {settings[limits[0]]}: once it does, due messages "
                "for all endpoints wait behind its own",
                "remove the limit, or let the queue drop its oldest (overflow drop-head), or use a prefix "
                "of your own, where each endpoint has a hand-over queue",
                fatal=False,
            )


def _undeliverable(session: Session, topology: Topology) -> Iterator[Problem]:
    waiting, by_endpoint = look(session, topology)
    looked_at = by_endpoint.total()
    part = f" (of the first {looked_at} of {waiting})" if looked_at < waiting else ""
    for endpoint, count in sorted(by_endpoint.items()):
        if not endpoint.startswith(PROBE):
            yield Problem(
                f"endpoint {endpoint}",
                f"{count} messages{part} were due, but no queue was bound for it; they wait in "
                f"{topology.undeliverable}",
                f"create the queue if it is missing, then: {command(topology, 'bind', endpoint)}",
                fatal=False,
            )
