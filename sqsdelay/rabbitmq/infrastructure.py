"""Declaring, binding and tearing down the delay infrastructure, and sending on what was due for no queue."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Any, Final

import tenacity
from pika import BasicProperties
from pika.exceptions import ChannelClosedByBroker

from sqsdelay.errors import ConfigurationError, SqsDelayError
from sqsdelay.rabbitmq.connection import (
    ACCESS_REFUSED,
    ADMIN_SECONDS,
    PRECONDITION_FAILED,
    Session,
    parameters,
    place,
)
from sqsdelay.rabbitmq.link import Publication
from sqsdelay.rabbitmq.management import UNCOUNTED, Management, hand_overs, held, ready
from sqsdelay.rabbitmq.message import PERSISTENT, without_deaths
from sqsdelay.rabbitmq.publisher import Publisher
from sqsdelay.rabbitmq.topology import (
    MAX_LEVEL,
    Binding,
    Exchange,
    Queue,
    Topology,
    check_queue_name,
    command,
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
    on = topology or Topology()
    wanted: list[Exchange | Queue | Binding] = [*on.exchanges(), *on.queues(), *on.bindings()]
    with Session(parameters(url)) as session:
        for each in wanted:
            _racing(make, session, each)


def make(session: Session, wanted: Exchange | Queue | Binding) -> None:
    """Declare one of these, or find it equal."""
    if isinstance(wanted, Binding):
        bind_to = "exchange_bind" if wanted.to_exchange else "queue_bind"
        session.ask(bind_to, wanted.destination, wanted.source, wanted.routing_key)
    elif isinstance(wanted, Queue):
        session.ask("queue_declare", wanted.name, durable=True, arguments=dict(wanted.arguments))
    else:
        arguments = dict(wanted.arguments)
        session.ask("exchange_declare", wanted.name, wanted.kind, durable=True, arguments=arguments)


def _is_race(error: BaseException) -> bool:
    """True where another's declaration at the same moment closed our channel: 404, 405 or 541."""
    refusals = (ACCESS_REFUSED, PRECONDITION_FAILED)
    return isinstance(error, ChannelClosedByBroker) and error.reply_code not in refusals


_racing: Final = tenacity.Retrying(
    stop=tenacity.stop_after_attempt(DECLARE_ATTEMPTS),
    wait=tenacity.wait_random_exponential(multiplier=0.2, max=2),
    retry=tenacity.retry_if_exception(_is_race),
    reraise=True,
)
"""Calls again where another's declaration of the same moment was in the way."""


def create_missing(session: Session, *queues: Queue) -> list[str]:
    """Declare those that are missing, and name them; one that is there stays, whatever its arguments."""
    missing = [each for each in queues if session.count(each.name) is None]
    for each in missing:
        _racing(make, session, each)
    return [each.name for each in missing]


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
    publisher = Publisher(given, blocked_seconds=BLOCKED_SECONDS)
    with Session(given) as session, closing(publisher):
        for error in publisher.bind([endpoint], on).values():
            raise error
        session.allow(ADMIN_SECONDS)
        if conventional:
            make(session, Exchange(name=endpoint, kind="fanout"))
            make(session, Binding(source=endpoint, destination=endpoint, routing_key=""))
        return _send_on(session, publisher, on, endpoint)


def _send_on(session: Session, publisher: Publisher, topology: Topology, endpoint: str) -> int:
    """Send the undeliverable messages of one endpoint to its queue; how many these were. A message leaves
    the catch-all once the other queue has it: an interruption repeats up to `CHUNK`, and loses nothing."""
    sent = 0
    errors: list[SqsDelayError] = []
    for chunk in _chunks(session, topology, endpoint):
        publisher.publish([publication for _, publication in chunk])
        session.allow(ADMIN_SECONDS)
        for tag, publication in chunk:
            if publication.error is None:
                session.channel().basic_ack(tag)
                sent += 1
            else:
                errors.append(publication.error)
        if errors:
            break
    if sent:
        settle_acks(session, topology.undeliverable)
    if errors:
        raise errors[0]
    return sent


def _chunks(
    session: Session, topology: Topology, endpoint: str
) -> Iterator[list[tuple[int, Publication]]]:
    """One endpoint's undeliverable messages, each with its delivery tag."""
    waiting = session.count(topology.undeliverable) or 0  # NServiceBus declares no catch-all
    chunk: list[tuple[int, Publication]] = []
    size = 0
    for tag, its_endpoint, properties, body in _each(session, topology, waiting):
        session.allow(ADMIN_SECONDS)
        if its_endpoint == endpoint:
            properties.headers = without_deaths(properties.headers)
            properties.delivery_mode = PERSISTENT
            chunk.append((tag, Publication("", endpoint, body, properties)))
            size += len(body)
        if len(chunk) == CHUNK or size >= CHUNK_BYTES:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


def settle_acks(session: Session, queue: str) -> None:
    """Wait until the queue has applied the channel's acknowledgements: its next get comes after them.
    What this get takes returns to its place as the channel closes."""
    session.get(queue)


def look(session: Session, topology: Topology) -> tuple[int, Counter[str]]:
    """How many undeliverable messages there are, and, of those looked at in `LOOK_SECONDS`, how many for
    each endpoint. All stay where they are."""
    # What is delivered and not acknowledged returns to its place as the channel closes.
    waiting = session.count(topology.undeliverable) or 0
    by_endpoint: Counter[str] = Counter()
    until = time.monotonic() + LOOK_SECONDS
    for _, endpoint, _, _ in _each(session, topology, waiting):
        by_endpoint[endpoint] += 1
        if time.monotonic() > until:
            break
    return waiting, by_endpoint


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
    for _ in range(waiting):
        if not arrived:
            session.wait(lambda: arrived, seconds=QUIET_SECONDS)
        if not arrived:
            return
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
        queues = list(ready(session, doomed))
        if not queues and not session.found("exchange_declare", doomed.level_name(MAX_LEVEL)):
            raise ConfigurationError(
                f"there is no infrastructure {doomed.prefix!r} at {place(given)}; nothing was deleted; "
                "check --prefix and the virtual host"
            )
        if management is not None:
            queues += hand_overs(management.named("queues"), doomed)
        if not force:
            _check_empty(session, doomed, management, queues)
        # From the delivery up, so that nothing is routed into a gap on the way down.
        session.ask("exchange_delete", doomed.delivery_exchange)
        for name in queues:
            session.ask("queue_delete", name)
        for exchange in doomed.exchanges():
            session.ask("exchange_delete", exchange.name)


def _check_empty(
    session: Session, topology: Topology, management: Management | None, queues: Sequence[str]
) -> None:
    """Count, and count again what the first count could have missed on its way between two queues."""
    of = f"the infrastructure {topology.prefix!r}"

    def check_none_ready() -> None:
        if count := sum(ready(session, topology).values()):
            raise ConfigurationError(
                f"{count} messages wait in {of} and would be lost; move them first with: "
                f"{command(topology, 'transfer')}, or discard them with --force"
            )

    check_none_ready()
    if management is None:
        raise ConfigurationError(
            f"it is unknown whether {of} is empty: {UNCOUNTED}; or delete it anyway with --force "
            "(force=True)"
        )
    count = sum(each[-1].unseen for each in held(management, queues).values())
    session.allow(ADMIN_SECONDS)
    if count:
        raise ConfigurationError(
            f"{count} messages in {of} are being handed over by the broker (messages_dlx), or looked "
            "at by a consumer, and would be lost; bind their endpoints, make room in their queues and "
            "wait, or discard them with --force"
        )
    check_none_ready()
