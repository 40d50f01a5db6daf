"""Where delayed messages wait: SQLite, PostgreSQL, DynamoDB, S3, EventBridge Scheduler; each imported
when it is opened."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from sqsdelay.core import on_first_use
from sqsdelay.core.delay import Clock as Clock
from sqsdelay.core.delay import SystemClock as SystemClock
from sqsdelay.core.stored_message import Amendment as Amendment
from sqsdelay.core.stored_message import StoredMessage as StoredMessage
from sqsdelay.core.stored_message import check_stored_due as check_stored_due
from sqsdelay.core.stored_message import from_store as from_store
from sqsdelay.core.stored_message import latest_amendments as latest_amendments
from sqsdelay.core.stored_message import to_store as to_store
from sqsdelay.errors import ConfigurationError, InvalidSetting, StoreMissing
from sqsdelay.ports.stores import Claim as Claim
from sqsdelay.ports.stores import DelayedMessageStore as DelayedMessageStore
from sqsdelay.ports.stores import ParkingPlace as ParkingPlace
from sqsdelay.ports.stores import TransactionMode as TransactionMode

if TYPE_CHECKING:
    from sqsdelay.stores.dynamodb.dynamodb_store import DynamoDbStore as DynamoDbStore
    from sqsdelay.stores.dynamodb.table import table_definition as table_definition
    from sqsdelay.stores.postgres.postgres_store import PostgresInbox as PostgresInbox
    from sqsdelay.stores.postgres.postgres_store import PostgresStore as PostgresStore
    from sqsdelay.stores.s3.s3_store import S3Store as S3Store
    from sqsdelay.stores.scheduler.scheduler_store import SchedulerStore as SchedulerStore
    from sqsdelay.stores.sqlite.sqlite_store import SqliteInbox as SqliteInbox
    from sqsdelay.stores.sqlite.sqlite_store import SqliteStore as SqliteStore

_HOMES = {
    "sqsdelay.stores.dynamodb.dynamodb_store": "DynamoDbStore",
    "sqsdelay.stores.dynamodb.table": "table_definition",
    "sqsdelay.stores.postgres.postgres_store": "PostgresInbox PostgresStore",
    "sqsdelay.stores.s3.s3_store": "S3Store",
    "sqsdelay.stores.scheduler.scheduler_store": "SchedulerStore",
    "sqsdelay.stores.sqlite.sqlite_store": "SqliteInbox SqliteStore",
}
__all__ = [
    *("Claim", "DelayedMessageStore", "ParkingPlace", "TransactionMode"),
    *("Amendment", "Clock", "StoredMessage", "SystemClock", "check_stored_due"),
    *("from_store", "latest_amendments", "to_store"),
    *("open_place", "open_store"),
    *" ".join(_HOMES.values()).split(),
]
__getattr__ = on_first_use(__name__, _HOMES)


SCHEDULER: Final = "scheduler"

DYNAMODB_TABLE: Final = re.compile(r"[A-Za-z0-9_.-]{3,255}", re.ASCII)
"""Source: CreateTable API reference, TableName."""


def open_store(url: str, *, endpoint: str, create: bool = True) -> DelayedMessageStore:
    """As `open_place`, of a store that a dispatcher releases from.

    Raises:
        ConfigurationError: schedules, too.
    """
    place = open_place(url, endpoint=endpoint, create=create)
    if not isinstance(place, DelayedMessageStore):
        place.close()
        raise InvalidSetting(
            "schedules release their messages themselves, so there is nothing to dispatch; give "
            f"{SCHEDULER}://… to senders and to the delay consumer only"
        )
    return place


def open_place(url: str, *, endpoint: str, create: bool = True) -> ParkingPlace:
    """Where a URL says that one endpoint's messages wait: a store, or a place that needs no dispatcher.

    Args:
        url: ``sqlite:///relative.db``, ``sqlite:////absolute.db`` (with ``?table=NAME``), ``postgresql://…``
            (libpq's URLs, with ``?table=NAME&schema=NAME``), ``dynamodb://table``, with
            ``?shards=16&lookup=off&class=STANDARD_INFREQUENT_ACCESS`` where the table is to have these
            settings, ``s3://bucket/prefix``; or ``scheduler://GROUP?role=ARN``: one-time schedules of
            EventBridge Scheduler in that schedule group, sent with that role.
        endpoint: whose messages these are; names the table where the URL does not.
        create: SQLite: make a file that does not exist. The others make nothing by being opened.

    Raises:
        StoreMissing: the SQLite file does not exist, and ``create`` is False.
        ConfigurationError: no such kind of URL, or its driver is not installed.
        InvalidEndpoint
        StoreUnavailable: the SQLite file cannot be opened.
    """
    parts = split(url)
    if parts.scheme == "sqlite" and not parts.netloc and len(parts.path) > 1:
        from sqsdelay.stores.sqlite.sqlite_store import SqliteStore

        takes = "a SQLite store takes table=NAME; write '?' in a file's name as %3F and '#' as %23"
        if parts.fragment or url.endswith("#"):
            raise InvalidSetting(f"the store's URL is not valid: {takes}")
        table = _settings(parts, takes, {"table": _name}).get("table")
        path = unquote(parts.path[1:])
        with suppress(OSError, ValueError):  # What is wrong with a path is told when it is opened.
            if not create and not Path(path).exists():
                raise StoreMissing(
                    f"there is no SQLite file {path!r}; correct the URL, or run sqsdelay store create"
                )
        return SqliteStore(path, endpoint=endpoint, table=table)
    if parts.scheme in ("postgresql", "postgres") and url.startswith(f"{parts.scheme}://"):
        try:
            from sqsdelay.stores.postgres.pool import DEFAULT_SCHEMA
            from sqsdelay.stores.postgres.postgres_store import PostgresStore
        except ImportError as error:
            raise ConfigurationError(
                f"PostgreSQL stores need psycopg ({error}); pip install 'sqsdelay[postgres]'"
            ) from error
        # Ours are taken out, and what libpq reads stays as it was written.
        address, _, query = url.partition("?")
        pairs = query.split("&")
        own = [pair for pair in pairs if pair.startswith(("table=", "schema="))]
        settings = _settings(
            parts._replace(query="&".join(own)),
            "a PostgreSQL store takes table=NAME and schema=NAME",
            {"table": _name, "schema": _name},
        )
        of_libpq = "&".join(pair for pair in pairs if pair not in own)
        url = f"{address}?{of_libpq}" if of_libpq else address
        return PostgresStore(url, endpoint=endpoint, **{"schema": DEFAULT_SCHEMA, **settings})
    if parts.scheme == "dynamodb" and DYNAMODB_TABLE.fullmatch(parts.netloc) and not parts.path:
        from sqsdelay.stores.dynamodb.dynamodb_store import DynamoDbStore

        settings = _settings(
            parts,
            "a DynamoDB store takes shards=NUMBER, lookup=on or off, class=STANDARD or "
            "STANDARD_INFREQUENT_ACCESS",
            {"shards": _number, "lookup": _SWITCH.get, "class": str},
        )
        if "class" in settings:
            settings["table_class"] = settings.pop("class")
        return DynamoDbStore(parts.netloc, endpoint=endpoint, **settings)
    if parts.scheme == "s3":
        from sqsdelay.stores.s3.s3_store import S3Store

        return S3Store(endpoint=endpoint, **s3_settings_of(url))
    if parts.scheme == SCHEDULER:
        given = parse_qsl(parts.query, keep_blank_values=True)
        if parts.path or [name for name, _ in given] != ["role"]:
            raise InvalidSetting(
                "the URL of a schedule group is not valid; give scheduler://GROUP?role=ROLE_ARN"
            )
        from sqsdelay.stores.scheduler.scheduler_store import SchedulerStore

        return SchedulerStore(parts.netloc, role_arn=given[0][1], endpoint=endpoint)
    raise _not_understood(parts.scheme)


def split(url: str) -> SplitResult:
    """The parts of a store's URL. Raises ConfigurationError."""
    try:
        return urlsplit(url)
    except ValueError:
        # Without its cause, which may repeat the URL's password.
        raise _not_understood("") from None


def s3_settings_of(url: str) -> dict[str, Any]:
    """The arguments of `S3Store` that a URL gives. Raises ConfigurationError: one that is not known."""
    from sqsdelay.stores.s3.layout import BUCKET

    parts = split(url)
    if not BUCKET.fullmatch(parts.netloc) or parts.fragment:
        raise _not_understood(parts.scheme)
    takes = "an S3 store takes lookup=on or off, slots=SECONDS:SECONDS:…"
    settings = _settings(parts, takes, {"lookup": _SWITCH.get, "slots": _numbers})
    return {"bucket": parts.netloc, "prefix": unquote(parts.path.strip("/")), **settings}


_SWITCH: Final = {"on": True, "off": False}


def _name(text: str) -> str | None:
    # A URL in this place may bring a password, which the error for a name would show.
    return text if text and not set(text) & set(":/?#@") else None


def _number(text: str) -> int | None:
    return int(text) if re.fullmatch(r"\d{1,9}", text, re.ASCII) else None


def _numbers(text: str) -> tuple[int, ...] | None:
    numbers = tuple(map(_number, text.split(":")))
    return None if None in numbers else cast("tuple[int, ...]", numbers)


def _settings(
    parts: SplitResult, takes: str, known: Mapping[str, Callable[[str], Any]]
) -> dict[str, Any]:
    """The settings behind a URL's ``?``. What reads one answers None for a value that it cannot be."""
    settings = {}
    for name, value in parse_qsl(parts.query, keep_blank_values=True):
        settings[name] = known[name](value) if name in known else None
        if settings[name] is None:
            # Not shown: it may be a password that got into the wrong URL.
            raise InvalidSetting(
                f"the settings behind ? in the store's URL are not understood; {takes}"
            )
    return settings


def _not_understood(scheme: str) -> ConfigurationError:
    """The error for what is no store's URL; it shows no more than the scheme, for a password's sake."""
    shown = f"the store's URL, of the kind {scheme}:," if scheme else "the store's URL"
    return InvalidSetting(
        f"{shown} is not valid; give sqlite:///FILE, postgresql://…, dynamodb://TABLE, "
        "s3://BUCKET/PREFIX or scheduler://GROUP?role=ARN"
    )
