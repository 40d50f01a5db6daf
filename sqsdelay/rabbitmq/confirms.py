"""What waits for the broker's answer: publications, bindings, and the queue they come from.

All of it is touched by the publisher's thread alone, once it was handed in."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import takewhile
from math import inf

from pika import BasicProperties

from sqsdelay.errors import SqsDelayError
from sqsdelay.rabbitmq.topology import Queue, Topology


@dataclass(slots=True, eq=False, kw_only=True)
class Job:
    """One thing to do on a connection, and in the end what became of it.

    ``error`` is None if the broker did it; ``on_settled`` is called with it once, in either case.
    """

    error: SqsDelayError | None = None
    settled: bool = False
    written: bool = False
    on_settled: Callable[[Job], None] | None = None

    def settle(self, error: SqsDelayError | None = None) -> None:
        """Say what became of it; what is said later changes nothing."""
        if not self.settled:
            self.settled, self.error = True, self.error or error
            if self.on_settled is not None:
                self.on_settled(self)


@dataclass(slots=True, eq=False)
class Publication(Job):
    """One message on its way to the broker.

    Args:
        on_write: called as it is written, for another exchange, routing key, properties and due time:
            a delay counts from then.
    """

    exchange: str
    routing_key: str
    body: bytes
    properties: BasicProperties
    due_ms: int = 0
    on_write: Callable[[], tuple[str, str, BasicProperties, int]] | None = None
    written_at: float = inf
    size: int = 0
    ends_at: int = 0

    def renew(self) -> None:
        """Say in it what depends on the time, just before it is written."""
        if self.on_write is not None:
            self.exchange, self.routing_key, self.properties, self.due_ms = self.on_write()


@dataclass(slots=True, eq=False)
class BindJob(Job):
    """An endpoint whose due messages are to reach its queue. `InvalidEndpoint` where its name is too long
    together with the prefix."""

    endpoint: str
    topology: Topology
    queue: Queue | None = field(init=False)
    retries: int = 0

    def __post_init__(self) -> None:
        self.queue = self.topology.hand_over_queue(self.endpoint)


@dataclass(slots=True)
class Outstanding:
    """Publications of one channel without an answer, by delivery tag, oldest first."""

    bytes: int = 0
    """What they take on the wire, together."""
    _by_tag: dict[int, Publication] = field(default_factory=dict)
    _last_tag: int = 0

    def __len__(self) -> int:
        return len(self._by_tag)

    def add(self, publication: Publication, *, begins_at: int, ends_at: int) -> None:
        """Note that a publication was published, and which bytes of the connection's it takes."""
        publication.written, publication.ends_at = True, ends_at
        publication.size = ends_at - begins_at
        self.bytes += publication.size
        self._last_tag += 1
        self._by_tag[self._last_tag] = publication

    def taken(self, *, up_to: int, now: float) -> None:
        """Start the confirm's clock of those that end there: the socket has taken so many bytes."""
        for each in self._by_tag.values():
            if each.ends_at > up_to:
                break
            each.written_at = min(each.written_at, now)

    def answered(
        self, tag: int, *, multiple: bool, error: SqsDelayError | None = None
    ) -> list[Publication]:
        """Settle what an ack (no ``error``) or a nack answers for; answers out of order are fine."""
        tags = list(takewhile(lambda each: each <= tag, self._by_tag)) if multiple else [tag]
        return [self._settle(each, error) for each in tags if each in self._by_tag]

    def returned(
        self, exchange: str, routing_key: str, message_id: str | None, error: SqsDelayError
    ) -> None:
        """Note that the broker could not route a publication; its ack follows and settles it."""
        for publication in self._by_tag.values():
            if (
                publication.routing_key == routing_key
                and publication.exchange == exchange
                and publication.properties.message_id == message_id
                and publication.error is None
            ):
                publication.error = error
                return

    def give_up(
        self, error: SqsDelayError, of: Callable[[Publication], bool] = lambda _: True
    ) -> None:
        """Settle with ``error`` those of which that is true, or all."""
        for tag in [tag for tag, each in self._by_tag.items() if of(each)]:
            self._settle(tag, error)

    def _settle(self, tag: int, error: SqsDelayError | None) -> Publication:
        publication = self._by_tag.pop(tag)
        self.bytes -= publication.size
        publication.settle(error)
        return publication


@dataclass(slots=True)
class Jobs:
    """What waits for a connection, in the order in which it came; none of it is settled."""

    bindings: deque[BindJob] = field(default_factory=deque)
    publications: deque[Publication] = field(default_factory=deque)
    patience: dict[str, float] = field(default_factory=dict)
    """How many seconds a place that refuses all it is sent may go on until the next new connection."""

    def __len__(self) -> int:
        return len(self.bindings) + len(self.publications)

    def fail(self, error: SqsDelayError, of: Callable[[Job], bool] = lambda _: True) -> None:
        """Settle those of which that is true, or all that waits."""
        for job in [*self.bindings, *self.publications]:
            if of(job):
                job.settle(error)
        self.discard_settled()

    def discard_settled(self) -> None:
        """Forget what nobody waits for any more."""
        self.bindings = deque(each for each in self.bindings if not each.settled)
        self.publications = deque(each for each in self.publications if not each.settled)
