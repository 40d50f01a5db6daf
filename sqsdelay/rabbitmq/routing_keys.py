"""Routing keys: a delay in binary, one digit per level, then the endpoint's name."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from sqsdelay.errors import DelayTooLong, InvalidEndpoint
from sqsdelay.rabbitmq.topology import (
    KEY_BYTES,
    LEVELS,
    MAX_DELAY_SECONDS,
    MAX_ENDPOINT_BYTES,
    MAX_NAME_BYTES,
)

_KEY: Final = re.compile(rf"((?:[01]\.){{{LEVELS}}})(.+)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class RoutedDelay:
    """What a routing key says: the whole delay in seconds, and where to."""

    delay_seconds: int
    endpoint: str

    def from_level(self, level: int) -> int:
        """The part of the delay in seconds that this level and those below it hold."""
        return self.delay_seconds % (1 << (level + 1))


def check_queue_name(endpoint: str) -> str:
    """``endpoint`` itself, if a message can be routed to it.

    Raises:
        InvalidEndpoint: empty, too long, not encodable, or with a wildcard for a word.
    """
    if not isinstance(endpoint, str) or not endpoint:
        raise InvalidEndpoint(f"endpoint {endpoint!r} is no queue name; give a non-empty string")
    try:
        size = len(endpoint.encode())
    except UnicodeEncodeError as error:
        raise InvalidEndpoint(
            f"endpoint {endpoint!r} cannot be written in UTF-8: {error.reason}; correct the name"
        ) from error
    if size > MAX_ENDPOINT_BYTES:
        raise InvalidEndpoint(
            f"endpoint {endpoint[:40]!r}… has {size} bytes in UTF-8; the most is {MAX_ENDPOINT_BYTES} "
            f"(a routing key holds {MAX_NAME_BYTES}, {KEY_BYTES} are the delay); shorten it"
        )
    if {"*", "#"} & set(endpoint.split(".")):
        raise InvalidEndpoint(
            f"endpoint {endpoint!r} has '*' or '#' for a word, which a topic binding reads as a "
            "wildcard: it would take the messages of others; rename the queue"
        )
    return endpoint


def check_delay(seconds: int) -> int:
    """``seconds`` itself, if 28 levels can hold it.

    Raises:
        DelayTooLong: with value, limit and remedy.
    """
    if seconds > MAX_DELAY_SECONDS:
        raise DelayTooLong(
            f"delay of {seconds} s is above the {MAX_DELAY_SECONDS} s that {LEVELS} delay levels hold "
            "(about 8.5 years); shorten it, or keep the message in a store until nearer its due time"
        )
    return seconds


def routing_key(seconds: int, endpoint: str) -> str:
    """The routing key of a checked delay and endpoint: ``0.0.…1.0.1.orders`` for 5 s."""
    return f"{'.'.join(f'{seconds:0{LEVELS}b}')}.{endpoint}"


def entry_level(seconds: int) -> int:
    """The level of the highest set bit: publishing there spares the levels that would only pass it on."""
    return max(0, seconds.bit_length() - 1)


def binding_key(endpoint: str) -> str:
    """What binds an endpoint to the delivery exchange, and nothing else to it.

    NServiceBus binds ``#.orders``, which also takes what is meant for ``eu.orders``.
    """
    return "*." * LEVELS + endpoint


def read_key(key: str) -> RoutedDelay | None:
    """What a routing key says, or None where it is none of ours."""
    match = _KEY.fullmatch(key)
    if match is None:
        return None
    return RoutedDelay(int(match[1].replace(".", ""), 2), match[2])
