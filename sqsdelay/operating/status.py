"""An endpoint's state: what waits where, what failed, and how old the oldest message is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from sqsdelay.core.endpoint import Endpoint, QueueRef
from sqsdelay.errors import QueueMissing
from sqsdelay.limits import DELAY_QUEUE_VISIBILITY_SECONDS, SCHEDULE_SECONDS
from sqsdelay.ports.queues import QueueAges, Queues
from sqsdelay.ports.stores import DelayedMessageStore, ParkingPlace

OVERDUE_MS: Final = 2 * SCHEDULE_SECONDS * 1000
"""Two runs of the deployed dispatcher: a message stored when it is due already waits for one, the
second allows for a failed one. Any other dispatcher looks more often."""

OVERDUE_MARGIN_SECONDS: Final = 2 * DELAY_QUEUE_VISIBILITY_SECONDS
"""A copy whose first attempt died is received again after one visibility timeout; the second allows
for a second such death."""


class Role(StrEnum):
    """What a queue is to its endpoint."""

    DELAY = "delay queue"
    DUE = "due queue"
    DESTINATION = "destination"
    ERROR = "error queue"


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueStatus:
    """One queue's messages. The counts are SQS's approximations, at times a minute behind.

    Args:
        visible: can be received now.
        in_flight: received but not yet deleted.
        delayed: held back by the queue's delay or by message timers.
        oldest_seconds: age of the oldest; None where CloudWatch does not tell.
    """

    name: str
    role: Role
    visible: int
    in_flight: int
    delayed: int
    oldest_seconds: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreStatus:
    """What is parked, and when the earliest message is due; exact at the instant of the query.

    Args:
        next_due_ms: when the earliest message is due that no dispatcher has claimed.
        late_ms: how long ago the earliest message in the store was due; 0 if it is not due yet.
    """

    parked: int
    next_due_ms: int | None
    late_ms: int = 0

    @property
    def overdue(self) -> bool:
        """Whether due messages seem not to be released."""
        return self.late_ms > OVERDUE_MS


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointStatus:
    """All queues of an endpoint, in the order a delayed message passes them."""

    endpoint: str
    queues: tuple[QueueStatus, ...]

    @property
    def pending(self) -> int:
        """Messages waiting in queues for their due time.

        All that is visible or delayed in the delay queue and the due queue, and what message timers
        hold back in the destination.
        """
        waiting = sum(q.visible + q.delayed for q in self._relayed)
        return waiting + self.queue(Role.DESTINATION).delayed

    @property
    def in_flight(self) -> int:
        """Messages that the delay consumer is working on."""
        return sum(q.in_flight for q in self._relayed)

    @property
    def oldest_seconds(self) -> int | None:
        """Age of the oldest copy that the delay consumer serves; None if CloudWatch has no figure."""
        ages = [q.oldest_seconds for q in self._relayed if q.oldest_seconds is not None]
        return max(ages, default=None)

    @property
    def errors(self) -> int:
        """Messages in the error queue, including those that someone is looking at."""
        queue = self.queue(Role.ERROR)
        return queue.visible + queue.in_flight + queue.delayed

    def queue(self, role: Role) -> QueueStatus:
        """The queue with that role; only FIFO endpoints have a due queue."""
        return next(q for q in self.queues if q.role is role)

    @property
    def _relayed(self) -> list[QueueStatus]:
        return [q for q in self.queues if q.role in (Role.DELAY, Role.DUE)]


def endpoint_status(
    queues: Queues, endpoint: Endpoint, ages: QueueAges | None = None
) -> EndpointStatus:
    """Read the state of an endpoint's queues.

    Args:
        ages: looks up the age of the oldest message; without it, the age stays unknown.

    Raises:
        QueueMissing: the endpoint or one of its queues does not exist; says how to create it.
        QueueUnavailable
    """
    roles = _roles(endpoint)
    found = {ref: _attributes(queues, endpoint, ref) for ref in roles}
    oldest = {} if ages is None else ages.oldest_seconds(list(roles))
    return EndpointStatus(
        endpoint=endpoint.name,
        queues=tuple(
            QueueStatus(
                name=ref.name,
                role=role,
                visible=_count(found[ref], "ApproximateNumberOfMessages"),
                in_flight=_count(found[ref], "ApproximateNumberOfMessagesNotVisible"),
                delayed=_count(found[ref], "ApproximateNumberOfMessagesDelayed"),
                oldest_seconds=oldest.get(ref),
            )
            for ref, role in roles.items()
        ),
    )


def store_status(store: ParkingPlace, *, now_ms: int) -> StoreStatus:
    """Ask a store.

    Args:
        now_ms: by the clock that due times are measured with, epoch milliseconds.

    Raises:
        StoreUnavailable, StoreMissing
    """
    # Not next_due_ms(), which leaves out what a dispatcher holds after a refusal.
    earliest = store.pending(1)
    first_ms = earliest[0].due_ms if earliest else None
    return StoreStatus(
        parked=store.pending_count(),
        next_due_ms=store.next_due_ms() if isinstance(store, DelayedMessageStore) else first_ms,
        late_ms=max(0, now_ms - earliest[0].due_ms) if earliest else 0,
    )


def _roles(endpoint: Endpoint) -> dict[QueueRef, Role]:
    due = {endpoint.due_queue: Role.DUE} if endpoint.fifo else {}
    return {
        endpoint.delay_queue: Role.DELAY,
        **due,
        endpoint.queue: Role.DESTINATION,
        endpoint.error_queue: Role.ERROR,
    }


def _attributes(queues: Queues, endpoint: Endpoint, ref: QueueRef) -> Mapping[str, str]:
    try:
        return queues.attributes(queues.url(ref))
    except QueueMissing as error:
        raise QueueMissing(
            f"queue {ref.name} does not exist, so {endpoint.name} is not an endpoint (yet); create "
            f"it with: sqsdelay endpoint create {endpoint.name}"
        ) from error


def _count(attributes: Mapping[str, str], name: str) -> int:
    return int(attributes.get(name, "0"))
