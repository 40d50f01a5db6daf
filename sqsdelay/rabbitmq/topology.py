"""Delay levels, their queues and exchanges, and the routing keys that say through which a message goes."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

from sqsdelay.core.readable import Problem
from sqsdelay.errors import InvalidEndpoint, InvalidSetting

LEVELS: Final = 28
"""Delay levels, and bits of a delay. All else about them is derived from this number."""

MAX_LEVEL: Final = LEVELS - 1
MAX_DELAY_SECONDS: Final = 2**LEVELS - 1
"""268,435,455 s, about 8.5 years."""

OWN_PREFIX: Final = "sqsdelay"
"""The prefix of an infrastructure of ours, whose delivery exchange catches the undeliverable."""

SHARED_PREFIX: Final = "nsb.v2"
"""The prefix of NServiceBus's own infrastructure (version 2, quorum queues)."""

MAX_NAME_BYTES: Final = 255
"""Names of exchanges and queues, and routing keys: an AMQP 0-9-1 short string, in UTF-8.
Source: AMQP 0-9-1 specification, section 4.2.5.3."""

MAX_ENDPOINT_BYTES: Final = MAX_NAME_BYTES - 2 * LEVELS
"""What a routing key leaves for the endpoint's name, with a digit and a dot per level: 199 bytes."""

PROBE: Final = "sqsdelay-probe-"
"""How the name of nobody's queue starts, for which a message finds out whether it is caught."""

DELIVERY_LIMIT: Final = 2**31 - 1
"""Deliveries of a message before the broker drops it, or dead-letters it from a level: early. RabbitMQ
4.0 does so after 20 by default, and each look at the queue is a delivery. Source:
rabbitmq.com/docs/quorum-queues, "Poison Message Handling"."""


Arguments = Mapping[str, str | int]
_NONE: Final[Arguments] = {}


class Place(NamedTuple):
    """A durable exchange or queue."""

    kind: Literal["exchange", "queue"]
    name: str
    type: str = "topic"
    arguments: Arguments = _NONE


class Binding(NamedTuple):
    """From an exchange to a queue, or to another exchange."""

    source: str
    destination: str
    routing_key: str
    kind: Literal["exchange", "queue"] = "queue"


def quorum_queue(name: str, more: Arguments = _NONE) -> Place:
    return Place("queue", name, "quorum", {"x-queue-type": "quorum", **more})


def lasting_queue(name: str, more: Arguments = _NONE) -> Place:
    """A queue whose messages stay until someone takes them, however often they are looked at."""
    return quorum_queue(name, {"x-delivery-limit": DELIVERY_LIMIT, **more})


def _waiting(ttl_ms: int, onward: str) -> Arguments:
    """Messages wait so long, and then until the next queue confirms them."""
    return {
        "x-dead-letter-strategy": "at-least-once",
        "x-overflow": "reject-publish",
        "x-message-ttl": ttl_ms,
        "x-dead-letter-exchange": onward,
    }


@dataclass(frozen=True, slots=True)
class Topology:
    """One delay infrastructure on a virtual host.

    Args:
        prefix: what every name starts with. ``nsb.v2`` is NServiceBus's infrastructure and equal to
            what it declares itself. Any other prefix, as the default, makes one of our own: there each
            endpoint has a hand-over queue, and messages for an endpoint that has none are caught.

    Raises:
        ConfigurationError: an empty prefix, or one too long for the names made from it.
    """

    prefix: str = OWN_PREFIX

    def __post_init__(self) -> None:
        size = len(self.undeliverable.encode("utf-8", "surrogatepass"))
        if not self.prefix or self.prefix.startswith("amq.") or size > MAX_NAME_BYTES:
            raise InvalidSetting(
                f"prefix {self.prefix!r} cannot start a queue's name (it makes {size} bytes of at most "
                f"{MAX_NAME_BYTES}; 'amq.' is the broker's own); give a short word, e.g. 'acme'"
            )

    @property
    def shared(self) -> bool:
        """True where an NServiceBus endpoint may declare the same infrastructure."""
        return self.prefix == SHARED_PREFIX

    def command(self, *words: str) -> str:
        """``sqsdelay rabbitmq …`` on this infrastructure, to be pasted into a shell."""
        return shlex.join(["sqsdelay", "rabbitmq", "--prefix", self.prefix, *words])

    @property
    def delivery_exchange(self) -> str:
        return f"{self.prefix}.delay-delivery"

    @property
    def undeliverable(self) -> str:
        """The exchange, and the queue, of messages whose endpoint is not bound when they are due."""
        return f"{self.prefix}.delay-undeliverable"

    @property
    def hand_over(self) -> str:
        """The exchange from hand-over queues to endpoints; with a dot, how these queues' names start."""
        return f"{self.prefix}.delay-hand-over"

    def way(self, endpoint: str) -> list[Place | Binding]:
        """What brings an endpoint's due messages to its queue, its last step first. A level hands over one
        after the other: were the endpoint's queue its next place, a full one would hold up all others'
        messages. So, where not shared, they wait in a hand-over queue of its own while it refuses them."""
        key = binding_key(endpoint)
        if self.shared:
            return [Binding(self.delivery_exchange, endpoint, key)]
        name = f"{self.hand_over}.{endpoint}"
        size = len(name.encode())
        if size > MAX_NAME_BYTES:
            raise InvalidEndpoint(
                f"endpoint {endpoint[:40]!r}… makes a hand-over queue's name of {size} bytes with the "
                f"prefix {self.prefix!r}; the limit is {MAX_NAME_BYTES}; shorten either"
            )
        return [
            Binding(self.hand_over, endpoint, key),
            lasting_queue(name, _waiting(0, self.hand_over)),
            Binding(self.delivery_exchange, name, key),
        ]

    def uncaught(self, virtual_host: str) -> Problem:
        """What is wrong where NServiceBus's infrastructure lacks the policy that catches what is lost."""
        pattern = re.escape(self.delivery_exchange).replace("\\-", "-")
        return Problem(
            f"exchange {self.delivery_exchange}",
            "has no alternate exchange: messages for an unbound endpoint block all others for minutes",
            f"rabbitmqctl set_policy -p '{virtual_host}' --apply-to exchanges {self.undeliverable} "
            f"'^{pattern}$' '{{\"alternate-exchange\":\"{self.undeliverable}\"}}'",
            fatal=False,
        )

    def level_name(self, level: int) -> str:
        """The name of a level's exchange and of its queue."""
        return f"{self.prefix}.delay-level-{level:02}"

    def after(self, level: int) -> str:
        """The exchange a message goes to from a level: the next one down, at last the delivery."""
        return self.level_name(level - 1) if level else self.delivery_exchange

    def exchanges(self) -> Iterator[Place]:
        """Every exchange, alternates before those that name them."""
        yield Place("exchange", self.undeliverable, "fanout")
        alternate = {} if self.shared else {"alternate-exchange": self.undeliverable}
        if not self.shared:
            yield Place("exchange", self.hand_over, arguments=alternate)
        yield Place("exchange", self.delivery_exchange, arguments=alternate)
        for level in range(LEVELS):
            yield Place("exchange", self.level_name(level))

    def queues(self) -> Iterator[Place]:
        """Every queue but those of endpoints: the levels, which wait 2^level seconds, and the catch-all.
        NServiceBus's levels have no delivery limit of their own: on RabbitMQ 4 a policy must set it."""
        yield lasting_queue(self.undeliverable)
        declared = quorum_queue if self.shared else lasting_queue
        for level in range(LEVELS):
            yield declared(self.level_name(level), _waiting(2**level * 1000, self.after(level)))

    def bindings(self) -> Iterator[Binding]:
        """Every binding: bit 1 waits in the level's queue, bit 0 passes on at once."""
        yield Binding(self.undeliverable, self.undeliverable, "")
        for level in range(LEVELS):
            name, higher = self.level_name(level), "*." * (MAX_LEVEL - level)
            yield Binding(name, name, f"{higher}1.#")
            yield Binding(name, self.after(level), f"{higher}0.#", "exchange")


_NAME: Final = re.compile(r"(.+)\.delay-(?:level-\d\d|delivery|hand-over)", re.DOTALL)


def declare_command(name: str) -> str:
    """The command that declares the infrastructure to which an exchange or queue of this name belongs."""
    match = _NAME.search(name)
    return Topology(match[1]).command("declare") if match else "sqsdelay rabbitmq declare"


_KEY: Final = re.compile(rf"((?:[01]\.){{{LEVELS}}})(.+)", re.DOTALL)


class RoutedDelay(NamedTuple):
    """What a routing key says: the whole delay in seconds, and where to."""

    delay_seconds: int
    endpoint: str


def check_queue_name(endpoint: str) -> str:
    """``endpoint`` itself, if a message can be routed to it."""
    if not isinstance(endpoint, str) or not endpoint:
        raise InvalidEndpoint(f"endpoint {endpoint!r} is not a queue name; give a non-empty string")
    try:
        size = len(endpoint.encode())
    except UnicodeEncodeError as error:
        raise InvalidEndpoint(
            f"endpoint {endpoint!r} cannot be written in UTF-8: {error.reason}; correct the name"
        ) from error
    if size > MAX_ENDPOINT_BYTES:
        raise InvalidEndpoint(
            f"endpoint {endpoint[:40]!r}… has {size} bytes in UTF-8; the limit is {MAX_ENDPOINT_BYTES} "
            f"(a routing key holds {MAX_NAME_BYTES}, {2 * LEVELS} are the delay); shorten it"
        )
    if {"*", "#"} & set(endpoint.split(".")):
        raise InvalidEndpoint(
            f"endpoint {endpoint!r} has '*' or '#' for a word, which a topic binding reads as a "
            "wildcard: it would receive other endpoints' messages; rename the queue"
        )
    return endpoint


def routing_key(seconds: int, endpoint: str) -> str:
    """The routing key of a checked delay and endpoint: ``0.0.…1.0.1.orders`` for 5 s."""
    return f"{'.'.join(f'{seconds:0{LEVELS}b}')}.{endpoint}"


def entry_level(seconds: int) -> int:
    """The level of the highest set bit: publishing there spares the levels that would only pass it on."""
    return max(0, seconds.bit_length() - 1)


def binding_key(endpoint: str) -> str:
    """What binds an endpoint to the delivery exchange, and nothing else to it. NServiceBus binds
    ``#.orders``, which also takes what is meant for ``eu.orders``."""
    return "*." * LEVELS + endpoint


def read_key(key: str) -> RoutedDelay | None:
    """What a routing key says, or None where it is none of ours."""
    match = _KEY.fullmatch(key)
    return match and RoutedDelay(int(match[1].replace(".", ""), 2), match[2])
