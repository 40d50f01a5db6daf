"""One queue received from: a connection of its own, acknowledgements by hand, and pauses."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final

from pika import BasicProperties
from pika.exceptions import AMQPError

from sqsdelay.core.clock import Clock
from sqsdelay.errors import QueueMissing, QueueUnavailable
from sqsdelay.ports.forks import in_each_child
from sqsdelay.rabbitmq.connection import Address, TimedConnection, place, translated

logger = logging.getLogger(__name__)

PREFETCH: Final = 100
"""Deliveries without an acknowledgement, and so the most of one batch."""

_OPEN_SECONDS: Final = 10.0
"""How long a connected broker may take until it delivers; a queue without a leader never does."""

_CLOSE_SECONDS: Final = 3.0
"""How long it may take to say goodbye."""


@dataclass(frozen=True, slots=True, eq=False)
class Received:
    """A message as the broker delivered it. What came over a lost connection comes again."""

    consumer: QueueConsumer
    channel: Any
    tag: int
    properties: BasicProperties
    body: bytes


class QueueConsumer:
    """Receives from one queue. Thread-safe; nothing is opened before the first receive.

    Args:
        given: where the broker is.
        queue: the queue's name.
        clock: the monotonic clock.
    """

    def __init__(self, given: Address, queue: str, clock: Clock) -> None:
        self._given = given
        self._queue = queue
        self._clock = clock
        self._begin_anew()
        in_each_child(self, QueueConsumer._begin_anew)

    def _begin_anew(self) -> None:
        """Without a connection: one that another process opened is left to that one."""
        self._lock = threading.Lock()
        self._connection: Any = None
        self._channel: Any = None
        self._cancelled = False
        self._arrived: list[Received] = []
        self._given_back: list[tuple[float, Received]] = []

    def receive(self, *, wait_seconds: float) -> list[Received]:
        """Up to `PREFETCH` messages, waiting at most so long for the first.

        Raises:
            QueueMissing, QueueUnavailable
        """
        with self._lock, self._translating():
            if self._connection is None:
                self._open()
            deadline = self._clock.monotonic() + wait_seconds
            while True:
                left = max(0.0, deadline - self._clock.monotonic())
                pause = min(left, self._return_given_back())
                self._connection.process_data_events(time_limit=pause)
                if self._cancelled:
                    self._drop()
                    raise QueueUnavailable(
                        f"RabbitMQ at {place(self._given)} ended the delivery from {self._queue}; "
                        "it is tried again"
                    )
                if self._arrived or not left:
                    arrived, self._arrived = self._arrived, []
                    return arrived

    def acknowledge(self, received: Received) -> None:
        """Be done with a message; one that could not be acknowledged is delivered again."""
        with self._lock:
            if received.channel is not self._channel:
                return
            try:
                self._channel.basic_ack(received.tag)
            except (AMQPError, OSError) as error:
                logger.warning("not acknowledged, it will come again: %r", error)
                self._drop()

    def give_back(self, received: Received, *, seconds: float) -> None:
        """Return a message to its queue after so many seconds, or sooner if the connection ends.

        A queue has no such pause: the message is kept unacknowledged until it is over.
        """
        with self._lock:
            if received.channel is self._channel:
                self._given_back.append((self._clock.monotonic() + seconds, received))

    def close(self) -> None:
        """End the connection; what was not acknowledged returns to the queue."""
        with self._lock:
            self._drop()

    def _open(self) -> None:
        self._connection = TimedConnection(list(self._given.nodes))
        self._connection.allow(_OPEN_SECONDS)
        channel = self._connection.channel()
        channel.basic_qos(prefetch_count=PREFETCH)
        channel.add_on_cancel_callback(self._on_cancel)
        self._cancelled = False
        self._channel = channel
        channel.basic_consume(self._queue, self._on_message)
        self._connection.allow(None)

    def _on_message(
        self, channel: Any, method: Any, properties: BasicProperties, body: bytes
    ) -> None:
        self._arrived.append(Received(self, channel, method.delivery_tag, properties, body))

    def _on_cancel(self, _: Any) -> None:
        self._cancelled = True

    def _return_given_back(self) -> float:
        """Return what has paused long enough; seconds until the next has."""
        now = self._clock.monotonic()
        for due, received in self._given_back:
            if due <= now:
                self._channel.basic_nack(received.tag, requeue=True)
        self._given_back = [each for each in self._given_back if each[0] > now]
        return min((due - now for due, _ in self._given_back), default=float("inf"))

    @contextmanager
    def _translating(self) -> Iterator[None]:
        try:
            yield
        except (AMQPError, OSError) as error:
            self._drop()
            failure = translated(error, self._given)
            if isinstance(failure, QueueMissing):
                raise failure from error
            # A refused login, too: `check` has found it let in, so it may be again.
            raise QueueUnavailable(str(failure)) from error

    def _drop(self) -> None:
        connection, self._connection, self._channel = self._connection, None, None
        self._arrived, self._given_back = [], []
        if connection is not None and connection.is_open:
            with suppress(AMQPError, OSError):
                connection.allow(_CLOSE_SECONDS)
                connection.close()
