"""One row for each life of a message, from its events in any order, and what became of it.

An id may be used again: a life begins with a send after the message was cancelled, delivered or rejected.
Lateness starts at the later of due and sent, and ends when the destination queue shows the message. What
it then waits there for its receiver is another figure.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pyspark.sql import Column, DataFrame, Window, WindowSpec
from pyspark.sql import functions as F

from sqsdelay.core.message import Route
from sqsdelay.cost.workload import BANDS
from sqsdelay.ledger.events import EventKind
from sqsdelay.spark.report.requests import (
    ends_hop,
    event_is,
    fifo_requests,
    invocations,
    place,
    reaches_destination,
    sent_by,
    standard_requests,
)

DELIVERED: Final = "delivered"
HANDED_OVER: Final = "handed-over"
"""In the destination queue; nobody records what is received from it."""
PENDING: Final = "pending"
LOST: Final = "lost"
UNKNOWN: Final = "unknown"
"""Not arrived, and no event says when it should."""
CANCELLED: Final = "cancelled"
REJECTED: Final = "rejected"
STATUSES: Final = (LOST, PENDING, UNKNOWN, DELIVERED, HANDED_OVER, REJECTED, CANCELLED)
ARRIVED: Final = (DELIVERED, HANDED_OVER)
OPEN: Final = (LOST, PENDING, UNKNOWN)
"""Neither arrived nor settled otherwise."""

KEY: Final = ("endpoint", "message_id")
_HASH: Final = "hash"
_SHARES: Final = ("fifo_shares", "standard_shares", "invocation_shares")

CLOCK_TOLERANCE_MS: Final = 1000
"""Of a lateness worked out from two events: a sender knows the broker's clock by HTTP's ``Date``, which
has whole seconds. A lateness told by an event itself is exact."""

_ORDER: Final = [kind.value for kind in (
    EventKind.SENT, EventKind.RESCHEDULED, EventKind.HOP, EventKind.FORWARDED, EventKind.PARKED,
    EventKind.RELEASED, EventKind.HANDED_OVER, EventKind.REJECTED, EventKind.CANCELLED, EventKind.RECEIVED,
)]  # fmt: skip
"""Of events at the same millisecond."""


def gathered(events: DataFrame) -> DataFrame:
    """The events of each life of a message in one row; an event that was written twice counts once."""
    # One shuffle and one sort for all that follows; of a small ledger, adaptive execution makes few
    # parts. The sort compares numbers first: ids that begin alike are slow to compare.
    hashed = events.repartition(*KEY).select(
        F.xxhash64(*KEY).alias(_HASH),
        "*",
        _instant().alias("instant"),
        F.array_position(F.lit(_ORDER), F.col("event")).alias("order"),
        event_is(EventKind.SENT).alias("sent"),
        reaches_destination().alias("handed_over"),
        event_is(EventKind.RECEIVED).alias("received"),
    )
    others = [name for name in events.columns if name not in KEY]
    of_message = Window.partitionBy(_HASH, *KEY).orderBy("instant", "order", *others)
    event = F.struct(*others)
    whole = of_message.rowsBetween(Window.unboundedPreceding, Window.unboundedFollowing)
    before = of_message.rowsBetween(Window.unboundedPreceding, -1)
    marked = hashed.select(
        "*",
        F.equal_null(F.lag(event).over(of_message), event).alias("again"),
        # Known where it was sent, and needed wherever a request carried it.
        F.max("size").over(whole).alias("known_size"),
        *[F.last(value, ignorenulls=True).over(before).alias(n) for n, value in _past().items()],
    )
    sized = marked.where("NOT again").withColumn("size", F.coalesce("size", "known_size"))
    lived = sized.withColumn("begins", _begins()).withColumns(_lives(of_message))
    told = lived.select("*", *[column.alias(name) for name, column in _told().items()])
    return told.groupBy(_HASH, *KEY, _life()).agg(*_columns()).drop(_HASH)


def _instant() -> Column:
    """Where an event stands among the others of its message. A copy that tells no due time was sent straight
    to its queue: it stands after its sending, whatever the receiver's clock says."""
    taken_ms = F.when(F.col("due_ms").isNull(), F.col("enqueued_ms") + CLOCK_TOLERANCE_MS)
    received = F.when(event_is(EventKind.RECEIVED), taken_ms)
    return F.coalesce(received, F.col("at_ms"))


def _past() -> dict[str, Column]:
    """What a send is compared with: the last of these that is known of the events before it."""
    sent = F.col("sent")
    ends = event_is(EventKind.CANCELLED, EventKind.REJECTED, EventKind.RECEIVED)
    end = F.struct((~sent).alias("over"), "received", "due_ms")
    return {
        "ended": F.when(ends | sent, end),
        "arrived": F.when(F.col("handed_over") | sent_by(Route.DIRECT), F.lit(True)).when(
            sent, F.lit(False)
        ),
        "arrived_due_ms": F.when(F.col("handed_over"), F.col("due_ms")),
        "sent_due_ms": F.when(sent, F.col("due_ms")),
        "sent_before": F.when(sent, F.lit(True)),
        "stated_ms": F.col("due_ms"),
    }


def _begins() -> Column:
    """Whether an event is a send that begins another life.

    What is handed over has arrived, as far as anyone may know: a send with another due time is another
    message, one with the same is a replay.
    """
    due = F.col("due_ms")
    other_due = F.coalesce(due != F.col("sent_due_ms"), F.lit(False))
    # A receiver's clock that is behind tells the arrival before the send.
    of_this = F.col("ended.received") & F.coalesce(F.col("ended.due_ms") == due, F.lit(True))
    of_this &= F.col("sent_before").isNull() | other_due
    of_this &= F.col("sent_before").isNull() | F.col("ended.due_ms").isNotNull()
    ended = F.col("ended.over") & ~of_this
    # A replay that was on its way does not hide that the first copy has arrived.
    arrived = F.col("arrived") | (F.col("arrived_due_ms") == F.col("sent_due_ms"))
    return F.col("sent") & F.coalesce(ended | (arrived & other_due), F.lit(False))


def _lives(of_message: WindowSpec) -> dict[str, Column]:
    """How many lives have begun, and of the last its due time and the one that was stated before it."""
    upto = of_message.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    dues = F.struct(F.col("due_ms").alias("own"), F.col("stated_ms").alias("before"))
    return {
        "begun": F.count_if("begins").over(upto),
        "dues": F.last(F.when(F.col("begins"), dues), ignorenulls=True).over(upto),
    }


def _life() -> Column:
    """The life an event belongs to, 1 and up: a copy of the one before may still be on its way."""
    due = F.col("due_ms")
    earlier = ~F.col("sent") & ~event_is(EventKind.RESCHEDULED)
    earlier &= (due == F.col("dues.before")) & (due != F.col("dues.own"))
    late = F.when(F.coalesce(earlier, F.lit(False)), 1).otherwise(0)
    return (F.col("begun") + 1 - late).alias("life")


def _told() -> dict[str, Column]:
    """What an event tells that `_columns` asks for, worked out once: most of them ask for much of it."""
    timer_ms = F.coalesce(F.col("timer_seconds"), F.lit(0)) * 1000
    # A release whose message timer is not told has one that ends when the message is due.
    untold = event_is(EventKind.RELEASED) & F.col("timer_seconds").isNull()
    arrived_ms = F.col("at_ms") + timer_ms
    return {
        "sent_directly": sent_by(Route.DIRECT),
        "ends_hop": ends_hop(),
        "place": place(),
        "arrival": F.when(untold, F.greatest(arrived_ms, F.col("due_ms"))).otherwise(arrived_ms),
        "fifo_shares": fifo_requests(),
        "standard_shares": standard_requests(),
        "invocation_shares": invocations(),
    }


def _columns() -> list[Column]:
    sent, received, handed_over = (F.col(name) for name in ("sent", "received", "handed_over"))
    return [
        _earliest(sent, "at_ms", "route", "due_ms", "timer_seconds").alias("sent"),
        F.max(F.when(sent, F.col("at_ms"))).alias("last_sent_ms"),
        _earliest(F.col("sent_directly"), "at_ms", "timer_seconds").alias("direct"),
        _latest(F.col("due_ms").isNotNull(), "due_ms").alias("stated"),
        _earliest(handed_over, "at_ms", "late_ms", "arrival").alias("handed"),
        _earliest(received, "at_ms", "late_ms", "enqueued_ms").alias("got"),
        F.max(F.when(event_is(EventKind.RESCHEDULED), F.col("at_ms"))).alias("rescheduled_ms"),
        _earliest(event_is(EventKind.REJECTED), "at_ms", "reason").alias("refused"),
        _least_ms(event_is(EventKind.CANCELLED)).alias("cancelled_ms"),
        _least_ms(event_is(EventKind.PARKED) | sent_by(Route.STORE)).alias("parked_ms"),
        _least_ms(event_is(EventKind.RELEASED)).alias("released_ms"),
        _latest(F.lit(True), "event", "place").alias("last"),
        F.max("size").alias("size"),
        F.count(F.lit(1)).alias("events"),
        F.count_if(sent).alias("sends"),
        F.count_if("ends_hop").alias("hops"),
        F.count_if(handed_over).alias("hand_overs"),
        F.count_if(received).alias("receptions"),
        F.size(F.collect_set(F.when(received, F.col("sqs_message_id")))).alias("copies"),
        *[F.sum(name).alias(name) for name in _SHARES],
    ]


def _least_ms(condition: Column) -> Column:
    return F.min(F.when(condition, F.col("at_ms")))


def _earliest(condition: Column, *names: str) -> Column:
    return F.min(F.when(condition, _moment(*names)))


def _latest(condition: Column, *names: str) -> Column:
    return F.max(F.when(condition, _moment("at_ms", *names)))


def _moment(*names: str) -> Column:
    """A struct that orders events: by time, at the same time by their natural order."""
    return F.struct(F.col("at_ms").alias("when"), "order", *names)


def judged(
    rows: DataFrame,
    *,
    as_of_ms: int,
    grace_ms: int,
    recorded: DataFrame | None = None,
    also: Sequence[str] = (),
) -> DataFrame:
    """What became of each life of a message by ``as_of_ms``.

    Args:
        rows: what `gathered` made.
        as_of_ms: the instant the report speaks of.
        grace_ms: a message is lost when it was due longer ago, or sent again longer ago, and has not
            arrived.
        recorded: ``endpoint`` and ``receptions_recorded``, of ledgers of which ``rows`` are a part.
        also: columns of ``rows`` to keep.
    """
    dated = rows.select("*", *_times())
    if recorded is None:
        receptions = F.bool_or(F.col("receptions") > 0).alias("receptions_recorded")
        recorded = dated.groupBy("endpoint").agg(receptions)
    known = dated.join(F.broadcast(recorded), "endpoint", "left")
    known = known.withColumn("status", _status(as_of_ms, grace_ms))
    delay = F.round((F.col("promised_ms") - F.col("sent_ms")) / 1000).cast("bigint")
    known = known.select("*", delay.alias("delay_seconds"), *_lateness())
    return known.select(*_shown(), *also)


def _times() -> list[Column]:
    timer_ms = F.coalesce(F.col("sent.timer_seconds"), F.lit(0)) * 1000
    by_sender = F.coalesce(F.col("sent.due_ms"), F.col("sent.at_ms") + timer_ms)
    is_direct = F.col("sent.route") == Route.DIRECT.value
    # The broker's time of a direct message's sending, where its receiver tells it.
    direct_ms = F.when(is_direct, F.coalesce(F.col("got.enqueued_ms"), F.col("sent.at_ms")))
    # A message that is sent once more goes straight to its destination, being due.
    again = F.col("direct.at_ms") + F.coalesce(F.col("direct.timer_seconds"), F.lit(0)) * 1000
    direct = F.coalesce(direct_ms + timer_ms, again)
    shown = F.coalesce(F.col("handed.arrival"), direct)
    due = F.coalesce(F.col("stated.due_ms"), by_sender)
    asked = F.greatest(F.coalesce(direct_ms, F.col("sent.at_ms")), F.col("rescheduled_ms"))
    return [
        F.col("sent.at_ms").alias("sent_ms"),
        by_sender.alias("promised_ms"),
        due.alias("due_ms"),
        F.when(due.isNotNull(), F.greatest(due, asked)).alias("late_from_ms"),
        shown.alias("at_destination_ms"),
        F.col("got.at_ms").alias("received_ms"),
        F.col("refused.at_ms").alias("rejected_ms"),
        _since_due(F.col("handed.late_ms"), F.col("handed.arrival"), due).alias("handed_since_due"),
        _since_due(_receivers_lateness(), direct, due).alias("shown_since_due"),
        _since_due(F.lit(None).cast("bigint"), F.col("got.at_ms"), due).alias("received_since_due"),
        # By the broker's clock: what is worked out from a receiver's may be seconds off.
        F.least(F.col("handed.late_ms"), _receivers_lateness()).alias("exactly_since_due"),
    ]


def _receivers_lateness() -> Column:
    """Lateness as a receiver tells it that leaves out the wait in the destination queue."""
    return F.when(F.col("got.enqueued_ms").isNotNull(), F.col("got.late_ms"))


def _since_due(stated: Column, at: Column, due: Column) -> Column:
    """What the event tells, or else the difference, which may be off by the clock's tolerance."""
    difference = at - due
    near = difference.between(-CLOCK_TOLERANCE_MS, -1)
    return F.coalesce(stated, F.when(near, F.lit(0).cast("bigint")).otherwise(difference))


def _lateness() -> list[Column]:
    """Of every message that was shown or received, whatever became of it. What an event states is exact; of
    what is worked out, nothing is later than its reception. Before the due time it counts from there, and is
    negative."""
    received = F.col("received_since_due")
    shown = F.coalesce(F.col("handed_since_due"), F.col("shown_since_due"))
    asked_late = F.col("late_from_ms") - F.col("due_ms")

    def late(since_due: Column) -> Column:
        counted = F.greatest(since_due - asked_late, F.lit(0))
        return F.when(since_due < 0, since_due).when(since_due.isNotNull(), counted)

    arrived = F.col("status").isin(*ARRIVED)
    waited = F.when(shown.isNotNull(), F.greatest(received - shown, F.lit(0)))
    since_due = F.coalesce(F.col("exactly_since_due"), F.least(shown, received))
    return [
        F.when(arrived, late(since_due)).alias("late_ms"),
        F.when(arrived & received.isNotNull(), waited).alias("waited_ms"),
        late(F.col("handed_since_due")).alias("hand_over_late_ms"),
        late(received).alias("received_late_ms"),
    ]


def _status(as_of_ms: int, grace_ms: int) -> Column:
    arrived = ~F.coalesce("receptions_recorded", F.lit(False))
    arrived &= F.col("at_destination_ms") <= as_of_ms
    return (
        F.when(F.col("receptions") > 0, DELIVERED)
        .when(F.coalesce(arrived, F.lit(False)), HANDED_OVER)
        .when(F.col("rejected_ms").isNotNull(), REJECTED)
        .when(F.col("cancelled_ms").isNotNull(), CANCELLED)
        .when(F.col("due_ms").isNull(), UNKNOWN)
        .when(F.greatest("late_from_ms", "last_sent_ms") + grace_ms < as_of_ms, LOST)
        .otherwise(PENDING)
    )


def band(delay_seconds: Column) -> Column:
    """The position of a delay's band in ``BANDS``."""
    place = F.lit(len(BANDS) - 1)
    for number, each in reversed(list(enumerate(BANDS))):
        if each.most_seconds is not None:
            place = F.when(delay_seconds <= each.most_seconds, number).otherwise(place)
    return F.when(delay_seconds.isNotNull(), place)


def _shown() -> list[Column | str]:
    delay = F.col("delay_seconds")
    return [
        *KEY,
        "life",
        "status",
        F.when(F.col("status").isin(*OPEN), F.col("last.place")).alias("last_seen"),
        (F.col("copies") > 1).alias("duplicated"),
        F.coalesce(F.col("late_ms") < 0, F.lit(False)).alias("early"),
        F.col("sent.route").alias("route"),
        "sent_ms",
        "due_ms",
        "late_from_ms",
        "at_destination_ms",
        "received_ms",
        "rejected_ms",
        "cancelled_ms",
        "parked_ms",
        "released_ms",
        "late_ms",
        "waited_ms",
        "hand_over_late_ms",
        "received_late_ms",
        delay.alias("delay_seconds"),
        band(delay).alias("band"),
        "size",
        "events",
        "sends",
        "hops",
        "hand_overs",
        "receptions",
        "copies",
        "fifo_shares",
        "standard_shares",
        "invocation_shares",
        F.col("last.event").alias("last_event"),
        F.col("last.at_ms").alias("last_event_ms"),
        F.col("refused.reason").alias("reason"),
    ]
