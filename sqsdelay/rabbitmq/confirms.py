"""Publisher confirms, and what waits for them: jobs of one or many messages."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from math import inf

from pika import BasicProperties

from sqsdelay.errors import SqsDelayError
from sqsdelay.rabbitmq.topology import Topology


@dataclass(slots=True, eq=False)
class Publication:
    """One message on its way to the broker, and in the end what became of it.

    ``error`` is None once the broker confirmed it; ``on_settled`` is called once, in either case.
    ``before_write`` is called as it is written, to say in it what depends on the time.
    """

    exchange: str
    routing_key: str
    body: bytes
    properties: BasicProperties
    on_settled: Callable[[], None] = lambda: None
    before_write: Callable[[], None] = lambda: None
    error: SqsDelayError | None = None
    published_at: float = inf
    written_at: float = inf
    size: int = 0
    stream_end: int = 0
    taken: bool = False
    settled: bool = False
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def take(self) -> bool:
        """Claim it for writing; False if it was settled before."""
        with self._lock:
            self.taken = not self.settled
            return self.taken

    def hand_back(self) -> bool:
        """Take back the claim of what the broker cannot have; False if it was settled before."""
        with self._lock:
            self.taken = False
            self.published_at = self.written_at = inf
            return not self.settled

    def settle(self, error: SqsDelayError | None = None) -> None:
        """Say what became of it; what is said later changes nothing."""
        with self._lock:
            if self.settled:
                return
            self.settled = True
            self.error = self.error or error
        self.on_settled()

    def expire(self, *, unwritten: SqsDelayError, unconfirmed: SqsDelayError) -> None:
        """Its time is up: settle it by whether the broker may have it. It is not written any more."""
        with self._lock:
            if self.settled:
                return
            self.settled = True
            self.error = self.error or (unconfirmed if self.taken else unwritten)
        self.on_settled()


class Outstanding:
    """Publications of one channel without an answer, by delivery tag, oldest first. Not thread-safe."""

    def __init__(self) -> None:
        self._by_tag: dict[int, Publication] = {}
        self._unwritten: deque[Publication] = deque()
        self._last_tag = 0
        self.bytes = 0
        """What they take on the wire, together."""

    def __len__(self) -> int:
        return len(self._by_tag)

    @property
    def oldest_at(self) -> float:
        """When the oldest was published; infinity where there is none."""
        return next((each.published_at for each in self._by_tag.values()), inf)

    def add(self, publication: Publication, *, now: float) -> None:
        """Note a publication just before it is published."""
        publication.published_at = now
        self._last_tag += 1
        self._by_tag[self._last_tag] = publication

    def buffered(self, publication: Publication, *, size: int, stream_end: int) -> None:
        """Note that the bytes of the latest publication end the connection's stream so far."""
        publication.size, publication.stream_end = size, stream_end
        self.bytes += size
        self._unwritten.append(publication)

    def written(self, stream_position: int, *, now: float) -> None:
        """Start the confirm's clock of what the socket has taken: the stream up to a position."""
        while self._unwritten and self._unwritten[0].stream_end <= stream_position:
            self._unwritten.popleft().written_at = now

    def answered(
        self, tag: int, *, multiple: bool, error: SqsDelayError | None = None
    ) -> list[Publication]:
        """Settle what an ack (no ``error``) or a nack answers for; answers out of order are fine."""
        tags = list(self._up_to(tag)) if multiple else [tag]
        return [self._settle(each, error) for each in tags if each in self._by_tag]

    def refused(
        self, named: Callable[[Publication], bool], error: SqsDelayError
    ) -> list[Publication]:
        """Settle with ``error`` the first one ``named`` and all such after it; the others after it,
        which the broker did not look at, are no longer outstanding: they may be written again."""
        ignored: list[Publication] = []
        found = False
        for tag, each in list(self._by_tag.items()):
            if named(each):
                found = True
                self._settle(tag, error)
            elif found and each.hand_back():
                self.bytes -= self._by_tag.pop(tag).size
                ignored.append(each)
        return ignored

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

    def give_up(self, error: SqsDelayError, *, written_before: float = inf) -> int:
        """Settle with ``error`` what was written before an instant; how many these were.

        Without an instant: all, written or not.
        """
        overdue = [
            tag
            for tag, each in self._by_tag.items()
            if written_before == inf or each.written_at < written_before
        ]
        for tag in overdue:
            self._settle(tag, error)
        return len(overdue)

    def _settle(self, tag: int, error: SqsDelayError | None) -> Publication:
        publication = self._by_tag.pop(tag)
        self.bytes -= publication.size
        publication.settle(error)
        return publication

    def _up_to(self, tag: int) -> Iterator[int]:
        for each in self._by_tag:
            if each > tag:
                return
            yield each


@dataclass(slots=True, eq=False)
class BindJob:
    """An endpoint whose due messages are to reach its queue, and in the end what became of it."""

    endpoint: str
    topology: Topology
    retries: int = 0
    error: SqsDelayError | None = None
    done: threading.Event = field(default_factory=threading.Event)

    def settle(self, error: SqsDelayError | None = None) -> None:
        if not self.done.is_set():
            self.error = error
            self.done.set()


Job = Publication | BindJob


class Jobs:
    """Bindings, and publications in the order in which they came. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._bindings: deque[BindJob] = deque()
        self._publications: deque[Publication] = deque()

    def __len__(self) -> int:
        return len(self._bindings) + len(self._publications)

    def publish(self, publications: Sequence[Publication]) -> None:
        with self._lock:
            self._publications.extend(publications)

    def publish_first(self, publications: Sequence[Publication]) -> None:
        """Before all others: these have waited longest."""
        with self._lock:
            self._publications.extendleft(reversed(publications))

    def bind(self, bindings: Sequence[BindJob]) -> None:
        with self._lock:
            self._bindings.extend(bindings)

    def take_bindings(self) -> list[BindJob]:
        """All bindings that someone waits for, which are then the caller's to settle."""
        with self._lock:
            taken = [job for job in self._bindings if not job.done.is_set()]
            self._bindings.clear()
            return taken

    def next_publication(self, *, room: int | None = None) -> Publication | None:
        """A publication to be written now, which is then the caller's to settle.

        Args:
            room: the most bytes that its body may have; the next waits for more.
        """
        with self._lock:
            while self._publications:
                publication = self._publications[0]
                if room is not None and len(publication.body) > room:
                    return None
                self._publications.popleft()
                if publication.take():
                    return publication
            return None

    def discard_settled(self) -> None:
        """Forget what nobody waits for any more."""
        with self._lock:
            self._publications = deque(each for each in self._publications if not each.settled)
            self._bindings = deque(each for each in self._bindings if not each.done.is_set())

    def fail(self, error: SqsDelayError) -> None:
        """Settle all that waits."""
        with self._lock:
            failed: list[Job] = [*self._bindings, *self._publications]
            self._bindings.clear()
            self._publications.clear()
        for job in failed:
            job.settle(error)
