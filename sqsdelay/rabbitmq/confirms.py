"""Bookkeeping of publisher confirms: which publications the broker has answered for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from pika import BasicProperties

from sqsdelay.errors import SqsDelayError


@dataclass(slots=True, eq=False)
class Publication:
    """One message on its way to the broker, and in the end what became of it.

    ``error`` is None once the broker confirmed it; ``on_settled`` is called once, in either case.
    """

    exchange: str
    routing_key: str
    body: bytes
    properties: BasicProperties
    on_settled: Callable[[], None] = lambda: None
    error: SqsDelayError | None = None
    published_at: float = 0.0

    def settle(self, error: SqsDelayError | None = None) -> None:
        self.error = self.error or error
        self.on_settled()


class Outstanding:
    """Publications of one channel without an answer, by delivery tag, oldest first. Not thread-safe."""

    def __init__(self) -> None:
        self._by_tag: dict[int, Publication] = {}
        self._last_tag = 0

    def __len__(self) -> int:
        return len(self._by_tag)

    def add(self, publication: Publication, *, now: float) -> None:
        """Note a publication just before it is published."""
        publication.published_at = now
        self._last_tag += 1
        self._by_tag[self._last_tag] = publication

    def answered(self, tag: int, *, multiple: bool, error: SqsDelayError | None = None) -> None:
        """Settle what an ack (no ``error``) or a nack answers for; answers out of order are fine."""
        if not multiple:
            publication = self._by_tag.pop(tag, None)
            if publication is not None:
                publication.settle(error)
            return
        for each in list(self._up_to(tag)):
            self._by_tag.pop(each).settle(error)

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

    def give_up(self, error: SqsDelayError, *, published_before: float = float("inf")) -> int:
        """Settle with ``error`` what was published before an instant; how many these were."""
        overdue = [tag for tag, p in self._by_tag.items() if p.published_at < published_before]
        for tag in overdue:
            self._by_tag.pop(tag).settle(error)
        return len(overdue)

    def _up_to(self, tag: int) -> Iterator[int]:
        for each in self._by_tag:
            if each > tag:
                return
            yield each
