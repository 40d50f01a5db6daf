"""What all commands print with: tables for people on stdout, the rest on stderr."""

from __future__ import annotations

import json
from typing import Any

from rich.console import Console

out = Console()
err = Console(stderr=True)


def print_json(value: Any) -> None:
    """One line of JSON on stdout, for programs; never wrapped or coloured."""
    out.file.write(json.dumps(value, default=str) + "\n")
    out.file.flush()
