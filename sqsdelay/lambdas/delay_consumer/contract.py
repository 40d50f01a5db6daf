"""What the function and its deployment agree on: handler, environment, metrics."""

from __future__ import annotations

from typing import Final

HANDLER: Final = "sqsdelay.lambdas.delay_consumer.handler.handler"

ENDPOINT_VARIABLE: Final = "SQSDELAY_ENDPOINT"
"""The destination queue's name, URL or ARN. Required."""

HOP_SECONDS_VARIABLE: Final = "SQSDELAY_HOP_SECONDS"
"""The delay queue's delivery delay as deployed; 900 when unset. The queue's own counts; while the two
differ, the function reads it anew at each invocation."""

MAX_RECEIVES_VARIABLE: Final = "SQSDELAY_MAX_RECEIVES"
"""Receives after which a copy SQS keeps refusing goes to the error queue."""

MAX_DELAY_SECONDS_VARIABLE: Final = "SQSDELAY_MAX_DELAY_SECONDS"
"""What is due later than that goes to the error queue; ten years when unset."""

STORE_VARIABLE: Final = "SQSDELAY_STORE"
"""URL of the endpoint's store, where far-away messages are parked; none are when unset."""

PARK_AFTER_SECONDS_VARIABLE: Final = "SQSDELAY_PARK_AFTER_SECONDS"
"""Messages with more than this remaining are parked."""

LEDGER_VARIABLE: Final = "SQSDELAY_LEDGER"
"""``true`` records what happens to each message in the function's log; nothing is when unset."""

METRIC_NAMESPACE: Final = "sqsdelay"
METRIC_DIMENSION: Final = "service"
"""Its value is the endpoint's name."""

HANDED_OVER: Final = "HandedOver"
DELIVERED: Final = "Delivered"
"""Sent from the due queue to a FIFO destination."""
PARKED: Final = "Parked"
CANCELLED: Final = "Cancelled"
HOPS: Final = "Hops"
REJECTED: Final = "Rejected"
FAILED: Final = "Failed"
LATENESS: Final = "Lateness"
"""Milliseconds between a message's due time and when its destination shows it."""
