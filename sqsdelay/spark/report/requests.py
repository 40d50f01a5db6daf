"""Which requests an event stands for, as the cost model counts them.

A batch's request is shared by its messages: each has 1/batch of it. A request that carries payload is
billed once for each 64 KiB begun. Shares are whole numbers, so that their sums are exact in any order.
What a receiver pays is left out, as in the cost model.
"""

from __future__ import annotations

import math
from typing import Final

from pyspark.sql import Column
from pyspark.sql import functions as F

from sqsdelay.core.message import Route
from sqsdelay.cost.workload import CHUNK_BYTES
from sqsdelay.ledger.events import EventKind, Source
from sqsdelay.limits import FIFO_SUFFIX, MAX_BATCH_ENTRIES

SHARES: Final = 1000 * math.lcm(*range(1, MAX_BATCH_ENTRIES + 1))
"""Of one request: every batch size of SQS divides it."""


def event_is(*kinds: EventKind) -> Column:
    """Whether an event is of one of these kinds."""
    return F.col("event").isin([kind.value for kind in kinds])


def sent_by(*routes: Route) -> Column:
    """Whether a message was sent by one of these routes."""
    return event_is(EventKind.SENT) & F.col("route").isin([route.value for route in routes])


def fifo_endpoint() -> Column:
    """Whether the endpoint is a FIFO queue: a due queue, a standard one, stands before it."""
    return F.col("endpoint").endswith(FIFO_SUFFIX)


def ends_hop() -> Column:
    """Whether the event ends a pass through the delay queue."""
    return _settled_by_consumer() & ~_leaves_due_queue()


def reaches_destination() -> Column:
    """Whether the message is in its destination queue then, once a message timer has ended. What a
    store releases for a FIFO endpoint is in the due queue, and handed over from there."""
    released = event_is(EventKind.RELEASED) & ~fifo_endpoint()
    return event_is(EventKind.HANDED_OVER) | released


def place() -> Column:
    """Where an event leaves its message; null where it ends its way."""
    queue = F.when(fifo_endpoint(), "due queue")
    fifo_or = F.coalesce(queue, F.lit("destination queue"))
    waits_on = event_is(EventKind.HOP) & F.col("timer_seconds").isNotNull()
    return (
        F.when(waits_on | sent_by(Route.DUE_QUEUE), "due queue")
        .when(event_is(EventKind.HOP) | sent_by(Route.DELAY_QUEUE), "delay queue")
        .when(event_is(EventKind.FORWARDED), "parking queue")
        .when(event_is(EventKind.PARKED, EventKind.RESCHEDULED) | sent_by(Route.STORE), "store")
        .when(event_is(EventKind.RELEASED), fifo_or)
        .when(event_is(EventKind.HANDED_OVER) | sent_by(Route.DIRECT), "destination queue")
        .when(event_is(EventKind.SENT), "sender")
    )


def fifo_requests() -> Column:
    """Shares of requests to FIFO queues, as billed."""
    return _shares(_sends_to_fifo(), ends_hop())


def standard_requests() -> Column:
    """Shares of requests to standard queues, as billed."""
    return _shares(_sends() & ~_sends_to_fifo(), _leaves_due_queue())


def invocations() -> Column:
    """Shares of the batches that the delay consumer and the dispatcher worked on."""
    received = F.when(_settled_by_consumer(), _share_of(_received_together()))
    released = F.when(event_is(EventKind.RELEASED), _share_of(_sent_together()))
    return F.coalesce(received, released, F.lit(0).cast("bigint"))


def _settled_by_consumer() -> Column:
    """The consumer received a copy from the delay queue or the due queue, and deleted it."""
    return (F.col("source") == Source.CONSUMER.value) & event_is(
        EventKind.HOP,
        EventKind.HANDED_OVER,
        EventKind.FORWARDED,
        EventKind.PARKED,
        EventKind.REJECTED,
        EventKind.CANCELLED,
    )


def _leaves_due_queue() -> Column:
    return _settled_by_consumer() & fifo_endpoint() & event_is(EventKind.HANDED_OVER)


def _sends() -> Column:
    """The message was sent to some queue, the error queue included."""
    moved = event_is(
        EventKind.HOP,
        EventKind.HANDED_OVER,
        EventKind.FORWARDED,
        EventKind.RELEASED,
        EventKind.REJECTED,
    )
    return moved | sent_by(Route.DIRECT, Route.DELAY_QUEUE, Route.DUE_QUEUE)


def _sends_to_fifo() -> Column:
    """To the delay queue, or to a FIFO endpoint's own queue; with a message timer it is the due queue."""
    back = event_is(EventKind.HOP) & F.col("timer_seconds").isNull()
    last = event_is(EventKind.HANDED_OVER) | sent_by(Route.DIRECT)
    return sent_by(Route.DELAY_QUEUE) | back | (last & fifo_endpoint())


def _shares(sends: Column, receives: Column) -> Column:
    nothing = F.lit(0).cast("bigint")
    together, received = _sent_together(), _received_together()
    sent = F.when(sends, _share_of(together, _chunks(together))).otherwise(nothing)
    # A receive carries the payload, a delete does not.
    taken = F.when(receives, _share_of(received, _chunks(received)) + _share_of(received))
    return sent + F.coalesce(taken, nothing)


def _sent_together() -> Column:
    return F.coalesce(F.col("batch"), F.lit(1))


def _received_together() -> Column:
    return F.coalesce(F.col("receive_batch"), F.col("batch"), F.lit(1))


def _share_of(together: Column, requests: Column | None = None) -> Column:
    shares = F.lit(SHARES).cast("bigint") * (F.lit(1) if requests is None else requests)
    return F.floor(shares / together).cast("bigint")


def _chunks(together: Column) -> Column:
    payload = together * F.coalesce(F.col("size"), F.lit(1))
    return F.greatest(F.lit(1), F.ceil(payload / CHUNK_BYTES)).cast("bigint")
