"""Declaring, binding and tearing down the delay infrastructure, and moving messages that wait in it."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any, Final

import tenacity
from pika import BasicProperties
from pika.exceptions import ChannelClosedByBroker

from sqsdelay.core.delay import utc
from sqsdelay.errors import ConfigurationError, InvalidSetting, SqsDelayError
from sqsdelay.rabbitmq import connection
from sqsdelay.rabbitmq.connection import ADMIN_SECONDS, Session, parameters
from sqsdelay.rabbitmq.link import Publication
from sqsdelay.rabbitmq.management import UNCOUNTED, Management, hand_overs, held, ready
from sqsdelay.rabbitmq.message import PERSISTENT, RabbitMqMessage, due_of, without_deaths
from sqsdelay.rabbitmq.publisher import Publisher
from sqsdelay.rabbitmq.sender import RabbitMqSender
from sqsdelay.rabbitmq.topology import (
    MAX_LEVEL,
    Binding,
    Place,
    Topology,
    check_queue_name,
    command,
    read_key,
)

DECLARE_ATTEMPTS: Final = 5

CHUNK: Final = 500
"""Undeliverable messages sent on and acknowledged together: the most that an interruption repeats."""

CHUNK_BYTES: Final = 16 * 1024 * 1024
"""Bodies that a chunk keeps in memory, a larger one by itself."""

MOVED_TOGETHER: Final = 30
"""Messages taken from a level, sent and acknowledged together. RabbitMQ holds back a channel's 33rd
acknowledgement until it has applied earlier ones, and forgets it if the channel closes meanwhile: the
message would come back, and be delivered twice. Source: rabbit_fifo_client.erl, SOFT_LIMIT."""

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
    with Session(parameters(url)) as session:
        for each in (*on.exchanges(), *on.queues(), *on.bindings()):
            _racing(make, session, each)


def make(session: Session, wanted: Place | Binding) -> None:
    """Declare one of these, or find it equal."""
    if isinstance(wanted, Binding):
        bind_to = "exchange_bind" if wanted.to_exchange else "queue_bind"
        session.ask(bind_to, wanted.destination, wanted.source, wanted.routing_key)
    else:
        options = {"exchange_type": wanted.type} if wanted.kind == "exchange" else {}
        arguments = dict(wanted.arguments)
        method = f"{wanted.kind}_declare"
        session.ask(method, wanted.name, durable=True, arguments=arguments, **options)


def _is_race(error: BaseException) -> bool:
    """True where another's declaration at the same moment closed our channel: 404, 405 or 541."""
    refusals = (connection.ACCESS_REFUSED, connection.PRECONDITION_FAILED)
    return isinstance(error, ChannelClosedByBroker) and error.reply_code not in refusals


_racing: Final = tenacity.Retrying(
    stop=tenacity.stop_after_attempt(DECLARE_ATTEMPTS),
    wait=tenacity.wait_random_exponential(multiplier=0.2, max=2),
    retry=tenacity.retry_if_exception(_is_race),
    reraise=True,
)
"""Calls again where another's declaration of the same moment was in the way."""


def create_missing(session: Session, *queues: Place) -> list[str]:
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
            make(session, Place("exchange", endpoint, "fanout"))
            make(session, Binding(endpoint, endpoint, ""))
        return _send_on(session, publisher, on, endpoint)


def _send_on(session: Session, publisher: Publisher, topology: Topology, endpoint: str) -> int:
    """Send the undeliverable messages of one endpoint to its queue; how many these were. A message leaves
    the catch-all once the other queue has it: an interruption repeats up to `CHUNK`, and loses nothing."""
    sent = 0
    refused: list[SqsDelayError] = []
    for chunk in _chunks(session, topology, endpoint):
        publisher.publish([publication for _, publication in chunk])
        session.allow(ADMIN_SECONDS)
        tags, errors = [tag for tag, _ in chunk], [each.error for _, each in chunk]
        refused = _acknowledge(session, tags, errors)
        sent += len(chunk) - len(refused)
        if refused:
            break
    if sent:
        _settle_acks(session, topology.undeliverable)
    for error in refused:
        raise error
    return sent


def _chunks(
    session: Session, topology: Topology, endpoint: str
) -> Iterator[list[tuple[int, Publication]]]:
    """One endpoint's undeliverable messages, each with its delivery tag."""
    chunk: list[tuple[int, Publication]] = []
    size = 0
    for tag, its_endpoint, properties, body in _each(session, topology):
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


def _acknowledge(
    session: Session, tags: Sequence[int], errors: Sequence[SqsDelayError | None]
) -> list[SqsDelayError]:
    """Let the broker forget what its next home has confirmed; the errors of the rest, which stays."""
    for tag, error in zip(tags, errors, strict=True):
        if error is None:
            session.channel().basic_ack(tag)
    return [error for error in errors if error is not None]


def _settle_acks(session: Session, queue: str) -> None:
    """Wait until the queue has applied the channel's acknowledgements: its next get comes after them.
    What this get takes returns to its place as the channel closes."""
    session.get(queue)


def look(session: Session, topology: Topology) -> tuple[int, Counter[str]]:
    """How many undeliverable messages there are, and, of those looked at in `LOOK_SECONDS`, how many for
    each endpoint. All stay where they are."""
    waiting = session.count(topology.undeliverable) or 0
    by_endpoint: Counter[str] = Counter()
    until = time.monotonic() + LOOK_SECONDS
    for _, endpoint, _, _ in _each(session, topology):
        by_endpoint[endpoint] += 1
        if time.monotonic() > until:
            break
    return waiting, by_endpoint


def _each(
    session: Session, topology: Topology
) -> Iterator[tuple[int, str, BasicProperties, bytes]]:
    """Receive every message that is in the catch-all queue now, and acknowledge none: it returns to its
    place as the channel closes."""
    arrived: deque[tuple[int, str, BasicProperties, bytes]] = deque()

    def on_message(_: Any, method: Any, properties: BasicProperties, body: bytes) -> None:
        key = read_key(method.routing_key)
        endpoint = key.endpoint if key else method.routing_key
        arrived.append((method.delivery_tag, endpoint, properties, body))

    waiting = session.count(topology.undeliverable) or 0  # NServiceBus declares no catch-all
    if waiting:
        session.ask("basic_qos", prefetch_count=MAX_PREFETCH)
    for _ in range(0, waiting, MAX_PREFETCH):
        session.ask("basic_consume", topology.undeliverable, on_message)
    for _ in range(waiting):
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
                f"there is no infrastructure {doomed.prefix!r} at {connection.place(given)}; nothing was "
                "deleted; check --prefix and the virtual host"
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


HANDED_OVER: Final = (
    "they are due, and the broker is handing them over to the next queue (messages_dlx); bind their "
    "endpoints, make room in their queues, or wait"
)


@dataclass(slots=True)
class Transfer:
    """What a transfer did: messages moved, and messages left where they are, counted by reason."""

    moved: int = 0
    left: Counter[str] = field(default_factory=Counter)


def transfer(
    source_url: str | Sequence[str],
    target_url: str | Sequence[str],
    *,
    source: Topology | None = None,
    target: Topology | None = None,
    management_url: str | None = None,
    force: bool = False,
    without_alternate_exchange: bool = False,
    on_level: Callable[[int, Transfer], None] = lambda *_: None,
) -> Transfer:
    """Move all delayed messages from one infrastructure to another.

    A message leaves the source once the target has confirmed it: an interruption loses nothing, and
    may repeat what was just confirmed (same ``message_id``). Endpoints' queues must exist at the
    target. What is sent to the source meanwhile may stay there: run it again. What the source broker is
    handing over to the next queue cannot be moved: it is counted as left, once the rest has moved.

    Args:
        management_url: the source's management API (``http://user:password@host:15672``), without
            which that cannot be counted. Counting takes 5 to 10 s.
        force: move what can be moved, without counting that.
        without_alternate_exchange: as for `RabbitMqSender`, at the target.
        on_level: called after each level, from the highest down, with the result so far.

    Raises:
        ConfigurationError: source and target are the same, no infrastructure at the source, or neither
            ``management_url`` nor ``force``; nothing was moved.
        QueueUnavailable: a broker, or the management API, cannot be reached; run it again.
    """
    given, goal = parameters(source_url), parameters(target_url)
    of, to = source or Topology(), target or Topology()
    if given.meets(goal) and of == to:
        raise InvalidSetting(
            f"source and target are both {of.prefix!r} on the same virtual host; give another"
        )
    management: Management | None = None
    if management_url is not None:
        management = Management(management_url, given.virtual_host)
        management.held()  # an error now rather than when all has moved
    elif not force:
        raise ConfigurationError(
            f"it is unknown what would stay at the source: {UNCOUNTED}; or move what can be moved, "
            "with --force (force=True)"
        )
    done = Transfer()
    with RabbitMqSender(
        target_url, prefix=to.prefix, without_alternate_exchange=without_alternate_exchange
    ) as sender:
        for level in range(MAX_LEVEL, -1, -1):
            with Session(given) as session:
                _move_level(session, of.level_name(level), level, sender, done)
            on_level(level, done)
    if management is not None:
        # What no get returns.
        with Session(given) as session:
            names = [*ready(session, of), *hand_overs(management.named("queues"), of)]
        counts = held(management, [name for name in names if name != of.undeliverable])
        count = sum(each[-1].dead_lettering for each in counts.values())
        done.left += Counter({HANDED_OVER: count} if count else {})
    return done


def _move_level(
    session: Session, name: str, level: int, sender: RabbitMqSender, done: Transfer
) -> None:
    """Move what is in a level now, a chunk at a time. What is left returns as the channel closes."""
    count = session.count(name)
    if count is None:
        raise ConfigurationError(
            f"there is no queue {name} to transfer from; check URL and prefix of the source"
        )
    for start in range(0, count, MOVED_TOGETHER):
        gets = (session.get(name) for _ in range(start, min(start + MOVED_TOGETHER, count)))
        chunk = [got for got in gets if got is not None]
        if not chunk:
            break
        _move(session, level, sender, chunk, done)
        session.allow(ADMIN_SECONDS)
    _settle_acks(session, name)


def _move(
    session: Session,
    level: int,
    sender: RabbitMqSender,
    chunk: Sequence[Sequence[Any]],
    done: Transfer,
) -> None:
    """Send a chunk on and acknowledge what was confirmed."""
    by_endpoint: dict[str, list[tuple[int, RabbitMqMessage]]] = {}
    for method, properties, body in chunk:
        key = read_key(method.routing_key)
        due_ms = due_of(key, properties, level=level)
        if key is None:
            done.left["its routing key is not a delay and an endpoint"] += 1
        elif due_ms is None:
            done.left["it has no sending time, so the remaining delay is unknown"] += 1
        else:
            message = RabbitMqMessage(body, due_at=utc(due_ms), properties=properties)
            by_endpoint.setdefault(key.endpoint, []).append((method.delivery_tag, message))
    for endpoint, pairs in by_endpoint.items():
        tags, messages = zip(*pairs, strict=True)
        results = sender.send_many(endpoint, messages)
        refused = _acknowledge(session, tags, [each.error for each in results])
        done.moved += len(pairs) - len(refused)
        done.left.update(map(str, refused))
