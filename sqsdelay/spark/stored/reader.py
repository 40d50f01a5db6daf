"""``spark.read.format("sqsdelay")``: the messages that wait in a store, by ranges of due times."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSourceReader,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    InputPartition,
    LessThan,
    LessThanOrEqual,
)

from sqsdelay.core.delay import EPOCH
from sqsdelay.core.endpoint import Endpoint
from sqsdelay.core.message import DEDUPLICATION_ID
from sqsdelay.core.stored_message import StoredMessage
from sqsdelay.errors import ConfigurationError, InvalidSetting
from sqsdelay.limits import MAX_DUE_MS
from sqsdelay.ports.stores import ParkingPlace
from sqsdelay.spark.sink.columns import ATTRIBUTES, BODY, DUE_AT, ENDPOINT, GROUP_ID, MESSAGE_ID
from sqsdelay.spark.sink.columns import DEDUPLICATION_ID as DEDUPLICATION
from sqsdelay.stores import open_place

SCHEMA: Final = (
    f"{ENDPOINT} string, {MESSAGE_ID} string, {DUE_AT} timestamp, {BODY} string, "
    f"{ATTRIBUTES} map<string,string>, {GROUP_ID} string, {DEDUPLICATION} string, "
    "destination string, failures int, unreadable string"
)
_ARROW: Final = pa.schema(
    {
        ENDPOINT: pa.string(),
        MESSAGE_ID: pa.string(),
        DUE_AT: pa.timestamp("us", "UTC"),
        BODY: pa.string(),
        ATTRIBUTES: pa.map_(pa.string(), pa.string()),
        GROUP_ID: pa.string(),
        DEDUPLICATION: pa.string(),
        "destination": pa.string(),
        "failures": pa.int32(),
        "unreadable": pa.string(),
    }
)
COLUMNS: Final = _ARROW.names
DEFAULT_PARTITIONS: Final = 8
"""Ranges of due times that are read at a time."""

_PAGE: Final = 1_000
_KNOWN: Final = ("store", "endpoint", "table", "schema", "partitions")
_MICROSECONDS: Final = 1_000_000


@dataclass(frozen=True, kw_only=True)
class Source:
    """Whose messages are read, from where.

    Args:
        store: the URL of the store.
        endpoint: the endpoint's name.
        table, schema: see `open_place`.
        partitions: ranges of due times to read them in.
    """

    store: str
    endpoint: str
    table: str | None = None
    schema: str | None = None
    partitions: int = DEFAULT_PARTITIONS

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> Source:
        """The options as Spark hands them over.

        Raises:
            ConfigurationError: one is missing, unknown or no number.
            InvalidEndpoint: the endpoint is none.
        """
        options = {name.lower(): value for name, value in given.items()}
        if unknown := sorted(set(options) - set(_KNOWN)):
            raise ConfigurationError(
                f"option {unknown[0]!r} is unknown; known are {', '.join(_KNOWN)}"
            )
        for name in ("store", "endpoint"):
            if name not in options:
                raise ConfigurationError(
                    f"option {name!r} is missing; give the store's URL and the endpoint whose messages "
                    "it keeps: option('store', 'dynamodb://delayed').option('endpoint', 'orders')"
                )
        partitions = options.get("partitions", str(DEFAULT_PARTITIONS))
        if not (partitions.isdecimal() and int(partitions) > 0):
            raise InvalidSetting(f"option partitions={partitions!r}; use a whole number from 1 on")
        return cls(
            store=options["store"],
            endpoint=Endpoint.parse(options["endpoint"]).name,
            table=options.get("table"),
            schema=options.get("schema"),
            partitions=int(partitions),
        )

    def opened(self) -> ParkingPlace:
        """The store; close it.

        Raises:
            ConfigurationError, StoreMissing, StoreUnavailable
        """
        return open_place(
            self.store, endpoint=self.endpoint, table=self.table, schema=self.schema, create=False
        )


@dataclass(frozen=True)
class DueRange(InputPartition):
    """Due times from the first on, before the second; epoch milliseconds."""

    from_ms: int
    before_ms: int


class StoreReader(DataSourceReader):
    """Reads the messages of one store. What Spark asks of ``due_at`` is asked of the store."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._wanted = DueRange(0, MAX_DUE_MS + 1)

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Take what limits the due time; return the rest."""
        for each in filters:
            limits = _limits(each)
            if limits is None:
                yield each
            else:
                self._wanted = replace(
                    self._wanted,
                    from_ms=max(self._wanted.from_ms, limits.from_ms),
                    before_ms=min(self._wanted.before_ms, limits.before_ms),
                )

    def partitions(self) -> list[InputPartition]:
        """All due times that are wanted, in equal spans between the earliest message and the latest.

        The first and the last are open: what is stored or moved until they are read is read, too.
        """
        wanted, number = self._wanted, self._source.partitions
        with closing(self._source.opened()) as place:
            first = _earliest(place, wanted.from_ms, wanted.before_ms)
            if first is None:
                return [wanted]
            end = _end(place, first, wanted.before_ms)
        edges = range(first, end, -(-(end - first) // number))[1:]
        starts, ends = [wanted.from_ms, *edges], [*edges, wanted.before_ms]
        return [DueRange(*each) for each in zip(starts, ends, strict=True)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The messages of one range, page by page: those that are there when it is read."""
        assert isinstance(partition, DueRange), "made by partitions()"
        if partition.from_ms >= partition.before_ms:
            return
        after = None
        with closing(self._source.opened()) as place:
            while page := place.pending(
                _PAGE,
                after=after,
                due_from_ms=partition.from_ms,
                due_before_ms=partition.before_ms,
            ):
                yield self._batch(page)
                after = (page[-1].due_ms, page[-1].message_id)

    def _batch(self, page: list[StoredMessage]) -> pa.RecordBatch:
        return pa.RecordBatch.from_pylist(
            [_row(self._source.endpoint, message) for message in page], schema=_ARROW
        )


def _row(endpoint: str, message: StoredMessage) -> dict[str, Any]:
    attributes = {
        name: value["StringValue"]
        for name, value in message.attributes.items()
        if "StringValue" in value
    }
    return {
        ENDPOINT: endpoint,
        MESSAGE_ID: message.message_id,
        DUE_AT: message.due_ms * 1000,
        BODY: message.body.decode("utf-8", "replace"),
        GROUP_ID: message.group_id,
        DEDUPLICATION: attributes.pop(DEDUPLICATION_ID, None),
        ATTRIBUTES: list(attributes.items()),
        "destination": message.destination,
        "failures": message.failures,
        "unreadable": message.unreadable,
    }


def _limits(wanted: Filter) -> DueRange | None:
    """The due times that a filter lets pass; None for one that is about something else."""
    if not isinstance(
        wanted, EqualTo | GreaterThan | GreaterThanOrEqual | LessThan | LessThanOrEqual
    ):
        return None
    if wanted.attribute != (DUE_AT,) or not isinstance(wanted.value, datetime):
        return None
    if wanted.value.utcoffset() is None:
        return None
    since = wanted.value - EPOCH
    micros = (since.days * 86_400 + since.seconds) * _MICROSECONDS + since.microseconds
    # Due times are whole milliseconds.
    at_or_after, after = -(-micros // 1000), micros // 1000 + 1
    end = MAX_DUE_MS + 1
    if isinstance(wanted, EqualTo):
        return DueRange(at_or_after, after)
    if isinstance(wanted, GreaterThan):
        return DueRange(after, end)
    if isinstance(wanted, GreaterThanOrEqual):
        return DueRange(at_or_after, end)
    return DueRange(0, at_or_after if isinstance(wanted, LessThan) else after)


def _earliest(place: ParkingPlace, from_ms: int, before_ms: int) -> int | None:
    if from_ms >= before_ms:
        return None
    found = place.pending(1, due_from_ms=from_ms, due_before_ms=before_ms)
    return found[0].due_ms if found else None


def _end(place: ParkingPlace, first: int, before_ms: int) -> int:
    """Just after the latest message, to the second or better: looked for by ever longer steps."""
    span, known = 1_000, first
    while (later := _earliest(place, known + span, before_ms)) is not None:
        known, span = later, span * 2
    while span > 1_000:
        span //= 2
        if (later := _earliest(place, known + span, before_ms)) is not None:
            known = later
    return min(known + 1_000, before_ms)
