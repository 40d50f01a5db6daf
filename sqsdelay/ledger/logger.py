"""A ledger in a log, by Python's own logging."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from sqsdelay.ledger.events import Event, to_json


class LoggerLedger:
    """Logs each event as one line of JSON. Thread-safe.

    Args:
        logger: one of its own is best, e.g. ``logging.getLogger("orders.ledger")``; its handlers
            say where the lines go, and should add nothing but, perhaps, a timestamp before them.
        level: of the lines; nothing is written while the logger is not enabled for it.
    """

    def __init__(self, logger: logging.Logger, *, level: int = logging.INFO) -> None:
        self._logger = logger
        self._level = level

    def record(self, events: Sequence[Event]) -> None:
        """Log the events."""
        if self._logger.isEnabledFor(self._level):
            for event in events:
                self._logger.log(self._level, "%s", to_json(event))
