"""A table's schema version in PostgreSQL: the comment of its index."""

from __future__ import annotations

import re
from typing import Any, Final

from sqsdelay.stores.schema_version import FIRST_VERSION

_COMMENT: Final = re.compile(r"sqsdelay schema (\d{1,9})", re.ASCII)


def version_comment(version: int) -> str:
    """The comment that tells a version."""
    return f"sqsdelay schema {version}"


def commented_version(row: tuple[Any, ...] | None) -> int:
    """The version a comment tells; the first where there is no such comment, or no index."""
    found = _COMMENT.fullmatch((row and row[0]) or "")
    return FIRST_VERSION if found is None else int(found[1])
