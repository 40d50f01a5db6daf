"""What the function and its deployment agree on: handler, environment, metrics."""

from __future__ import annotations

from typing import Final

HANDLER: Final = "sqsdelay.lambdas.dispatcher.handler.handler"

ENDPOINT_VARIABLE: Final = "SQSDELAY_ENDPOINT"
"""The destination queue's name, URL or ARN. Required."""

STORE_VARIABLE: Final = "SQSDELAY_STORE"
"""The store's URL, ``dynamodb://table`` or ``s3://bucket``. Required."""

NUMBER_OF_RETRIES_VARIABLE: Final = "SQSDELAY_NUMBER_OF_RETRIES"
"""Further attempts on a refused message before the error queue; 0 when unset."""

RELEASE_AHEAD_VARIABLE: Final = "SQSDELAY_RELEASE_AHEAD_SECONDS"
"""How long before its due time a message is sent; 900 when unset."""

PARK: Final = "park"
"""True in an event that asks to empty the parking queue into the store, instead of releasing."""

LEDGER_VARIABLE: Final = "SQSDELAY_LEDGER"
"""``true`` records what happens to each message in the function's log, ``firehose://NAME`` in a Firehose
stream; nothing is when unset."""

METRIC_NAMESPACE: Final = "sqsdelay"
METRIC_DIMENSION: Final = "service"
"""Its value is the endpoint's name."""

COUNTS: Final = ("Released", "Rejected", "Failed", "Held")
LATENESS: Final = "DispatchLateness"
"""Milliseconds between a message's due time and when it was sent, the worst of a run."""

OVERDUE: Final = "Overdue"
"""Milliseconds for which the earliest message still in the store has been due; 0 when none is."""
