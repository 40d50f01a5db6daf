"""The folder of a report: made whole or not at all, and never in place of something else."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from sqsdelay.errors import ConfigurationError

MARK: Final = "report.json"
"""The file by which a report's folder is known."""


def check_replaceable(folder: Path) -> None:
    """Refuse a folder that holds something else than a report.

    Raises:
        ConfigurationError: it is a file, or a folder that no report made.
    """
    if not folder.exists():
        return
    if not folder.is_dir():
        raise ConfigurationError(f"{folder} is a file; name a folder for the report")
    if any(folder.iterdir()) and not (folder / MARK).is_file():
        raise ConfigurationError(
            f"{folder} is not empty and holds no report ({MARK} is missing); "
            "name another folder, or empty this one"
        )


@contextmanager
def replaced(folder: Path) -> Iterator[Path]:
    """A new folder to write into, which takes the place of ``folder`` at the end.

    If anything fails, what was there before stays as it was.

    Raises:
        ConfigurationError: as `check_replaceable`, or it cannot be written.
    """
    check_replaceable(folder)
    whole = folder.resolve()
    new, old = (whole.with_name(f".{whole.name}.{word}") for word in ("new", "old"))
    try:
        shutil.rmtree(new, ignore_errors=True)
        new.mkdir(parents=True)
    except OSError as error:
        raise ConfigurationError(f"{folder} cannot be written: {error.strerror}") from error
    try:
        yield new
    except BaseException:
        shutil.rmtree(new, ignore_errors=True)
        raise
    shutil.rmtree(old, ignore_errors=True)
    if whole.exists():
        whole.rename(old)
    new.rename(whole)
    shutil.rmtree(old, ignore_errors=True)
