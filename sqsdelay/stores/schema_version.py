"""The version of a database's tables: written down by `set_up`, and any other is refused at once."""

from __future__ import annotations

from typing import Final

from sqsdelay.errors import SchemaMismatch

VERSION: Final = 1
"""Of all tables of this sqsdelay, in SQLite and in PostgreSQL."""


def check_version(found: int | None, *, table: str) -> None:
    """Refuse a table of another version: what it means by its columns is not known here.

    Args:
        found: the version written down; None where there is none.

    Raises:
        SchemaMismatch
    """
    if found != VERSION:
        has = "no schema version" if found is None else f"schema version {found}"
        raise mismatch(table, f"it has {has}")


def mismatch(table: str, why: object) -> SchemaMismatch:
    """The error for a table that this sqsdelay did not make."""
    return SchemaMismatch(
        f"table {table} was made by another sqsdelay: {why}, and this one supports version {VERSION} "
        "only; name another table, and empty this one with the sqsdelay that made it"
    )


def refuse_newer(found: int, newest: int, *, table: str) -> None:
    """Refuse a table that a newer sqsdelay made: what it means by its columns is not known here.

    Raises:
        SchemaMismatch
    """
    if found > newest:
        raise SchemaMismatch(
            f"table {table} has schema version {found}, made by a newer sqsdelay; this one supports "
            f"versions up to {newest}: upgrade sqsdelay here"
        )
