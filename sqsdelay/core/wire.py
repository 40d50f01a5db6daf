"""The wire format, compatible with NServiceBus.AmazonSQS: the attributes that carry a delay."""

from __future__ import annotations

import re
from typing import Final

from sqsdelay.core.message import DELAY_OF_NSERVICEBUS, size_of, string
from sqsdelay.limits import MAX_DUE_MS, MAX_ID_CHARS

DELAY_SECONDS: Final = DELAY_OF_NSERVICEBUS
DUE_AT: Final = "sqsdelay.DueAt"
"""Steers: on what waits in a delay, due or error queue, and never on what reaches a destination."""
WAS_DUE_AT: Final = "sqsdelay.WasDueAt"
"""Says to a receiver when its message was due. It never steers."""
DELAY_MS: Final = "sqsdelay.DelayMilliseconds"
"""Only on a message whose relative delay is no whole number of seconds, until its first hop."""
MESSAGE_ID: Final = "sqsdelay.MessageId"
GROUP_ID: Final = "sqsdelay.MessageGroupId"
DEDUPLICATION_ID: Final = "sqsdelay.MessageDeduplicationId"
"""Only on messages for a FIFO queue, and always on those."""
ERROR: Final = "sqsdelay.Error"
"""On what waits in an error queue: why, as JSON. See ``sqsdelay.core.rejection``."""

NSERVICEBUS_ID: Final = "NServiceBus.MessageId"
"""NServiceBus's own id. Its endpoints add it when they relay, with SQS's id of the copy, where it is
missing (DelayedMessagesPump); one that sends has it as deduplication id (MessageDispatcher)."""

MADE_HERE: Final = re.compile(
    r"(send)\.(?:(\d{1,15})\.)?[0-9a-f]{64}|(?:hop)\.(?:(\d{1,15})\.)?.+", re.ASCII
)
"""Deduplication ids made by our senders and hops, which are never a message id:
``send.HASH``, where HASH may be random; ``send.AFTER.HASH`` where amendments left at AFTER or before
are none of the message's;
``hop.SENT.HASH`` with the SentTimestamp of the message's first copy; ``hop.HASH`` of former versions."""

DELAY_ATTRIBUTES: Final = (
    DELAY_SECONDS,
    DUE_AT,
    WAS_DUE_AT,
    DELAY_MS,
    MESSAGE_ID,
    GROUP_ID,
    DEDUPLICATION_ID,
)
"""What carries a delay, and what an earlier delay has left on the message. None of it reaches a
destination unchanged."""

MOST_ADDED: Final = 5
"""The most attributes of ours at once: on the way to a FIFO queue."""

SQS_ID: Final = string("x" * 36)
_ID: Final = string("x" * MAX_ID_CHARS)
_TIME: Final = string(str(MAX_DUE_MS))

MOST_ADDED_BYTES: Final = size_of(
    "",
    dict.fromkeys((MESSAGE_ID, GROUP_ID, DEDUPLICATION_ID), _ID)
    | dict.fromkeys((DELAY_SECONDS, DELAY_MS, DUE_AT), _TIME),
)
"""The most that sqsdelay's own attributes add to a message."""
