"""Addresses, the broker's errors translated once, and the one way to open a connection."""

from __future__ import annotations

import re
import ssl
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import inf
from typing import Any, Final, Self

import pika
from pika import exceptions
from pika.adapters.select_connection import IOLoop
from pika.adapters.utils.selector_ioloop_adapter import SelectorIOServicesAdapter

from sqsdelay import errors
from sqsdelay.errors import ConfigurationError, InvalidSetting, QueueUnavailable, SqsDelayError
from sqsdelay.rabbitmq.topology import declare_command

NOT_FOUND = 404
ACCESS_REFUSED = 403
PRECONDITION_FAILED = 406

_EXAMPLE: Final = "amqp://user:password@host:5672/vhost"


@dataclass(frozen=True, slots=True, eq=False)
class Address:
    """A broker: one virtual host, reached through any of its nodes, tried in this order."""

    nodes: tuple[pika.URLParameters, ...]

    def __str__(self) -> str:
        """Hosts, ports and virtual host, fit to be shown."""
        hosts = ", ".join(f"{node.host}:{node.port}" for node in self.nodes)
        return f"{hosts} (virtual host {self.virtual_host!r})"

    @property
    def virtual_host(self) -> str:
        return str(self.nodes[0].virtual_host)

    @property
    def user(self) -> str:
        return str(getattr(self.nodes[0].credentials, "username", "unknown"))

    def meets(self, other: Address) -> bool:
        """True if both name the same virtual host of the same node."""
        theirs = {(node.host, node.port, node.virtual_host) for node in other.nodes}
        return any((node.host, node.port, node.virtual_host) in theirs for node in self.nodes)


def parameters(url: str | Sequence[str]) -> Address:
    """How to reach a broker: one node or several, as `RabbitMqSender` takes them. No error repeats the URL,
    for the password's sake."""
    urls = url.split(";") if isinstance(url, str) else url
    nodes = tuple(node for each in urls for node in _nodes(each.strip()))
    if len({(each.virtual_host, each.user) for each in map(Address, zip(nodes))}) != 1:
        raise InvalidSetting(
            "the RabbitMQ URLs differ in virtual host or user; all nodes of a broker share both: "
            "write e.g. amqp://user:password@host-a,host-b/vhost"
        )
    return Address(nodes)


def _nodes(url: str) -> Iterator[pika.URLParameters]:
    """One for each host of ``amqp://user:password@a,b:5673/vhost``."""
    # Not by urlsplit: Python 3.14 refuses brackets that stand behind another host.
    found = re.fullmatch(r"(amqps?://(?:[^/?#]*@)?)([^/?#]*)(.*)", url, re.DOTALL)
    if found is None:
        raise InvalidSetting(
            f"the RabbitMQ URL does not start with amqp:// or amqps://; write e.g. {_EXAMPLE}"
        )
    for host in found[2].split(","):
        try:
            given = pika.URLParameters(found[1] + host + found[3])
            given.client_properties = {**(given.client_properties or {}), "product": "sqsdelay"}
        except Exception as error:  # pika evaluates parts of the URL: anything may go wrong
            raise InvalidSetting(
                f"the RabbitMQ URL cannot be used ({type(error).__name__}); write e.g. {_EXAMPLE}"
            ) from None
        yield given


_LIMIT: Final = re.compile(
    r"(?:\w+ )?connection limit \(\d+\) is reached|number of channels .*limit of \(\d+\)"
)
"""How the broker says that a user, virtual host or node has as many connections, or channels, as it may."""


def translated(error: BaseException, given: Address) -> SqsDelayError:
    """The error to raise for what pika raised."""
    if isinstance(error, SqsDelayError):
        return error
    where, cause = f"RabbitMQ at {given}", _cause(error)
    if limit := _LIMIT.search(str(error)):
        told = f"{where} has no room for the user {given.user!r}: {limit[0]}"
        return QueueUnavailable(f"{told}; close some, raise the limit, or try again later")
    if isinstance(error, exceptions.ChannelClosedByBroker):
        return refusal(error.reply_code, error.reply_text, where)
    if isinstance(
        error,
        exceptions.AuthenticationError
        | exceptions.ProbableAuthenticationError
        | exceptions.ProbableAccessDeniedError,
    ):
        return ConfigurationError(
            f"{where} refused the user {given.user!r}; check user, password and virtual host"
        )
    if isinstance(cause, ssl.SSLCertVerificationError):
        return ConfigurationError(
            f"TLS with {where} failed: its certificate is not trusted: {cause}; set SSL_CERT_FILE to its "
            "CA certificate, and use the host name in the certificate"
        )
    if isinstance(cause, ssl.SSLError):
        kind = ConfigurationError if "WRONG_VERSION_NUMBER" in str(cause) else QueueUnavailable
        return kind(
            f"TLS with {where} failed: {cause}; check that the port uses TLS (default: 5671), or write "
            "amqp:// if it does not"
        )
    if isinstance(error, exceptions.AMQPConnectionError) or isinstance(cause, OSError):
        tls = isinstance(cause, exceptions.IncompatibleProtocolError)
        remedy = "if the port uses TLS, write amqps://; otherwise " if tls else ""
        return QueueUnavailable(f"{where} cannot be reached: {cause}; {remedy}try again later")
    return QueueUnavailable(f"{where} failed: {error!r}; try again later")


def refusal(code: int, text: str, where: str) -> SqsDelayError:
    """The error to raise where the broker closed a channel."""
    if code == NOT_FOUND and "no queue" in text:
        return errors.QueueMissing(f"{where}: {text}; create the queue, or correct the name")
    if code == NOT_FOUND:
        name = text.partition("'")[2]
        text += f"; declare the delay infrastructure with: {declare_command(name)}"
    elif code == ACCESS_REFUSED:
        text += "; give the user that permission"
    elif code != PRECONDITION_FAILED:
        return QueueUnavailable(f"{where} closed the channel: {code} {text}")
    return ConfigurationError(f"{where}: {text}")


def _cause(error: BaseException) -> BaseException:
    """What pika wrapped, up to four layers deep: the plain "Connection refused"."""
    attempts = getattr(error, "exceptions", None)
    inner = attempts[-1] if attempts else getattr(error, "exception", None)
    if inner is None and error.args:
        inner = error.args[0]
    return _cause(inner) if isinstance(inner, BaseException) else error


CLOSE_SECONDS: Final = 3.0
"""How long the broker may take to say goodbye; closing a socket needs no answer, and takes no such time."""


class Wire(SelectorIOServicesAdapter):
    """pika's loop and sockets, for one connection after another, and what no connection of pika's tells or
    does: what waits for the socket, and to drop it without an answer."""

    def __init__(self) -> None:
        self.loop: Any = IOLoop()
        self.loop.activate_poller()  # once: to wait takes no file descriptor, of which there may be none left
        self.transport: Any = None
        super().__init__(self.loop)

    def create_streaming_connection(
        self, protocol_factory: Any, sock: Any, on_done: Any, *context: Any, **more: Any
    ) -> Any:
        def keep(result: Any) -> None:
            if isinstance(result, tuple):
                self.transport = result[0]
            on_done(result)

        return super().create_streaming_connection(protocol_factory, sock, keep, *context, **more)

    @property
    def unwritten(self) -> int:
        """Bytes that pika has and the socket has not taken."""
        return int(self.transport.get_write_buffer_size())

    def drop(self) -> None:
        """End the connection in the loop's next round, whatever it waits for."""
        if self.transport is not None:
            # As if the broker had hung up: pika wants a reason.
            self.transport.get_protocol().eof_received()
            self.transport.abort()

    def wait(self, until: Callable[[], object], seconds: float = inf) -> None:
        """Serve the connection and all timers until that is true, or for so many seconds."""
        over: list[bool] = []
        timer = None if seconds == inf else self.call_later(seconds, lambda: over.append(True))
        try:
            while not (until() or over):
                self.loop.poll()
                self.loop.process_timeouts()
        finally:
            if timer is not None:
                timer.cancel()


Taken = tuple[Any, pika.BasicProperties, bytes]
"""A message that was received and not acknowledged: its method, properties and body."""

STEP_SECONDS: Final = 30.0
"""How long the broker may take to answer a step, once the connection is open."""


class Session:
    """An open connection to the first node that answers, and a channel. For one thread, which serves it
    whenever it waits for something. An answer may take ``seconds``: pika sets no limit, and a queue without a
    leader does not answer. As a context manager it raises `translated` errors. Its ``wire`` is its own if
    none is given; what ``set_up`` asks for belongs to opening a connection to a node."""

    def __init__(
        self,
        given: Address,
        wire: Wire | None = None,
        *,
        seconds: float = STEP_SECONDS,
        set_up: Callable[[Self], object] | None = None,
    ) -> None:
        self.given, self.wire = given, wire or Wire()
        failures: list[SqsDelayError] = []
        try:
            for node in given.nodes:
                self.at = Address((node,))
                try:
                    self._open(seconds, set_up or Session.channel)
                    return
                except Exception as error:  # pika's own for this are no AMQPError
                    failures.append(translated(error, given))
                    failures[-1].__cause__ = error
            # Rather that of a node that a later attempt may reach.
            raise next((e for e in failures if not isinstance(e, ConfigurationError)), failures[-1])
        except BaseException:
            if wire is None:
                self.wire.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        self.close()
        if isinstance(error, exceptions.AMQPError | OSError):
            raise translated(error, self.given) from error

    def close(self) -> None:
        """End the connection in order, or without the broker's answer if that does not come."""
        self.disconnect()
        self.wire.close()

    def _open(self, seconds: float, set_up: Callable[[Self], object]) -> None:
        self.lost: BaseException | None = None
        """What ended the connection, or will."""
        self.blocked = ""
        """Why the broker takes no messages now; empty while it does."""
        self.wire.transport = None
        self._channel: Any = None
        self._refused: BaseException | None = None
        self._got: list[Taken | None] = []
        self.amqp: Any = pika.SelectConnection(
            self.at.nodes[0],
            on_open_error_callback=self._on_end,
            on_close_callback=self._on_end,
            custom_ioloop=self.wire,
        )
        self.seconds = inf  # pika gives up by itself
        try:
            self.wait(lambda: self.amqp.is_open)
            self.amqp.add_on_connection_blocked_callback(self._on_blocked)
            self.amqp.add_on_connection_unblocked_callback(self._on_unblocked)
            self.seconds = seconds
            set_up(self)
        except BaseException as error:
            self.lost = self.lost or error
            self.disconnect()
            raise

    def channel(self) -> Any:
        """The channel; a new one after the broker has closed the former."""
        if self._channel is None or not self._channel.is_open:
            opened: list[Any] = []
            self.amqp.channel(on_open_callback=opened.append)
            self.wait(lambda: opened)
            (self._channel,) = opened
            self._channel.add_on_close_callback(self._on_refused)
            self._channel.add_callback(
                lambda _: self._got.append(None), [pika.spec.Basic.GetEmpty], one_shot=False
            )
        return self._channel

    def ask(self, method: str, *arguments: Any, **options: Any) -> Any:
        """Call one of the channel's methods; the broker's answer. It may refuse with
        `ChannelClosedByBroker`; the next call has a new channel."""
        answers: list[Any] = []
        getattr(self.channel(), method)(*arguments, **options, callback=answers.append)
        self.wait(lambda: answers)
        return answers[0].method

    def found(self, method: str, name: str) -> Any:
        """The broker's answer to a passive declaration; None where there is nothing of that name."""
        try:
            return self.ask(method, name, passive=True)
        except exceptions.ChannelClosedByBroker as error:
            if error.reply_code != NOT_FOUND:
                raise
            return None

    def count(self, queue: str) -> int | None:
        """Messages that are ready in a queue; None where there is no such queue."""
        found = self.found("queue_declare", queue)
        return None if found is None else int(found.message_count)

    def get(self, queue: str) -> Taken | None:
        """Take a message; None where there is none."""
        self._got.clear()
        self.channel().basic_get(queue, lambda _, *message: self._got.append(message))
        self.wait(lambda: self._got)
        return self._got.pop()

    def consume(self, queue: str, prefetch: int, arrived: deque[Taken]) -> None:
        """Let so many messages arrive there, whenever the session waits for something."""
        self.ask("basic_qos", prefetch_count=prefetch)
        self.ask("basic_consume", queue, lambda _, *message: arrived.append(message))

    def wait(self, until: Callable[[], object], *, seconds: float = inf) -> None:
        """Serve the connection until that is true, or for so many seconds. What ended it, or the channel,
        or that the broker took too long, is raised."""
        most = min(seconds, self.seconds)
        self.wire.wait(lambda: until() or self.lost or self._refused, most)
        refused, self._refused = self._refused, None
        if self.lost is None and most < seconds and not (until() or refused):
            self.lost = TimeoutError(f"no answer within {self.seconds:g} s{self.blocked}")
        if self.lost or refused:
            raise self.lost or refused or AssertionError

    def disconnect(self) -> None:
        """End the connection in order, or, if it is lost or the broker does not answer, without."""
        if self.amqp.is_open and self.lost is None:
            with suppress(exceptions.AMQPError):
                self.amqp.close()
            self.wire.wait(lambda: self.amqp.is_closed, CLOSE_SECONDS)
        if not self.amqp.is_closed:
            self.wire.drop()
            self.wire.wait(lambda: self.amqp.is_closed, CLOSE_SECONDS)

    def _on_blocked(self, _: Any, frame: Any) -> None:
        reason = frame.method.reason
        self.blocked = f" (memory or disk alarm: the broker blocks publishers: {reason})"

    def _on_unblocked(self, _: Any, __: Any) -> None:
        self.blocked = ""

    def _on_refused(self, _: Any, reason: BaseException) -> None:
        if isinstance(reason, exceptions.ChannelClosedByBroker):
            self._refused = reason

    def _on_end(self, _: Any, reason: BaseException) -> None:
        self.lost = self.lost or reason
