"""Named SQL queries, kept in ``.sql`` files beside the stores."""

from __future__ import annotations

import re
from importlib.resources import files
from typing import Final

_NAME: Final = re.compile(r"^-- name: (\w+)$", re.MULTILINE)


def read_queries(file_name: str) -> dict[str, str]:
    """The queries of one file, by name; ``-- name: x`` starts one, comments below it describe it."""
    text = (files("sqsdelay.stores") / file_name).read_text(encoding="utf-8")
    parts = _NAME.split(text)[1:]
    return {
        name: _without_comments(query) for name, query in zip(parts[::2], parts[1::2], strict=True)
    }


def _without_comments(query: str) -> str:
    lines = [line for line in query.strip().splitlines() if not line.startswith("--")]
    return "\n".join(lines)
