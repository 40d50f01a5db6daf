"""Moving delayed messages, with the time they have left, to another broker or prefix."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from pika import BasicProperties

from sqsdelay.core.delay import utc
from sqsdelay.core.received_message import whole_number
from sqsdelay.errors import ConfigurationError, InvalidSetting
from sqsdelay.limits import MAX_DUE_MS
from sqsdelay.rabbitmq.connection import ADMIN_SECONDS, Address, Session, parameters
from sqsdelay.rabbitmq.infrastructure import settle_acks
from sqsdelay.rabbitmq.management import UNCOUNTED, Management, hand_overs, held, ready
from sqsdelay.rabbitmq.message import DELAY_HEADER, DUE_AT_HEADER, RabbitMqMessage
from sqsdelay.rabbitmq.sender import RabbitMqSender
from sqsdelay.rabbitmq.topology import MAX_LEVEL, RoutedDelay, Topology, read_key
from sqsdelay.timeouts.sender import NSERVICEBUS_TIME

CHUNK: Final = 30
"""Messages taken from a level, sent and acknowledged together. RabbitMQ holds back a channel's 33rd
acknowledgement until it has applied earlier ones, and forgets it if the channel closes meanwhile: the
message would come back, and be delivered twice. Source: rabbit_fifo_client.erl, SOFT_LIMIT."""

TIME_SENT_HEADER: Final = "NServiceBus.TimeSent"


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
        done.left += _handed_over(given, management, of)
    return done


def _handed_over(given: Address, management: Management, topology: Topology) -> Counter[str]:
    """What no ``get`` returns, by reason: with the broker on its way to the next queue."""
    with Session(given) as session:
        names = [*ready(session, topology), *hand_overs(management.named("queues"), topology)]
    counted = [name for name in names if name != topology.undeliverable]
    count = sum(each[-1].dead_lettering for each in held(management, counted).values())
    reason = (
        "they are due, and the broker is handing them over to the next queue (messages_dlx); bind "
        "their endpoints, make room in their queues, or wait"
    )
    return Counter({reason: count}) if count else Counter()


def _move_level(
    session: Session, name: str, level: int, sender: RabbitMqSender, done: Transfer
) -> None:
    """Move what is in a level now, a chunk at a time. What is left returns as the channel closes."""
    count = session.count(name)
    if count is None:
        raise ConfigurationError(
            f"there is no queue {name} to transfer from; check URL and prefix of the source"
        )
    for start in range(0, count, CHUNK):
        gets = (session.get(name) for _ in range(start, min(start + CHUNK, count)))
        chunk = [got for got in gets if got is not None]
        if not chunk:
            break
        _move(session, level, sender, chunk, done)
        session.allow(ADMIN_SECONDS)
    settle_acks(session, name)


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
        results = sender.send_many(endpoint, [message for _, message in pairs])
        for (tag, _), result in zip(pairs, results, strict=True):
            if result.error is None:
                session.channel().basic_ack(tag)
                done.moved += 1
            else:
                done.left[str(result.error)] += 1


def due_of(key: RoutedDelay | None, properties: BasicProperties, *, level: int) -> int | None:
    """When a message waiting in ``level`` is due, epoch milliseconds; None where nothing tells.

    By our own header, NServiceBus's time of sending and delay, or the second at which the broker let it
    go from the level above (rounded up), and the delay from this level down.
    """
    headers = properties.headers or {}
    due_ms = whole_number(str(headers.get(DUE_AT_HEADER, "")))
    delay, sent = headers.get(DELAY_HEADER), _time_sent(headers.get(TIME_SENT_HEADER))
    deaths = headers.get("x-death")
    if due_ms is None and sent is not None and isinstance(delay, int):
        due_ms = -(-int(sent.timestamp() * 1_000_000) // 1000) + delay * 1000
    elif due_ms is None and key is not None and isinstance(deaths, list) and deaths:
        # The broker's list begins with the latest death, its time cut to a whole second.
        at = deaths[0].get("time") if isinstance(deaths[0], dict) else None
        if isinstance(at, datetime):
            entered_ms = int(at.replace(tzinfo=UTC).timestamp() + 1) * 1000
            # Of the delay, this level and those below it hold the last digits.
            due_ms = entered_ms + key.delay_seconds % (1 << (level + 1)) * 1000
    return due_ms if due_ms is not None and 0 <= due_ms <= MAX_DUE_MS else None


def _time_sent(value: Any) -> datetime | None:
    try:
        return datetime.strptime(str(value), NSERVICEBUS_TIME).replace(tzinfo=UTC)
    except ValueError:
        return None
