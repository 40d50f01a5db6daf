"""One connection's life: opened, published on as far as the window allows, lost or closed."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from math import inf
from typing import Any, Final

import pika
from pika.exceptions import ChannelClosedByBroker

from sqsdelay.core.clock import Clock
from sqsdelay.errors import (
    ConfigurationError,
    QueueMissing,
    SendFailed,
    SqsDelayError,
    Unconfirmed,
)
from sqsdelay.rabbitmq.confirms import BindJob, Jobs, Outstanding, Publication
from sqsdelay.rabbitmq.connection import ACCESS_REFUSED, NOT_FOUND, place, refusal, translated


class Binder:
    """Makes bindings on a connection, one after the other. Not thread-safe.

    Args:
        connection: open, of pika's asynchronous kind.
        given: where to, for errors.
        on_answer: called whenever the broker has answered.
        monotonic: the clock.
    """

    def __init__(
        self,
        connection: Any,
        given: pika.connection.Parameters,
        *,
        on_answer: Callable[[], None],
        monotonic: Callable[[], float],
    ) -> None:
        self._connection = connection
        self._given = given
        self._on_answer = on_answer
        self._monotonic = monotonic
        self._unanswered: deque[tuple[float, BindJob]] = deque()
        self._channel: Any = None
        self._opening = False

    @property
    def oldest_at(self) -> float:
        """Since when the oldest binding waits for its answer; infinity where there is none."""
        return self._unanswered[0][0] if self._unanswered else inf

    def bind(self, job: BindJob) -> None:
        """Bind, and settle the job when the broker has answered."""
        self._unanswered.append((self._monotonic(), job))
        if self._channel is not None:
            self._ask(self._channel, job)
        else:
            self._open()

    def give_back(self) -> list[BindJob]:
        """All that is without an answer: to bind again is fine, on another connection."""
        jobs = [job for _, job in self._unanswered]
        self._unanswered.clear()
        return jobs

    def _open(self) -> None:
        if not self._opening and self._connection.is_open:
            self._opening = True
            self._connection.channel(on_open_callback=self._on_open)

    def _on_open(self, channel: Any) -> None:
        self._opening = False
        self._channel = channel
        channel.add_on_close_callback(self._on_closed)
        for _, job in list(self._unanswered):
            self._ask(channel, job)

    def _ask(self, channel: Any, job: BindJob) -> None:
        channel.queue_bind(
            job.queue, job.exchange, job.routing_key, callback=partial(self._on_bound, job)
        )

    def _on_bound(self, job: BindJob, _: Any) -> None:
        self._unanswered.popleft()
        job.settle()
        self._on_answer()

    def _on_closed(self, _: Any, reason: BaseException) -> None:
        """The broker answers in order: its refusal is of the oldest. The others are asked again."""
        self._channel = None
        if self._unanswered and self._connection.is_open:
            self._unanswered.popleft()[1].settle(translated(reason, self._given))
            self._on_answer()
        if self._unanswered:
            self._open()


MAX_UNCONFIRMED: Final = 2_000
"""Publications in flight. Measured (docs/rabbitmq.md): more brings no speed, and more to give up."""

MAX_UNCONFIRMED_BYTES: Final = 16 * 1024 * 1024
"""Bytes in flight, a larger message by itself: what sender and broker hold in memory for one connection."""

FIRST_ANSWER_SECONDS: Final = 1.0
"""How long only one publication is in flight on a new connection. A broker that is short of memory or
disk says so when it gets the first, and by no other sign; what was written by then is in limbo."""

NACKS_SECONDS: Final = 1.0
"""How long a queue may refuse all it is sent before the connection is made anew. A channel that was
opened while a quorum queue elected a leader goes on addressing the dead one, and is refused for ever."""

DRAIN_SECONDS: Final = 2.0
"""How long such a connection waits for its other answers, and writes nothing, before it closes."""

CLOSE_SECONDS: Final = 3.0
"""How long the broker may take to say goodbye."""

DISCONNECT_SECONDS: Final = 1.0
"""How long closing a socket may take; it needs no answer, so this is never reached in practice."""


class Link:
    """A connection with one confirming channel. All methods but `wake` run in one thread.

    Args:
        given: where to.
        jobs: what is to be done; shared with whoever adds to it, and left as it is when the link ends.
        confirm_seconds: how long an answer may take, from when the socket has taken the message.
        clock: the monotonic clock.
    """

    def __init__(
        self,
        given: pika.connection.Parameters,
        jobs: Jobs,
        *,
        confirm_seconds: float,
        clock: Clock,
    ) -> None:
        self._given = given
        self._jobs = jobs
        self._confirm_seconds = confirm_seconds
        self._clock = clock
        self._outstanding = Outstanding()
        self._channel: Any = None
        self._lost: BaseException | None = None
        self._serving = False
        self._window = 1
        self._draining = False
        self._refused_since: dict[str, float] = {}
        self._confirmed_exchanges: set[str] = set()
        self._heard_at = clock.monotonic()
        self.blocked = ""
        """Why the broker takes no messages now; empty while it does."""
        self._connection: Any = pika.SelectConnection(
            given,
            on_open_callback=self._on_open,
            on_open_error_callback=self._on_end,
            on_close_callback=self._on_end,
        )
        self._binder = Binder(
            self._connection, given, on_answer=self._on_heard, monotonic=clock.monotonic
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
        """Do jobs until the connection ends; what it left unanswered is settled as unconfirmed.

        Bindings without an answer wait for the next connection.
        """
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
        self.blocked = f" (the broker blocks publishers: {frame.method.reason})"

    def _on_unblocked(self, _: Any, __: Any) -> None:
        self.blocked = ""
        self._on_heard()

    def _on_heard(self) -> None:
        self._heard_at = self._clock.monotonic()
        self._pump()

    def _open_window(self) -> None:
        self._window = MAX_UNCONFIRMED
        self._pump()

    def _on_channel_closed(self, _: Any, reason: BaseException) -> None:
        # One channel, one connection: a fresh connection is as good as a fresh channel, and simpler.
        self._lost = self._lost or reason
        self.close()

    def _on_end(self, _: Any, reason: BaseException) -> None:
        self._lost = self._lost or reason
        self._connection.ioloop.stop()

    def _pump(self) -> None:
        """Bind and publish while the broker takes it and the windows have room."""
        while self._serving and not (self.blocked or self._draining) and self._channel.is_open:
            binding = self._jobs.next_binding()
            if binding is not None:
                self._binder.bind(binding)
                continue
            if len(self._outstanding) >= self._window:
                return
            room = MAX_UNCONFIRMED_BYTES - self._outstanding.bytes if self._outstanding else None
            publication = self._jobs.next_publication(room=room)
            if publication is None:
                return
            self._publish(publication)

    def _publish(self, publication: Publication) -> None:
        if self._window == 1:
            self._connection.ioloop.call_later(FIRST_ANSWER_SECONDS, self._open_window)
        self._outstanding.add(publication, now=self._clock.monotonic())
        publication.before_write()
        before = self._connection.bytes_sent
        self._channel.basic_publish(
            publication.exchange,
            publication.routing_key,
            publication.body,
            publication.properties,
            mandatory=True,
        )
        after = self._connection.bytes_sent
        self._outstanding.buffered(publication, size=after - before, stream_end=after)

    def _note_written(self) -> None:
        # No public call tells what waits for the socket in pika's own buffer.
        position = self._connection.bytes_sent - self._connection._get_write_buffer_size()
        self._outstanding.written(position, now=self._clock.monotonic())

    def _on_answer(self, frame: Any) -> None:
        self._heard_at = self._clock.monotonic()
        self._window = MAX_UNCONFIRMED
        method = frame.method
        error: SqsDelayError | None = None
        if isinstance(method, pika.spec.Basic.Nack):
            error = SendFailed(
                f"RabbitMQ at {place(self._given)} refused the message (nack): a queue on its way is "
                "full or has no leader; try again later",
                code="nack",
                transient=True,
            )
        answered = self._outstanding.answered(
            method.delivery_tag, multiple=method.multiple, error=error
        )
        for publication in answered:
            self._note_answer(publication, refused=error is not None)
        if self._draining and not self._outstanding:
            self.close()
        elif self._jobs:
            self._pump()

    def _note_answer(self, publication: Publication, *, refused: bool) -> None:
        """Drain the connection, and close it, once one place has only refused for too long."""
        place_of = publication.exchange or publication.routing_key
        if not refused:
            self._confirmed_exchanges.add(publication.exchange)
            self._refused_since.pop(place_of, None)
            return
        since = self._refused_since.setdefault(place_of, self._heard_at)
        if not self._draining and self._heard_at - since >= NACKS_SECONDS:
            self._draining = True
            self._lost = ConnectionError(f"{place_of} refused all messages for a while")
            self._connection.ioloop.call_later(DRAIN_SECONDS, self.close)

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
                f"{method.reply_code} {method.reply_text}; repair its bindings with: "
                "sqsdelay rabbitmq declare",
                code=str(method.reply_code),
                transient=False,
            )
        self._outstanding.returned(
            method.exchange, method.routing_key, properties.message_id, error
        )

    def _watch(self) -> None:
        """Give up, now and then, on what has waited too long for its answer."""
        now = self._clock.monotonic()
        overdue = now - self._confirm_seconds
        if self._connection.is_open:
            self._note_written()
        error = Unconfirmed(
            f"RabbitMQ at {place(self._given)} did not confirm the message within "
            f"{self._confirm_seconds:g} s{self.blocked}; it may have received it: send again with the same "
            "message_id, and let receivers deduplicate"
        )
        oldest_at = min(self._outstanding.oldest_at, self._binder.oldest_at)
        self._outstanding.give_up(error, written_before=overdue)
        if oldest_at < overdue and self._heard_at < overdue and not self.blocked:
            # Not one queue is stuck but the connection, or the broker: start afresh.
            self._lost = TimeoutError("no answer")
            self._connection.ioloop.stop()
            return
        self._pump()
        self._connection.ioloop.call_later(min(1.0, self._confirm_seconds / 4), self._watch)

    def _settle_all(self) -> None:
        reason = self._lost if self._lost is not None else "closed"
        if isinstance(reason, ChannelClosedByBroker):
            self._settle_refused(reason)
            reason = f"{reason.reply_code} {reason.reply_text}"
        self._outstanding.give_up(
            Unconfirmed(
                f"the connection to RabbitMQ at {place(self._given)} ended before the message was "
                f"confirmed ({reason}); it may have arrived: send again with the same message_id, and "
                "let receivers deduplicate"
            )
        )
        for binding in self._binder.give_back():
            self._jobs.bind(binding)

    def _settle_refused(self, reason: ChannelClosedByBroker) -> None:
        """Settle what the broker refused to publish, and hand back what it has not looked at.

        It closes the channel at the first message that it refuses, and ignores what follows. Where the
        exchange has confirmed before, it was taken away later, and some may have arrived: these are
        left for `Unconfirmed`.
        """
        if reason.reply_code not in (ACCESS_REFUSED, NOT_FOUND):
            return

        def named(publication: Publication) -> bool:
            exchange = publication.exchange
            return (
                exchange not in self._confirmed_exchanges
                and f"'{exchange or 'amq.default'}'" in reason.reply_text
            )

        cause = refusal(reason.reply_code, reason.reply_text, place(self._given))
        error = ConfigurationError(f"{cause}; the message was not sent")
        self._jobs.publish_first(self._outstanding.refused(named, error))

    def dispose(self) -> None:
        """Free the socket and the loop, in whatever state they are."""
        loop = self._connection.ioloop
        if not self._connection.is_closed:
            # No public call drops a connection without waiting for an answer that may never come.
            self._connection._terminate_stream(ConnectionError("given up"))
            loop.call_later(DISCONNECT_SECONDS, loop.stop)
            loop.start()  # until `_on_end`: the socket is closed in the loop's next round
        loop.close()
