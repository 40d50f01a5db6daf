"""Declaring, binding and tearing down the delay infrastructure, and moving messages that wait in it."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from itertools import islice
from typing import Final, TypeVar

import tenacity
from pika.exceptions import ChannelClosedByBroker

from sqsdelay import errors
from sqsdelay.core.delay import utc
from sqsdelay.core.message import full_batches
from sqsdelay.rabbitmq import connection
from sqsdelay.rabbitmq.connection import Session, Taken, parameters
from sqsdelay.rabbitmq.link import Publication
from sqsdelay.rabbitmq.management import Management, hand_overs, held, ready, uncounted
from sqsdelay.rabbitmq.message import PERSISTENT, RabbitMqMessage, due_of, encoded, resendable
from sqsdelay.rabbitmq.publisher import Publisher
from sqsdelay.rabbitmq.sender import RabbitMqSender
from sqsdelay.rabbitmq.topology import LEVELS, Binding, Place, Topology, check_queue_name, read_key

MOVED_TOGETHER: Final = 30
"""Messages sent on and acknowledged together: the most that an interruption repeats. RabbitMQ holds back a
channel's 33rd acknowledgement until it has applied earlier ones, and forgets it if the channel closes
meanwhile. Source: rabbit_fifo_client.erl, SOFT_LIMIT."""

MOVED_BYTES: Final = 16 * 1024 * 1024
"""Bodies in hand together, a larger one by itself."""

PREFETCH: Final = 500
"""Undeliverable messages asked for at a time: what is on its way takes memory of the broker's."""

T = TypeVar("T")


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
        method = f"{wanted.kind}_bind"
        session.ask(method, wanted.destination, wanted.source, wanted.routing_key)
    else:
        method, arguments = f"{wanted.kind}_declare", dict(wanted.arguments)
        options = {"exchange_type": wanted.type} if wanted.kind == "exchange" else {}
        session.ask(method, wanted.name, durable=True, arguments=arguments, **options)


_REFUSALS: Final = (connection.ACCESS_REFUSED, connection.PRECONDITION_FAILED)
_racing: Final = tenacity.Retrying(
    stop=tenacity.stop_after_attempt(5),
    wait=tenacity.wait_random_exponential(multiplier=0.2, max=2),
    # Another's declaration at the same moment closed our channel: 404, 405 or 541.
    retry=tenacity.retry_if_exception(
        lambda error: isinstance(error, ChannelClosedByBroker) and error.reply_code not in _REFUSALS
    ),
    reraise=True,
)


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
        QueueUnavailable: the broker cannot be reached, or takes no messages for 5 s.
    """
    check_queue_name(endpoint)
    given, on = parameters(url), topology or Topology()
    publisher, sent_on = Publisher(given, blocked_seconds=5.0), Transfer()
    unwritable: list[errors.InvalidMessage] = []

    def messages() -> Iterator[tuple[Taken, Publication]]:
        for name, taken in undeliverable(session, on):
            if name == endpoint:
                properties = resendable(taken[1])
                properties.delivery_mode = PERSISTENT
                try:
                    encoded(properties)
                except errors.InvalidMessage as error:
                    unwritable.append(error)
                else:
                    yield taken, Publication("", endpoint, taken[2], properties)

    def send(publications: list[Publication]) -> list[errors.SqsDelayError | None]:
        publisher.publish(publications)
        return [each.error for each in publications]

    with Session(given) as session, closing(publisher):
        for each in on.way(endpoint):
            if isinstance(each, Place):
                create_missing(session, each)
            else:
                make(session, each)
        if conventional:
            make(session, Place("exchange", endpoint, "fanout"))
            make(session, Binding(endpoint, endpoint, ""))
        _move(session, on.undeliverable, messages(), send, sent_on, stop=errors.SqsDelayError)
    for error in unwritable:
        raise error
    return sent_on.moved


def undeliverable(session: Session, topology: Topology) -> Iterator[tuple[str, Taken]]:
    """Receive every message that is in the catch-all queue now, each with its endpoint. What is not
    acknowledged returns to its place as the channel closes."""
    arrived: deque[Taken] = deque()
    waiting = session.count(topology.undeliverable) or 0  # NServiceBus declares no catch-all
    for number in range(waiting):
        if number % PREFETCH == 0:
            session.consume(topology.undeliverable, PREFETCH, arrived)
        session.wait(lambda: arrived, seconds=3.0)
        if not arrived:
            return  # the rest is with another consumer
        taken = arrived.popleft()
        key = read_key(taken[0].routing_key)
        yield (key.endpoint if key else taken[0].routing_key), taken


@dataclass(slots=True)
class Transfer:
    """What a transfer did: messages moved, and messages left where they are, counted by reason."""

    moved: int = 0
    left: Counter[str] = field(default_factory=Counter)


def _move(
    session: Session,
    queue: str,
    messages: Iterable[tuple[Taken, T]],
    send: Callable[[list[T]], Iterable[errors.SqsDelayError | None]],
    done: Transfer,
    *,
    stop: type[errors.SqsDelayError],
) -> None:
    """Send on what was taken from a queue, as much at a time as may be in hand together, and acknowledge what
    gave no error. The rest returns as the channel closes; after an error of the class ``stop``, which is
    raised, nothing more is sent."""
    stopped: errors.SqsDelayError | None = None
    most = MOVED_TOGETHER, MOVED_BYTES
    for chunk in full_batches(
        messages, target=lambda _: queue, size=lambda each: len(each[0][2]), most=most
    ):
        outcomes = send([each for _, each in chunk])
        for (taken, _), error in zip(chunk, outcomes, strict=True):
            if error is None:
                session.channel().basic_ack(taken[0].delivery_tag)
                done.moved += 1
            else:
                done.left[str(error)] += 1
                stopped = error if isinstance(error, stop) else stopped
        session.wait(lambda: not session.wire.unwritten)  # an interruption repeats none of these
        if stopped is not None:
            break
    if done.moved:
        # Its next get comes after the acknowledgements; what that takes returns as the channel closes.
        session.get(queue)
    if stopped is not None:
        raise stopped


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
        if not queues and not session.found("exchange_declare", doomed.level_name(LEVELS - 1)):
            raise errors.ConfigurationError(
                f"there is no infrastructure {doomed.prefix!r} at {given}; nothing was "
                "deleted; check --prefix and the virtual host"
            )
        if management is not None:
            queues += hand_overs(management.named("queues"), doomed)
        if not force:
            of = f"the infrastructure {doomed.prefix!r}"
            waits = f"wait in {of}", f"move them first with: {doomed.command('transfer')}"
            _check_none(sum(ready(session, doomed).values()), *waits)
            if management is None:
                raise uncounted(f"whether {of} is empty")
            counts = [each[-1] for each in held(management, queues).values()]
            _check_none(
                sum(n for q in counts for name, n in q.items() if name.startswith("messages")),
                f"in {of} are being handed over by the broker (messages_dlx), looked at, or wait,",
                f"bind their endpoints, make room in their queues and wait, or {waits[1]}",
            )
            # What the first count could have missed on its way between two queues.
            _check_none(sum(ready(session, doomed).values()), *waits)
        # From the delivery up, so that nothing is routed into a gap on the way down.
        session.ask("exchange_delete", doomed.delivery_exchange)
        for name in queues:
            session.ask("queue_delete", name)
        for exchange in doomed.exchanges():
            session.ask("exchange_delete", exchange.name)


def _check_none(count: int, where: str, remedy: str) -> None:
    if count:
        told = f"{count} messages {where} and would be lost; {remedy}, or discard them with --force"
        raise errors.ConfigurationError(told)


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
        raise errors.InvalidSetting(
            f"source and target are both {of.prefix!r} on the same virtual host; give another"
        )
    management = Management(management_url, given.virtual_host) if management_url else None
    if management is not None:
        management.held()  # an error now rather than when all has moved
    elif not force:
        raise uncounted("what would stay at the source")
    done = Transfer()
    with RabbitMqSender(
        target_url, prefix=to.prefix, without_alternate_exchange=without_alternate_exchange
    ) as sender:

        def send(messages: list[tuple[str, RabbitMqMessage]]) -> list[errors.SqsDelayError | None]:
            return [each.error for each in sender._send_each(messages)]

        for level in reversed(range(LEVELS)):
            name = of.level_name(level)
            with Session(given) as session:
                messages = _delayed(session, name, level, done.left)
                _move(session, name, messages, send, done, stop=errors.QueueUnavailable)
            on_level(level, done)
    if management is not None:
        with Session(given) as session:  # what no get returns
            names = [*ready(session, of), *hand_overs(management.named("queues"), of)]
        count = sum(each[-1]["messages_dlx"] for each in held(management, names).values())
        reason = "being handed over by the broker (messages_dlx); bind their endpoints, make room, or wait"
        done.left += Counter({reason: count})  # of none, nothing
    return done


def _delayed(
    session: Session, name: str, level: int, left: Counter[str]
) -> Iterator[tuple[Taken, tuple[str, RabbitMqMessage]]]:
    """Take what is in a level now, with endpoint and delay left; where that cannot be told, it is counted."""
    count = session.count(name)
    if count is None:
        raise errors.ConfigurationError(
            f"there is no queue {name} to transfer from; check URL and prefix of the source"
        )
    # The broker counts 0, too, in a queue that takes longer than 250 ms to answer. A get waits for it.
    for taken in islice(iter(lambda: session.get(name), None), count or None):
        method, properties, body = taken
        key = read_key(method.routing_key)
        due_ms = due_of(key, properties, level=level)
        try:
            if key is None:
                raise errors.InvalidMessage("its routing key is not a delay and an endpoint")
            check_queue_name(key.endpoint)
            if due_ms is None:
                raise errors.InvalidMessage("nothing tells when it was sent, so how long to wait")
        except errors.SqsDelayError as error:
            left[str(error)] += 1
        else:
            message = RabbitMqMessage(body, due_at=utc(due_ms), properties=properties)
            yield taken, (key.endpoint, message)
