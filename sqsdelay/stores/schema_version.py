"""The version of a table that a database keeps: upgraded by `set_up`, refused where it does not fit.

Version 1 is what a ``.sql`` file's ``set_up…`` queries make, and what has no version written down.
Each later version is a query ``upgrade_2``, ``upgrade_3``, … of the same file. A new table is made the
same way: as version 1, and upgraded.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from sqsdelay.errors import SchemaMismatch

FIRST_VERSION: Final = 1
_UPGRADE: Final = "upgrade_"


def newest_version(queries: Mapping[str, Any]) -> int:
    """The version these queries work on."""
    return FIRST_VERSION + sum(name.startswith(_UPGRADE) for name in queries)


def upgrades(queries: Mapping[str, Any], found: int) -> list[str]:
    """The names of the queries that lead from a version to the newest, in order."""
    return [f"{_UPGRADE}{version}" for version in range(found + 1, newest_version(queries) + 1)]


def refuse_newer(found: int, newest: int, *, table: str) -> None:
    """Refuse a table that a newer sqsdelay made: what it means by its columns is not known here.

    Raises:
        SchemaMismatch
    """
    if found > newest:
        raise SchemaMismatch(
            f"table {table} has schema version {found}, made by a newer sqsdelay; this one knows "
            f"versions up to {newest}: upgrade sqsdelay here"
        )


def check_version(found: int, newest: int, *, table: str, remedy: str) -> None:
    """Refuse a table of another version than the newest.

    Raises:
        SchemaMismatch
    """
    refuse_newer(found, newest, table=table)
    if found < newest:
        raise SchemaMismatch(
            f"table {table} has schema version {found} and this sqsdelay needs {newest}; {remedy}, "
            "which keeps what is stored"
        )


def mismatch(table: str, remedy: str, error: Exception) -> SchemaMismatch:
    """The error for a column the database does not have."""
    return SchemaMismatch(
        f"table {table} is not what this sqsdelay made of it ({error}); {remedy}, "
        "which upgrades an older one and keeps what is stored"
    )
