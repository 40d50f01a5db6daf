"""The tables of a report: messages counted by endpoint, hour and band of delays, and what that adds up to.

The messages are read twice, and not once for each table.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from fractions import Fraction
from itertools import accumulate
from typing import Any, Final

from pyspark.sql import DataFrame, GroupedData
from pyspark.sql import functions as F

from sqsdelay.core.limits import MAX_MESSAGE_BYTES
from sqsdelay.cost import Prices, Workload, bill
from sqsdelay.cost.strategies import OF_STORE
from sqsdelay.cost.workload import BANDS, DELAY_ATTRIBUTES_BYTES, invocation_cost
from sqsdelay.spark.report.messages import ARRIVED, OPEN, SHARES, STATUSES, columns

WITHIN_MS: Final = {"within_1s": 1000, "within_60s": 60_000}
"""The service levels shown: how soon after its due time a message should arrive."""
HOUR_MS: Final = 3_600_000
MOST_MOMENTS: Final = 100
_MOMENT_HOURS: Final = (1, 6, *(24 * days for days in (1, 7, 30, 365)))
_SUMMED: Final = ("parked", "hops", "fifo_shares", "standard_shares", "invocation_shares")
_VALUES: Final = {
    "p50_ms": ("late_ms", 50), "p90_ms": ("late_ms", 90), "p99_ms": ("late_ms", 99),
    "max_ms": ("late_ms", 100), "waited_p50_ms": ("waited_ms", 50), "waited_p99_ms": ("waited_ms", 99),
    "waited_max_ms": ("waited_ms", 100),
}  # fmt: skip
"""Percentiles: of what, and how many of a hundred do not exceed it."""
_STATUSES: Final = {status.replace("-", "_"): f"status = '{status}'" for status in STATUSES}
_NUMBERS: Final = ("messages", *_STATUSES, "duplicated", "early")
_ARRIVALS: Final = (*_NUMBERS, *WITHIN_MS, *_VALUES)
"""The columns that tables have in common."""
_DELAY: Final = f"get(array{tuple(band.name for band in BANDS)}, band) AS delay"


def side_by_side(job: Callable[[str], Any], names: Iterable[str]) -> dict[str, Any]:
    """What a small job finds by each name: most of its time is Spark's planning."""
    with ThreadPoolExecutor() as pool:
        return dict(zip(names, pool.map(job, names), strict=True))


def hours_of_a_moment(counted: DataFrame) -> int:
    """As long a span as makes few of the hours from the first from which messages are late until now."""
    (span,) = counted.where("by_now").agg(F.max("hour") - F.min("hour")).collect()
    return next((n for n in _MOMENT_HOURS if (span[0] or 0) < MOST_MOMENTS * n), _MOMENT_HOURS[-1])


def arrivals(counted: DataFrame, valued: DataFrame, moment_hours: int) -> DataFrame:
    """How many messages there are of each status, how late those that arrived did, the share of those that
    should have arrived by now that did so soon enough, and other sums, of `counts` and `spread`: for each
    ``table`` of `OF_ARRIVALS`, by endpoint, hour or band, whose null endpoints are all endpoints; and for
    ``moments``, of messages that are late by now: so many hours, counted by ``hour``."""
    shares = [f"sum({name}) / nullif(sum(owed_{name}), 0) AS {name}" for name in WITHIN_MS]
    sums = [f"sum({name}) AS {name}" for name in (*_NUMBERS, *_SUMMED)]
    summed = _keyed(counted, moment_hours).groupBy("key").agg(*map(F.expr, sums + shares))
    found = summed.join(_percentiles(valued, moment_hours), "key", "left")
    return found.select("key.*", *_ARRIVALS, *_SUMMED)


def _percentiles(valued: DataFrame, moment_hours: int) -> DataFrame:
    """Each one that some message had: the least that so many of all do not exceed."""
    found = _keyed(valued, moment_hours).groupBy("key", "figure", "value")
    of_figure = "OVER (PARTITION BY key, figure"
    upto = f"{of_figure} ORDER BY value ROWS UNBOUNDED PRECEDING)"
    reckoned = found.agg(F.sum("number").alias("number")).selectExpr(
        "*", f"sum(number) {of_figure}) AS all", f"sum(number) {upto} AS upto"
    )
    # In whole numbers: a product of fractions may be a little more than it should.
    values = [
        f"min(value) FILTER (WHERE figure = '{figure}' AND upto * 100 >= `all` * {percent}) AS {name}"
        for name, (figure, percent) in _VALUES.items()
    ]
    return reckoned.groupBy("key").agg(*map(F.expr, values))


def _keyed(counted: DataFrame, moment_hours: int) -> DataFrame:
    """A row for each table that a row counts in."""
    keys = [("moments", "NULL", "NULL", f"IF(by_now, floor(hour / {moment_hours}), NULL)")]
    for endpoint in ("endpoint", "NULL"):
        keys.append(("summary", endpoint, "NULL", "NULL"))
        keys.append(("lateness", endpoint, "NULL", "hour"))
        keys.append(("cohorts", endpoint, "band", "NULL"))
    named = "struct('{}' AS table, {} AS endpoint, {} AS band, {} AS hour)"
    structs = ", ".join(named.format(*key) for key in keys)
    exploded = counted.selectExpr("*", f"explode(array({structs})) AS key")
    return exploded.where("key.hour IS NOT NULL OR key.table IN ('summary', 'cohorts')")


def counts(messages: DataFrame, *, as_of_ms: int) -> DataFrame:
    """Sums by endpoint, band of delays, hour from which messages are late, and whether they are by now."""
    figures = _STATUSES | {"duplicated": "duplicated", "early": "early"}
    # Early by less is as good as late by less. Lost, rejected and overdue messages are not within; what
    # was cancelled is owed to nobody.
    owed = f"status NOT IN {('cancelled', *ARRIVED)} AND late_from_ms"
    for name, most_ms in WITHIN_MS.items():
        figures[name] = f"late_ms BETWEEN -{most_ms} AND {most_ms}"
        figures[f"owed_{name}"] = f"late_ms IS NOT NULL OR {owed} + {most_ms} < {as_of_ms}"
    counted = [f"count_if({told}) AS {name}" for name, told in figures.items()]
    summed = [f"sum({name}) AS {name}" for name in _SUMMED[1:]]
    also = "count(1) AS messages", "count(parked_ms) AS parked"
    return _by(messages, as_of_ms).agg(*map(F.expr, (*also, *counted, *summed)))


def spread(messages: DataFrame, *, as_of_ms: int) -> DataFrame:
    """By the same, the ``number`` of messages that have a ``value`` of a ``figure``: lateness or wait."""
    stacked = "stack(2, 'late_ms', late_ms, 'waited_ms', waited_ms) AS (figure, value)"
    valued = messages.selectExpr("endpoint", "band", "late_from_ms", stacked)
    known = valued.where("value IS NOT NULL")
    return _by(known, as_of_ms, "figure", "value").agg(F.count(F.lit(1)).alias("number"))


def _by(messages: DataFrame, as_of_ms: int, *more: str) -> GroupedData:
    hour = F.expr(f"floor(late_from_ms / {HOUR_MS})").alias("hour")
    by_now = F.expr(f"coalesce(late_from_ms <= {as_of_ms}, false)").alias("by_now")
    return messages.groupBy("endpoint", "band", hour, by_now, *more)


_REQUESTS: Final = tuple(f"{n}_shares / {SHARES}L AS {n}_requests" for n in ("fifo", "standard"))
OF_ARRIVALS: Final = {
    "summary": (*_ARRIVALS, "hops", *_REQUESTS),
    "lateness": (f"timestamp_millis(hour * {HOUR_MS}) AS hour", *_ARRIVALS),
    "cohorts": ("band", _DELAY, *_ARRIVALS),
}
"""The columns of the tables of arrivals. Each has rows of each endpoint, and of all (a null)."""


def of_arrivals(arrivals: DataFrame, table: str) -> DataFrame:
    """One of `OF_ARRIVALS`."""
    by_key = [F.col("endpoint").asc_nulls_first(), F.col("hour"), F.col("band")]
    found = arrivals.where(F.col("table") == table).coalesce(1).sortWithinPartitions(*by_key)
    return found.selectExpr("endpoint", *OF_ARRIVALS[table])


def last_seen(messages: DataFrame) -> DataFrame:
    """Where the messages that have not arrived were seen last."""
    key = ("endpoint", "status", "last_seen")
    figures = columns("""
        count(1) AS messages; min(due_ms) AS first_due_ms; max(due_ms) AS last_due_ms;
        max(last_event_ms) AS last_event_ms
    """)
    not_arrived = messages.where(f"status IN {OPEN}").groupBy(*key)
    return not_arrived.agg(*map(F.expr, figures)).sort(*key).coalesce(1)


NAMES: Final = {
    "dynamodb": "DynamoDB", "s3": "S3", "scheduler": "EventBridge", "postgresql": "PostgreSQL",
    "sqlite": "SQLite",
}  # fmt: skip
"""Of the stores, by the word that their URLs begin with."""


def cost(
    messages: DataFrame, arrivals: DataFrame, prices: Prices, *, as_of_ms: int, store: str
) -> DataFrame:
    """What the requests cost per endpoint and band of delays, in the currency of ``prices``. ``sqs_cost`` is
    for the requests the ledger shows. ``lambda_cost`` is what the consumer's and the dispatcher's batches
    cost if they ran on Lambda, ``store_cost`` what parked messages cost in ``store``."""
    sums = arrivals.where("table = 'cohorts' AND endpoint IS NOT NULL")
    sums = sums.withColumn("key", F.struct("endpoint", "band"))
    stored = _store_costs(messages, prices, as_of_ms=as_of_ms, store=store)
    fifo, standard = float(prices.sqs_fifo_request), float(prices.sqs_standard_request)
    shown = columns(f"""
        endpoint; band; {_DELAY}; messages; hops; parked; {"; ".join(_REQUESTS)};
        invocation_shares / {SHARES}L AS invocations;
        fifo_requests * {fifo!r}D + standard_requests * {standard!r}D AS sqs_cost;
        invocations * {float(invocation_cost(prices))!r}D AS lambda_cost;
        coalesce(CAST(store_cost AS double), 0D) AS store_cost
    """)
    found = sums.join(stored, "key", "left").selectExpr(*shown)
    return found.sort("endpoint", "band").coalesce(1)


def _store_costs(messages: DataFrame, prices: Prices, *, as_of_ms: int, store: str) -> DataFrame:
    """By the cost model, which is asked once for each size: it is linear in the time parked."""

    def amount(parked: int, size: int | None, seconds: int) -> Decimal:
        load = Workload(
            # It was parked, whatever a deployment's setting is.
            delay_seconds=max(seconds, 7200),
            park_after_seconds=0,
            messages=parked,
            message_bytes=min(max(1, size or 1), MAX_MESSAGE_BYTES - DELAY_ATTRIBUTES_BYTES),
        )
        lines = bill(OF_STORE[store], load, prices).lines if store in OF_STORE else ()
        kept = [each for each in lines if not each.fixed and each.what.startswith(NAMES[store])]
        total = sum((line.amount for line in kept), Fraction(0))
        return round(Decimal(total.numerator) / Decimal(total.denominator), 15)

    parked_ms = f"greatest(least(coalesce(released_ms, {as_of_ms}), {as_of_ms}) - parked_ms, 0)"
    sized = messages.where("parked_ms IS NOT NULL").groupBy("endpoint", "band", "size")
    seconds = f"CAST(floor(sum({parked_ms}) / count(1) / 1000) AS bigint) AS seconds"
    groups = sized.agg(F.expr("count(1) AS parked"), F.expr(seconds))
    of_group = F.udf(amount, "decimal(38,15)", useArrow=False)("parked", "size", "seconds")
    key = F.struct("endpoint", "band").alias("key")
    return groups.groupBy(key).agg(F.sum(of_group).alias("store_cost"))


POINTS: Final = 200
"""Of the curve, whatever the time it spans."""


def waiting(messages: DataFrame, *, as_of_ms: int) -> DataFrame:
    """Instants from the first sending on, and how many messages had been sent by then and had not arrived."""
    (first_ms,) = messages.agg(F.min("sent_ms")).collect()[0]
    points = list[tuple[int, int]]()
    if first_ms is not None:
        step = max(1, -(-(as_of_ms - first_ms) // POINTS))
        over = f"coalesce(received_ms, rejected_ms, cancelled_ms, least(at_destination_ms, {as_of_ms}))"
        ended = f"IF(status IN ('pending', 'lost'), NULL, greatest({over}, sent_ms))"
        places = messages.where("sent_ms IS NOT NULL").selectExpr(
            f"CAST(ceil((sent_ms - {first_ms}) / {step}) AS int) AS began",
            f"CAST(ceil(({ended} - {first_ms}) / {step}) AS int) AS ended",
        )
        changes = Counter[int | None]()
        for row in places.groupBy("began", "ended").count().collect():
            changes[row.began] += row["count"]
            changes[row.ended] -= row["count"]
        counts = accumulate(changes[n] for n in range(-(-(as_of_ms - first_ms) // step) + 1))
        points = [(min(first_ms + n * step, as_of_ms), count) for n, count in enumerate(counts)]
    return messages.sparkSession.createDataFrame(points, "at_ms bigint, waiting bigint").coalesce(1)
