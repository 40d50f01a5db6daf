"""What threads want done on the one connection, until it takes them."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from sqsdelay.errors import SqsDelayError
from sqsdelay.rabbitmq.confirms import Publication


@dataclass(slots=True, eq=False)
class BindJob:
    """A queue to be bound to an exchange, and in the end what became of it."""

    queue: str
    exchange: str
    routing_key: str
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

    def bind(self, job: BindJob) -> None:
        with self._lock:
            self._bindings.append(job)

    def next_binding(self) -> BindJob | None:
        """A binding, which is then the caller's to settle."""
        with self._lock:
            while self._bindings:
                job = self._bindings.popleft()
                if not job.done.is_set():
                    return job
            return None

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
