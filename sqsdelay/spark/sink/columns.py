"""The columns of a table of messages, checked before anything is sent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from pyspark.sql.types import (
    ByteType,
    DataType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from sqsdelay.errors import ConfigurationError, InvalidSetting
from sqsdelay.spark.sink.options import DEFAULT_KEY, Options

BODY: Final = "body"
DELAY: Final = "delay_seconds"
DUE_AT: Final = "due_at"
ENDPOINT: Final = "endpoint"
MESSAGE_ID: Final = "message_id"
ATTRIBUTES: Final = "attributes"
GROUP_ID: Final = "message_group_id"
DEDUPLICATION_ID: Final = "message_deduplication_id"
CORRUPT: Final = "_corrupt_record"
"""Spark's own column for lines of a CSV or JSON file that it could not read."""
REASON: Final = "reason"
"""The column that the rejects table has besides the rows' own."""

_INTEGERS: Final = (ByteType, ShortType, IntegerType, LongType)
_TEXTS: Final = (BODY, ENDPOINT, MESSAGE_ID, GROUP_ID, DEDUPLICATION_ID, CORRUPT)
COLUMNS: Final = (*_TEXTS[:-1], DELAY, DUE_AT, ATTRIBUTES)


@dataclass(frozen=True, kw_only=True)
class Columns:
    """Which of the columns a table has. ``key`` is None where no id is derived.

    ``spelled`` are the names as they are here, by the table's own spelling where that differs.
    """

    names: frozenset[str]
    key: str | None
    spelled: Mapping[str, str] = field(default_factory=dict)

    def has(self, name: str) -> bool:
        return name in self.names


def checked_columns(schema: StructType, options: Options) -> Columns:
    """The columns of rows that can be sent.

    Raises:
        ConfigurationError: a column is missing, unknown, twice there, of a wrong type, or at odds
            with another or with the options.
    """
    spelled = _spelled(schema.fieldNames(), options.key)
    names = [spelled.get(name, name) for name in schema.fieldNames()]
    for name in names:
        if names.count(name) > 1:
            raise ConfigurationError(f"column {name!r} occurs twice; drop or rename one")
    key = options.key if options.key in names else None
    if key is None and options.key != DEFAULT_KEY:
        raise InvalidSetting(
            f"option key={options.key!r} names no column; there are {', '.join(names)}"
        )
    for name, each in zip(names, schema.fields, strict=True):
        _check_type(name, each.dataType, key)
    if BODY not in names:
        raise ConfigurationError(
            f"column {BODY!r} is missing; there are {', '.join(names) or 'none'}: name the text to send so"
        )
    if (DELAY in names) == (DUE_AT in names):
        found = "are both there" if DELAY in names else "are both missing"
        raise ConfigurationError(f"columns {DELAY!r} and {DUE_AT!r} {found}; give one of them")
    if ENDPOINT not in names and options.endpoint is None:
        raise InvalidSetting(
            f"no endpoint: give option('endpoint', 'orders'), or a column {ENDPOINT!r}"
        )
    _check_identity(names, key, options)
    return Columns(names=frozenset(names), key=key, spelled=spelled)


def _spelled(names: Sequence[str], key: str) -> dict[str, str]:
    """Column names in our spelling, where only their case differs: Spark's names have no case."""
    known = {name.lower(): name for name in (*COLUMNS, CORRUPT, key)}
    ours = {name: known.get(name.lower(), name) for name in names}
    return {name: told for name, told in ours.items() if name != told}


def _check_type(name: str, data_type: DataType, key: str | None) -> None:
    if name in _TEXTS:
        _expect(name, data_type, isinstance(data_type, StringType), "string")
    elif name == DELAY:
        fits = isinstance(data_type, (*_INTEGERS, FloatType, DoubleType))
        _expect(name, data_type, fits, "a number of seconds (bigint or double)")
    elif name == DUE_AT and isinstance(data_type, TimestampNTZType):
        raise ConfigurationError(
            f"column {DUE_AT!r} is timestamp_ntz, a clock's reading that names no instant; "
            f"cast it to timestamp, which reads it in the session's time zone "
            "(spark.sql.session.timeZone)"
        )
    elif name == DUE_AT:
        _expect(name, data_type, isinstance(data_type, TimestampType), "timestamp")
    elif name == ATTRIBUTES:
        fits = (
            isinstance(data_type, MapType)
            and isinstance(data_type.keyType, StringType)
            and isinstance(data_type.valueType, StringType)
        )
        _expect(name, data_type, fits, "map<string,string>")
    elif name != key:
        raise ConfigurationError(
            f"column {name!r} is unknown; known are {', '.join(COLUMNS)} and the key column: "
            f"drop it, or name it as the key: option('key', {name!r})"
        )
    if name == key:
        fits = isinstance(data_type, (*_INTEGERS, StringType))
        _expect(f"{name} (the key)", data_type, fits, "string or an integer")


def _expect(name: str, data_type: DataType, fits: bool, wanted: str) -> None:
    if not fits:
        raise ConfigurationError(
            f"column {name!r} is {data_type.simpleString()}; it must be {wanted}: cast it"
        )


def _check_identity(names: list[str], key: str | None, options: Options) -> None:
    """Spark sends a row again when a task fails: receivers must be able to tell."""
    if key == REASON:
        raise ConfigurationError(
            f"the key column is named {REASON!r}, as a column of the rejects table is; rename it"
        )
    if key is None and MESSAGE_ID not in names:
        raise InvalidSetting(
            "rows have no message id that stays the same when Spark sends them again; give a column "
            f"{MESSAGE_ID!r}, or name what identifies a row and the job: "
            "option('key', 'order_id').option('job', 'renewals-2027')"
        )
    if key is not None and not options.job:
        raise InvalidSetting(
            f"message ids are made of the column {key!r} and the job's name; "
            "give it one: option('job', 'renewals-2027')"
        )
