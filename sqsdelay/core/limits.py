"""Every limit sqsdelay lives by, once, each with its source.

Code, infrastructure and error messages take their numbers from here.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Final

MAX_MESSAGE_TIMER_SECONDS: Final = 900
"""Longest ``DelaySeconds`` of a message or a queue. Source: quotas-messages.html, "Message delay"."""
DEFAULT_HOP_SECONDS: Final = MAX_MESSAGE_TIMER_SECONDS
"""Delivery delay of a delay queue unless it is created with another: the longest, for the fewest hops."""

MAX_BATCH_ENTRIES: Final = 10
"""Entries of one batch call. Source: quotas-messages.html, "Batched messages"."""
MAX_MESSAGE_BYTES: Final = 1_048_576
"""Body plus attribute names, types and values in UTF-8. Source: quotas-messages.html, "Message size"
(1 MiB since August 2025)."""
MIN_QUEUE_LIMIT_BYTES: Final = 1024
"""Least ``MaximumMessageSize`` of a queue. Source: SetQueueAttributes API reference."""
MAX_BATCH_BYTES: Final = 1_048_576
"""All entries of one ``SendMessageBatch``. Source: SendMessageBatch API reference."""
MAX_ATTRIBUTES: Final = 10
"""Message attributes of one message. Source: quotas-messages.html, "Message attributes"."""
MAX_ATTRIBUTE_NAME_CHARS: Final = 256
"""Source: sqs-message-metadata.html, "Message attribute components"."""
MAX_QUEUE_NAME_CHARS: Final = 80
"""A queue's name, ``.fifo`` included. Source: quotas-queues.html, "Queue name"."""
MAX_ID_CHARS: Final = 128
"""Message group and deduplication ids. Source: SendMessage API reference."""
DEDUPLICATION_INTERVAL_SECONDS: Final = 300
"""FIFO deduplication interval, also after the first copy was deleted.
Source: FIFO-queues-exactly-once-processing.html."""

MAX_RETENTION_SECONDS: Final = 14 * 24 * 3600
"""Longest a queue keeps a message. Source: quotas-messages.html, "Message retention"."""
MIN_DELAY_QUEUE_RETENTION_SECONDS: Final = 4 * 24 * 3600
"""What NServiceBus demands of a delay queue (it refuses to start below)."""
MAX_RECEIVE_WAIT_SECONDS: Final = 20
"""Longest long poll. Source: sqs-short-and-long-polling.html."""

DELAY_CONSUMER_MEMORY_MB: Final = 256
"""Of the delay consumer function."""
DISPATCHER_MEMORY_MB: Final = 1769
"""Of the dispatcher function: a whole processor comes with it. Releasing is mostly a processor's work, so
less memory would take longer by as much and cost the same. Source: configuration-memory.html."""
MAX_INVOCATION_BYTES: Final = 6 * 2**20
"""What Lambda gives a function at once. Source: Lambda quotas, "Invocation payload", synchronous."""
FUNCTION_TIMEOUT_SECONDS: Final = 30
"""Timeout of the relay function."""

CONNECT_SECONDS: Final = 5
"""Longest that one of our AWS clients tries to connect, or to write a request. Ours: 1 MiB at 1.7
Mbit/s; AWS answers a connection in well under a second."""
ANSWER_SECONDS: Final = 5
"""Longest that one of our AWS clients waits for more of an answer, a long poll's own wait besides. Ours:
SQS answers within tens of milliseconds."""
CALL_ATTEMPTS: Final = 3
"""Attempts on one call to AWS, the first included; three that time out and the pauses between them
(up to 1 and 2 s: botocore's standard mode) take 18 s."""
SHORT_CALL_ATTEMPTS: Final = 2
"""The same, where more than one call must end in time: in a function, and for a long poll."""
SHORT_CALL_SECONDS: Final = SHORT_CALL_ATTEMPTS * ANSWER_SECONDS + 1
"""Longest that a call takes which is tried so often: the attempts and the pause between them."""
STOP_SECONDS: Final = 4
"""Longest that a stopped worker waits for a call to be answered. Docker kills 10 s after SIGTERM."""
POSTGRES_ANSWER_SECONDS: Final = 60
"""Longest that a store waits while PostgreSQL says nothing, setting up apart. Ours: statements take
milliseconds, to count some hundred million messages takes half a minute."""

WORKER_VISIBILITY_SECONDS: Final = 30
"""How long a worker's copies stay hidden when it dies; it extends that while it works on them. More
than one call may take, so that a network that stalls makes no second consumer."""
SCHEDULE_SECONDS: Final = 60
"""How often the deployed dispatcher function runs: the shortest a schedule has. Message timers make up
for the interval; only a message stored when it is due already waits as long."""
GATHERING_SECONDS: Final = 300
"""How often the deployed dispatcher function empties the parking queue into a store that keeps many
messages for the price of one. What waits there is due hours later."""
DELAY_QUEUE_VISIBILITY_SECONDS: Final = 6 * FUNCTION_TIMEOUT_SECONDS
"""Six times the function's timeout (services-sqs-configure.html) and below the deduplication
interval, so that the second attempt on a copy still deduplicates against the first. A worker extends
its copies' visibility no further, for the same reason."""
MAX_BACKOFF_SECONDS: Final = 240
"""Longest a failed copy stays hidden: below the deduplication interval, for the same reason."""

MAX_DUE_MS: Final = int(datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC).timestamp()) * 1000
"""Latest due time: the last second Python's ``datetime`` can name, epoch milliseconds."""
DEFAULT_MAX_DELAY_SECONDS: Final = 10 * 365 * 24 * 3600
"""Farthest due time an endpoint takes unless it is told another: ten years of 365 days, some 350,400
hops. What lies beyond is a mistake or forged, and would hop at our cost for as long as it says."""
SQS_LAUNCH_MS: Final = int(datetime(2006, 7, 13, tzinfo=UTC).timestamp()) * 1000
"""Nothing was due on SQS before: an earlier due time is broken, and not left over. Source: AWS News
Blog, "Amazon Simple Queue Service Released", 13 July 2006."""
CONTRADICTION_MS: Final = 24 * 3600 * 1000
"""How far a copy's two delay attributes may disagree before it is rejected. Minutes come from a wrong
sender's clock, up to an hour a year from the drift of other relays; a day comes from a broken sender."""

MAX_STORED_ID_CHARS: Final = 250
"""Id of a message in a store, as in seed 001's table (``nvarchar(250)``)."""
MAX_DYNAMODB_ITEM_BYTES: Final = 400 * 1024
"""Attribute names and values of one item. Source: DynamoDB quotas, "Item size"."""
DEFAULT_SCHEDULES: Final = 10_000_000
DEFAULT_INVOCATIONS: Final = 1_000
"""Of an account, and a second in the large regions, unless raised. Source: EventBridge Scheduler quotas."""
SCHEDULE_RETRY_SECONDS: Final = 86_000
"""How long a firing that failed is retried before it goes to the error queue: nearly the day that is the
most. Source: RetryPolicy API reference, MaximumEventAgeInSeconds."""
MAX_POSTGRES_NAME_BYTES: Final = 63
"""Longer identifiers are cut off silently. Source: PostgreSQL 15, 4.1.1 (NAMEDATALEN - 1)."""

DELAY_QUEUE_SUFFIX: Final = "-delay.fifo"
ERROR_QUEUE_SUFFIX: Final = "-delay-error"
DEAD_LETTER_QUEUE_SUFFIX: Final = "-dead-letter"
DUE_QUEUE_SUFFIX: Final = "-due"
PARKING_QUEUE_SUFFIX: Final = "-parking"
FIFO_SUFFIX: Final = ".fifo"
STORE_TABLE_SUFFIX: Final = ".parked"
"""After an endpoint's name, the DynamoDB table of its deployed store."""

TIMEOUTS_SUFFIX: Final = "-timeouts"
TIMEOUTS_DISPATCHER_SUFFIX: Final = "-timeouts-dispatcher"
"""NServiceBus's ``.Timeouts`` and ``.TimeoutsDispatcher``; SQS queue names hold no dots."""
MAX_TIMEOUT_ENDPOINT_CHARS: Final = MAX_QUEUE_NAME_CHARS - len(TIMEOUTS_DISPATCHER_SUFFIX)
_OWN_QUEUES = (DELAY_QUEUE_SUFFIX, ERROR_QUEUE_SUFFIX, DEAD_LETTER_QUEUE_SUFFIX, DUE_QUEUE_SUFFIX)
MAX_ENDPOINT_CHARS: Final = MAX_QUEUE_NAME_CHARS - max(map(len, (*_OWN_QUEUES, FIFO_SUFFIX)))
"""An endpoint's name, without ``.fifo``: what the longest suffix leaves."""

FORBIDDEN_BODY_CHARACTER: Final = re.compile(
    "[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]"
)
"""What SQS refuses in a body or string attribute. Source: SendMessage API reference ("#x9 | #xA | #xD
| #x20 to #xD7FF | #xE000 to #xFFFD | #x10000 to #x10FFFF")."""
QUEUE_NAME: Final = re.compile(r"[A-Za-z0-9_-]+", re.ASCII)
"""Characters of a queue name without ``.fifo``. Source: CreateQueue API reference."""
ID: Final = re.compile(r"[!-~]{1,128}", re.ASCII)
"""A message group or deduplication id: letters, digits, punctuation. Source: SendMessage API reference."""
BATCH_ENTRY_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,80}", re.ASCII)
"""An entry's id in a batch call. Source: SendMessageBatchRequestEntry API reference."""
ATTRIBUTE_NAME: Final = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*", re.ASCII)
"""Source: sqs-message-metadata.html: A-Z a-z 0-9 _ - and single inner periods."""
