"""RabbitMQ URLs: one node or several, as pika and kombu take them."""

from __future__ import annotations

import ssl

import pytest

from sqsdelay.errors import ConfigurationError, QueueUnavailable
from sqsdelay.rabbitmq.connection import parameters, translated


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
