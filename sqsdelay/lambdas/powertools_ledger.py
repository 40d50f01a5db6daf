"""A ledger in a function's log: a line of Powertools' JSON for each event, the event under ``ledger``."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Final

from aws_lambda_powertools import Logger

from sqsdelay.errors import ConfigurationError
from sqsdelay.ledger.events import Event, as_fields

MESSAGE: Final = "ledger"


class PowertoolsLedger:
    """Logs events at level INFO, whatever level the environment gives the function's own logger.

    Args:
        endpoint: its name; the lines' service is ``<endpoint>-ledger``.
    """

    def __init__(self, endpoint: str) -> None:
        # Powertools has one logger, with one level, for each service.
        self._logger = Logger(service=f"{endpoint}-ledger", level="INFO")

    def record(self, events: Sequence[Event]) -> None:
        for event in events:
            self._logger.info(MESSAGE, ledger=as_fields(event))


def ledger_if_on(variable: str, endpoint: str) -> PowertoolsLedger | None:
    """A ledger if the environment's variable is ``true``, None where it is not set.

    Raises:
        ConfigurationError: any other value.
    """
    value = os.environ.get(variable, "")
    if value not in ("", "true"):
        raise ConfigurationError(f"{variable}={value!r}; use true, or leave it out for no ledger")
    return PowertoolsLedger(endpoint) if value else None
