"""Messages that were due while no queue was bound for their endpoint: counted, and sent on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from pika import BasicProperties
from pika.exceptions import ChannelClosedByBroker, UnroutableError

from sqsdelay.errors import QueueMissing
from sqsdelay.rabbitmq.connection import NOT_FOUND, Address, channel, place
from sqsdelay.rabbitmq.message import DEATH_HEADERS, PERSISTENT
from sqsdelay.rabbitmq.routing import read_key
from sqsdelay.rabbitmq.topology import Topology


def by_endpoint(given: Address, topology: Topology) -> Counter[str]:
    """How many undeliverable messages wait for each endpoint; all stay where they are.

    Raises:
        QueueMissing: no catch-all queue.
        QueueUnavailable: the broker cannot be reached.
    """
    with channel(given) as on:
        # What is got and not acknowledged returns to its place as the channel closes.
        return Counter(endpoint for _, endpoint, _, _ in _each(on, topology, given))


def send_on(given: Address, topology: Topology, endpoint: str) -> int:
    """Send the undeliverable messages of one endpoint to its queue; how many these were.

    A message leaves the catch-all queue once the broker has confirmed it in the endpoint's queue:
    an interruption may repeat it, and loses nothing.

    Raises:
        QueueMissing: the endpoint's queue does not exist.
        QueueUnavailable: the broker cannot be reached.
    """
    sent = 0
    with channel(given) as on:
        try:
            on.queue_declare(topology.undeliverable, passive=True)
        except ChannelClosedByBroker as error:
            if error.reply_code != NOT_FOUND:
                raise
            return 0  # NServiceBus declared the infrastructure: it has no catch-all queue
        to = on.connection.channel()
        to.confirm_delivery()
        for tag, its_endpoint, properties, body in _each(on, topology, given):
            if its_endpoint != endpoint:
                continue
            try:
                to.basic_publish("", endpoint, body, strip_deaths(properties), mandatory=True)
            except UnroutableError as error:
                raise QueueMissing(
                    f"queue {endpoint} does not exist at {place(given)}; create it, or correct the name"
                ) from error
            on.basic_ack(tag)
            sent += 1
        settle_acks(on, topology.undeliverable)
    return sent


def settle_acks(on: Any, queue: str) -> None:
    """Wait until the queue has applied the channel's acknowledgements: its next get comes after them.

    What this get takes returns to its place as the channel closes.
    """
    on.basic_get(queue)


def strip_deaths(properties: BasicProperties) -> BasicProperties:
    """The properties without the traces that levels left, which would hinder a second delay."""
    headers = properties.headers or {}
    properties.headers = {
        name: value for name, value in headers.items() if not name.startswith(DEATH_HEADERS)
    }
    properties.delivery_mode = PERSISTENT
    return properties


def _each(
    on: Any, topology: Topology, given: Address
) -> Iterator[tuple[int, str, BasicProperties, bytes]]:
    """Get every message that is in the catch-all queue now, unacknowledged."""
    try:
        count = on.queue_declare(topology.undeliverable, passive=True).method.message_count
    except ChannelClosedByBroker as error:
        if error.reply_code != NOT_FOUND:
            raise
        raise QueueMissing(f"no queue {topology.undeliverable} at {place(given)}") from error
    for _ in range(count):
        method, properties, body = on.basic_get(topology.undeliverable)
        if method is None:
            return
        key = read_key(method.routing_key)
        yield (
            method.delivery_tag,
            key.endpoint if key else method.routing_key,
            properties,
            body,
        )
