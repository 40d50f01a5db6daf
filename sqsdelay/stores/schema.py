"""The schema of a database's tables: named queries, kept in ``.sql`` files beside the stores, and a version,
written down when a table is made. A table of any other version is refused at once."""

from __future__ import annotations

import re
from importlib.resources import files
from typing import Final

from sqsdelay.errors import SchemaMismatch

VERSION: Final = 1
"""Of all tables of this sqsdelay, in SQLite, PostgreSQL and DynamoDB."""

_NAME: Final = re.compile(r"^-- name: (\w+)$", re.MULTILINE)


def read_queries(file_name: str) -> dict[str, str]:
    """The queries of one file, by name; ``-- name: x`` starts one, comments below it describe it."""
    text = (files("sqsdelay.stores") / file_name).read_text(encoding="utf-8")
    # Comments go, but for those that name a query.
    parts = _NAME.split(re.sub(r"^--(?! name: ).*\n?", "", text, flags=re.MULTILINE))[1:]
    return {name: query.strip() for name, query in zip(parts[::2], parts[1::2], strict=True)}


def check_version(found: int | None, *, table: str) -> None:
    """Raise SchemaMismatch for a table of another version: what its columns mean is not known here."""
    if found != VERSION:
        has = "no schema version" if found is None else f"schema version {found}"
        raise mismatch(table, f"it has {has}")


def mismatch(table: str, why: object) -> SchemaMismatch:
    """The error for a table that this sqsdelay did not make."""
    return SchemaMismatch(
        f"table {table} was made by another sqsdelay: {why}, and this one supports version {VERSION} "
        "only; name another table, and empty this one with the sqsdelay that made it"
    )
