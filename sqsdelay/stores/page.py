"""One page of what is pending: where it begins and ends."""

from __future__ import annotations

from typing import Final

_NO_END: Final = 2**63 - 1
"""The largest integer of SQLite and of PostgreSQL's bigint."""

_NO_START: Final = -(2**63)
"""The smallest: a row written by hand may be due before 1970, and is listed too."""


def page_bounds(
    after: tuple[int, str] | None, due_from_ms: int | None, due_before_ms: int | None
) -> tuple[int, str, int]:
    """Due time and id the page comes after, and the due time it ends before.

    No id is empty, so what is due from an instant on comes after that instant with an empty id.
    """
    first = _NO_START if due_from_ms is None else due_from_ms
    start = max(after or (_NO_START, ""), (first, ""))
    return (*start, _NO_END if due_before_ms is None else due_before_ms)
