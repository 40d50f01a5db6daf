"""What an endpoint's queues and store hold, what becomes due in them, and how late it is: read for people."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from typing import Final, NamedTuple

from sqsdelay.core import limits
from sqsdelay.core.endpoint import Endpoint, QueueRef
from sqsdelay.errors import InvalidSetting, QueueMissing, SqsDelayError
from sqsdelay.parking.parking import Change, Cursor, Listing
from sqsdelay.ports.queues import QueueAges, Queues
from sqsdelay.ports.stores import DelayedMessageStore, ParkingPlace


def latest_of_sqs(queues: Queues, queue: QueueRef) -> int:
    """The most that SQS's clock may read now, epoch milliseconds; asked for where it is not known.
    `QueueMissing` or `QueueUnavailable` where it does not tell."""
    if not queues.broker_clock.synchronised:
        try:
            queues.synchronise(queue)
        except SqsDelayError:
            # A refusal is dated, too; what is no answer of SQS's tells nothing.
            if not queues.broker_clock.synchronised:
                raise
    return queues.broker_clock.latest_ms()


NOBODY: Final = "no dispatcher is running, or none is working"
STORE_TAG: Final = "sqsdelay:store"
ROLE_TAG: Final = "sqsdelay:store-role"
"""A deployed parking queue's tags, which it keeps where it is retained: its store's URL, and of a schedule
group, in a tag of its own, the role that sends (a tag takes no question mark)."""
CHANGED: Final = {
    Change.DONE: "{done}",
    Change.RELEASED: "too late: it is being released at this moment, and will arrive",
    Change.REQUESTED: "not in the store; if it is in the delay queue, it will be {done} at its next hop; "
    "if it was released, cancelled or never sent, nothing happens",
}
"""What became of a message that was to be cancelled or moved, in words; ``done`` is one."""
MOST_READ: Final = 500
"""Messages read of a store that cannot count: each is paid for, its body too."""
OVERDUE_MS: Final = 2 * limits.SCHEDULE_SECONDS * 1000
"""Two runs of the deployed dispatcher: a message stored when it is due already waits for one, the
second allows for a failed one. Any other dispatcher looks more often."""
OVERDUE_MARGIN_SECONDS: Final = 2 * limits.DELAY_QUEUE_VISIBILITY_SECONDS
"""A copy whose first attempt died is received again after one visibility timeout; the second allows
for a second such death."""
_COUNT: Final = "ApproximateNumberOfMessages"


def deployed_store(endpoint: Endpoint) -> str:
    """The URL of the store that ``npx cdk deploy -c store=dynamodb`` makes."""
    return f"dynamodb://{endpoint.name}{limits.STORE_TABLE_SUFFIX}"


def overdue_remedy(endpoint: Endpoint, url: str) -> str:
    """What to do where nobody releases what is due."""
    if url.startswith("scheduler://"):
        return f"run sqsdelay consume {endpoint.name} --store '{url}'"
    # Not any URL, which may hold a password.
    deployed = url == deployed_store(endpoint)
    shown = url if deployed or url.startswith("s3://") else "(the same URL)"
    first = f"npx cdk deploy -c endpoint={endpoint.name} -c store=dynamodb, or " if deployed else ""
    return f"run {first}sqsdelay dispatch {endpoint.name} --store {shown}"


def parse_cursor(text: str) -> Cursor:
    """Where a page ended, as `Listing.cursor` has it; `InvalidSetting` of one that was not given out."""
    found = re.fullmatch(r"(\d{1,15}):(.+)", text, re.ASCII | re.DOTALL)
    if found is None:
        raise InvalidSetting(
            f"{text!r} is not a cursor; give the one below the last page, such as "
            "1893456000000:order-7"
        )
    return int(found[1]), found[2]


class Outlook(NamedTuple):
    """How many messages are due in each span between two edges. The counts are whole up to
    ``complete_until_ms``; None where they are whole."""

    edges_ms: tuple[int, ...]
    counts: tuple[int, ...]
    complete_until_ms: int | None = None


def outlook(store: ParkingPlace, edges_ms: Sequence[int]) -> Outlook:
    """Count what a store has, between ascending edges; of one that cannot count, the earliest `MOST_READ`.
    `StoreUnavailable` or `StoreMissing` where it does not tell."""
    edges = tuple(edges_ms)
    counted = [store.count_due(start, end) for start, end in pairwise(edges)]
    if None not in counted:
        return Outlook(edges, tuple(count or 0 for count in counted))
    counts, last_ms = [0] * (len(edges) - 1), None
    listing = Listing(due_from_ms=edges[0], due_before_ms=edges[-1])
    for message in listing.read(store, MOST_READ):
        counts[bisect_right(edges, message.due_ms) - 1] += 1
        last_ms = message.due_ms
    cut = listing.listed == MOST_READ and listing.has_more(store)
    return Outlook(edges, tuple(counts), last_ms if cut else None)


class Role(StrEnum):
    """What a queue is to its endpoint."""

    DELAY = "delay queue"
    DUE = "due queue"
    PARKING = "parking queue"
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

    @property
    def _all(self) -> int:
        return self.visible + self.in_flight + self.delayed


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
    """All queues of an endpoint, in the order a delayed message passes them.

    ``parking_unread`` says why it is not known whether there is a parking queue, and what it holds.
    """

    endpoint: str
    queues: tuple[QueueStatus, ...]
    parking_unread: str | None = None

    @property
    def pending(self) -> int:
        """Messages waiting in queues for their due time.

        All that is visible or delayed in the delay queue and the due queue, all that is in the parking
        queue (where a message of an S3 store's holds up to ten), and what message timers hold back in the
        destination.
        """
        parked = sum(q._all for q in self.queues if q.role is Role.PARKING)
        relayed = sum(q.visible + q.delayed for q in self._relayed)
        return relayed + parked + self.queue(Role.DESTINATION).delayed

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
        return self.queue(Role.ERROR)._all

    def queue(self, role: Role) -> QueueStatus:
        """The queue with that role. Only FIFO endpoints have a due queue, and only those with an S3 or
        Scheduler store a parking queue."""
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
    roles = {
        endpoint.delay_queue: Role.DELAY,
        **({endpoint.due_queue: Role.DUE} if endpoint.fifo else {}),
        endpoint.queue: Role.DESTINATION,
        endpoint.error_queue: Role.ERROR,
        endpoint.parking_queue: Role.PARKING,
    }
    found: dict[QueueRef, Mapping[str, str]] = {}
    unread = None
    for ref, role in roles.items():
        try:
            with naming_the_command(endpoint, ref):
                found[ref] = queues.attributes(queues.url(ref))
        except SqsDelayError as error:
            if role is not Role.PARKING:
                raise
            if not isinstance(error, QueueMissing):  # Most endpoints have none.
                unread = f"{ref.name} could not be read: {error}"
    oldest = {} if ages is None else ages.oldest_seconds(list(found))
    counts = {"visible": "", "in_flight": "NotVisible", "delayed": "Delayed"}

    def status_of(ref: QueueRef) -> QueueStatus:
        told, age = found[ref], oldest.get(ref)
        numbers = {name: int(told.get(_COUNT + kind, "0")) for name, kind in counts.items()}
        return QueueStatus(name=ref.name, role=roles[ref], oldest_seconds=age, **numbers)

    told = tuple(map(status_of, found))
    return EndpointStatus(endpoint=endpoint.name, queues=told, parking_unread=unread)


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


@contextmanager
def naming_the_command(endpoint: Endpoint, ref: QueueRef, options: str = "") -> Iterator[None]:
    """Say of a queue that is missing how the endpoint is created, with these options."""
    try:
        yield
    except QueueMissing as error:
        raise QueueMissing(
            f"queue {ref.name} does not exist, so {endpoint.name} is not an endpoint (yet); create "
            f"it with: sqsdelay endpoint create {endpoint.name}{options}"
        ) from error
