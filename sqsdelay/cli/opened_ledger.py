"""The option that names a ledger's file, and the ledger of the file it names."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sqsdelay.ledger import FileLedger

LedgerFile = Annotated[
    Path | None,
    typer.Option(
        "--ledger",
        dir_okay=False,
        help="Append what happens to each message to this file, as JSON lines; none if left out.",
    ),
]


def opened_ledger(file: Path | None) -> FileLedger | None:
    """The ledger in that file, None without one.

    Raises:
        ConfigurationError: it cannot be written.
    """
    return None if file is None else FileLedger(file)
