"""A function's ledger: a line of Powertools' JSON in its log for each event, or a Firehose stream."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass

from aws_lambda_powertools import Logger

from sqsdelay.errors import ConfigurationError
from sqsdelay.lambdas.relay_names import LEDGER_MESSAGE, LEDGER_STREAM_SCHEME
from sqsdelay.ledger.events import Event, Ledger, as_fields


@dataclass(slots=True)
class Until:
    """When an invocation has to have ended, by the monotonic clock in seconds; set anew by each."""

    at: float = 0

    def seconds_left(self) -> float:
        return self.at - time.monotonic()


class PowertoolsLedger:
    """Logs events, each under ``ledger``, at level INFO, whatever level the environment gives the
    function's own logger.

    Args:
        endpoint: its name; the lines' service is ``<endpoint>-ledger``.
    """

    def __init__(self, endpoint: str) -> None:
        # Powertools has one logger, with one level, for each service.
        self._logger = Logger(service=f"{endpoint}-ledger", level="INFO")

    def record(self, events: Sequence[Event]) -> None:
        for event in events:
            self._logger.info(LEDGER_MESSAGE, ledger=as_fields(event))


def ledger_if_on(variable: str, endpoint: str, *, until: Until) -> Ledger | None:
    """The ledger that the environment's variable names, None where it is not set.

    ``true`` is the function's log; ``firehose://NAME`` a Firehose stream, and the log for what the stream
    does not take.

    Args:
        until: the invocation's; no call to the stream outlasts it.

    Raises:
        ConfigurationError: any other value.
    """
    value = os.environ.get(variable, "")
    if not value:
        return None
    log = PowertoolsLedger(endpoint)
    stream = value.removeprefix(LEDGER_STREAM_SCHEME)
    if stream != value and stream:
        from sqsdelay.ledger.firehose import CALL_SECONDS, FirehoseLedger

        return FirehoseLedger(
            stream, otherwise=log, may_call=lambda: until.seconds_left() > CALL_SECONDS
        )
    if value != "true":
        raise ConfigurationError(
            f"{variable}={value!r}; use true or {LEDGER_STREAM_SCHEME}NAME, or leave it out for no ledger"
        )
    return log
