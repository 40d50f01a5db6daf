"""Connections by URL, and the broker's errors translated once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pika
from pika.exceptions import (
    AMQPConnectionError,
    AMQPError,
    AuthenticationError,
    ChannelClosedByBroker,
    ProbableAccessDeniedError,
    ProbableAuthenticationError,
)

from sqsdelay.errors import ConfigurationError, QueueMissing, QueueUnavailable, SqsDelayError

NOT_FOUND = 404
ACCESS_REFUSED = 403
PRECONDITION_FAILED = 406
_DENIED = (AuthenticationError, ProbableAuthenticationError, ProbableAccessDeniedError)


def parameters(url: str) -> pika.URLParameters:
    """How to reach a broker: ``amqp://user:password@host:5672/vhost``, ``amqps://…`` for TLS.

    Raises:
        ConfigurationError: no such URL. The message does not repeat it, for the password's sake.
    """
    if not url.startswith(("amqp://", "amqps://")):
        raise ConfigurationError(
            "the RabbitMQ URL does not start with amqp:// or amqps://; "
            "write e.g. amqp://user:password@host:5672/vhost"
        )
    try:
        given = pika.URLParameters(url)
        given.client_properties = {**(given.client_properties or {}), "product": "sqsdelay"}
    except Exception as error:  # pika evaluates parts of the URL: anything may go wrong
        raise ConfigurationError(
            f"the RabbitMQ URL cannot be used ({type(error).__name__}); "
            "write e.g. amqp://user:password@host:5672/vhost"
        ) from None
    return given


def place(given: pika.connection.Parameters) -> str:
    """Host, port and virtual host, fit to be shown."""
    return f"{given.host}:{given.port} (virtual host {given.virtual_host!r})"


@contextmanager
def channel(given: pika.connection.Parameters) -> Iterator[Any]:
    """A blocking channel on a connection of its own, for administration.

    Raises:
        QueueUnavailable, ConfigurationError, QueueMissing: see `translated`.
    """
    try:
        with pika.BlockingConnection(given) as connection:
            yield connection.channel()
    except (AMQPError, OSError) as error:
        raise translated(error, given) from error


def is_denied(error: BaseException) -> bool:
    """True for an error that no later attempt will cure: the broker does not let us in."""
    return isinstance(error, _DENIED)


def translated(error: BaseException, given: pika.connection.Parameters) -> SqsDelayError:
    """The error to raise for what pika raised."""
    where = place(given)
    if is_denied(error):
        return ConfigurationError(
            f"RabbitMQ at {where} does not let {_user(given)!r} in; check user, password and virtual host"
        )
    if isinstance(error, ChannelClosedByBroker):
        return refusal(error.reply_code, error.reply_text, where)
    if isinstance(error, AMQPConnectionError | OSError):
        return QueueUnavailable(
            f"RabbitMQ at {where} cannot be reached: {_cause(error)}; try again later"
        )
    return QueueUnavailable(f"RabbitMQ at {where} failed: {error!r}; try again later")


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


def _user(given: pika.connection.Parameters) -> str:
    return str(getattr(given.credentials, "username", "unknown"))
