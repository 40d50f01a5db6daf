"""Many messages cancelled or moved at once, by a table of their ids."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import functions as F

from sqsdelay.core.delay import too_far
from sqsdelay.core.endpoint import Endpoint
from sqsdelay.errors import ConfigurationError, InvalidDelay, InvalidMessage
from sqsdelay.limits import DEFAULT_MAX_DELAY_SECONDS
from sqsdelay.parking.schedule import Schedule
from sqsdelay.spark.locations import absolute
from sqsdelay.spark.sink.client import sender_client
from sqsdelay.spark.sink.columns import DUE_AT, MESSAGE_ID
from sqsdelay.spark.sink.delay_start import planned_ms
from sqsdelay.spark.sink.options import Options
from sqsdelay.spark.sink.worker import worker_ledger
from sqsdelay.stores import open_place

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

INVALID: Final = "invalid"
"""Nothing was changed: there is no such id or due time."""

_RESULT: Final = "change string, reason string"


@dataclass(frozen=True, kw_only=True)
class _Endpoint:
    """Whose messages are changed, from where, and the latest that SQS's clock may read by then."""

    name: str
    store: str
    table: str | None
    schema: str | None
    ledger: str | None
    now_ms: int


def cancel(ids: DataFrame, *, endpoint: str, store: str, **more: Any) -> DataFrame:
    """Cancel the messages of one endpoint whose ids a table has.

    It is done once, when this is called. Each message is asked for on its own, as by
    `sqsdelay.parking.Schedule`; the same call again is safe.

    Args:
        ids: a column ``message_id``; others are kept.
        endpoint: queue name, URL or ARN.
        store: the URL of its store, which Spark's workers reach.
        more: ``table`` and ``schema`` of the store; ``ledger``, a folder for what was cancelled;
            ``region`` and ``endpoint_url`` of SQS, whose clock is asked.

    Returns:
        The rows, with ``change``: ``done``, ``released`` (too late), ``requested`` (not in the store: the
        delay consumer cancels it if it receives it) or ``invalid``, and then the ``reason``.

    Raises:
        ConfigurationError: no column ``message_id``, or no such store.
        QueueMissing, QueueUnavailable: SQS does not tell the time.
        PySparkException: the store cannot be reached; what was cancelled stays so.
    """
    known = _known(ids, endpoint, store, more)

    def change(message_id: str | None) -> tuple[str, str | None]:
        return _changed(
            message_id, lambda found: _schedule(known).cancel(found, now_ms=known.now_ms)
        )

    return _done(ids, change, MESSAGE_ID)


def reschedule(ids: DataFrame, *, endpoint: str, store: str, **more: Any) -> DataFrame:
    """Move the messages of one endpoint to other due times.

    As `cancel`.

    Args:
        ids: columns ``message_id`` and ``due_at``, a timestamp; others are kept.
        endpoint, store, more: as for `cancel`; and ``max_delay_seconds``, 10 years if left out: a later
            due time is ``invalid``.

    Returns:
        See `cancel`.

    Raises:
        ConfigurationError, QueueMissing, QueueUnavailable, PySparkException: as `cancel`.
    """
    most = int(more.pop("max_delay_seconds", DEFAULT_MAX_DELAY_SECONDS))
    if (kind := dict(ids.dtypes).get(DUE_AT, "missing")) != "timestamp":
        raise ConfigurationError(f"column {DUE_AT!r} is {kind}; it must be timestamp: cast it")
    known = _known(ids, endpoint, store, more)

    def change(message_id: str | None, micros: int | None) -> tuple[str, str | None]:
        if micros is None:
            return INVALID, f"{DUE_AT} is NULL; say when the message is due"
        due_ms = max(0, -(-micros // 1000))
        problem = too_far(due_ms, known.now_ms, most)
        if problem is not None:
            return INVALID, problem
        return _changed(
            message_id,
            lambda found: _schedule(known).reschedule(found, due_ms, now_ms=known.now_ms),
        )

    return _done(ids, change, MESSAGE_ID, F.unix_micros(DUE_AT))


def _known(ids: DataFrame, endpoint: str, store: str, more: dict[str, Any]) -> _Endpoint:
    if MESSAGE_ID not in ids.columns:
        raise ConfigurationError(
            f"column {MESSAGE_ID!r} is missing; there are {', '.join(ids.columns)}"
        )
    given = {"table": None, "schema": None, "ledger": None, "region": None, "endpoint_url": None}
    if unknown := sorted(set(more) - set(given)):
        raise ConfigurationError(f"{unknown[0]!r} is unknown; known are {', '.join(given)}")
    given |= more
    options = Options(endpoint=endpoint, region=given["region"], endpoint_url=given["endpoint_url"])
    return _Endpoint(
        name=Endpoint.parse(endpoint).name,
        store=store,
        table=given["table"],
        schema=given["schema"],
        ledger=None if given["ledger"] is None else absolute(given["ledger"]),
        now_ms=planned_ms(options, sender_client(options)),
    )


@lru_cache(maxsize=1)
def _schedule(known: _Endpoint) -> Schedule:
    """This worker's, for one call after another."""
    place = open_place(
        known.store, endpoint=known.name, table=known.table, schema=known.schema, create=False
    )
    ledger = None if known.ledger is None else worker_ledger(Path(known.ledger))
    return Schedule(place, endpoint=known.name, ledger=ledger)


def _changed(message_id: str | None, change: Callable[[str], Any]) -> tuple[str, str | None]:
    if message_id is None:
        return INVALID, f"{MESSAGE_ID} is NULL"
    try:
        return change(message_id).value, None
    except (InvalidMessage, InvalidDelay) as error:
        return INVALID, str(error)


def _done(ids: DataFrame, change: Callable[..., Any], *columns: Any) -> DataFrame:
    # All are read before any is changed: what is moved would be read again at its new due time.
    known = ids.localCheckpoint()
    # Without Arrow, which asks for pandas; done once, whatever is then asked of the table.
    changed = F.udf(change, _RESULT, useArrow=False).asNondeterministic()(*columns)
    told = known.withColumn("_changed", changed).select(*ids.columns, "_changed.*")
    return told.localCheckpoint()
