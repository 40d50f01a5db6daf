"""What the function and its deployment agree on: handler, environment, metrics.

What it shares with a dispatcher that parks is in ``lambdas.relay_names``.
"""

from __future__ import annotations

from typing import Final

from sqsdelay.lambdas.relay_names import (
    CANCELLED as CANCELLED,
)
from sqsdelay.lambdas.relay_names import (
    DELIVERED as DELIVERED,
)
from sqsdelay.lambdas.relay_names import (
    FAILED as FAILED,
)
from sqsdelay.lambdas.relay_names import (
    FORWARDED as FORWARDED,
)
from sqsdelay.lambdas.relay_names import (
    HANDED_OVER as HANDED_OVER,
)
from sqsdelay.lambdas.relay_names import (
    HOP_SECONDS_VARIABLE as HOP_SECONDS_VARIABLE,
)
from sqsdelay.lambdas.relay_names import (
    HOPS as HOPS,
)
from sqsdelay.lambdas.relay_names import (
    LATENESS as LATENESS,
)
from sqsdelay.lambdas.relay_names import (
    MAX_DELAY_SECONDS_VARIABLE as MAX_DELAY_SECONDS_VARIABLE,
)
from sqsdelay.lambdas.relay_names import (
    METRIC_DIMENSION as METRIC_DIMENSION,
)
from sqsdelay.lambdas.relay_names import (
    METRIC_NAMESPACE as METRIC_NAMESPACE,
)
from sqsdelay.lambdas.relay_names import (
    PARK_AFTER_SECONDS_VARIABLE as PARK_AFTER_SECONDS_VARIABLE,
)
from sqsdelay.lambdas.relay_names import (
    PARKED as PARKED,
)
from sqsdelay.lambdas.relay_names import (
    REJECTED as REJECTED,
)

HANDLER: Final = "sqsdelay.lambdas.delay_consumer.handler.handler"

ENDPOINT_VARIABLE: Final = "SQSDELAY_ENDPOINT"
"""The destination queue's name, URL or ARN. Required."""

MAX_RECEIVES_VARIABLE: Final = "SQSDELAY_MAX_RECEIVES"
"""Receives after which a copy SQS keeps refusing goes to the error queue."""

STORE_VARIABLE: Final = "SQSDELAY_STORE"
"""URL of the endpoint's store, where far-away messages are parked; none are when unset."""

PARKING_QUEUE_VARIABLE: Final = "SQSDELAY_THROUGH_PARKING_QUEUE"
"""``true`` sends what is to be parked to the endpoint's parking queue; it is parked at once when unset."""

LEDGER_VARIABLE: Final = "SQSDELAY_LEDGER"
"""``true`` records what happens to each message in the function's log, ``firehose://NAME`` in a Firehose
stream; nothing is when unset."""
