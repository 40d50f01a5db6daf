"""The options of the data source ``sqsdelay`` and its rows' columns, checked before anything is sent."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Final

from pyspark.sql.types import StructType

from sqsdelay.core.delay import check_hop, checked_max_delay
from sqsdelay.core.endpoint import Endpoint
from sqsdelay.core.limits import DEFAULT_HOP_SECONDS, DEFAULT_MAX_DELAY_SECONDS
from sqsdelay.errors import ConfigurationError, InvalidSetting
from sqsdelay.parking.parking import DEFAULT_PARK_AFTER_SECONDS
from sqsdelay.spark.session import absolute, file_name, is_uri

DEFAULT_CONCURRENCY: Final = 32
"""Batches one task keeps in flight: threads hide the service's latency, and add no CPU."""

DEFAULT_RETRY_SECONDS: Final = 60
"""How long a task goes on while SQS takes none of its rows; each row that is taken starts it anew."""

DEFAULT_KEY: Final = "key"
_NEEDS: Final = {
    "receipts": ("job", "needs the job's name; give one: option job (e.g. renewals-2027)"),
    "batch": ("job", "name the job whose micro-batches it counts: option job"),
    "replay": ("receipts", "needs the job's receipts; give option receipts"),
    "rate": ("tasks", "is the whole job's; give option tasks, how many share it at a time (cores)"),
    "park_after": ("store", "needs a store; give option store"),
}
"""Options that are of no use without another, and why."""

_SPARKS_OWN: Final = frozenset({"checkpointlocation", "queryname"})


def _number(least: int, default: int | None = None) -> Any:
    """An option that is a whole number, so many at the least."""
    return field(default=default, metadata={"least": least})


@dataclass(frozen=True, kw_only=True)
class Options:
    """The options of one write, as docs/fields.md explains them; ``checkpoint`` is a stream's folder."""

    endpoint: str | None = None
    key: str = DEFAULT_KEY
    job: str | None = None
    rejects: str | None = None
    summary: str | None = None
    receipts: str | None = None
    batch: int | None = _number(0)
    replay: int | None = _number(1)
    plan: bool = False
    past_due: str = "send"
    rate: int | None = _number(1)
    parts: int = _number(1, 1)
    tasks: int | None = _number(1)
    store: str | None = None
    park_after: int = _number(0, DEFAULT_PARK_AFTER_SECONDS)
    ledger: str | None = None
    concurrency: int = _number(1, DEFAULT_CONCURRENCY)
    hop_seconds: int = _number(1, DEFAULT_HOP_SECONDS)
    max_delay_seconds: int = _number(1, DEFAULT_MAX_DELAY_SECONDS)
    retry_seconds: int = _number(0, DEFAULT_RETRY_SECONDS)
    region: str | None = None
    endpoint_url: str | None = None
    checkpoint: str | None = None

    @property
    def stages(self) -> bool:
        """Whether rows due far ahead are staged in an S3 store, rather than sent or stored one by one."""
        if self.plan or self.store is None:
            return False
        from sqsdelay.stores import s3_settings_of, split

        return split(self.store).scheme == "s3" and not s3_settings_of(self.store).get("lookup")

    @classmethod
    def parse(cls, given: Mapping[str, Any]) -> Options:
        """The options as Spark hands them over: texts, names in any case; None is not given. Raises
        ConfigurationError, InvalidEndpoint."""
        lowered = {name.lower(): str(value) for name, value in given.items() if value is not None}
        known = {field.name for field in fields(cls)} - {"checkpoint"}
        if unknown := sorted(set(lowered) - known - _SPARKS_OWN):
            raise InvalidSetting(
                f"option {unknown[0]!r} is unknown; known are {', '.join(sorted(known))}"
            )
        if empty := sorted(name for name, value in lowered.items() if not value):
            raise InvalidSetting("is empty; give a value, or leave it out", **{empty[0]: ""})
        values: dict[str, Any] = {name: lowered[name] for name in known if name in lowered}
        for each in fields(cls):
            if each.name in values and "least" in each.metadata:
                values[each.name] = _whole(each.name, values[each.name], each.metadata["least"])
        plan = values.get("plan", "false").lower()
        if plan not in ("true", "false"):
            raise InvalidSetting("use true or false", plan=values["plan"])
        values["plan"] = plan == "true"
        for name in values.keys() & {"rejects", "summary", "receipts", "ledger"}:
            values[name] = absolute(values[name])
        if is_uri(values.get("ledger", "")):
            raise InvalidSetting(
                f"option ledger={values['ledger']!r} is a URI; ledger files grow line by line, which "
                "only a disk takes: give a folder on a local or shared disk"
            )
        options = cls(**values, checkpoint=lowered.get("checkpointlocation"))
        options._check()
        check_hop(options.hop_seconds)
        checked_max_delay(options.max_delay_seconds)
        if options.endpoint is not None:
            Endpoint.parse(options.endpoint)
        return options

    def _check(self) -> None:
        if self.past_due not in ("send", "reject"):
            raise InvalidSetting("use send or reject", past_due=self.past_due)
        for name, (needed, why) in _NEEDS.items():
            value = getattr(self, name)
            if value != getattr(Options, name) and not getattr(self, needed):
                raise InvalidSetting(why, **{name: value})
        file_name(self.job or "")


def _whole(name: str, text: str, least: int) -> int:
    try:
        value = int(text)
    except ValueError:
        value = least - 1
    if value < least:
        raise InvalidSetting(f"use a whole number, {least} or more", **{name: text})
    return value


_INTEGERS: Final = ("tinyint", "smallint", "int", "bigint")
TEXTS: Final = (
    "body",
    "endpoint",
    "message_id",
    "message_group_id",
    "message_deduplication_id",
    "_corrupt_record",
)
COLUMNS: Final = (*TEXTS[:-1], "delay_seconds", "due_at", "attributes")
TEXT: Final = (("string",), "string")
TYPES: Final[Mapping[str, tuple[Sequence[str], str]]] = {
    **dict.fromkeys(TEXTS, TEXT),
    "delay_seconds": ((*_INTEGERS, "float", "double"), "a number of seconds (bigint or double)"),
    "due_at": (("timestamp",), "timestamp"),
    "attributes": (("map<string,string>",), "map<string,string>"),
}


@dataclass(frozen=True, kw_only=True)
class Columns:
    """Which of the columns a table has. ``key`` is None where no id is derived; ``spelled`` are the names as
    they are here, by the table's own spelling where that differs."""

    names: frozenset[str]
    key: str | None = None
    spelled: Mapping[str, str] = field(default_factory=dict)

    def has(self, name: str) -> bool:
        return name in self.names


def checked_columns(schema: StructType, options: Options) -> Columns:
    """The columns of rows that can be sent. Raises ConfigurationError."""
    spelled = _spelled(schema.fieldNames(), options.key)
    names = [spelled.get(name, name) for name in schema.fieldNames()]
    shown = ", ".join(name for name in names if name != "_corrupt_record") or "none"
    for name in names:
        if names.count(name) > 1:
            raise ConfigurationError(f"column {name!r} occurs twice; drop or rename one")
    key = options.key if options.key in names else None
    if key is None and options.key != DEFAULT_KEY:
        raise InvalidSetting(f"option key={options.key!r} names no column; there are {shown}")
    for name, each in zip(names, schema.fields, strict=True):
        _check_type(name, re.sub(r" collate \w+", "", each.dataType.simpleString()), key)
    if "body" not in names:
        raise ConfigurationError(
            f"column 'body' is missing; there are {shown}: name the text to send so"
        )
    if ("delay_seconds" in names) == ("due_at" in names):
        found = "are both there" if "delay_seconds" in names else "are both missing"
        raise ConfigurationError(f"columns 'delay_seconds' and 'due_at' {found}; give one of them")
    if "endpoint" not in names and options.endpoint is None:
        raise InvalidSetting("no endpoint: give option endpoint, or a column 'endpoint'")
    _check_identity(names, key, options)
    return Columns(names=frozenset(names), key=key, spelled=spelled)


def _spelled(names: Sequence[str], key: str) -> dict[str, str]:
    """Column names in our spelling, where only their case differs: Spark's names have no case."""
    known = {name.lower(): name for name in (*COLUMNS, "_corrupt_record", key)}
    ours = {name: known.get(name.lower(), name) for name in names}
    return {name: told for name, told in ours.items() if name != told}


def _check_type(name: str, kind: str, key: str | None) -> None:
    if name == "due_at" and kind == "timestamp_ntz":
        raise ConfigurationError(
            "column 'due_at' is timestamp_ntz, a clock's reading that names no instant; "
            "cast it to timestamp, which reads it in the session's time zone "
            "(spark.sql.session.timeZone)"
        )
    if name not in TYPES and name != key:
        raise ConfigurationError(
            f"column {name!r} is unknown; known are {', '.join(COLUMNS)} and the key column: "
            f"drop it, or name it as the key: option key ({name!r})"
        )
    expected = {name: TYPES[name]} if name in TYPES else {}
    if name == key:
        expected[f"{name} (the key)"] = (*_INTEGERS, "string"), "string or an integer"
    for told, (kinds, wanted) in expected.items():
        if kind not in kinds:
            raise ConfigurationError(f"column {told!r} is {kind}; it must be {wanted}: cast it")


def _check_identity(names: list[str], key: str | None, options: Options) -> None:
    """Spark sends a row again when a task fails: receivers must be able to tell."""
    if key == "reason":
        raise ConfigurationError(
            "the key column is named 'reason', as a column of the rejects table is; rename it"
        )
    if key is None and "message_id" not in names:
        raise InvalidSetting(
            "rows have no message id that stays the same when Spark sends them again; give a column "
            "'message_id', or name what identifies a row and the job: "
            "options key (e.g. order_id) and job (e.g. renewals-2027)"
        )
    if key is not None and not options.job:
        raise InvalidSetting(
            f"message ids are made of the column {key!r} and the job's name; "
            "give it one: option job (e.g. renewals-2027)"
        )
