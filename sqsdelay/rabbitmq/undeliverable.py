"""Messages that were due while no queue was bound for their endpoint: counted, and sent on."""

from __future__ import annotations

import re
import time
import uuid
from collections import Counter, deque
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any, Final

from pika import BasicProperties
from pika.exceptions import ChannelClosedByBroker

from sqsdelay.errors import QueueMissing, SqsDelayError
from sqsdelay.rabbitmq.confirms import Publication
from sqsdelay.rabbitmq.connection import ADMIN_SECONDS, NOT_FOUND, Address, channel, place
from sqsdelay.rabbitmq.message import DEATH_HEADERS, PERSISTENT
from sqsdelay.rabbitmq.publisher import Publisher
from sqsdelay.rabbitmq.topology import Topology, read_key, routing_key

CHUNK: Final = 500
"""Messages sent on and acknowledged together: pipelined, and the most that an interruption repeats."""

CHUNK_BYTES: Final = 16 * 1024 * 1024
"""Bodies that a chunk keeps in memory, a larger one by itself."""

MAX_PREFETCH: Final = 65_535
"""Deliveries without an acknowledgement that one consumer can ask for. Source: AMQP 0-9-1, basic.qos."""

LOOK_SECONDS: Final = 10.0
"""How long messages are looked at to count them by endpoint."""

QUIET_SECONDS: Final = 3.0
"""How long nothing may arrive before the rest is taken to be with another consumer."""

_PROBE: Final = "sqsdelay-probe-"


@dataclass(slots=True)
class Undeliverable:
    """What waits in the catch-all queue: how many messages, and of those looked at how many for whom."""

    waiting: int
    looked_at: int = 0
    cut_short: bool = False
    by_endpoint: Counter[str] = field(default_factory=Counter)


def probe(topology: Topology) -> Publication:
    """A message that nobody is bound for: confirmed if it is caught. Where it lands, it expires."""
    nobody = f"{_PROBE}{uuid.uuid4()}"
    properties = BasicProperties(expiration="0", message_id=nobody)
    return Publication(topology.delivery_exchange, routing_key(0, nobody), b"", properties)


def catching_policy(topology: Topology, virtual_host: str) -> str:
    """The command by which an infrastructure shared with NServiceBus catches the undeliverable."""
    pattern = "^" + re.escape(topology.delivery_exchange).replace("\\-", "-") + "$"
    return (
        f"rabbitmqctl set_policy -p '{virtual_host}' --apply-to exchanges "
        f"{topology.undeliverable} '{pattern}' "
        f'\'{{"alternate-exchange":"{topology.undeliverable}"}}\''
    )


def look(given: Address, topology: Topology, *, probes: int = 0) -> Undeliverable:
    """Count undeliverable messages by endpoint, for at most `LOOK_SECONDS`; all stay where they are.

    Args:
        probes: sent just before; they lie behind the others, and expire as these are delivered.

    Raises:
        QueueMissing: no catch-all queue.
        QueueUnavailable: the broker cannot be reached.
    """
    with channel(given) as on:
        # What is delivered and not acknowledged returns to its place as the channel closes.
        found = Undeliverable(max(0, _count(on, topology, given) - probes))
        until = time.monotonic() + LOOK_SECONDS
        for _, endpoint, _, _ in _each(on, topology, found.waiting):
            found.looked_at += 1
            found.by_endpoint[endpoint] += not endpoint.startswith(_PROBE)
            if time.monotonic() > until:
                found.cut_short = True
                break
    return found


def send_on(given: Address, topology: Topology, endpoint: str) -> int:
    """Send the undeliverable messages of one endpoint to its queue; how many these were.

    A message leaves the catch-all queue once the broker has confirmed it in the endpoint's queue:
    an interruption may repeat up to `CHUNK` of them, and loses nothing.

    Raises:
        QueueMissing: the endpoint's queue does not exist.
        QueueUnavailable, SendFailed, Unconfirmed: the rest stays where it is; run it again.
    """
    sent = 0
    with closing(Publisher(given)) as publisher, channel(given) as on:
        try:
            waiting = _count(on, topology, given)
        except QueueMissing:
            return 0  # NServiceBus declared the infrastructure: it has no catch-all queue
        for chunk in _chunks(on, topology, waiting, endpoint):
            publisher.publish([publication for _, publication in chunk])
            on.connection.allow(ADMIN_SECONDS)
            errors = _acknowledge(on, chunk)
            sent += len(chunk) - len(errors)
            if errors:
                settle_acks(on, topology.undeliverable)
                raise errors[0]
        settle_acks(on, topology.undeliverable)
    return sent


def _chunks(
    on: Any, topology: Topology, waiting: int, endpoint: str
) -> Iterator[list[tuple[int, Publication]]]:
    """One endpoint's messages, each with its delivery tag."""
    chunk: list[tuple[int, Publication]] = []
    size = 0
    for tag, its_endpoint, properties, body in _each(on, topology, waiting):
        if not chunk:
            on.connection.allow(ADMIN_SECONDS)
        if its_endpoint == endpoint:
            chunk.append((tag, Publication("", endpoint, body, strip_deaths(properties))))
            size += len(body)
        if len(chunk) == CHUNK or size >= CHUNK_BYTES:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


def _acknowledge(on: Any, chunk: list[tuple[int, Publication]]) -> list[SqsDelayError]:
    """Take from the catch-all queue what the endpoint's has; the errors of the others."""
    errors = []
    for tag, publication in chunk:
        if publication.error is None:
            on.basic_ack(tag)
        else:
            errors.append(publication.error)
    return errors


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


def _count(on: Any, topology: Topology, given: Address) -> int:
    try:
        return int(on.queue_declare(topology.undeliverable, passive=True).method.message_count)
    except ChannelClosedByBroker as error:
        if error.reply_code != NOT_FOUND:
            raise
        raise QueueMissing(f"no queue {topology.undeliverable} at {place(given)}") from error


def _each(
    on: Any, topology: Topology, waiting: int
) -> Iterator[tuple[int, str, BasicProperties, bytes]]:
    """Receive every message that is in the catch-all queue now, unacknowledged."""
    arrived: deque[tuple[int, str, BasicProperties, bytes]] = deque()

    def on_message(_: Any, method: Any, properties: BasicProperties, body: bytes) -> None:
        key = read_key(method.routing_key)
        endpoint = key.endpoint if key else method.routing_key
        arrived.append((method.delivery_tag, endpoint, properties, body))

    on.basic_qos(prefetch_count=MAX_PREFETCH)
    for _ in range(0, waiting, MAX_PREFETCH):
        on.basic_consume(topology.undeliverable, on_message)
    while waiting:
        on.connection.process_data_events(time_limit=QUIET_SECONDS)
        if not arrived:
            return
        while arrived and waiting:
            waiting -= 1
            yield arrived.popleft()
