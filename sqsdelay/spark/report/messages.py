"""One row for each life of a message, from its events in any order, and what became of it.

An id may be used again: a life begins with a send after the message was cancelled, delivered or rejected.
Lateness starts at the later of due and sent, and ends when the destination queue shows the message. What
it then waits there for its receiver is another figure.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from sqsdelay.core.limits import DEDUPLICATION_INTERVAL_SECONDS, MAX_BATCH_ENTRIES
from sqsdelay.cost.workload import BANDS, CHUNK_BYTES

OPEN: Final = ("lost", "pending", "unknown")
"""Neither arrived nor settled otherwise; of what is unknown no event says when it should arrive."""
ARRIVED: Final = ("delivered", "handed-over")
"""Of an endpoint where nobody records what is received, the latter is the end."""
STATUSES: Final = (*OPEN, *ARRIVED, "rejected", "cancelled")

KEY: Final = ("endpoint", "message_id")
SHARES: Final = 1000 * math.lcm(*range(1, MAX_BATCH_ENTRIES + 1))
"""Of one request: every batch size of SQS divides it, so that sums are exact in any order."""
CLOCK_TOLERANCE_MS: Final = 1000
"""Of a lateness worked out from two events: a sender knows the broker's clock by HTTP's ``Date``, which
has whole seconds. A lateness told by an event itself is exact."""
_SAME_MS: Final = DEDUPLICATION_INTERVAL_SECONDS * 1000
"""Due times so close may be one copy's: SQS takes no second one so soon, but answers as for the first."""


def columns(sql: str) -> list[str]:
    """Expressions of Spark SQL, each ended by a semicolon; one may use those before it by their names."""
    return [each.strip() for each in re.sub("--.*", "", sql).split(";") if each.strip()]


_READ: Final = columns(f"""
    xxhash64(endpoint, message_id) AS hash; *; event = 'sent' AS sent; event = 'received' AS received;
    -- A copy stands after its sending, whatever the receiver's clock says: at its due time, since its handler
    -- may send the id again at once, or, if it was sent straight to its queue, after that took it.
    coalesce(IF(received AND due_ms IS NULL, enqueued_ms + {CLOCK_TOLERANCE_MS}, NULL),
      IF(received AND late_ms IS NULL, greatest(at_ms, due_ms), at_ms)) AS instant;
    -- Of events at the same millisecond.
    array_position(array('sent', 'rescheduled', 'hop', 'forwarded', 'parked', 'released', 'handed-over',
      'rejected', 'cancelled', 'received'), event) AS rank;
    sent AND route = 'direct' AS sent_directly;
    endpoint LIKE '%.fifo' AS fifo;
    -- Whether it is in its destination queue then, once a message timer has ended. What a store releases
    -- for a FIFO endpoint is in the due queue, and handed over from there.
    event = 'handed-over' OR event = 'released' AND NOT fifo AS handed_over
""")
_BEFORE: Final = {
    "ended": "IF(sent OR event IN ('cancelled', 'rejected', 'received'), "
    "struct(NOT sent AS done, received, due_ms), NULL)",
    "arrived": "CASE WHEN handed_over OR sent_directly THEN true WHEN sent THEN false END",
    "arrived_due_ms": "IF(handed_over, due_ms, NULL)",
    "sent_before": "IF(sent, struct(due_ms, sqs_message_id), NULL)",
    "stated_ms": "due_ms",
    "planned_ms": "IF(sent OR event = 'rescheduled', due_ms, NULL)",
    "known_size": "size",
}
"""What an event is compared with: the last of these that is known of the events before it. A size is known
where something was sent, and needed wherever a request carried it."""

_BEGINS: Final = columns(f"""
    *; coalesce(due_ms != sent_before.due_ms, false) AS other_due;
    -- A receiver's clock that is behind tells the arrival before the send.
    ended.received AND coalesce(ended.due_ms = due_ms, true)
      AND (sent_before IS NULL OR other_due AND ended.due_ms IS NOT NULL) AS of_this;
    -- What is handed over has arrived, as far as anyone may know: a send with another due time is another
    -- message, one with the same is a replay. A replay that was on its way does not hide that the first
    -- copy has arrived.
    sent AND coalesce(ended.done AND NOT of_this
      OR (arrived OR arrived_due_ms = sent_before.due_ms) AND other_due
      -- A cancel takes effect later: the id may have been sent anew by then, and not only again.
      OR (abs(due_ms - sent_before.due_ms) > {_SAME_MS} OR sqs_message_id != sent_before.sqs_message_id)
        AND exists(dropped, each -> each.at >= instant
          AND abs(each.due_ms - planned_ms) < least(abs(each.due_ms - due_ms), {_SAME_MS})), false) AS begins;
    -- Not kept where nothing asks for it: an id may be used any number of times.
    IF((begins OR sent AND sent_before IS NULL) AND size(dropped) > 0, due_ms, NULL) AS begun_ms
""")
_REQUESTS: Final = columns(f"""
    -- Which requests an event stands for, as the cost model counts them: a batch's request is shared by its
    -- messages, and billed once for each 64 KiB begun. What a receiver pays is left out.
    *; source = 'consumer'
      AND event IN ('hop', 'handed-over', 'forwarded', 'parked', 'rejected', 'cancelled') AS settled;
    settled AND fifo AND event = 'handed-over' AS leaves_due_queue;
    settled AND NOT leaves_due_queue AS ends_hop;
    -- The error queue included.
    event IN ('hop', 'handed-over', 'forwarded', 'released', 'rejected')
      OR sent AND route IN ('direct', 'delay-queue', 'due-queue') AS sends;
    -- To the delay queue, or to a FIFO endpoint's own; with a message timer it is the due queue.
    sent AND route = 'delay-queue' OR event = 'hop' AND timer_seconds IS NULL
      OR (event = 'handed-over' OR sent_directly) AND fifo AS sends_to_fifo;
    coalesce(batch, 1) AS together;
    coalesce(receive_batch, together) AS received_together;
    greatest(1, ceil(together * coalesce(size, 1) / {CHUNK_BYTES})) AS chunks;
    greatest(1, ceil(received_together * coalesce(size, 1) / {CHUNK_BYTES})) AS received_chunks;
    floor({SHARES}L * chunks / together) AS sending;
    floor({SHARES}L / together) AS releasing;
    floor({SHARES}L / received_together) AS deleting;
    -- A receive carries the payload, a delete does not.
    floor({SHARES}L * received_chunks / received_together) + deleting AS taking;
    IF(sends_to_fifo, sending, 0L) + IF(ends_hop, taking, 0L) AS fifo_shares;
    IF(sends AND NOT sends_to_fifo, sending, 0L) + IF(leaves_due_queue, taking, 0L) AS standard_shares;
    CASE WHEN settled THEN deleting WHEN event = 'released' THEN releasing ELSE 0L END AS invocation_shares
""")
_TOLD: Final = columns(f"""
    -- A copy of the life before may still be on its way.
    *; NOT sent AND event != 'rescheduled' AND due_ms = dues.before AND due_ms != dues.own AS earlier;
    -- Of what was sent anew before a cancel took effect, the life with the nearest due time: the one that its
    -- sender knew may be an estimate.
    transform(reverse(begun_dues), each -> abs(each - due_ms)) AS apart; array_min(apart) AS nearest;
    IF(sent OR event = 'rescheduled' OR nearest > {_SAME_MS} OR abs(due_ms - planned_ms) <= nearest, NULL,
      array_position(apart, nearest) - 1) AS ago;
    begun + 1 - coalesce(ago, IF(earlier, 1, 0)) AS life;
    at_ms + coalesce(timer_seconds, 0) * 1000 AS timer_ends_ms;
    -- A release whose message timer is not told has one that ends when the message is due.
    IF(event = 'released' AND timer_seconds IS NULL, greatest(timer_ends_ms, due_ms), timer_ends_ms)
      AS arrival;
    CASE WHEN event = 'hop' AND timer_seconds IS NOT NULL OR sent AND route = 'due-queue' THEN 'due queue'
      WHEN event = 'hop' OR sent AND route = 'delay-queue' THEN 'delay queue'
      WHEN event = 'forwarded' THEN 'parking queue'
      WHEN event IN ('parked', 'rescheduled') OR sent AND route = 'store' THEN 'store'
      WHEN event = 'released' AND fifo THEN 'due queue'
      WHEN event IN ('released', 'handed-over') OR sent_directly THEN 'destination queue'
      WHEN sent THEN 'sender' END AS place
""")
_GATHERED: Final = columns("""
    min(struct(at_ms AS at, rank, at_ms, route, due_ms, timer_seconds)) FILTER (WHERE sent) AS sent;
    max(at_ms) FILTER (WHERE sent) AS last_sent_ms;
    min(struct(at_ms AS at, rank, at_ms, timer_seconds)) FILTER (WHERE sent_directly) AS direct;
    max(struct(at_ms AS at, rank, at_ms, due_ms)) FILTER (WHERE due_ms IS NOT NULL) AS stated;
    min(struct(at_ms AS at, rank, at_ms, late_ms, arrival)) FILTER (WHERE handed_over) AS handed;
    min(struct(at_ms AS at, rank, at_ms, late_ms, enqueued_ms)) FILTER (WHERE received) AS got;
    max(at_ms) FILTER (WHERE event = 'rescheduled') AS rescheduled_ms;
    min(struct(at_ms AS at, rank, at_ms, reason)) FILTER (WHERE event = 'rejected') AS refused;
    min(at_ms) FILTER (WHERE event = 'cancelled') AS cancelled_ms;
    min(at_ms) FILTER (WHERE event = 'parked' OR sent AND route = 'store') AS parked_ms;
    min(at_ms) FILTER (WHERE event = 'released') AS released_ms;
    max(struct(at_ms AS at, rank, at_ms, event, place)) AS last;
    max(size) AS size; count(1) AS events; count_if(sent) AS sends; count_if(ends_hop) AS hops;
    count_if(handed_over) AS hand_overs; count_if(received) AS receptions;
    size(collect_set(sqs_message_id) FILTER (WHERE received)) AS copies;
    sum(fifo_shares) AS fifo_shares; sum(standard_shares) AS standard_shares;
    sum(invocation_shares) AS invocation_shares
""")


def gathered(events: DataFrame) -> DataFrame:
    """The events of each life of a message in one row; an event that was written twice counts once."""
    # One shuffle and one sort for all that follows; of a small ledger, adaptive execution makes few
    # parts. The sort compares numbers first: ids that begin alike are slow to compare.
    others = ", ".join(name for name in events.columns if name not in KEY)
    sort = f"PARTITION BY hash, {', '.join(KEY)} ORDER BY instant, rank, {others}"
    rows = f"OVER ({sort} ROWS BETWEEN UNBOUNDED PRECEDING AND"
    marked = events.repartition(*KEY).selectExpr(*_READ).selectExpr(
        "*",
        f"lag(struct({others})) OVER ({sort}) <=> struct({others}) AS again",
        *[f"last({value}, true) {rows} 1 PRECEDING) AS {name}" for name, value in _BEFORE.items()],
        "collect_list(IF(event = 'cancelled' AND due_ms IS NOT NULL, struct(instant AS at, due_ms), NULL)) "
        f"{rows} UNBOUNDED FOLLOWING) AS dropped",
    )  # fmt: skip
    sized = marked.where("NOT again").withColumn("size", F.expr("coalesce(size, known_size)"))
    lived = sized.selectExpr(*_BEGINS).selectExpr(
        "*",
        # How many lives have begun, and of the last its due time and the one that was stated before it.
        f"count_if(begins) {rows} CURRENT ROW) AS begun",
        f"collect_list(begun_ms) {rows} CURRENT ROW) AS begun_dues",
        "last(IF(begins, struct(due_ms AS own, stated_ms AS before), NULL), true) "
        f"{rows} CURRENT ROW) AS dues",
    )
    told = lived.selectExpr(*_REQUESTS).selectExpr(*_TOLD)
    return told.groupBy("hash", *KEY, "life").agg(*map(F.expr, _GATHERED)).drop("hash")


def _since_due(at: str) -> str:
    """The difference, which may be off by the clock's tolerance."""
    return f"IF({at} - due_ms BETWEEN -{CLOCK_TOLERANCE_MS} AND -1, 0L, {at} - due_ms)"


_TIMES: Final = columns(f"""
    *; sent.at_ms AS sent_ms; got.at_ms AS received_ms; refused.at_ms AS rejected_ms;
    coalesce(sent.timer_seconds, 0) * 1000 AS timer_ms;
    coalesce(sent.due_ms, sent.at_ms + timer_ms) AS promised_ms;
    -- The broker's time of a direct message's sending, where its receiver tells it.
    IF(sent.route = 'direct', coalesce(got.enqueued_ms, sent.at_ms), NULL) AS direct_ms;
    -- A message that is sent once more goes straight to its destination, being due.
    coalesce(direct_ms + timer_ms, direct.at_ms + coalesce(direct.timer_seconds, 0) * 1000) AS direct_arrival;
    coalesce(handed.arrival, direct_arrival) AS at_destination_ms;
    coalesce(stated.due_ms, promised_ms) AS due_ms;
    IF(due_ms IS NULL, NULL, greatest(due_ms, coalesce(direct_ms, sent.at_ms), rescheduled_ms))
      AS late_from_ms;
    -- As a receiver tells it that leaves out the wait in the destination queue.
    IF(got.enqueued_ms IS NULL, NULL, got.late_ms) AS receivers_ms;
    coalesce(handed.late_ms, {_since_due("handed.arrival")}) AS handed_since_due;
    coalesce(receivers_ms, {_since_due("direct_arrival")}) AS shown_since_due;
    {_since_due("got.at_ms")} AS received_since_due;
    coalesce(handed_since_due, shown_since_due) AS seen_since_due;
    -- By the broker's clock: what is worked out from a receiver's may be seconds off. Nothing is later than
    -- its reception, nor early by a receiver's clock where its sending there tells otherwise.
    IF(received_since_due < 0 AND got.late_ms IS NULL AND seen_since_due IS NOT NULL, 0L, received_since_due)
      AS latest_since_due;
    coalesce(least(handed.late_ms, receivers_ms), least(seen_since_due, latest_since_due)) AS since_due
""")


def _late(since_due: str) -> str:
    """From when it is late; before the due time from there, and negative."""
    counted = f"greatest({since_due} - late_from_ms + due_ms, 0L)"
    return f"CASE WHEN {since_due} < 0 THEN {since_due} WHEN {since_due} IS NOT NULL THEN {counted} END"


_BANDS: Final = " ".join(
    f"WHEN delay_seconds <= {band.most_seconds} THEN {n}" for n, band in enumerate(BANDS[:-1])
)
_SHOWN: Final = columns(f"""
    endpoint; message_id; life; status;
    IF(status IN {OPEN}, last.place, NULL) AS last_seen;
    copies > 1 AS duplicated; coalesce(late_ms < 0, false) AS early; sent.route AS route;
    sent_ms; due_ms; late_from_ms; at_destination_ms; received_ms; rejected_ms; cancelled_ms; parked_ms;
    released_ms; late_ms;
    IF(status IN {ARRIVED} AND received_since_due IS NOT NULL AND seen_since_due IS NOT NULL,
      greatest(received_since_due - seen_since_due, 0L), NULL) AS waited_ms;
    {_late("handed_since_due")} AS hand_over_late_ms;
    {_late("received_since_due")} AS received_late_ms;
    delay_seconds;
    CASE {_BANDS} WHEN delay_seconds IS NOT NULL THEN {len(BANDS) - 1} END AS band;
    size; events; sends; hops; hand_overs; receptions; copies; fifo_shares; standard_shares;
    invocation_shares; last.event AS last_event; last.at_ms AS last_event_ms; refused.reason AS reason
""")


def judged(
    rows: DataFrame,
    *,
    as_of_ms: int,
    grace_ms: int,
    recorded: DataFrame | None = None,
    also: Sequence[str] = (),
) -> DataFrame:
    """What became by ``as_of_ms`` of each life that `gathered` has found; lost is what was due, or sent
    again, more than ``grace_ms`` ago. ``recorded`` tells ``receptions_recorded`` of each endpoint of a
    larger ledger; ``also`` are columns to keep."""
    dated = rows.selectExpr(*_TIMES)
    if recorded is None:
        receptions = F.expr("bool_or(receptions > 0) AS receptions_recorded")
        recorded = dated.groupBy("endpoint").agg(receptions)
    known = dated.join(F.broadcast(recorded), "endpoint", "left").selectExpr(
        "*",
        f"""CASE WHEN receptions > 0 THEN 'delivered'
          WHEN NOT coalesce(receptions_recorded, false) AND at_destination_ms <= {as_of_ms} THEN 'handed-over'
          WHEN rejected_ms IS NOT NULL THEN 'rejected' WHEN cancelled_ms IS NOT NULL THEN 'cancelled'
          WHEN due_ms IS NULL THEN 'unknown'
          WHEN greatest(late_from_ms, last_sent_ms) + {grace_ms} < {as_of_ms} THEN 'lost'
          ELSE 'pending' END AS status""",
        "CAST(round((promised_ms - sent_ms) / 1000) AS bigint) AS delay_seconds",
        f"IF(status IN {ARRIVED}, {_late('since_due')}, NULL) AS late_ms",
    )
    return known.selectExpr(*_SHOWN, *also)
