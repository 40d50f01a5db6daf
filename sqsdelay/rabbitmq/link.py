"""One connection's life: opened, bound and published on as far as the window allows, lost or closed. What
was handed in is touched by the publisher's thread alone."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import takewhile
from math import inf
from typing import Any, Final

import pika

from sqsdelay import errors
from sqsdelay.rabbitmq import connection
from sqsdelay.rabbitmq.topology import Binding, Place, declare_command

MAX_BOUND: Final = 500
"""Endpoints asked for at once."""

MAX_UNCONFIRMED: Final = 2_000
"""Publications in flight. Measured (`benchmarks.rabbitmq`): more brings no speed, and more to give up."""

MAX_UNCONFIRMED_BYTES: Final = 16 * 1024 * 1024
"""Bytes in flight, a larger message by itself: what sender and broker hold in memory."""

FIRST_ANSWER_SECONDS: Final = 3.0
"""How long, or a second more, the first publication to an exchange is alone in flight. The broker closes
the channel at one that it refuses, and says that it is short of memory or disk at the first it gets, and
by no other sign: what else was written by then would be in limbo."""

NACKS_SECONDS: Final = 1.0
"""How long a queue may refuse all it is sent before the connection is made anew. A channel that was
opened while a quorum queue elected a leader goes on addressing the dead one, and is refused for ever."""

MAX_NACKS_SECONDS: Final = 3.0
"""As much where that did not help: the queue may be full. With draining, 5 s from a new leader."""

DRAIN_SECONDS: Final = 2.0
"""How long such a connection waits for its other answers, and writes nothing, before it closes."""

MAYBE_SENT: Final = (
    "it may have received it: send again with the same message_id, and let receivers deduplicate"
)


@dataclass(slots=True, eq=False)
class Publication:
    """One message on its way to the broker, once ``after`` is bound, and what became of it: ``error`` is None
    if the broker confirmed it. ``on_write`` is called just before it is written, to say in it what depends on
    the time: a delay counts from then. ``on_settled`` is called once."""

    exchange: str
    routing_key: str
    body: bytes
    properties: pika.BasicProperties
    due_ms: int | None = None
    after: BindJob | None = None
    on_write: Callable[[Publication], object] | None = None
    on_settled: Callable[[Publication], object] | None = None
    error: errors.SqsDelayError | None = None
    settled: bool = False
    written: bool = False
    written_at: float = inf
    size: int = 0
    ends_at: int = 0

    def settle(self, error: errors.SqsDelayError | None = None) -> None:
        """Say what became of it; what is said later changes nothing."""
        if not self.settled:
            self.settled, self.error = True, self.error or error
            if self.on_settled is not None:
                self.on_settled(self)


def refused(error: errors.SqsDelayError, message_id: str | None = None) -> Publication:
    """One that is not even tried."""
    properties = pika.BasicProperties(message_id=message_id)
    return Publication("", "", b"", properties, error=error, settled=True)


@dataclass(slots=True, eq=False)
class BindJob:
    """An endpoint's `Topology.way`, and the publications that wait until it is bound."""

    way: Sequence[Place | Binding]
    waiting: list[Publication] = field(default_factory=list)
    declares: bool = False
    alone: bool = False


Which = Callable[[Publication], bool]


class Outstanding(dict[int, Publication]):
    """Publications of one channel without an answer, by delivery tag, oldest first."""

    bytes = 0
    """What they take on the wire, together."""
    _last_tag = 0

    @property
    def oldest(self) -> Publication:
        return next(iter(self.values()))

    def add(self, publication: Publication, *, begins_at: int, ends_at: int) -> None:
        """Note a publication that was written, and which bytes of the connection's it takes."""
        publication.written, publication.ends_at = True, ends_at
        publication.size = ends_at - begins_at
        self.bytes += publication.size
        self._last_tag += 1
        self[self._last_tag] = publication

    def taken(self, *, up_to: int, now: float) -> None:
        """Start the confirm's clock of those that end there: so many bytes has the socket taken."""
        for each in takewhile(lambda each: each.ends_at <= up_to, self.values()):
            each.written_at = min(each.written_at, now)

    def answered(
        self, tag: int, *, multiple: bool, error: errors.SqsDelayError | None = None
    ) -> list[Publication]:
        """Settle what an ack (no ``error``) or a nack answers for; answers out of order are fine."""
        tags = list(takewhile(lambda each: each <= tag, self)) if multiple else [tag]
        return [self._settle(each, error) for each in tags if each in self]

    def returned(self, sent: tuple[str, str, str | None], error: errors.SqsDelayError) -> None:
        """Note that the broker could not route a publication, known by its exchange, routing key and message
        id; its ack follows and settles it."""
        for each in self.values():
            its = each.exchange, each.routing_key, each.properties.message_id
            if its == sent and each.error is None:
                each.error = error
                return

    def give_up(self, error: errors.SqsDelayError, of: Which = lambda _: True) -> None:
        """Settle with ``error`` those of which that is true, or all."""
        for tag in [tag for tag, each in self.items() if of(each)]:
            self._settle(tag, error)

    def _settle(self, tag: int, error: errors.SqsDelayError | None) -> Publication:
        publication = self.pop(tag)
        self.bytes -= publication.size
        publication.settle(error)
        return publication


@dataclass(slots=True)
class Jobs:
    """What waits for a connection, in the order in which it came."""

    bindings: deque[BindJob] = field(default_factory=deque)
    publications: deque[Publication] = field(default_factory=deque)
    patience: dict[str, float] = field(default_factory=dict)
    """How many seconds a place that refuses all it is sent may go on until the next new connection."""

    def __len__(self) -> int:
        return len(self.bindings) + len(self.publications)

    def add(self, publications: Iterable[Publication]) -> None:
        for each in publications:
            first, each.after = each.after, None  # no cycle, which would live on for a while
            if first is not None and not first.waiting:
                self.bindings.append(first)
            (self.publications if first is None else first.waiting).append(each)

    def fail(self, error: errors.SqsDelayError, of: Which = lambda _: True) -> None:
        """Settle those of which that is true, or all that waits."""
        unbound = [each for job in self.bindings for each in job.waiting]
        for each in filter(of, [*unbound, *self.publications]):
            each.settle(error)
        self.discard_settled()

    def discard_settled(self) -> None:
        """Forget what nobody waits for any more."""
        for job in self.bindings:
            job.waiting = [each for each in job.waiting if not each.settled]
        self.bindings = deque(job for job in self.bindings if job.waiting)
        self.publications = deque(each for each in self.publications if not each.settled)


class Link(connection.Session):
    """A connection whose channel confirms, and another channel that binds. An answer may take
    ``confirm_seconds`` from when the socket has taken the message."""

    def __init__(
        self, given: connection.Address, wire: connection.Wire, jobs: Jobs, confirm_seconds: float
    ) -> None:
        self._jobs = jobs
        self._confirm_seconds = confirm_seconds
        self._over: object = "it does not serve yet"
        self._draining = ""
        self._careful = True
        self._answered: set[str] = set()
        self._refused_since: dict[str, float] = {}
        self._heard_at = self._answered_at = time.monotonic()
        self._outstanding = Outstanding()
        self._binding: Any = None
        self._asked: list[BindJob] = []
        super().__init__(given, wire, set_up=Link._set_up)

    def _set_up(self) -> None:
        self._where = f"RabbitMQ at {self.at}"
        self.channel().add_on_return_callback(self._on_return)
        self.ask("confirm_delivery", self._on_answer)
        if self._jobs.bindings:  # a limit of channels belongs to opening, too
            self._bind()
            self.wait(lambda: self._binding and self._binding.is_open)

    def serve(self) -> None:
        """Do jobs until the connection ends, and end it; what it left unanswered is settled as unconfirmed,
        but bindings wait for the next connection."""
        self._over = None
        try:
            self._watch()
            self.wire.wait(lambda: self._over or self._refused or self.lost)
        finally:
            self.end(self._refused or self.lost or "it broke")
            try:
                self.disconnect()
            finally:
                self._settle_all()

    def end(self, reason: object = "closed") -> None:
        """Let `serve` end the connection in order."""
        self._over = self._over or reason

    def pump(self) -> None:
        """Bind and publish while the broker takes it and the windows have room."""
        if not (self._outstanding or self._asked):
            self._heard_at = time.monotonic()  # it owes no answer before now
        if self._jobs.bindings and not self._asked and self._writes():
            self._bind()
        waiting = self._jobs.publications
        while waiting and self._writes() and self._fits(waiting[0]):
            each, before = waiting[0], self.amqp.bytes_sent
            to, key = each.exchange, each.routing_key
            self._channel.basic_publish(to, key, each.body, each.properties, mandatory=True)
            self._outstanding.add(waiting.popleft(), begins_at=before, ends_at=self.amqp.bytes_sent)

    def _writes(self) -> bool:
        stopped = self._over or self.lost or self.blocked or self._draining
        return not stopped and bool(self._channel.is_open)

    def _bind(self) -> None:
        """Ask for all bindings that wait, or for one that is to be alone. Only where a hand-over queue is
        missing are they declared: a user may bind without the permission to declare."""
        if self._binding is None:
            self._binding = self.amqp.channel(on_open_callback=lambda _: self.pump())
            self._binding.add_on_close_callback(self._on_binding_refused)
        if not self._binding.is_open:
            return
        waiting = self._jobs.bindings
        count = 1 if waiting[0].alone else min(len(waiting), MAX_BOUND)
        self._asked = [waiting.popleft() for _ in range(count)]
        for job in self._asked:
            # The endpoint's own queue first: without it the broker ignores the rest, and no hand-over queue
            # is left behind by a wrong name.
            for each in job.way:
                if isinstance(each, Binding):
                    ends = each is job.way[-1] and (job.declares or job is self._asked[-1])
                    told = partial(self._on_bound, job) if ends else None  # a queue may take long
                    on = each.destination, each.source, each.routing_key
                    self._binding.queue_bind(*on, callback=told)
                elif job.declares:
                    arguments = dict(each.arguments)
                    self._binding.queue_declare(each.name, durable=True, arguments=arguments)

    def _on_bound(self, last: BindJob, _: Any, error: errors.SqsDelayError | None = None) -> None:
        """Let what waits for those asked for up to this one be published, or fail with it: the broker
        answers in order."""
        count = self._asked.index(last) + 1
        bound, self._asked = self._asked[:count], self._asked[count:]
        for each in (each for job in bound for each in job.waiting):
            if error is not None:
                each.settle(error)
            if not each.settled:
                self._jobs.publications.append(each)
        self._heard_at = time.monotonic()
        self.pump()

    def _on_binding_refused(self, _: Any, reason: Any) -> None:
        """The broker refused one of those asked for: which, is found out by asking for each alone."""
        self._binding = None
        asked, told = self._asked, str(reason)
        if not asked or not self.amqp.is_open:
            return
        # Of a long name the broker says the beginning only.
        missing = "no queue '" in told and ".delay-hand-over." in told
        declares = missing and not all(each.declares for each in asked)
        if len(asked) == 1 and not declares:
            error = connection.translated(reason, self.at)
            if isinstance(error, errors.QueueUnavailable):  # this endpoint, e.g. a locked queue
                error = errors.SendFailed(str(error), code=str(reason.reply_code), transient=True)
            self._on_bound(asked[0], None, error)
            return
        for job in asked:
            job.declares, job.alone = declares, job.alone or not declares
        self._ask_again()
        self.pump()

    def _ask_again(self) -> None:
        """Let those asked for wait, before all others."""
        self._jobs.bindings.extendleft(reversed(self._asked))
        self._asked = []

    def _fits(self, publication: Publication) -> bool:
        """Whether it may be written now: alone, or with what is in flight."""
        room = MAX_UNCONFIRMED_BYTES - self._outstanding.bytes
        full = len(self._outstanding) >= MAX_UNCONFIRMED or len(publication.body) > room
        if self._outstanding and full:
            return False
        if publication.on_write is not None:
            publication.on_write(publication)
        return not (self._outstanding and self._goes_alone(publication))

    def _goes_alone(self, publication: Publication) -> bool:
        """Whether it waits for what is in flight, since either is the first to its exchange."""
        exchanges = {publication.exchange, self._outstanding.oldest.exchange}
        return self._careful and not exchanges <= self._answered

    def _on_answer(self, frame: Any) -> None:
        now = self._heard_at = self._answered_at = time.monotonic()
        method = frame.method
        error: errors.SqsDelayError | None = None
        if isinstance(method, pika.spec.Basic.Nack):
            why = "a queue on its way is full or has no leader; try again later"
            told = f"{self._where} refused the message (nack): {why}"
            error = errors.SendFailed(told, code="nack", transient=True)
        tag, multiple = method.delivery_tag, method.multiple
        for publication in self._outstanding.answered(tag, multiple=multiple, error=error):
            self._answered.add(publication.exchange)
            queue = publication.exchange or publication.routing_key
            if error is None:
                self._refused_since.pop(queue, None)
                self._jobs.patience.pop(queue, None)
                continue
            # Drain the connection, and close it, once one place has only refused for too long.
            patience = self._jobs.patience.get(queue, NACKS_SECONDS)
            since = self._refused_since.setdefault(queue, now)
            if now - since >= patience and not self._draining:
                self._jobs.patience[queue] = min(2 * patience, MAX_NACKS_SECONDS)
                self._draining = f"{queue} refused all messages for a while"
                self.wire.call_later(DRAIN_SECONDS, lambda: self.end(self._draining))
        if not self._outstanding:
            self._careful = True
            if self._draining:
                self.end(self._draining)
        self.pump()

    def _on_return(self, _: Any, method: Any, properties: Any, __: bytes) -> None:
        to, key = method.exchange, method.routing_key
        error = connection.refusal(connection.NOT_FOUND, f"no queue '{key}'", self._where)
        if to:
            error = errors.SendFailed(
                f"exchange {to} at {self._where} leads nowhere for {key!r}: {method.reply_code} "
                f"{method.reply_text}; repair its bindings with: {declare_command(to)}",
                code=str(method.reply_code),
                transient=False,
            )
        self._outstanding.returned((to, key, properties.message_id), error)

    def _watch(self) -> None:
        """Give up, now and then, on what has waited too long for its answer."""
        if self._over or self.lost:
            return
        now, patience = time.monotonic(), min(1.0, self._confirm_seconds / 4)
        overdue = now - self._confirm_seconds
        self._outstanding.taken(up_to=self.amqp.bytes_sent - self.wire.unwritten, now=now)
        opens = self._binding is not None and not self._binding.is_open
        if self.blocked or not (self._outstanding or self._asked or opens):
            self._heard_at = now  # it owes no answer before now
        if self._heard_at < overdue:
            # Not one queue is stuck but the connection, or the broker: start afresh.
            self.lost = TimeoutError("no answer")
        within = f"within {self._confirm_seconds:g} s{self.blocked}"
        told = f"{self._where} did not confirm the message {within}; {MAYBE_SENT}"
        self._outstanding.give_up(errors.Unconfirmed(told), lambda each: each.written_at < overdue)
        waiting, sent, since = self._jobs.publications, self._outstanding, self._answered_at
        if waiting and sent and max(since, sent.oldest.written_at) <= now - FIRST_ANSWER_SECONDS:
            # A queue does not answer: hold up nobody else for it any more.
            self._careful = self._careful and not self._goes_alone(waiting[0])
        self.pump()
        self.wire.call_later(patience, self._watch)

    def _settle_all(self) -> None:
        """Settle what has no answer. If the broker closed the channel at a message that it refuses, what goes
        the same way was not sent: not what waits, nor what is in flight to an exchange without any answer."""
        self._ask_again()
        sent, reason = self._outstanding, self._over
        if isinstance(reason, pika.exceptions.ChannelClosedByBroker):
            code, text = reason.reply_code, reason.reply_text
            by_key = "access to topic" in text
            known = () if by_key else self._answered

            def goes_there(each: Publication) -> bool:
                named = f"'{each.exchange or 'amq.default'}'" in text
                return named and (not by_key or f"'{each.routing_key}'" in text)

            if code in (connection.ACCESS_REFUSED, connection.NOT_FOUND):
                why = connection.refusal(code, text, self._where)
                error = errors.ConfigurationError(f"{why}; the message was not sent")
                sent.give_up(error, lambda each: goes_there(each) and each.exchange not in known)
                self._jobs.fail(error, goes_there)
            reason = f"{code} {text}"
        told = f"the connection to {self._where} ended before the message was confirmed"
        sent.give_up(errors.Unconfirmed(f"{told} ({reason}); {MAYBE_SENT}"))
