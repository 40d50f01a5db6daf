"""A ledger in a file, which any number of threads and processes may share."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from sqsdelay.errors import ConfigurationError
from sqsdelay.ledger.events import Event, to_json

_APPEND: Final = os.O_WRONLY | os.O_APPEND | os.O_CREAT | getattr(os, "O_CLOEXEC", 0)


class FileLedger:
    """Appends JSON lines to a file on a local disk. Thread-safe, process-safe, can be pickled.

    The events of one call are one ``write`` to a file that is open for appending: the kernel keeps
    each together, whoever else appends. (Network file systems do not: there, one file per process.)
    The file is reopened each time, so it can be moved away at any moment, and a fresh one is
    begun. What was recorded survives the death of the process, though not of the machine: it is
    handed to the kernel, and not forced to the disk.

    Args:
        path: the file; made if it does not exist, in a directory that does.

    Raises:
        ConfigurationError: it cannot be opened for appending.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path).absolute()
        self._torn = False
        try:
            self._append(b"")
        except OSError as error:
            raise ConfigurationError(
                f"ledger file {self.path}: {error.strerror}; name a file that can be written, in a "
                "directory that exists"
            ) from error

    def record(self, events: Sequence[Event]) -> None:
        """Append the events.

        Raises:
            OSError: the file cannot be written, or not all of the lines (the disk is full).
        """
        lines = "".join([to_json(event) + "\n" for event in events]).encode("ascii")
        # After a line that was cut off, a new one must not be glued to it.
        self._append(b"\n" + lines if self._torn else lines)

    def _append(self, data: bytes) -> None:
        descriptor = os.open(self.path, _APPEND, 0o666)
        try:
            written = os.write(descriptor, data) if data else 0
        finally:
            os.close(descriptor)
        if written < len(data):
            self._torn = True
            raise OSError(f"{self.path} took {written} of {len(data)} bytes; is the disk full?")
        self._torn = False
