"""The version of what stores keep, which each writes down: what has another one is refused at once. And the
named queries of database tables, kept in ``.sql`` files beside the stores."""

from __future__ import annotations

import re
from importlib.resources import files
from typing import Final

from sqsdelay.errors import SchemaMismatch

VERSION: Final = 1
"""Of all stores and inboxes of this sqsdelay."""

_NAME: Final = re.compile(r"^-- name: (\w+)$", re.MULTILINE)


def read_queries(file_name: str) -> dict[str, str]:
    """The queries of one file, by name; ``-- name: x`` starts one, comments below it describe it."""
    text = (files("sqsdelay.stores") / file_name).read_text(encoding="utf-8")
    # Comments go, but for those that name a query.
    parts = _NAME.split(re.sub(r"^--(?! name: ).*\n?", "", text, flags=re.MULTILINE))[1:]
    return {name: query.strip() for name, query in zip(parts[::2], parts[1::2], strict=True)}


def check_version(found: int | None, name: str, kind: str = "table") -> None:
    """Raise SchemaMismatch for what is of another version: what its fields mean is not known here."""
    if found != VERSION:
        has = "no schema version" if found is None else f"schema version {found}"
        raise mismatch(name, f"it has {has}", kind)


def mismatch(name: str, why: object, kind: str = "table") -> SchemaMismatch:
    """The error for what this sqsdelay did not make."""
    return SchemaMismatch(
        f"{kind} {name} was made by another sqsdelay: {why}, and this one supports version {VERSION} "
        f"only; name another {kind}, and empty this one with the sqsdelay that made it"
    )
