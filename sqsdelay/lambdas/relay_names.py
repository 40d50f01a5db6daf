"""Names that the delay consumer shares with a dispatcher that parks: environment and metrics."""

from __future__ import annotations

from typing import Final

HOP_SECONDS_VARIABLE: Final = "SQSDELAY_HOP_SECONDS"
"""The delay queue's delivery delay as deployed; 900 when unset. The queue's own counts; while the two
differ, the function reads it anew at each invocation."""

MAX_DELAY_SECONDS_VARIABLE: Final = "SQSDELAY_MAX_DELAY_SECONDS"
"""What is due later than that goes to the error queue; ten years when unset."""

PARK_AFTER_SECONDS_VARIABLE: Final = "SQSDELAY_PARK_AFTER_SECONDS"
"""Messages with more than this remaining are parked."""

METRIC_NAMESPACE: Final = "sqsdelay"
METRIC_DIMENSION: Final = "service"
"""Its value is the endpoint's name."""

HANDED_OVER: Final = "HandedOver"
DELIVERED: Final = "Delivered"
"""Sent from the due queue to a FIFO destination."""
FORWARDED: Final = "Forwarded"
"""To the parking queue, to be parked with others."""
PARKED: Final = "Parked"
CANCELLED: Final = "Cancelled"
HOPS: Final = "Hops"
REJECTED: Final = "Rejected"
FAILED: Final = "Failed"
LATENESS: Final = "Lateness"
"""Milliseconds between a message's due time and when its destination shows it."""

LEDGER_STREAM_SCHEME: Final = "firehose://"
"""Before the name of the stream that the functions' ledger goes to."""

LEDGER_MESSAGE: Final = "ledger"
"""The message of an event's line in a log."""

LEDGER_IN_LOG: Final = "LedgerInLog"
"""Events that the stream did not take, counted in the log. Its service is ``<endpoint>-ledger``."""
