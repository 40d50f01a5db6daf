"""Stores for delayed messages: SQLite, PostgreSQL, DynamoDB; each imported when it is opened."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final
from urllib.parse import SplitResult, unquote, urlsplit

from sqsdelay.errors import ConfigurationError
from sqsdelay.ports.stores import DelayedMessageStore

if TYPE_CHECKING:
    from sqsdelay.stores.dynamodb.earlier import EarlierTable

SCHEMES: Final = "sqlite:///FILE, postgresql://… or dynamodb://TABLE"

DYNAMODB_TABLE: Final = re.compile(r"[A-Za-z0-9_.-]{3,255}", re.ASCII)
"""Source: CreateTable API reference, TableName."""


def open_store(
    url: str, *, endpoint: str, table: str | None = None, schema: str | None = None
) -> DelayedMessageStore:
    """The store a URL names, for one endpoint.

    Args:
        url: ``sqlite:///relative.db``, ``sqlite:////absolute.db``, ``postgresql://…`` (libpq's
            URLs), ``dynamodb://table``, with ``?shards=16&lookup=off&class=STANDARD_INFREQUENT_ACCESS``
            where the table is to have these settings.
        endpoint: whose messages these are; names the table where ``table`` is None.
        table: SQLite and PostgreSQL: the table's name.
        schema: PostgreSQL: the table's schema, ``public`` where None.

    Raises:
        ConfigurationError: no such kind of URL, or its driver is not installed.
        StoreUnavailable: the SQLite file cannot be opened.
    """
    parts = _parts(url)
    if schema is not None and parts.scheme not in ("postgresql", "postgres"):
        raise ConfigurationError(f"schema={schema!r}: only PostgreSQL stores have schemas")
    if parts.scheme == "sqlite" and not parts.netloc and len(parts.path) > 1:
        from sqsdelay.stores.sqlite.sqlite_store import SqliteStore

        return SqliteStore(unquote(parts.path[1:]), endpoint=endpoint, table=table)
    if parts.scheme in ("postgresql", "postgres") and url.startswith(f"{parts.scheme}://"):
        try:
            from sqsdelay.stores.postgres.pool import DEFAULT_SCHEMA
            from sqsdelay.stores.postgres.postgres_store import PostgresStore
        except ImportError as error:
            raise ConfigurationError(
                f"PostgreSQL stores need psycopg ({error}); pip install 'sqsdelay[postgres]'"
            ) from error
        return PostgresStore(url, endpoint=endpoint, table=table, schema=schema or DEFAULT_SCHEMA)
    if parts.scheme == "dynamodb" and DYNAMODB_TABLE.fullmatch(parts.netloc) and not parts.path:
        if table is not None:
            raise ConfigurationError(f"table={table!r}: the URL names the DynamoDB table itself")
        from sqsdelay.stores.dynamodb import DynamoDbStore
        from sqsdelay.stores.dynamodb.url import settings_of

        return DynamoDbStore(parts.netloc, endpoint=endpoint, **settings_of(parts.query))
    raise _not_understood(parts.scheme)


def open_source(
    url: str, *, endpoint: str, table: str | None = None, schema: str | None = None
) -> DelayedMessageStore | EarlierTable:
    """The store a URL names, to be emptied: a DynamoDB table of the earlier layout, too.

    Raises:
        ConfigurationError, StoreMissing, StoreUnavailable
    """
    parts = _parts(url)
    if parts.scheme == "dynamodb" and DYNAMODB_TABLE.fullmatch(parts.netloc):
        from sqsdelay.stores.dynamodb.earlier import EarlierTable

        earlier = EarlierTable(parts.netloc, endpoint=endpoint)
        if earlier.earlier:
            return earlier
        earlier.close()
    return open_store(url, endpoint=endpoint, table=table, schema=schema)


def _parts(url: str) -> SplitResult:
    try:
        return urlsplit(url)
    except ValueError:
        # Without its cause, which may repeat the URL's password.
        raise _not_understood("") from None


def _not_understood(scheme: str) -> ConfigurationError:
    """The error for what is no store's URL; it shows no more than the scheme, for a password's sake."""
    shown = f"the store's URL, of the kind {scheme}:," if scheme else "the store's URL"
    return ConfigurationError(f"{shown} is not understood; give {SCHEMES}")
