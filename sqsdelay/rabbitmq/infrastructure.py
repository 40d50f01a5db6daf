"""Declaring, binding and tearing down the delay infrastructure on a broker."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import pika
import tenacity
from pika.exceptions import ChannelClosedByBroker

from sqsdelay.errors import ConfigurationError
from sqsdelay.rabbitmq import undeliverable
from sqsdelay.rabbitmq.connection import PRECONDITION_FAILED, Address, channel, parameters
from sqsdelay.rabbitmq.management import UNCOUNTED, Management, held, ready
from sqsdelay.rabbitmq.topology import Exchange, Queue, Topology, binding_key, check_queue_name

DECLARE_ATTEMPTS: Final = 5


def declare(url: str | Sequence[str], topology: Topology | None = None) -> None:
    """Declare what is missing; what is there and equal stays as it is. Two at once are fine.

    Raises:
        ConfigurationError: something of that name is there and different, or no permission.
        QueueUnavailable: the broker cannot be reached.
    """
    given, wanted = parameters(url), topology or Topology()
    with channel(given) as first:
        retrying_races()(_declare_all, first.connection, wanted)


def retrying_races() -> tenacity.Retrying:
    """Tries a declaration again that met another's of the same moment."""
    return tenacity.Retrying(
        stop=tenacity.stop_after_attempt(DECLARE_ATTEMPTS),
        wait=tenacity.wait_random_exponential(multiplier=0.2, max=2),
        retry=tenacity.retry_if_exception(_is_race),
        reraise=True,
    )


def _is_race(error: BaseException) -> bool:
    """True where another's declaration at the same moment closed our channel: 404, 405 or 541."""
    return isinstance(error, ChannelClosedByBroker) and error.reply_code != PRECONDITION_FAILED


def _declare_all(connection: pika.BlockingConnection, topology: Topology) -> None:
    on = connection.channel()
    for exchange in topology.exchanges():
        declare_exchange(on, exchange)
    for queue in topology.queues():
        declare_queue(on, queue)
    for binding in topology.bindings():
        if binding.to_exchange:
            on.exchange_bind(binding.destination, binding.source, binding.routing_key)
        else:
            on.queue_bind(binding.destination, binding.source, binding.routing_key)
    on.close()


def declare_exchange(on: Any, exchange: Exchange) -> None:
    """Declare one exchange, or find it equal."""
    on.exchange_declare(
        exchange.name, exchange.kind, durable=True, arguments=dict(exchange.arguments)
    )


def declare_queue(on: Any, queue: Queue) -> None:
    """Declare one queue, or find it equal."""
    on.queue_declare(queue.name, durable=True, arguments=dict(queue.arguments))


def bind(
    url: str | Sequence[str],
    endpoint: str,
    topology: Topology | None = None,
    *,
    conventional: bool = False,
) -> int:
    """Bind an endpoint's queue to the delivery exchange, exactly, and send on what waited for it.

    Args:
        endpoint: the queue's name; it must exist.
        conventional: also declare the fanout exchange of the same name that NServiceBus's
            conventional routing topology sends to, and bind the queue to it.

    Returns:
        how many undeliverable messages were sent on to the queue.

    Raises:
        InvalidEndpoint, QueueMissing: no usable name; no such queue.
        ConfigurationError: no infrastructure; no permission.
        QueueUnavailable: the broker cannot be reached.
    """
    check_queue_name(endpoint)
    given, on_topology = parameters(url), topology or Topology()
    with channel(given) as on:
        on.queue_bind(endpoint, on_topology.delivery_exchange, binding_key(endpoint))
        if conventional:
            on.exchange_declare(endpoint, "fanout", durable=True)
            on.queue_bind(endpoint, endpoint, "")
    return undeliverable.send_on(given, on_topology, endpoint)


def teardown(
    url: str | Sequence[str],
    topology: Topology | None = None,
    *,
    force: bool = False,
    management_url: str | None = None,
) -> None:
    """Delete the infrastructure. Endpoints' own queues stay. Stop its senders first.

    Args:
        force: delete it with all messages that wait in it, without counting them.
        management_url: the management API (``http://user:password@host:15672``), without which the
            messages that the broker is handing over cannot be counted. Counting takes 5 to 10 s.

    Raises:
        ConfigurationError: messages wait in it, or it cannot be told, and not ``force``; nothing was
            deleted.
        QueueUnavailable: the broker, or its management API, cannot be reached; nothing was deleted.
    """
    given, doomed = parameters(url), topology or Topology()
    if not force:
        _check_empty(given, doomed, management_url)
    with channel(given) as on:
        # From the delivery up, so that nothing is routed into a gap on the way down.
        on.exchange_delete(doomed.delivery_exchange)
        for queue in doomed.queues():
            on.queue_delete(queue.name)
        for exchange in doomed.exchanges():
            on.exchange_delete(exchange.name)


def _check_empty(given: Address, topology: Topology, management_url: str | None) -> None:
    """Count, and count again what the first count could have missed on its way between two queues."""
    names = _check_none_ready(given, topology)
    if management_url is None:
        raise ConfigurationError(
            f"it is unknown whether the infrastructure {topology.prefix!r} is empty: "
            f"{UNCOUNTED}; or delete it anyway with --force (force=True)"
        )
    if not names:
        return
    found = held(Management(management_url, given.virtual_host), names)
    count = sum(each.unseen for each in found.values())
    if count:
        raise ConfigurationError(
            f"{count} messages in the infrastructure {topology.prefix!r} are being handed over by the "
            "broker (messages_dlx), or looked at by a consumer, and would be lost; bind their "
            "endpoints and wait, or discard them with --force"
        )
    _check_none_ready(given, topology)


def _check_none_ready(given: Address, topology: Topology) -> dict[str, int]:
    counts = ready(given, topology)
    if count := sum(counts.values()):
        raise ConfigurationError(
            f"{count} messages wait in the infrastructure {topology.prefix!r} and would be lost; move "
            "them first with: sqsdelay rabbitmq transfer, or discard them with --force"
        )
    return counts
