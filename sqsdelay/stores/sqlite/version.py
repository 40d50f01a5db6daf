"""A table's schema version in a SQLite file, which may hold several tables, and others' too."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from functools import cache

from sqsdelay.stores.queries import read_queries
from sqsdelay.stores.schema_version import (
    FIRST_VERSION,
    check_version,
    newest_version,
    refuse_newer,
    upgrades,
)


def set_up(connection: sqlite3.Connection, table: str, queries: Mapping[str, str]) -> None:
    """Make a table, or upgrade it, in the open transaction: what ``set_up…`` and ``upgrade_…`` do.

    Raises:
        SchemaMismatch: a newer sqsdelay made it.
    """
    own = _queries()
    connection.execute(own["set_up"])
    found, newest = found_version(connection, table), newest_version(queries)
    refuse_newer(found, newest, table=table)
    made = [name for name in queries if name.startswith("set_up")]
    for name in (*made, *upgrades(queries, found)):
        connection.execute(queries[name])
    if found < newest:
        connection.execute(own["record"], (table, newest))


def check(
    connection: sqlite3.Connection, table: str, queries: Mapping[str, str], *, remedy: str
) -> None:
    """Refuse a table of another version than these queries'.

    Raises:
        SchemaMismatch
    """
    found = found_version(connection, table)
    check_version(found, newest_version(queries), table=table, remedy=remedy)


def found_version(connection: sqlite3.Connection, table: str) -> int:
    """The version written down for a table; the first where there is none."""
    own = _queries()
    if not connection.execute(own["known"]).fetchall():
        return FIRST_VERSION
    rows = connection.execute(own["find"], (table,)).fetchall()
    return int(rows[0][0]) if rows else FIRST_VERSION


@cache
def _queries() -> dict[str, str]:
    return read_queries("sqlite/version.sql")
