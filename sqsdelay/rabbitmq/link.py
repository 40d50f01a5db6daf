"""One connection's life: opened, published on as far as the window allows, lost or closed."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import pika
from pika.exceptions import ChannelClosedByBroker

from sqsdelay.clock import Clock
from sqsdelay.errors import QueueMissing, QueueUnavailable, SendFailed, SqsDelayError, Unconfirmed
from sqsdelay.rabbitmq.confirms import Outstanding, Publication
from sqsdelay.rabbitmq.connection import place, translated

MAX_UNCONFIRMED: Final = 2_000
"""Publications in flight. Measured (docs/rabbitmq.md): more brings no speed, and more to give up."""

CLOSE_SECONDS: Final = 3.0
"""How long the broker may take to say goodbye."""

DISCONNECT_SECONDS: Final = 1.0
"""How long closing a socket may take; it needs no answer, so this is never reached in practice."""


@dataclass(slots=True, eq=False)
class BindJob:
    """A binding to be made on the way; ``on_done`` is called with None, or what went wrong."""

    queue: str
    exchange: str
    routing_key: str
    on_done: Callable[[SqsDelayError | None], None]


Job = Publication | BindJob


class Link:
    """A connection with one confirming channel. All methods but `wake` run in one thread.

    Args:
        given: where to.
        jobs: what is to be done; shared with whoever adds to it, and left as it is when the link ends.
        confirm_seconds: how long an answer may take.
        clock: the monotonic clock.
    """

    def __init__(
        self,
        given: pika.connection.Parameters,
        jobs: deque[Job],
        *,
        confirm_seconds: float,
        clock: Clock,
    ) -> None:
        self._given = given
        self._jobs = jobs
        self._confirm_seconds = confirm_seconds
        self._clock = clock
        self._outstanding = Outstanding()
        self._binding: set[BindJob] = set()
        self._channel: Any = None
        self._lost: BaseException | None = None
        self._blocked = ""
        self._serving = False
        self._heard_at = clock.monotonic()
        self._connection: Any = pika.SelectConnection(
            given,
            on_open_callback=self._on_open,
            on_open_error_callback=self._on_end,
            on_close_callback=self._on_end,
        )

    def open(self) -> None:
        """Connect, and wait until the channel confirms.

        Raises:
            the error pika gives for it.
        """
        self._connection.ioloop.start()
        if self._channel is None:
            self.dispose()
            raise self._lost or ConnectionError("the connection closed while it was opened")

    def serve(self) -> None:
        """Do jobs until the connection ends; what it left unanswered is settled as unconfirmed."""
        self._serving = True
        try:
            self._pump()
            self._watch()
            self._connection.ioloop.start()
        finally:
            # A `wake` may still run while the loop drops the connection: nobody would answer for
            # what it took, and its sender would wait for ever.
            self._serving = False
            self._settle_all()

    def wake(self, *, close: bool = False) -> None:
        """From any thread: there are jobs; or, with ``close``, end."""
        self._connection.ioloop.add_callback_threadsafe(self.close if close else self._pump)

    def close(self) -> None:
        """End the connection in order, or without the broker's answer if it does not come."""
        if self._connection.is_open:
            self._connection.close()
            self._connection.ioloop.call_later(CLOSE_SECONDS, self._connection.ioloop.stop)
        elif self._connection.is_closed:
            self._connection.ioloop.stop()

    def _on_open(self, connection: Any) -> None:
        connection.add_on_connection_blocked_callback(self._on_blocked)
        connection.add_on_connection_unblocked_callback(self._on_unblocked)
        connection.channel(on_open_callback=self._on_channel)

    def _on_channel(self, channel: Any) -> None:
        channel.add_on_close_callback(self._on_channel_closed)
        channel.add_on_return_callback(self._on_return)
        channel.confirm_delivery(self._on_answer, callback=lambda _: self._on_ready(channel))

    def _on_ready(self, channel: Any) -> None:
        self._channel = channel
        self._connection.ioloop.stop()

    def _on_blocked(self, _: Any, frame: Any) -> None:
        self._blocked = f" (the broker blocks publishers: {frame.method.reason})"

    def _on_unblocked(self, _: Any, __: Any) -> None:
        self._blocked = ""

    def _on_channel_closed(self, _: Any, reason: BaseException) -> None:
        # One channel, one connection: a fresh connection is as good as a fresh channel, and simpler.
        self._lost = self._lost or reason
        self.close()

    def _on_end(self, _: Any, reason: BaseException) -> None:
        self._lost = self._lost or reason
        self._connection.ioloop.stop()

    def _pump(self) -> None:
        """Publish while the window has room."""
        while (
            self._serving
            and self._jobs
            and len(self._outstanding) < MAX_UNCONFIRMED
            and self._channel.is_open
        ):
            job = self._jobs.popleft()
            if isinstance(job, BindJob):
                self._bind(job)
            else:
                self._publish(job)

    def _publish(self, publication: Publication) -> None:
        self._outstanding.add(publication, now=self._clock.monotonic())
        self._channel.basic_publish(
            publication.exchange,
            publication.routing_key,
            publication.body,
            publication.properties,
            mandatory=True,
        )

    def _on_answer(self, frame: Any) -> None:
        self._heard_at = self._clock.monotonic()
        method = frame.method
        error: SqsDelayError | None = None
        if isinstance(method, pika.spec.Basic.Nack):
            error = SendFailed(
                f"RabbitMQ at {place(self._given)} refused the message (nack): a queue on its way is "
                "full or has no leader; try again later",
                code="nack",
                transient=True,
            )
        self._outstanding.answered(method.delivery_tag, multiple=method.multiple, error=error)
        if self._jobs:
            self._pump()

    def _on_return(self, _: Any, method: Any, properties: Any, __: bytes) -> None:
        where = place(self._given)
        error: SqsDelayError
        if not method.exchange:
            error = QueueMissing(
                f"queue {method.routing_key} does not exist at {where}; create it, or correct the name"
            )
        else:
            error = SendFailed(
                f"exchange {method.exchange} at {where} leads nowhere for {method.routing_key!r}: "
                f"{method.reply_code} {method.reply_text}; mend its bindings with: "
                "sqsdelay rabbitmq declare",
                code=str(method.reply_code),
                transient=False,
            )
        self._outstanding.returned(
            method.exchange, method.routing_key, properties.message_id, error
        )

    def _bind(self, job: BindJob) -> None:
        """Bind on a channel of its own: a refusal closes it, and must not end the publishing."""
        self._binding.add(job)

        def done(error: SqsDelayError | None) -> None:
            if job in self._binding:
                self._binding.remove(job)
                job.on_done(error)

        def closed(_: Any, reason: BaseException) -> None:
            done(translated(reason, self._given))

        def opened(channel: Any) -> None:
            def bound(_: Any) -> None:
                done(None)
                channel.close()

            channel.add_on_close_callback(closed)
            channel.queue_bind(job.queue, job.exchange, job.routing_key, callback=bound)

        self._connection.channel(on_open_callback=opened)

    def _watch(self) -> None:
        """Give up, now and then, on what has waited too long for its answer."""
        overdue = self._clock.monotonic() - self._confirm_seconds
        error = Unconfirmed(
            f"RabbitMQ at {place(self._given)} did not confirm the message within "
            f"{self._confirm_seconds:g} s{self._blocked}; it may have it: send again with the same "
            "message_id, and let receivers deduplicate"
        )
        if self._outstanding.give_up(error, published_before=overdue):
            if self._heard_at < overdue:
                # Not one queue is stuck but the connection, or the broker: start afresh.
                self._lost = TimeoutError("no confirm")
                self._connection.ioloop.stop()
                return
            self._pump()
        self._connection.ioloop.call_later(min(1.0, self._confirm_seconds / 4), self._watch)

    def _settle_all(self) -> None:
        reason = self._lost if self._lost is not None else "closed"
        if isinstance(reason, ChannelClosedByBroker):
            reason = f"{reason.reply_code} {reason.reply_text}"
        self._outstanding.give_up(
            Unconfirmed(
                f"the connection to RabbitMQ at {place(self._given)} ended before the message was "
                f"confirmed ({reason}); it may have arrived: send again with the same message_id, and "
                "let receivers deduplicate"
            )
        )
        for job in list(self._binding):
            self._binding.remove(job)
            job.on_done(
                QueueUnavailable(
                    f"the connection to RabbitMQ at {place(self._given)} ended before {job.queue} was "
                    f"bound ({reason}); try again later"
                )
            )

    def dispose(self) -> None:
        """Free the socket and the loop, in whatever state they are."""
        loop = self._connection.ioloop
        if not self._connection.is_closed:
            # No public call drops a connection without waiting for an answer that may never come.
            self._connection._terminate_stream(ConnectionError("given up"))
            loop.call_later(DISCONNECT_SECONDS, loop.stop)
            loop.start()  # until `_on_end`: the socket is closed in the loop's next round
        loop.close()
