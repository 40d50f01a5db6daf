"""What the three tasks of a timeout manager share: its parts, and settling deliveries."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from sqsdelay.core.clock import Clock
from sqsdelay.core.delay import Reject
from sqsdelay.core.readable import one_line
from sqsdelay.core.stored_message import StoredMessage
from sqsdelay.dispatching.circuit_breakers import CircuitBreaker, report
from sqsdelay.dispatching.destinations import Destinations
from sqsdelay.errors import CriticalError, StoreError
from sqsdelay.ports.queues import Delivery, Failure, TimeoutTransport
from sqsdelay.ports.stores import DelayedMessageStore
from sqsdelay.timeouts.announcements import Announcements
from sqsdelay.timeouts.settings import TimeoutSettings, TimeoutStatus

logger = logging.getLogger(__name__)

PAUSE_SECONDS: Final = 2
"""Between attempts while storage, queues or a destination cannot be reached."""

T = TypeVar("T")
Delivered = tuple[Delivery[Any] | None, StoredMessage]
"""A message and what brought it; None where that was settled before, and the message is in the store."""

Refused = tuple[Delivery[Any] | None, StoredMessage, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeoutParts:
    """What a timeout manager is made of; see `TimeoutManager`."""

    store: DelayedMessageStore
    transport: TimeoutTransport
    settings: TimeoutSettings
    clock: Clock
    destinations: Destinations
    announcements: Announcements
    on_critical: Callable[[CriticalError], None] | None
    on_done: Callable[[TimeoutStatus, Sequence[str]], None] | None


class TimeoutTask:
    """One task, with circuit breakers of its own on the storage.

    Reading may work while writing fails, and would disarm a common breaker.
    """

    def __init__(self, parts: TimeoutParts) -> None:
        self._parts = parts
        self._store = parts.store
        self._transport = parts.transport

    def _breaker(self, what: str) -> CircuitBreaker:
        name = f"timeout storage ({what})"
        return CircuitBreaker(name, self._parts.settings.outage_seconds, self._parts.clock)

    @contextmanager
    def _storage(self, breaker: CircuitBreaker) -> Iterator[None]:
        """Use the storage; once it has failed for too long, raise the critical error instead of its own."""
        try:
            yield
        except StoreError as error:
            report(breaker.failed(error), self._parts.on_critical)
            raise
        breaker.succeeded()

    def _readable(self, received: Sequence[Delivery[T]]) -> list[tuple[Delivery[T], T]]:
        """Deliveries with their contents; what cannot be read goes to the error queue."""
        unreadable = [(d, d.content.reason) for d in received if isinstance(d.content, Reject)]
        deliveries = [delivery for delivery, _ in unreadable]
        outcomes = self._transport.reject_unreadable(deliveries) if deliveries else []
        for (delivery, reason), failure in zip(unreadable, outcomes, strict=True):
            if failure is None:
                logger.warning("rejected because it cannot be read: %s", one_line(reason))
                self._settle([delivery])
            else:
                logger.error("not rejected, trying again: %s", one_line(failure.error))
                self._give_back([delivery], seconds=PAUSE_SECONDS)
        return [(d, d.content) for d in received if not isinstance(d.content, Reject)]

    def _sent(
        self, given: Sequence[Delivered]
    ) -> tuple[list[Delivered], list[tuple[Delivered, Failure]]]:
        """Send: what was sent, and what was not, and why."""
        sent: list[Delivered] = []
        failed: list[tuple[Delivered, Failure]] = []
        messages = [message for _, message in given]
        for each, outcome in zip(
            given, self._parts.destinations.send(self._transport, messages), strict=True
        ):
            if isinstance(outcome, Failure):
                failed.append((each, outcome))
            else:
                sent.append(each)
        return sent, failed

    def _rejected(self, refused: Sequence[Refused]) -> tuple[list[Delivered], list[Delivered]]:
        """Send to the error queue: what it has, and what it could not be given."""
        rejected: list[Delivered] = []
        left: list[Delivered] = []
        entries = [(message, reason) for _, message, reason in refused]
        outcomes = self._transport.reject(entries) if entries else []
        for (delivery, message, reason), failure in zip(refused, outcomes, strict=True):
            if failure is None:
                logger.warning("rejected %s: %s", one_line(message.message_id), one_line(reason))
                rejected.append((delivery, message))
            else:
                logger.error(
                    "%s not rejected (%s): %s",
                    one_line(message.message_id),
                    one_line(reason),
                    one_line(failure.error),
                )
                left.append((delivery, message))
        return rejected, left

    def _done(self, status: TimeoutStatus, settled: Sequence[Delivered]) -> None:
        if settled:
            self._settle(delivery for delivery, _ in settled)
            self._tell(status, [message.message_id for _, message in settled])

    def _tell(self, status: TimeoutStatus, message_ids: Sequence[str]) -> None:
        if message_ids and self._parts.on_done is not None:
            self._parts.on_done(status, message_ids)

    def _settle(self, deliveries: Iterable[Delivery[Any] | None]) -> None:
        brought = [delivery for delivery in deliveries if delivery is not None]
        if brought:
            self._transport.settle(brought)

    def _give_back(self, deliveries: Iterable[Delivery[Any] | None], *, seconds: int) -> None:
        brought = [delivery for delivery in deliveries if delivery is not None]
        if brought:
            self._transport.give_back(brought, seconds=seconds)

    def _log_retry(self, message: StoredMessage, failure: Failure, seconds: float) -> None:
        logger.warning(
            "%s to %s: trying again in %d s: %s",
            one_line(message.message_id),
            one_line(message.destination),
            seconds,
            one_line(failure.error),
        )
