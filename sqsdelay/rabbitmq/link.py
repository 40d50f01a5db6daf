"""One connection's life: opened, published on as far as the window allows, lost or closed."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
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
from sqsdelay.rabbitmq.connection import (
    ACCESS_REFUSED,
    CLOSE_SECONDS,
    DISCONNECT_SECONDS,
    NOT_FOUND,
    Wire,
    place,
    refusal,
    translated,
)
from sqsdelay.rabbitmq.topology import declare_command


class Binder:
    """Binds endpoints on a connection: all that wait at once, and one answer tells. Not thread-safe.

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
        self._waiting: deque[BindJob] = deque()
        self._asked: list[BindJob] = []
        self._one_by_one = 0
        self._declared: set[str] = set()
        self._channel: Any = None
        self._opening = False
        self.oldest_at = inf
        """Since when the broker has owed an answer; infinity where it owes none."""

    def bind(self, jobs: Sequence[BindJob]) -> None:
        """Bind these, and settle each when the broker has answered."""
        self._waiting.extend(jobs)
        self._ask()

    def give_back(self) -> list[BindJob]:
        """All that is without an answer: to bind again is fine, on another connection."""
        jobs = [*self._asked, *self._waiting]
        self._asked.clear()
        self._waiting.clear()
        return jobs

    def _ask(self) -> None:
        """Ask for all that waits, or for one if the broker has refused one of several."""
        if self._asked or not self._waiting or not self._connection.is_open:
            return
        if self.oldest_at == inf:
            self.oldest_at = self._monotonic()
        if self._channel is None:
            if not self._opening:
                self._opening = True
                self._connection.channel(on_open_callback=self._on_open)
            return
        count = 1 if self._one_by_one else min(len(self._waiting), MAX_BOUND)
        self._asked = [self._waiting.popleft() for _ in range(count)]
        for job in self._asked:
            if job is not self._asked[-1]:
                self._write(job, None)
        self._write(self._asked[-1], self._on_bound)

    def _write(self, job: BindJob, on_last: Callable[[Any], None] | None) -> None:
        queue = job.topology.hand_over_queue(job.endpoint)
        if queue is not None and queue.name not in self._declared:
            self._channel.queue_declare(queue.name, durable=True, arguments=dict(queue.arguments))
        *others, last = job.topology.endpoint_bindings(job.endpoint)
        for each in others:
            self._channel.queue_bind(each.destination, each.source, each.routing_key)
        self._channel.queue_bind(last.destination, last.source, last.routing_key, callback=on_last)

    def _on_open(self, channel: Any) -> None:
        self._opening = False
        self._channel = channel
        channel.add_on_close_callback(self._on_closed)
        self._ask()

    def _on_bound(self, _: Any) -> None:
        queues = (job.topology.hand_over_queue(job.endpoint) for job in self._asked)
        self._declared.update(queue.name for queue in queues if queue is not None)
        self._settle(None)
        self._ask()

    def _settle(self, error: SqsDelayError | None) -> None:
        self.oldest_at = inf
        self._one_by_one -= bool(self._one_by_one)
        for job in self._asked:
            job.settle(error)
        self._asked.clear()
        self._on_answer()

    def _on_closed(self, _: Any, reason: BaseException) -> None:
        """The broker refused one of those asked for: which, is found out by asking for each alone."""
        self._channel = None
        if not self._asked or not self._connection.is_open:
            return
        if len(self._asked) > 1 or self._may_help(self._asked[0], reason):
            self._one_by_one = max(self._one_by_one, len(self._asked))
            self._waiting.extendleft(reversed(self._asked))
            self._asked.clear()
        else:
            self._settle(translated(reason, self._given))
        self._ask()

    def _may_help(self, job: BindJob, reason: BaseException) -> bool:
        """Whether it may help to declare the hand-over queue, which was deleted, or not to declare it,
        which this user may not."""
        queue = job.topology.hand_over_queue(job.endpoint)
        if queue is None or f" queue '{queue.name}'" not in str(reason) or job.retries == 2:
            return False
        job.retries += 1
        self._declared.symmetric_difference_update([queue.name])
        return True


MAX_BOUND: Final = 500
"""Endpoints asked for at once."""

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
        self.blocked_at = inf
        """Since when."""
        self._wire = Wire()
        self._connection: Any = pika.SelectConnection(
            given,
            on_open_callback=self._on_open,
            on_open_error_callback=self._on_end,
            on_close_callback=self._on_end,
            custom_ioloop=self._wire,
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
        self.blocked = (
            f" (memory or disk alarm: the broker blocks publishers: {frame.method.reason})"
        )
        self.blocked_at = min(self.blocked_at, self._clock.monotonic())

    def _on_unblocked(self, _: Any, __: Any) -> None:
        self.blocked, self.blocked_at = "", inf
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
            if bindings := self._jobs.take_bindings():
                self._binder.bind(bindings)
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
        position = self._connection.bytes_sent - self._wire.unwritten
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
                f"{declare_command(method.exchange)}",
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
        self._jobs.bind(self._binder.give_back())

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
            self._wire.drop()
            loop.call_later(DISCONNECT_SECONDS, loop.stop)
            loop.start()  # until `_on_end`: the socket is closed in the loop's next round
        loop.close()
