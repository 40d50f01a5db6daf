"""Declaring, binding and tearing down the delay infrastructure, and moving messages that wait in it."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from datetime import datetime
from itertools import islice
from typing import Final

import tenacity
from pika import BasicProperties
from pika.exceptions import ChannelClosedByBroker

from sqsdelay.core.delay import utc
from sqsdelay.errors import ConfigurationError, InvalidMessage, InvalidSetting, SqsDelayError
from sqsdelay.rabbitmq import connection
from sqsdelay.rabbitmq.connection import Session, Taken, parameters
from sqsdelay.rabbitmq.link import Publication
from sqsdelay.rabbitmq.management import UNCOUNTED, Management, hand_overs, held, ready
from sqsdelay.rabbitmq.message import PERSISTENT, RabbitMqMessage, due_of, encoded, without_deaths
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

MOVED_TOGETHER: Final = 30
"""Messages sent on and acknowledged together: the most that an interruption repeats. RabbitMQ holds back a
channel's 33rd acknowledgement until it has applied earlier ones, and forgets it if the channel closes
meanwhile. Source: rabbit_fifo_client.erl, SOFT_LIMIT."""

MOVED_BYTES: Final = 16 * 1024 * 1024
"""Bodies in hand together, a larger one by itself."""

PREFETCH: Final = 500
"""Undeliverable messages asked for at a time: what is on its way takes memory of the broker's."""

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
        InvalidMessage: one has headers that cannot be written; it stays, all others were sent on.
        QueueUnavailable: the broker cannot be reached, or takes no messages.
    """
    check_queue_name(endpoint)
    given, on = parameters(url), topology or Topology()
    publisher = Publisher(given, blocked_seconds=BLOCKED_SECONDS)
    with Session(given) as session, closing(publisher):
        for each in on.way(endpoint):
            if isinstance(each, Place):
                create_missing(session, each)
            else:
                make(session, each)
        if conventional:
            make(session, Place("exchange", endpoint, "fanout"))
            make(session, Binding(endpoint, endpoint, ""))
        return _send_on(session, publisher, on, endpoint)


def _chunks(messages: Iterable[Taken]) -> Iterator[list[Taken]]:
    """As many at a time as are in hand together."""
    chunk: list[Taken] = []
    size = 0
    for each in messages:
        chunk.append(each)
        size += len(each[2])
        if len(chunk) == MOVED_TOGETHER or size >= MOVED_BYTES:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


def _send_on(session: Session, publisher: Publisher, topology: Topology, endpoint: str) -> int:
    """Send the undeliverable messages of one endpoint to its queue; how many these were."""
    sent = 0
    refused: SqsDelayError | None = None
    unwritable: SqsDelayError | None = None
    waiting = _undeliverable(session, topology)
    for chunk in _chunks(taken for its_endpoint, taken in waiting if its_endpoint == endpoint):
        publications = []
        for _, properties, body in chunk:
            properties.headers = without_deaths(properties.headers)
            properties.delivery_mode = PERSISTENT
            publications.append(Publication("", endpoint, body, properties))
            try:
                encoded(properties)
            except InvalidMessage as error:
                publications[-1].settle(error)
        publisher.publish(publications)
        for (method, _, _), publication in zip(chunk, publications, strict=True):
            if publication.error is None:
                session.channel().basic_ack(method.delivery_tag)
                sent += 1
            elif isinstance(publication.error, InvalidMessage):
                unwritable = publication.error
            else:
                refused = publication.error
        if refused is not None:
            break
    if sent:
        session.settle_acks(topology.undeliverable)
    if failed := refused or unwritable:
        raise failed
    return sent


def look(session: Session, topology: Topology) -> tuple[int, Counter[str]]:
    """How many undeliverable messages there are, and, of those looked at in `LOOK_SECONDS`, how many for
    each endpoint. All stay where they are."""
    waiting = session.count(topology.undeliverable) or 0
    by_endpoint: Counter[str] = Counter()
    until = time.monotonic() + LOOK_SECONDS
    for endpoint, _ in _undeliverable(session, topology):
        by_endpoint[endpoint] += 1
        if time.monotonic() > until:
            break
    return waiting, by_endpoint


def _undeliverable(session: Session, topology: Topology) -> Iterator[tuple[str, Taken]]:
    """Receive every message that is in the catch-all queue now, each with its endpoint. What is not
    acknowledged returns to its place as the channel closes."""
    arrived: deque[Taken] = deque()
    waiting = session.count(topology.undeliverable) or 0  # NServiceBus declares no catch-all
    for number in range(waiting):
        if number % PREFETCH == 0:
            session.consume(topology.undeliverable, PREFETCH, arrived)
        session.wait(lambda: arrived, seconds=QUIET_SECONDS)
        if not arrived:
            return
        taken = arrived.popleft()
        key = read_key(taken[0].routing_key)
        yield (key.endpoint if key else taken[0].routing_key), taken


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
                f"there is no infrastructure {doomed.prefix!r} at {given}; nothing was "
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
    counts = [each[-1] for each in held(management, queues).values()]
    count = sum(each.dead_lettering + each.unacknowledged for each in counts)
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
    management = Management(management_url, given.virtual_host) if management_url else None
    if management is not None:
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
    """Move what is in a level now. What is left returns as the channel closes."""
    count = session.count(name)
    if count is None:
        raise ConfigurationError(
            f"there is no queue {name} to transfer from; check URL and prefix of the source"
        )
    for chunk in _chunks(islice(iter(lambda: session.get(name), None), count)):
        movable: list[tuple[int, tuple[str, RabbitMqMessage]]] = []
        for method, properties, body in chunk:
            try:
                endpoint, due_at = _destination(method.routing_key, properties, level)
            except SqsDelayError as error:
                done.left[str(error)] += 1
            else:
                message = RabbitMqMessage(body, due_at=due_at, properties=properties)
                movable.append((method.delivery_tag, (endpoint, message)))
        results = sender._send_each([each for _, each in movable])
        for (tag, _), result in zip(movable, results, strict=True):
            if result.error is None:
                session.channel().basic_ack(tag)
                done.moved += 1
            else:
                done.left[str(result.error)] += 1
    session.settle_acks(name)


def _destination(routing_key: str, properties: BasicProperties, level: int) -> tuple[str, datetime]:
    """Where a message that waits in a level goes, and when; `InvalidMessage` or `InvalidEndpoint` where that
    cannot be told."""
    key = read_key(routing_key)
    if key is None:
        raise InvalidMessage("its routing key is not a delay and an endpoint")
    endpoint = check_queue_name(key.endpoint)
    due_ms = due_of(key, properties, level=level)
    if due_ms is None:
        raise InvalidMessage("it has no sending time, so the remaining delay is unknown")
    return endpoint, utc(due_ms)
