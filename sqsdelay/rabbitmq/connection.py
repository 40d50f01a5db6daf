"""Connections by URL, and the broker's errors translated once."""

from __future__ import annotations

import ssl
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit, urlunsplit

import pika
from pika.exceptions import (
    AMQPConnectionError,
    AMQPError,
    AuthenticationError,
    ChannelClosedByBroker,
    IncompatibleProtocolError,
    ProbableAccessDeniedError,
    ProbableAuthenticationError,
)

from sqsdelay.errors import (
    ConfigurationError,
    InvalidSetting,
    QueueMissing,
    QueueUnavailable,
    SqsDelayError,
)

NOT_FOUND = 404
ACCESS_REFUSED = 403
PRECONDITION_FAILED = 406
_DENIED = (AuthenticationError, ProbableAuthenticationError, ProbableAccessDeniedError)

ADMIN_SECONDS: Final = 30.0
"""The most that an administrative step may take, from when it is connected."""

_EXAMPLE: Final = "amqp://user:password@host:5672/vhost"


@dataclass(frozen=True, slots=True, eq=False)
class Address:
    """A broker: one virtual host, reached through any of its nodes, tried in this order."""

    nodes: tuple[pika.URLParameters, ...]

    @property
    def virtual_host(self) -> str:
        return str(self.nodes[0].virtual_host)

    @property
    def user(self) -> str:
        return _user(self.nodes[0])

    def meets(self, other: Address) -> bool:
        """True if both name the same virtual host of the same node."""

        def places(address: Address) -> set[tuple[str, int, str]]:
            return {(node.host, node.port, node.virtual_host) for node in address.nodes}

        return bool(places(self) & places(other))


def parameters(url: str | Sequence[str]) -> Address:
    """How to reach a broker: ``amqp://user:password@host:5672/vhost``, ``amqps://…`` for TLS.

    Several nodes as kombu takes them, ``amqp://a/v;amqp://b/v`` or a list of URLs, or as hosts in one
    URL: ``amqp://user:password@a,b:5673/vhost``.

    Raises:
        ConfigurationError: no such URL, or nodes that differ in virtual host or user. The message does
            not repeat it, for the password's sake.
    """
    urls = url.split(";") if isinstance(url, str) else list(url)
    nodes = tuple(_node(each) for whole in urls for each in _one_host_each(whole.strip()))
    if len({(node.virtual_host, _user(node)) for node in nodes}) != 1:
        raise InvalidSetting(
            "the RabbitMQ URLs differ in virtual host or user; all nodes of a broker share both: "
            "write e.g. amqp://user:password@host-a,host-b/vhost"
        )
    return Address(nodes)


def _one_host_each(url: str) -> list[str]:
    """A URL for each host of ``amqp://user:password@a,b:5673/vhost``."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return [url]
    login, at, hosts = parts.netloc.rpartition("@")
    return [urlunsplit(parts._replace(netloc=login + at + host)) for host in hosts.split(",")]


def _node(url: str) -> pika.URLParameters:
    if not url.startswith(("amqp://", "amqps://")):
        raise InvalidSetting(
            f"the RabbitMQ URL does not start with amqp:// or amqps://; write e.g. {_EXAMPLE}"
        )
    try:
        given = pika.URLParameters(url)
        given.client_properties = {**(given.client_properties or {}), "product": "sqsdelay"}
    except Exception as error:  # pika evaluates parts of the URL: anything may go wrong
        raise InvalidSetting(
            f"the RabbitMQ URL cannot be used ({type(error).__name__}); write e.g. {_EXAMPLE}"
        ) from None
    return given


def place(given: Address | pika.connection.Parameters) -> str:
    """Hosts, ports and virtual host, fit to be shown."""
    nodes: Sequence[Any] = given.nodes if isinstance(given, Address) else [given]
    hosts = ", ".join(f"{node.host}:{node.port}" for node in nodes)
    return f"{hosts} (virtual host {nodes[0].virtual_host!r})"


class TimedConnection(pika.BlockingConnection):
    """A blocking connection that ends when its time is up, whatever it then waits for.

    pika gives its blocking calls no time limit, and a queue without a leader answers none of them.
    """

    _timer: Any = None

    def allow(self, seconds: float | None) -> None:
        """End the connection in so many seconds, or None for never, and not when it was said before."""
        loop = self._impl.ioloop
        if self._timer is not None:
            loop.remove_timeout(self._timer)
            self._timer = None
        if seconds is None:
            return
        # No public call ends a connection while another waits for its answer.
        self._timer = loop.call_later(
            seconds,
            lambda: self._impl._terminate_stream(TimeoutError(f"no answer within {seconds:g} s")),
        )


@contextmanager
def channel(given: Address, *, seconds: float = ADMIN_SECONDS) -> Iterator[Any]:
    """A blocking channel on a connection of its own, for administration, that ends after ``seconds``.

    Raises:
        QueueUnavailable, ConfigurationError, QueueMissing: see `translated`.
    """
    try:
        connection = TimedConnection(list(given.nodes))
        with connection:
            connection.allow(seconds)
            yield connection.channel()
    except (AMQPError, OSError) as error:
        raise translated(error, given) from error


def is_denied(error: BaseException) -> bool:
    """True for an error that no later attempt will cure: not let in, or no TLS between the two."""
    return isinstance(error, _DENIED) or _is_tls_mismatch(_cause(error))


def _is_tls_mismatch(cause: BaseException) -> bool:
    return isinstance(cause, ssl.SSLCertVerificationError) or (
        isinstance(cause, ssl.SSLError) and "WRONG_VERSION_NUMBER" in str(cause)
    )


def translated(error: BaseException, given: Address | pika.connection.Parameters) -> SqsDelayError:
    """The error to raise for what pika raised."""
    where = place(given)
    if isinstance(error, _DENIED):
        return ConfigurationError(
            f"RabbitMQ at {where} refused the user {_user(given)!r}; check user, password and virtual host"
        )
    if isinstance(error, ChannelClosedByBroker):
        return refusal(error.reply_code, error.reply_text, where)
    cause = _cause(error)
    if isinstance(cause, ssl.SSLError):
        return _tls_error(cause, where)
    if isinstance(error, AMQPConnectionError) or isinstance(cause, OSError):
        return QueueUnavailable(f"RabbitMQ at {where} cannot be reached: {cause}; {_remedy(cause)}")
    return QueueUnavailable(f"RabbitMQ at {where} failed: {error!r}; try again later")


def _tls_error(error: ssl.SSLError, where: str) -> SqsDelayError:
    if isinstance(error, ssl.SSLCertVerificationError):
        return ConfigurationError(
            f"TLS with RabbitMQ at {where} failed: its certificate is not trusted: {error}; set "
            "SSL_CERT_FILE to its CA certificate, and use the host name in the certificate"
        )
    kind = ConfigurationError if _is_tls_mismatch(error) else QueueUnavailable
    return kind(
        f"TLS with RabbitMQ at {where} failed: {error}; check that the port uses TLS (default: 5671), "
        "or write amqp:// if it does not"
    )


def _remedy(cause: BaseException) -> str:
    if isinstance(cause, IncompatibleProtocolError):
        return "if the port uses TLS, write amqps://; otherwise try again later"
    return "try again later"


def refusal(code: int, text: str, where: str) -> SqsDelayError:
    """The error to raise where the broker closed a channel."""
    if code == NOT_FOUND and "no queue" in text:
        return QueueMissing(f"RabbitMQ at {where}: {text}; create the queue, or correct the name")
    if code == NOT_FOUND:
        return ConfigurationError(
            f"RabbitMQ at {where}: {text}; declare the delay infrastructure with: "
            "sqsdelay rabbitmq declare"
        )
    if code == ACCESS_REFUSED:
        return ConfigurationError(f"RabbitMQ at {where}: {text}; give the user that permission")
    if code == PRECONDITION_FAILED:
        return ConfigurationError(f"RabbitMQ at {where}: {text}")
    return QueueUnavailable(f"RabbitMQ at {where} closed the channel: {code} {text}")


def _cause(error: BaseException) -> BaseException:
    """What pika wrapped, up to four layers deep: the plain "Connection refused"."""
    attempts = getattr(error, "exceptions", None)
    inner = attempts[-1] if attempts else getattr(error, "exception", None)
    if inner is None and error.args and isinstance(error.args[0], BaseException):
        inner = error.args[0]
    return _cause(inner) if isinstance(inner, BaseException) else error


def _user(given: Address | pika.connection.Parameters) -> str:
    if isinstance(given, Address):
        return given.user
    return str(getattr(given.credentials, "username", "unknown"))
