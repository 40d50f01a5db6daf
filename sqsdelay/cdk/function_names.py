"""What the deployed functions and their constructs agree on: handlers, environment, metrics."""

from __future__ import annotations

from typing import Final

CONSUMER_HANDLER: Final = "lambdas.delay_consumer.handler.handler"
DISPATCHER_HANDLER: Final = "lambdas.dispatcher.handler.handler"

ENDPOINT_VARIABLE: Final = "SQSDELAY_ENDPOINT"
"""The destination queue's name, URL or ARN. Required."""

MAX_RECEIVES_VARIABLE: Final = "SQSDELAY_MAX_RECEIVES"
"""Receives after which a copy SQS keeps refusing goes to the error queue."""

STORE_VARIABLE: Final = "SQSDELAY_STORE"
"""URL of the endpoint's store, where far-away messages are parked; none are when unset."""

LEDGER_VARIABLE: Final = "SQSDELAY_LEDGER"
"""``true`` records what happens to each message in the function's log, ``firehose://NAME`` in a Firehose
stream; nothing is when unset."""

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

NUMBER_OF_RETRIES_VARIABLE: Final = "SQSDELAY_NUMBER_OF_RETRIES"
"""Further attempts on a refused message before the error queue; 0 when unset."""

RELEASE_AHEAD_VARIABLE: Final = "SQSDELAY_RELEASE_AHEAD_SECONDS"
"""How long before its due time a message is sent; 900 when unset."""

PARK: Final = "park"
"""In an event that asks to empty the parking queue, instead of releasing: true, or `HELP` from a run that
found much in it."""

HELP: Final = "help"

DISPATCH_COUNTS: Final = ("Released", "Rejected", "Failed", "Held")
DISPATCH_LATENESS: Final = "DispatchLateness"
"""Milliseconds between a message's due time and when it was sent, the worst of a run."""

OVERDUE: Final = "Overdue"
"""Milliseconds for which the earliest message still in the store has been due; 0 when none is."""
