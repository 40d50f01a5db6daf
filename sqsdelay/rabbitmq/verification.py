"""What keeps an infrastructure from delaying safely, and how to fix it."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

from pika.exceptions import ChannelClosedByBroker

from sqsdelay.core.readable import Problem
from sqsdelay.errors import ConfigurationError
from sqsdelay.rabbitmq import connection
from sqsdelay.rabbitmq.administration import make, undeliverable
from sqsdelay.rabbitmq.connection import Session, parameters
from sqsdelay.rabbitmq.management import GIVE_URL, NEWER, Management, hand_overs, held
from sqsdelay.rabbitmq.topology import DELIVERY_LIMIT, LEVELS, PROBE, Topology

HARMFUL_POLICIES: Final = frozenset(
    ("message-ttl", "expires", "max-length", "max-length-bytes", "dead-letter-routing-key")
)
"""Policy keys that end a queue's wait early, lose it, refuse its messages or send them elsewhere.
Of an argument and a policy the broker takes the argument, but the smaller of two numbers.
Source: rabbitmq.com/docs/policies, "How Policies Interact with Optional Queue Arguments"."""


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
    unseen: list[Problem] = []
    with Session(given) as session:
        if management is not None:
            listed = {kind: management.named(f"{kind}s") for kind in ("exchange", "queue")}
            problems = [*_declared(session, wanted, listed), *_hidden(management, wanted, listed)]
        else:
            problems = [*_declared(session, wanted, {})]
            text = (
                "messages being handed over (messages_dlx), arguments, version, alarms, feature flags, "
                "policies, bindings and replicas were not checked"
            )
            remedy = f"{GIVE_URL}, or skip this check with --force"
            unseen = [Problem("management API", text, remedy, fatal=not force)]
        if not any(problem.fatal for problem in problems):
            problems += _undeliverable(session, wanted)
    return problems + unseen


def _declared(session: Session, topology: Topology, listed: dict[str, Any]) -> Iterator[Problem]:
    """What is missing, or was declared with other arguments. Without the management API these are compared
    by declaring it again, as far as this user may."""
    for each in (*topology.exchanges(), *topology.queues()):
        subject, difference = f"{each.kind} {each.name}", ""
        if session.found(f"{each.kind}_declare", each.name) is None:
            # NServiceBus declares no catch-all: its infrastructure delays without one.
            optional = topology.shared and each.name == topology.undeliverable
            yield Problem(subject, "is missing", topology.command("declare"), fatal=not optional)
        elif not listed:
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
            remedy = "use another --prefix, or move its messages away, delete it and declare again"
            yield Problem(subject, f"differs from what is expected: {difference}", remedy)


def _hidden(management: Management, on: Topology, listed: dict[str, Any]) -> Iterator[Problem]:
    """What AMQP does not show."""
    version = str(management.get("/overview")["rabbitmq_version"])
    release = tuple(map(int, re.findall(r"\d+", version)[:2]))
    # Source: rabbitmq.com/blog/2022/03/29/at-least-once-dead-lettering.
    if release < (3, 10):
        text = f"is RabbitMQ {version}: its quorum queues neither expire nor safely dead-letter messages"
        yield Problem("broker", text, "upgrade to 3.10 or newer")
    yield from _feature_flags(management)
    nodes = management.get("/nodes")
    for node in nodes:
        for resource, name in (("mem", "memory"), ("disk_free", "disk")):
            if node.get(f"{resource}_alarm"):
                text = f"has a {name} alarm: the broker takes no messages from anyone, on any node"
                remedy = "free some of it there; rabbitmq-diagnostics alarms shows the limits"
                yield Problem(f"node {node['name']}", text, remedy)
    yield from _handed_over(management, on)
    # From 4.0 on a quorum queue without a delivery limit has one of 20. Source: as `DELIVERY_LIMIT`.
    limited = on.shared and release >= (4, 0)
    default = f"has RabbitMQ {version}'s delivery limit of 20" if limited else ""
    for name in (*(each.name for each in on.queues()), *hand_overs(listed["queue"], on)):
        found = listed["queue"].get(name, {})
        yield from _of_queue(name, found, len(nodes), default, management, on)
    bindings = management.of("bindings")
    told = ("source", "destination", "routing_key", "destination_type")
    present = {tuple(map(each.get, told)) for each in bindings}
    for each in on.bindings():
        # The catch-all's is optional where shared, as its exchange is.
        optional = on.shared and each.source == on.undeliverable
        if each not in present and not optional:
            subject = f"binding {each.source} -> {each.destination}"
            text = f"is missing (key {each.routing_key})"
            yield Problem(subject, text, on.command("declare"))
    if on.shared:
        yield from _holding_up(management, on, listed, bindings)


def _feature_flags(management: Management) -> Iterator[Problem]:
    """At-least-once dead-lettering needs one; NServiceBus checks it as well.
    Source: rabbitmq.com/docs/quorum-queues, "Activating at-least-once dead-lettering"."""
    name, subject, flags = "stream_queue", "feature flag stream_queue", list[Any]()
    try:
        flags = management.get("/feature-flags")
    except ConfigurationError as error:  # RabbitMQ shows them to its administrators only
        remedy = f"let an administrator run: rabbitmqctl list_feature_flags | grep {name}"
        yield Problem(subject, f"was not checked: {error}", remedy, fatal=False)
    if any(each["name"] == name and each["state"] != "enabled" for each in flags):
        text = "is disabled: without it the broker dead-letters at most once, and loses messages"
        yield Problem(subject, text, f"rabbitmqctl enable_feature_flag {name}")


def _handed_over(management: Management, topology: Topology) -> Iterator[Problem]:
    """Due messages that the next queue has not confirmed: a moment's worth, or a hand-over that stands."""
    held_now = management.held().items()
    now = {name: each["messages_dlx"] for name, each in held_now if each["messages_dlx"]}
    for name, endpoint in hand_overs(now, topology).items():
        text = f"{now[name]} messages are due, and wait in {name}; if this persists, its queue refuses them"
        remedy = "make room in it, or restore its leader; the broker tries again every 3 minutes"
        yield Problem(f"endpoint {endpoint}", text, remedy, fatal=False)
    remedy = (
        "make room in the endpoint's queue, or create it and bind it with: "
        f"{topology.command('bind', 'NAME')}; the broker tries again every 3 minutes"
    )
    levels = [name for name in map(topology.level_name, reversed(range(LEVELS))) if name in now]
    for name, counts in held(management, levels, changes=2 * NEWER).items():
        seen = [now[name], *(each["messages_dlx"] for each in counts)]
        stands = seen == sorted(seen)  # one that goes on falls with one of these counts
        text = f"{seen[-1]} messages are due, and being handed to the next queue (messages_dlx)"
        if stands:
            text += (
                "; it has got nowhere while this looked: no queue is bound for them, or it refuses them, "
                "and all messages behind them wait too"
            )
        if seen[-1]:  # not all are handed over by now
            yield Problem(f"queue {name}", text, remedy, fatal=stands)


def _of_queue(
    name: str, found: Mapping[str, Any], nodes: int, default: str, of: Management, on: Topology
) -> Iterator[Problem]:
    """Members that are missing or not online; policies that lose messages, or make them early or wait."""
    queue, policy = f"queue {name}", found.get("effective_policy_definition") or {}
    # Three outlive one node's loss. Source: rabbitmq.com/docs/quorum-queues, "Replication Factor".
    members, most = len(found.get("members") or ()), min(nodes, 3)
    online = len(found.get("online", found.get("members")) or ())  # not told at first
    pattern = re.escape(on.prefix) + r"\.delay-"
    if found.get("members") is not None and members < most:
        yield Problem(
            queue,
            f"has {members} of the {most} members that a cluster of {nodes} nodes allows: its messages "
            "may be lost, or wait, with one node",
            f"rabbitmq-queues grow <node> all --vhost-pattern '{of.virtual_host}' "
            f"--queue-pattern '{pattern}', for each other node",
        )
    elif online < members:
        text = f"has {online} of its {members} members online"
        remedy = "start the other nodes, or remove lost ones with: rabbitmq-queues shrink <node>"
        yield Problem(queue, text, remedy, fatal=online <= members // 2)
    if name == on.undeliverable:
        return
    harmless = {"message-ttl"} if hand_overs([name], on) else set()  # it hands over at once anyway
    for key in sorted(policy.keys() & HARMFUL_POLICIES - harmless):
        text = f"a policy sets {key} to {policy[key]!r}: messages are early, lost, or hold up all others"
        remedy = f"change the policy's pattern so that it leaves {on.prefix}.delay- alone"
        yield Problem(queue, text, remedy)
    limited, limit = default, policy.get("delivery-limit")
    if limit is not None and not harmless:
        limited = f"a policy sets delivery-limit to {limit}" if 0 <= limit < DELIVERY_LIMIT else ""
    if limited:
        yield Problem(
            queue,
            f"{limited}: a message that is looked at more often goes to the next level, and arrives early",
            f"rabbitmqctl set_policy -p '{of.virtual_host}' --apply-to queues --priority 100 "
            f"{on.prefix}.delay-levels '^{pattern}level-' '{{\"delivery-limit\":{DELIVERY_LIMIT}}}'",
        )


def _holding_up(
    management: Management, topology: Topology, listed: dict[str, Any], bindings: list[Any]
) -> Iterator[Problem]:
    """On NServiceBus's topology: what can make one endpoint's messages hold up all others."""
    name = listed["exchange"].get(topology.delivery_exchange, {}).get("policy")
    policy: Mapping[str, Any] = {}
    with suppress(ConfigurationError):  # RabbitMQ shows it to those who may set policies
        policy = (management.of("policies", name).get("definition") or {}) if name else {}
    if "alternate-exchange" not in policy:
        yield topology.uncaught(management.virtual_host)
    for binding in bindings:
        queue = listed["queue"].get(binding["destination"], {})
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
    """Endpoints of messages that wait in the catch-all, looked at for 5 s; all stay where they are."""
    waiting, until = session.count(topology.undeliverable) or 0, time.monotonic() + 5.0
    by_endpoint = Counter[str]()
    for endpoint, _ in undeliverable(session, topology):
        by_endpoint[endpoint] += 1
        if time.monotonic() > until:
            break
    total = by_endpoint.total()
    part = f" (of the first {total} of {waiting})" if total < waiting else ""
    for endpoint, count in sorted(by_endpoint.items()):
        if not endpoint.startswith(PROBE):
            place, command = topology.undeliverable, topology.command("bind", endpoint)
            text = f"{count} messages{part} were due, but no queue was bound for it; they wait in {place}"
            remedy = f"create the queue if it is missing, then: {command}"
            yield Problem(f"endpoint {endpoint}", text, remedy, fatal=False)
