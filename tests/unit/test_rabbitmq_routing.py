"""Routing keys, bindings, the infrastructure as data, URLs; when a message found in a level is due."""

from __future__ import annotations

import re
import ssl
from collections.abc import Callable
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pika import BasicProperties

from sqsdelay.errors import (
    ConfigurationError,
    DelayTooLong,
    InvalidEndpoint,
    QueueUnavailable,
    SendFailed,
    SqsDelayError,
)
from sqsdelay.rabbitmq import RabbitMqSender
from sqsdelay.rabbitmq.connection import parameters, translated
from sqsdelay.rabbitmq.link import Outstanding, Publication
from sqsdelay.rabbitmq.message import due_of
from sqsdelay.rabbitmq.topology import (
    MAX_DELAY_SECONDS,
    RoutedDelay,
    Topology,
    binding_key,
    check_queue_name,
    entry_level,
    read_key,
    routing_key,
)


def matches(binding: str, key: str) -> bool:
    """Topic matching as AMQP 0-9-1 defines it: '*' is one word, '#' any number of them."""

    def step(pattern: list[str], words: list[str]) -> bool:
        if not pattern:
            return not words
        if pattern[0] == "#":
            return any(step(pattern[1:], words[n:]) for n in range(len(words) + 1))
        return bool(words) and pattern[0] in ("*", words[0]) and step(pattern[1:], words[1:])

    return step(binding.split("."), key.split("."))


def walk(topology: Topology, exchange: str, key: str) -> tuple[int, list[str]]:
    """Follow a message through the data alone: seconds waited, and the queues it waited in."""
    ttl = {q.name: int(q.arguments.get("x-message-ttl", 0)) // 1000 for q in topology.queues()}
    onward = {q.name: str(q.arguments.get("x-dead-letter-exchange")) for q in topology.queues()}
    bindings = list(topology.bindings())
    waited, visited = 0, []
    while exchange != topology.delivery_exchange:
        (taken,) = [b for b in bindings if b.source == exchange and matches(b.routing_key, key)]
        if taken.kind == "exchange":
            exchange = taken.destination
        else:
            waited += ttl[taken.destination]
            visited.append(taken.destination)
            exchange = onward[taken.destination]
    return waited, visited


@given(st.integers(0, MAX_DELAY_SECONDS))
def test_every_delay_waits_exactly_its_seconds(seconds: int) -> None:
    """At each level one binding matches, and the levels visited add up to the delay."""
    topology = Topology("nsb.v2")
    start = topology.level_name(entry_level(seconds))
    waited, visited = walk(topology, start, routing_key(seconds, "eu.orders"))
    assert waited == seconds
    assert len(visited) == seconds.bit_count()
    # The same from the top, as NServiceBus's own documentation draws it.
    assert walk(topology, topology.level_name(27), routing_key(seconds, "eu.orders"))[0] == seconds


def test_the_seeds_walk_of_five_seconds() -> None:
    """5 s wait 4 s in level 2 and 1 s in level 0. The key is the documented one: 28 digits, highest level
    first, then the endpoint."""
    topology, key = Topology("nsb.v2"), routing_key(5, "destination")
    assert key == "0." * 25 + "1.0.1.destination"
    assert routing_key(MAX_DELAY_SECONDS, "d") == "1." * 28 + "d"
    waits = (5, ["nsb.v2.delay-level-02", "nsb.v2.delay-level-00"])
    assert walk(topology, topology.level_name(2), key) == waits


def test_messages_enter_at_their_highest_bit() -> None:
    """Levels above the highest bit would only cost the broker time."""
    levels = {0: 0, 1: 0, 2: 1, 5: 2, 900: 9, 2**27: 27, 2**28 - 1: 27}
    assert {seconds: entry_level(seconds) for seconds in levels} == levels


def test_a_29_bit_delay_is_refused_not_wrapped() -> None:
    """2^28 s cut to 28 bits would arrive at once."""
    told = r"268435456 s exceeds the 268435455 s .* keep the message in a store"
    with RabbitMqSender("amqp://") as sender, pytest.raises(DelayTooLong, match=told):
        sender.send("orders", "a", delay=268_435_456)


def test_a_binding_takes_its_endpoint_and_no_other() -> None:
    """NServiceBus's '#.orders' would also take what is meant for 'eu.orders'."""
    assert matches("#.orders", routing_key(5, "eu.orders"))
    assert not matches(binding_key("orders"), routing_key(5, "eu.orders"))
    assert matches(binding_key("orders"), routing_key(5, "orders"))
    assert matches(binding_key("eu.orders"), routing_key(5, "eu.orders"))


@pytest.mark.parametrize(
    "endpoint", ["orders", "eu.orders", "a..b", "заказы.日本", "x" * 199, "1.0.1"]
)
def test_keys_are_read_back(endpoint: str) -> None:
    """A key says its delay and its endpoint, dots and digits in the name included."""
    assert read_key(routing_key(5, check_queue_name(endpoint))) == RoutedDelay(5, endpoint)


@pytest.mark.parametrize("key", ["orders", "0.1.orders", "0." * 28, "2." + "0." * 27 + "orders"])
def test_foreign_keys_are_recognised(key: str) -> None:
    """What does not start with 28 digits and name an endpoint is none of ours."""
    assert read_key(key) is None


@pytest.mark.parametrize(
    ("endpoint", "text"),
    [
        ("", "give a non-empty string"),
        ("x" * 200, "has 200 bytes in UTF-8; the limit is 199"),
        ("я" * 100, "has 200 bytes in UTF-8; the limit is 199"),
        ("a.#", "for a word"),
        ("*", "for a word"),
        ("a\ud800", "cannot be written in UTF-8"),
    ],
)
def test_endpoints_that_cannot_be_routed_to_are_refused(endpoint: str, text: str) -> None:
    """Nothing is cut short or turned into a wildcard."""
    with pytest.raises(InvalidEndpoint, match=re.escape(text)):
        check_queue_name(endpoint)


def test_names_and_arguments_of_a_level() -> None:
    """What NServiceBus declares for level 3, spelt out."""
    queue = next(q for q in Topology("nsb.v2").queues() if q.name == "nsb.v2.delay-level-03")
    assert dict(queue.arguments) == {
        "x-queue-type": "quorum",
        "x-dead-letter-strategy": "at-least-once",
        "x-overflow": "reject-publish",
        "x-message-ttl": 8000,
        "x-dead-letter-exchange": "nsb.v2.delay-level-02",
    }


def test_only_our_own_have_a_delivery_limit_and_an_alternate() -> None:
    """RabbitMQ 4 dead-letters after 20 looks where none is given, and the message arrives early. NServiceBus
    declares its exchange without arguments, and would find ours different."""
    assert {q.arguments.get("x-delivery-limit") for q in Topology("acme").queues()} == {2**31 - 1}
    shared = {e.name: dict(e.arguments) for e in Topology("nsb.v2").exchanges()}
    own = {e.name: dict(e.arguments) for e in Topology("acme").exchanges()}
    assert shared["nsb.v2.delay-delivery"] == {}
    assert own["acme.delay-delivery"] == {"alternate-exchange": "acme.delay-undeliverable"}


@pytest.mark.parametrize("prefix", ["", "amq.x", "x" * 240])
def test_prefixes_that_make_no_names_are_refused(prefix: str) -> None:
    """Before anything is declared under a name the broker cuts or refuses."""
    with pytest.raises(ConfigurationError, match="give a short word"):
        Topology(prefix)


SENT = datetime(2026, 11, 20, 12, 0, 0, tzinfo=UTC)
SENT_MS = int(SENT.timestamp()) * 1000
DEATHS = {"x-death": [{"queue": "nsb.v2.delay-level-03", "time": SENT}]}
NSERVICEBUS = {
    "NServiceBus.TimeSent": "2026-11-20 12:00:00:000001 Z",
    "NServiceBus.Transport.RabbitMQ.DelayInSeconds": 13,
}
NO_TIMES = {"sqsdelay.WasDueAt": "soon", "NServiceBus.TimeSent": "today", "x-death": []}


@pytest.mark.parametrize(
    ("level", "headers", "due_ms"),
    [
        (3, {"sqsdelay.WasDueAt": "1700000000123", **DEATHS}, 1700000000123),  # exact
        (3, NSERVICEBUS, SENT_MS + 1 + 13_000),  # its microseconds are rounded up
        # The broker notes whole seconds, cut off: one is added, so that it is never early.
        (2, DEATHS, SENT_MS + 1000 + 5000),
        (3, DEATHS, SENT_MS + 1000 + 13_000),
        (3, {}, None),
        (3, NO_TIMES, None),
    ],
)
def test_when_a_waiting_message_is_due(
    level: int, headers: dict[str, object], due_ms: int | None
) -> None:
    """Our own due time comes first, then NServiceBus's time of sending, then the last level. One that says
    nothing stays where it is rather than be early or late."""
    found = due_of(RoutedDelay(0b1101, "orders"), BasicProperties(headers=headers), level=level)
    assert found == due_ms


# Confirms settle exactly what they answer for.

REFUSED = SendFailed("refused", code="nack", transient=True)
Settled = list[tuple[str, SqsDelayError | None]]


def three() -> tuple[Outstanding, Settled]:
    """Publications a, b and c, written at 10, 20 and 30 s, and the list of what settles."""
    outstanding, settled = Outstanding(), Settled()
    for number, name in enumerate("abc", start=1):
        publication = Publication("", name, b"", BasicProperties(message_id=name))
        publication.on_settled = _noting(settled, name)
        outstanding.add(publication, begins_at=number, ends_at=number + 1)
        outstanding.taken(up_to=number + 1, now=number * 10.0)
    return outstanding, settled


def _noting(settled: Settled, name: str) -> Callable[[Publication], None]:
    return lambda each: settled.append((name, each.error))


def test_confirms_out_of_order() -> None:
    """Queues confirm at their own pace."""
    outstanding, settled = three()
    outstanding.answered(3, multiple=False)
    outstanding.answered(1, multiple=False, error=REFUSED)
    assert settled == [("c", None), ("a", REFUSED)]
    assert len(outstanding) == 1


def test_one_confirm_for_several() -> None:
    """``multiple`` answers for all up to its tag, and none beyond."""
    outstanding, settled = three()
    outstanding.answered(2, multiple=True)
    assert settled == [("a", None), ("b", None)]


def test_a_late_or_repeated_confirm_changes_nothing() -> None:
    """What was given up stays given up."""
    outstanding, settled = three()
    outstanding.give_up(REFUSED, lambda each: each.written_at < 25.0)
    outstanding.answered(1, multiple=False)
    outstanding.answered(2, multiple=True)
    outstanding.oldest.settle(REFUSED)  # by its call's deadline
    outstanding.answered(3, multiple=False)
    assert settled == [("a", REFUSED), ("b", REFUSED), ("c", REFUSED)]


def test_a_returned_message_fails_when_its_ack_comes() -> None:
    """The broker acknowledges what it could not route, after saying so."""
    outstanding, settled = three()
    outstanding.returned(("", "b", "b"), REFUSED)
    outstanding.returned(("", "b", "b"), REFUSED)  # no second such message: nobody else is blamed
    assert settled == []
    outstanding.answered(3, multiple=True)
    assert settled == [("a", None), ("b", REFUSED), ("c", None)]


@pytest.mark.parametrize(
    "url",
    [
        "amqp://u:p%2Cw@a:5671,b,[::1]:5673/shop?heartbeat=7",
        "amqp://u:p%2Cw@a:5671/shop?heartbeat=7;amqp://u:p%2Cw@b/shop?heartbeat=7;"
        "amqp://u:p%2Cw@[::1]:5673/shop?heartbeat=7",
        ["amqp://u:p%2Cw@a:5671,b/shop?heartbeat=7", "amqp://u:p%2Cw@[::1]:5673/shop?heartbeat=7"],
    ],
)
def test_several_nodes(url: str | list[str]) -> None:
    """Hosts with commas, URLs with semicolons, a list of URLs: the same broker."""
    address = parameters(url)
    nodes = [(node.host, node.port) for node in address.nodes]
    assert nodes == [("a", 5671), ("b", 5672), ("::1", 5673)]
    assert {node.heartbeat for node in address.nodes} == {7}
    assert {getattr(node.credentials, "password", "") for node in address.nodes} == {"p,w"}
    assert (address.user, address.virtual_host) == ("u", "shop")
    assert str(address) == "a:5671, b:5672, ::1:5673 (virtual host 'shop')"


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("amqp://u:sesame@a/shop;amqp://u:sesame@b/other", "differ in virtual host or user"),
        ("amqp://u:sesame@a/shop;amqp://v:sesame@b/shop", "differ in virtual host or user"),
        ("amqp://u:sesame@a/shop;", "does not start with amqp://"),
        ("amqp://u:sesame@a:x,b/shop", "cannot be used"),
        ([], "differ in virtual host or user"),
    ],
)
def test_urls_that_are_no_broker(url: str | list[str], text: str) -> None:
    """The error does not show the password."""
    with pytest.raises(ConfigurationError, match=text) as caught:
        parameters(url)
    assert "sesame" not in str(caught.value)


def test_the_same_place_by_any_of_its_nodes() -> None:
    """What transfer asks, lest it move messages in a circle."""
    one = parameters("amqp://a,b/shop")
    assert one.meets(parameters("amqp://c;amqp://b".replace(";", "/shop;") + "/shop"))
    assert not one.meets(parameters("amqp://a/other"))


def test_tls_errors_say_tls() -> None:
    """And what to do; those that no attempt will cure are not tried again."""
    given = parameters("amqps://a/shop")
    untrusted = ssl.SSLCertVerificationError(1, "certificate verify failed: self-signed")
    error = translated(untrusted, given)
    assert isinstance(error, ConfigurationError)
    assert str(error).startswith("TLS with RabbitMQ at a:5671 (virtual host 'shop') failed")
    assert "SSL_CERT_FILE" in str(error)
    error = translated(ssl.SSLError(1, "sslv3 alert handshake failure"), given)
    assert isinstance(error, QueueUnavailable)
    assert "TLS with RabbitMQ" in str(error)
