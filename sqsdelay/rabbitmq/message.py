"""A message as its sender writes it, and as it waits in a store: with every type as it came."""

from __future__ import annotations

import copy
import uuid
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from pika import BasicProperties

from sqsdelay.core.delay import Delay, due_at_ms
from sqsdelay.core.limits import MAX_DUE_MS
from sqsdelay.core.message import DUE_AT, WAS_DUE_AT, Attribute
from sqsdelay.core.received_message import whole_number
from sqsdelay.errors import InvalidMessage, MessageTooLarge
from sqsdelay.rabbitmq.topology import LEVELS, MAX_NAME_BYTES, RoutedDelay
from sqsdelay.timeouts.sender import NSERVICEBUS_TIME

DELAY_HEADER: Final = "NServiceBus.Transport.RabbitMQ.DelayInSeconds"
"""The whole delay in seconds, a 32-bit integer. NServiceBus sets and reads the same."""

DEATH_HEADERS: Final = ("x-death", "x-first-death-", "x-last-death-")
"""What the broker writes as a message passes a level. Left on a message that is sent again, the
broker takes its second visit to a level for a cycle and drops it.
Source: rabbitmq.com/docs/dlx, "Automatically Dead-letter Message Cycles"."""

COPY_HEADERS: Final = ("CC", "BCC")
"""Extra routing keys. Source: rabbitmq.com/docs/sender-selected."""

MAX_MESSAGE_BYTES: Final = 16 * 1024 * 1024
"""``max_message_size`` of a broker left at its default: 16 MiB since RabbitMQ 4.0, 128 MiB before.
Source: rabbitmq.com/release-information, 4.0 "Breaking Changes"."""

MAX_EXPIRATION_MS: Final = 2**32 - 1
"""Source: rabbit_misc.erl, check_expiry."""

MAX_PROPERTIES_BYTES: Final = 131_072 - (LEVELS + 1) * (MAX_NAME_BYTES * 4 + 256) - 1024
"""They must fit one frame (``frame_max`` of a broker left at its default), with an entry in ``x-death`` for
each queue on the way: queue, exchange and routing key, each at most 255 bytes, with their names and counters.
A message that the entries make too large could never be consumed.
Source: rabbitmq.com/docs/configure, "frame_max"."""

PERSISTENT: Final = 2
"""``delivery_mode`` of a message that survives a restart. Source: AMQP 0-9-1, basic class."""


@dataclass(frozen=True, slots=True)
class RabbitMqMessage:
    """A message to send, with its delay.

    Args:
        body: bytes, or text that is sent in UTF-8.
        delay: ``timedelta`` or seconds from when the broker has it; not with ``due_at``.
        due_at: aware ``datetime``, on the local clock; one in the past is sent at once.
        headers: AMQP headers, added to those of ``properties``.
        message_id: the id receivers deduplicate on; generated when left out.
        properties: any other AMQP properties, e.g. those of a received message to send on.
    """

    body: str | bytes
    delay: Delay | None = None
    due_at: datetime | None = None
    headers: Mapping[str, Any] = field(default_factory=dict)
    message_id: str | None = None
    properties: BasicProperties | None = None


def checked(message: RabbitMqMessage, *, limit: int, user: str) -> tuple[bytes, BasicProperties]:
    """Body, at most ``limit`` bytes, and properties as sent: persistent, with an id, without traces of former
    hops and delays. What would end the channel is refused."""
    if not isinstance(message, RabbitMqMessage):
        raise InvalidMessage(
            f"a {type(message).__name__} is not a RabbitMqMessage; give RabbitMqMessage(body, …)"
        )
    properties = copy.copy(message.properties) if message.properties else BasicProperties()
    headers = {**(properties.headers or {}), **message.headers}
    given = headers or message.properties or message.message_id
    # The first would steer a timeout manager.
    properties.headers = without_deaths(headers, DUE_AT, DELAY_HEADER, WAS_DUE_AT)
    if properties.user_id not in (None, user):
        raise InvalidMessage(
            f"user_id={properties.user_id!r}, but the connection is {user!r}'s, and the broker accepts "
            "no other; leave it out"
        )
    own_id = properties.message_id if message.message_id is None else message.message_id
    own_id = str(uuid.uuid4()) if own_id is None else own_id
    if not own_id or not isinstance(own_id, str):
        raise InvalidMessage("is not valid; give a non-empty string", message_id=own_id)
    properties.message_id, properties.delivery_mode = own_id, PERSISTENT
    if given:
        check_encoding(properties)
    body: object = message.body
    if isinstance(body, str):
        try:
            body = body.encode()
        except UnicodeEncodeError as error:
            raise InvalidMessage(f"body cannot be written in UTF-8: {error.reason}") from error
    if not isinstance(body, bytes):
        raise InvalidMessage(f"body is {type(body).__name__}; give text or bytes")
    if len(body) > limit:
        raise MessageTooLarge(
            f"body of {len(body)} bytes; the limit is {limit}; shorten it, or, if the broker's "
            "max_message_size is higher, send it with RabbitMqSender(max_message_bytes=…)"
        )
    return body, properties


def delayed(properties: BasicProperties, *, seconds: int, due_ms: int) -> BasicProperties:
    """A copy of `checked` ones that says this delay and due time. What would arrive early or twice is
    refused."""
    if properties.expiration is not None:
        raise InvalidMessage(
            f"expiration={properties.expiration!r} on a delayed message would end its wait early: the "
            "broker takes the shorter of it and the level's; leave it out"
        )
    for name in COPY_HEADERS:
        if name in properties.headers:
            raise InvalidMessage(
                f"header {name!r} on a delayed message would route copies by keys without a delay; "
                "send one message per endpoint instead"
            )
    copied = BasicProperties.__new__(BasicProperties)
    vars(copied).update(vars(properties))  # once a message: a fifth of the time of copy.copy
    copied.headers = {**properties.headers, DELAY_HEADER: seconds, WAS_DUE_AT: str(due_ms)}
    return copied


def without_deaths(headers: Mapping[str, Any] | None, *others: str) -> dict[str, Any]:
    """A copy without the traces that levels left, which would hinder a second delay, and without others."""
    return {
        name: value
        for name, value in (headers or {}).items()
        if name not in others and not str(name).startswith(DEATH_HEADERS)
    }


def encoded(properties: BasicProperties) -> bytes:
    try:
        return b"".join(properties.encode())
    except Exception as error:  # of values of another type pika raises what it likes
        raise InvalidMessage(
            f"properties cannot be written in AMQP 0-9-1: {error!r}; short strings hold {MAX_NAME_BYTES} "
            "bytes, headers text, bytes, whole numbers, lists and dicts"
        ) from error


def check_encoding(properties: BasicProperties) -> None:
    """Find here what would otherwise end the channel, and with it everyone's messages."""
    size = len(encoded(properties))
    expiration, headers = properties.expiration, properties.headers or {}
    text = "0" if expiration is None else expiration  # bytes do as well, says pika
    if not (text.isascii() and text.isdigit() and int(text) <= MAX_EXPIRATION_MS):
        raise InvalidMessage(
            f"expiration={expiration!r}, for which the broker would end the channel; give milliseconds as "
            f"text, at most {MAX_EXPIRATION_MS}"
        )
    for name in COPY_HEADERS:
        if not isinstance(headers.get(name, []), list):
            raise InvalidMessage(
                f"header {name}={headers[name]!r}, for which the broker would end the channel; give a list "
                "of routing keys"
            )
    if size > MAX_PROPERTIES_BYTES:
        raise MessageTooLarge(
            f"properties and headers of {size} bytes; the limit is {MAX_PROPERTIES_BYTES} (one frame, less "
            f"what {LEVELS} levels add); move some into the body"
        )


PROPERTIES: Final = "sqsdelay.AmqpProperties"
"""The attribute of a stored message that holds them."""


def resendable(properties: BasicProperties) -> BasicProperties:
    """The properties without what belongs to the former send: the broker's traces; its user, since the
    broker takes none but our own; copies, which had their effect when the message came."""
    kept = copy.copy(properties)
    kept.user_id = None
    kept.headers = without_deaths(properties.headers, *COPY_HEADERS, "x-delivery-count")
    return kept


def packed(properties: BasicProperties) -> dict[str, Attribute]:
    """The properties as a stored message's attributes. Raises InvalidMessage: pika reads numbers of more than
    64 bits as well, and writes none."""
    return {PROPERTIES: {"DataType": "Binary", "BinaryValue": encoded(properties)}}


def unpacked(attributes: Mapping[str, Attribute]) -> BasicProperties:
    """The properties that `packed` put in; empty ones where there are none."""
    properties = BasicProperties()
    try:
        if PROPERTIES in attributes:
            properties.decode(attributes[PROPERTIES]["BinaryValue"])
    except Exception as error:  # pika checks nothing: bytes can make it raise what they like
        raise InvalidMessage(
            f"attribute {PROPERTIES} is not what a timeout manager stores: {error!r}; leave it out"
        ) from error
    return properties


def due_of(key: RoutedDelay | None, properties: BasicProperties, *, level: int) -> int | None:
    """When a message waiting in ``level`` is due, epoch milliseconds; None where nothing tells. By our own
    header, NServiceBus's time of sending and delay, or the second at which the broker let it go from the
    level above (rounded up), and the delay from this level down."""
    headers = properties.headers or {}
    due_ms = whole_number(str(headers.get(WAS_DUE_AT, "")))
    delay, deaths = headers.get(DELAY_HEADER), headers.get("x-death")
    if due_ms is None and isinstance(delay, int):
        with suppress(ValueError):
            told = str(headers.get("NServiceBus.TimeSent"))
            sent = datetime.strptime(told, NSERVICEBUS_TIME).replace(tzinfo=UTC)
            due_ms = due_at_ms(sent) + delay * 1000
    if due_ms is None and key is not None and isinstance(deaths, list) and deaths:
        # The broker's list begins with the latest death, its time cut to a whole second.
        at = deaths[0].get("time") if isinstance(deaths[0], dict) else None
        if isinstance(at, datetime):
            entered_ms = int(at.replace(tzinfo=UTC).timestamp() + 1) * 1000
            # Of the delay, this level and those below it hold the last digits.
            due_ms = entered_ms + key.delay_seconds % (1 << (level + 1)) * 1000
    return due_ms if due_ms is not None and 0 <= due_ms <= MAX_DUE_MS else None
