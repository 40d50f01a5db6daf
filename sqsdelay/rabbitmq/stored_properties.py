"""A message's AMQP properties as they wait in a store: encoded, so that every type comes out as it
went in."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Final

from pika import BasicProperties

from sqsdelay.core.message import Attribute
from sqsdelay.errors import InvalidMessage
from sqsdelay.rabbitmq.message import COPY_HEADERS, DEATH_HEADERS

PROPERTIES: Final = "sqsdelay.AmqpProperties"
"""The attribute of a stored message that holds them."""

_DELIVERY_COUNT: Final = "x-delivery-count"
"""What a quorum queue adds to a message that it delivers.
Source: rabbitmq.com/docs/quorum-queues, "Poison Message Handling"."""


def resendable(properties: BasicProperties) -> BasicProperties:
    """The properties without what belongs to the former send: the broker's traces, its user, copies.

    ``CC`` has had its effect when the message came; the broker takes no ``user_id`` but our own.
    """
    kept = copy.copy(properties)
    kept.user_id = None
    kept.headers = {
        name: value
        for name, value in (properties.headers or {}).items()
        if name not in (*COPY_HEADERS, _DELIVERY_COUNT) and not name.startswith(DEATH_HEADERS)
    }
    return kept


def packed(properties: BasicProperties) -> dict[str, Attribute]:
    """The properties as a stored message's attributes."""
    encoded = b"".join(properties.encode())
    return {PROPERTIES: {"DataType": "Binary", "BinaryValue": encoded}}


def unpacked(attributes: Mapping[str, Attribute]) -> BasicProperties:
    """The properties that `packed` put in; empty ones where there are none.

    Raises:
        InvalidMessage: they cannot be read.
    """
    if PROPERTIES not in attributes:
        return BasicProperties()
    try:
        properties = BasicProperties()
        properties.decode(attributes[PROPERTIES]["BinaryValue"])
    except Exception as error:  # pika checks nothing: bytes can make it raise what they like
        raise InvalidMessage(
            f"attribute {PROPERTIES} is not what a timeout manager stores: {error!r}; leave it out"
        ) from error
    return properties
