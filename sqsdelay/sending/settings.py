"""How a sender sends, and what it refuses beforehand: two endpoints that would share their queues."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from sqsdelay.core.coalescing import checked_linger
from sqsdelay.core.delay import check_hop, checked_max_delay
from sqsdelay.core.endpoint import Endpoint, QueueRef
from sqsdelay.errors import (
    ConfigurationError,
    InvalidSetting,
    QueueMissing,
    QueueUnavailable,
    QueueUnreachable,
)
from sqsdelay.ledger.events import Ledger
from sqsdelay.limits import (
    DEFAULT_HOP_SECONDS,
    DEFAULT_MAX_DELAY_SECONDS,
    DUE_QUEUE_SUFFIX,
    FIFO_SUFFIX,
    PARKING_QUEUE_SUFFIX,
)
from sqsdelay.parking.parking import ParkingSettings
from sqsdelay.ports.queues import LargeBodies, Queues
from sqsdelay.ports.tracing import Tracing

DEFAULT_CONCURRENCY: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class SenderSettings:
    """The settings of a sender; `sqsdelay.DelaySender` says what they mean.

    With a store it is idempotent in any case: it sees what was cancelled or rescheduled.

    Raises:
        ConfigurationError: a setting out of range, or a hop without a delay queue.
    """

    unrestricted: bool = True
    hop_seconds: int = DEFAULT_HOP_SECONDS
    max_delay_seconds: int = DEFAULT_MAX_DELAY_SECONDS
    concurrency: int = DEFAULT_CONCURRENCY
    parking: ParkingSettings | None = None
    large_bodies: LargeBodies | None = None
    idempotent: bool = False
    ledger: Ledger | None = None
    linger_ms: float = 0
    tracing: Tracing | None = None
    begin_within_seconds: float = math.inf

    def __post_init__(self) -> None:
        check_hop(self.hop_seconds)
        checked_max_delay(self.max_delay_seconds)
        checked_linger(self.linger_ms)
        if self.concurrency < 1:
            raise InvalidSetting("use 1 or more", concurrency=self.concurrency)
        if not self.unrestricted and self.hop_seconds != DEFAULT_HOP_SECONDS:
            raise InvalidSetting(
                "with unrestricted=False; without a delay queue there is no hop; leave hop_seconds out",
                hop_seconds=self.hop_seconds,
            )


def refuse_collision(queues: Queues, endpoint: Endpoint) -> None:
    """Raise if another endpoint of the account has the same queues.

    Raises:
        ConfigurationError: it has, with what to do.
        QueueUnreachable
    """
    try:
        problem = collision(queues, endpoint)
    except QueueUnreachable as error:
        # Named for what was asked for: the queues looked for here are often not there.
        raise QueueUnreachable(
            f"queue {endpoint.name} cannot be used now: {error.__cause__}; try again later"
        ) from error.__cause__
    if problem is not None:
        raise ConfigurationError(problem)


def collision(queues: Queues, endpoint: Endpoint) -> str | None:
    """Why the endpoint cannot be, beside another; None when it can, or nobody may tell us.

    ``orders`` and ``orders.fifo`` would share ``orders-delay.fifo``. A FIFO queue beside a standard
    endpoint harms nobody while it is no endpoint itself, which its due queue shows.
    """
    twin_is_endpoint = endpoint.fifo or _exists(queues, endpoint.due_queue)
    if twin_is_endpoint and _exists(queues, endpoint.twin):
        return (
            f"{endpoint.name} would share the delay queue {endpoint.delay_queue.name} with "
            f"{endpoint.twin.name}, which exists; rename one of them"
        )
    for what, owner in _owners(endpoint.queue):
        if _exists(queues, owner.queue) and _exists(queues, owner.delay_queue):
            return f"{endpoint.name} is the {what} queue of the endpoint {owner.name}; rename the endpoint"
    return None


def _owners(queue: QueueRef) -> Iterator[tuple[str, Endpoint]]:
    """The endpoints that would have a queue of this name, and what it would be to them."""
    owned = {
        "due": (DUE_QUEUE_SUFFIX, (FIFO_SUFFIX,)),
        "parking": (PARKING_QUEUE_SUFFIX, ("", FIFO_SUFFIX)),
    }
    for what, (suffix, kinds) in owned.items():
        if queue.name.endswith(suffix):
            for kind in kinds:
                name = queue.name.removesuffix(suffix) + kind
                yield what, Endpoint(QueueRef(name, queue.account_id, queue.region))


def _exists(queues: Queues, queue: QueueRef) -> bool:
    try:
        queues.url(queue)
    except QueueUnreachable:
        raise  # Nothing else would be answered, either, and each call takes its time.
    except (QueueMissing, QueueUnavailable):
        # Denied: a policy that names our queues only is no reason to send nothing.
        return False
    return True
