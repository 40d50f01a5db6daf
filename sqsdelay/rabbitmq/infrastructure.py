"""Declaring, binding and tearing down the delay infrastructure, and sending on what was due for no queue."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any, Final

import tenacity
from pika import BasicProperties
from pika.exceptions import ChannelClosedByBroker

from sqsdelay.errors import ConfigurationError, QueueMissing, SqsDelayError
from sqsdelay.rabbitmq.confirms import Publication
from sqsdelay.rabbitmq.connection import (
    ADMIN_SECONDS,
    PRECONDITION_FAILED,
    Address,
    Session,
    parameters,
    place,
)
from sqsdelay.rabbitmq.management import UNCOUNTED, Management, hand_overs, held, ready
from sqsdelay.rabbitmq.message import DEATH_HEADERS, PERSISTENT
from sqsdelay.rabbitmq.publisher import Publisher
from sqsdelay.rabbitmq.topology import (
    MAX_LEVEL,
    PROBE,
    Exchange,
    Queue,
    Topology,
    check_queue_name,
    read_key,
)

DECLARE_ATTEMPTS: Final = 5

CHUNK: Final = 500
"""Messages sent on and acknowledged together: pipelined, and the most that an interruption repeats."""

CHUNK_BYTES: Final = 16 * 1024 * 1024
"""Bodies that a chunk keeps in memory, a larger one by itself."""

MAX_PREFETCH: Final = 65_535
"""Deliveries without an acknowledgement that one consumer can ask for. Source: AMQP 0-9-1, basic.qos."""

LOOK_SECONDS: Final = 5.0
"""How long messages are looked at to count them by endpoint."""

QUIET_SECONDS: Final = 3.0
"""How long nothing may arrive before the rest is taken to be with another consumer."""

BLOCKED_SECONDS: Final = 5.0
"""How long messages wait for a broker that takes none, to be sent on."""


def declare(url: str | Sequence[str], topology: Topology | None = None) -> None:
    """Declare what is missing; what is there and equal stays as it is. Two at once are fine.

    Raises:
        ConfigurationError: something of that name is there and different, or no permission.
        QueueUnavailable: the broker cannot be reached.
    """
    wanted = topology or Topology()
    with Session(parameters(url)) as session:
        retrying_races()(_declare_all, session, wanted)


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


def _declare_all(session: Session, topology: Topology) -> None:
    for exchange in topology.exchanges():
        declare_exchange(session, exchange)
    for queue in topology.queues():
        declare_queue(session, queue)
    for binding in topology.bindings():
        bind_to = "exchange_bind" if binding.to_exchange else "queue_bind"
        session.ask(bind_to, binding.destination, binding.source, binding.routing_key)


def declare_exchange(session: Session, exchange: Exchange) -> None:
    """Declare one exchange, or find it equal."""
    arguments = dict(exchange.arguments)
    session.ask("exchange_declare", exchange.name, exchange.kind, durable=True, arguments=arguments)


def declare_queue(session: Session, queue: Queue) -> None:
    """Declare one queue, or find it equal."""
    session.ask("queue_declare", queue.name, durable=True, arguments=dict(queue.arguments))


def ensure_queue(session: Session, queue: Queue) -> bool:
    """Leave a queue of that name as it is, whatever its arguments; declare a missing one, and say so."""
    if session.count(queue.name) is not None:
        return False
    declare_queue(session, queue)
    return True


def bind(
    url: str | Sequence[str],
    endpoint: str,
    topology: Topology | None = None,
    *,
    conventional: bool = False,
) -> int:
    """Bring an endpoint's due messages to its queue, exactly, and send on those that waited for it.

    Args:
        endpoint: the queue's name; it must exist.
        conventional: also declare the fanout exchange of the same name that NServiceBus's
            conventional routing topology sends to, and bind the queue to it.

    Returns:
        how many undeliverable messages were sent on to the queue.

    Raises:
        InvalidEndpoint, QueueMissing: no usable name; no such queue.
        ConfigurationError: no infrastructure; no permission.
        QueueUnavailable: the broker cannot be reached, or takes no messages.
    """
    check_queue_name(endpoint)
    given, on = parameters(url), topology or Topology()
    with Session(given) as session:
        session.ask("queue_declare", endpoint, passive=True)
        queue = on.hand_over_queue(endpoint)
        if queue is not None:
            declare_queue(session, queue)
        for each in on.endpoint_bindings(endpoint):
            session.ask("queue_bind", each.destination, each.source, each.routing_key)
        if conventional:
            session.ask("exchange_declare", endpoint, "fanout", durable=True)
            session.ask("queue_bind", endpoint, endpoint, "")
        return _send_on(session, given, on, endpoint)


def _send_on(session: Session, given: Address, topology: Topology, endpoint: str) -> int:
    """Send the undeliverable messages of one endpoint to its queue; how many these were.

    A message leaves the catch-all queue once the broker has confirmed it in the endpoint's queue:
    an interruption may repeat up to `CHUNK` of them, and loses nothing.
    """
    sent = 0
    waiting = session.count(topology.undeliverable) or 0  # NServiceBus declares no catch-all
    with closing(Publisher(given, blocked_seconds=BLOCKED_SECONDS)) as publisher:
        for chunk in _chunks(session, topology, waiting, endpoint):
            session.allow(None)
            publisher.publish([publication for _, publication in chunk])
            session.allow(ADMIN_SECONDS)
            errors: list[SqsDelayError] = []
            for tag, publication in chunk:
                if publication.error is None:
                    session.channel().basic_ack(tag)
                    sent += 1
                else:
                    errors.append(publication.error)
            if errors:
                settle_acks(session, topology.undeliverable)
                raise errors[0]
    if sent:
        settle_acks(session, topology.undeliverable)
    return sent


def _chunks(
    session: Session, topology: Topology, waiting: int, endpoint: str
) -> Iterator[list[tuple[int, Publication]]]:
    """One endpoint's messages, each with its delivery tag."""
    chunk: list[tuple[int, Publication]] = []
    size = 0
    for tag, its_endpoint, properties, body in _each(session, topology, waiting):
        session.allow(ADMIN_SECONDS)
        if its_endpoint == endpoint:
            chunk.append((tag, Publication("", endpoint, body, _without_deaths(properties))))
            size += len(body)
        if len(chunk) == CHUNK or size >= CHUNK_BYTES:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


def settle_acks(session: Session, queue: str) -> None:
    """Wait until the queue has applied the channel's acknowledgements: its next get comes after them.

    What this get takes returns to its place as the channel closes.
    """
    session.get(queue)


def _without_deaths(properties: BasicProperties) -> BasicProperties:
    """The properties without the traces that levels left, which would hinder a second delay."""
    headers = properties.headers or {}
    properties.headers = {
        name: value for name, value in headers.items() if not name.startswith(DEATH_HEADERS)
    }
    properties.delivery_mode = PERSISTENT
    return properties


@dataclass(slots=True)
class Undeliverable:
    """What waits in the catch-all queue: how many messages, and of those looked at how many for whom."""

    waiting: int
    looked_at: int = 0
    cut_short: bool = False
    by_endpoint: Counter[str] = field(default_factory=Counter)


def look(session: Session, given: Address, topology: Topology) -> Undeliverable:
    """Count undeliverable messages by endpoint, for at most `LOOK_SECONDS`; all stay where they are.

    Raises:
        QueueMissing: no catch-all queue.
    """
    waiting = session.count(topology.undeliverable)
    if waiting is None:
        raise QueueMissing(f"no queue {topology.undeliverable} at {place(given)}")
    # What is delivered and not acknowledged returns to its place as the channel closes.
    found = Undeliverable(waiting)
    until = time.monotonic() + LOOK_SECONDS
    for _, endpoint, _, _ in _each(session, topology, waiting):
        found.looked_at += 1
        found.by_endpoint[endpoint] += not endpoint.startswith(PROBE)
        if time.monotonic() > until:
            found.cut_short = True
            break
    return found


def _each(
    session: Session, topology: Topology, waiting: int
) -> Iterator[tuple[int, str, BasicProperties, bytes]]:
    """Receive every message that is in the catch-all queue now, unacknowledged."""
    arrived: deque[tuple[int, str, BasicProperties, bytes]] = deque()

    def on_message(_: Any, method: Any, properties: BasicProperties, body: bytes) -> None:
        key = read_key(method.routing_key)
        endpoint = key.endpoint if key else method.routing_key
        arrived.append((method.delivery_tag, endpoint, properties, body))

    if waiting:
        session.ask("basic_qos", prefetch_count=MAX_PREFETCH)
    for _ in range(0, waiting, MAX_PREFETCH):
        session.ask("basic_consume", topology.undeliverable, on_message)
    while waiting:
        session.wait(lambda: arrived, seconds=QUIET_SECONDS)
        if not arrived:
            return
        while arrived and waiting:
            waiting -= 1
            yield arrived.popleft()


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
        management_url: the management API (``http://user:password@host:15672``), without which neither
            the messages that the broker is handing over can be counted, which takes 5 to 10 s, nor the
            hand-over queues of endpoints be found and deleted.

    Raises:
        ConfigurationError: there is no such infrastructure, or messages wait in it, or it cannot be
            told, and not ``force``; nothing was deleted.
        QueueUnavailable: the broker, or its management API, cannot be reached; nothing was deleted.
    """
    given, doomed = parameters(url), topology or Topology()
    management = Management(management_url, given.virtual_host) if management_url else None
    with Session(given) as session:
        counts = ready(session, doomed)
        if not counts and not session.exists(doomed.level_name(MAX_LEVEL)):
            raise ConfigurationError(
                f"there is no infrastructure {doomed.prefix!r} at {place(given)}; nothing was deleted; "
                "check --prefix and the virtual host"
            )
        queues = list(counts)
        if management is not None:
            queues += hand_overs(management.queues(), doomed)
        if not force:
            _check_empty(session, doomed, management, queues, sum(counts.values()))
        # From the delivery up, so that nothing is routed into a gap on the way down.
        session.ask("exchange_delete", doomed.delivery_exchange)
        for name in queues:
            session.ask("queue_delete", name)
        for exchange in doomed.exchanges():
            session.ask("exchange_delete", exchange.name)


def _check_empty(
    session: Session,
    topology: Topology,
    management: Management | None,
    queues: Sequence[str],
    waiting: int,
) -> None:
    """Count, and count again what the first count could have missed on its way between two queues."""
    _check_none_ready(topology, waiting)
    if management is None:
        raise ConfigurationError(
            f"it is unknown whether the infrastructure {topology.prefix!r} is empty: "
            f"{UNCOUNTED}; or delete it anyway with --force (force=True)"
        )
    session.allow(None)
    count = sum(each.unseen for each in held(management, queues).values())
    session.allow(ADMIN_SECONDS)
    if count:
        raise ConfigurationError(
            f"{count} messages in the infrastructure {topology.prefix!r} are being handed over by the "
            "broker (messages_dlx), or looked at by a consumer, and would be lost; bind their "
            "endpoints, make room in their queues and wait, or discard them with --force"
        )
    _check_none_ready(topology, sum(ready(session, topology).values()))


def _check_none_ready(topology: Topology, count: int) -> None:
    if count:
        raise ConfigurationError(
            f"{count} messages wait in the infrastructure {topology.prefix!r} and would be lost; move "
            "them first with: sqsdelay rabbitmq transfer, or discard them with --force"
        )
