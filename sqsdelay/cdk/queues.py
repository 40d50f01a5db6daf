"""The queues of an endpoint: its own, for endpoints that have none yet, and those beside it."""

from __future__ import annotations

from typing import Any, Final

from aws_cdk import Duration
from aws_cdk import aws_kms as kms
from aws_cdk import aws_sqs as sqs
from constructs import Construct

from sqsdelay.cdk.acknowledgement import NO_REDRIVE, acknowledge
from sqsdelay.errors import InvalidEndpoint
from sqsdelay.limits import (
    DEAD_LETTER_QUEUE_SUFFIX,
    DELAY_QUEUE_SUFFIX,
    DELAY_QUEUE_VISIBILITY_SECONDS,
    DUE_QUEUE_SUFFIX,
    ERROR_QUEUE_SUFFIX,
    FIFO_SUFFIX,
    MAX_QUEUE_NAME_CHARS,
    MAX_RETENTION_SECONDS,
    PARKING_QUEUE_SUFFIX,
)

RECEIVES_BEFORE_DEAD_LETTER: Final = 5
"""How often the endpoint's own consumers may fail a message."""

_ONLY_WAITING: Final = (
    "A redrive policy would move away messages that are only waiting; what cannot be "
    "delivered the function sends to the error queue."
)


def beside(endpoint: str, suffix: str) -> str:
    """As `Endpoint` names them, also where ``endpoint`` is a token, which only standard ones are."""
    return endpoint.removesuffix(FIFO_SUFFIX) + suffix


class EndpointQueue(sqs.Queue):
    """14 days of retention, encrypted, over TLS only.

    Args:
        no_redrive: why it has no redrive policy; None where it has one.
        encryption_key: SQS encrypts under it; under a key of its own when None.
        settings: more of those of `aws_sqs.Queue`, its name and removal policy among them.
    """

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        no_redrive: str | None,
        encryption_key: kms.IKey | None = None,
        **settings: Any,
    ) -> None:
        super().__init__(
            scope,
            construct_id,
            retention_period=Duration.seconds(MAX_RETENTION_SECONDS),
            encryption=sqs.QueueEncryption.SQS_MANAGED
            if encryption_key is None
            else sqs.QueueEncryption.KMS,
            encryption_master_key=encryption_key,
            enforce_ssl=True,
            **settings,
        )
        if no_redrive is not None:
            acknowledge(self, *NO_REDRIVE, reason=no_redrive)


def delay_queue(
    scope: Construct, *, endpoint: str, hop_seconds: int, **settings: Any
) -> EndpointQueue:
    """Where a message waits, hop by hop: high-throughput FIFO, delivery delay of one hop."""
    return _waiting_queue(
        scope,
        "DelayQueue",
        queue_name=beside(endpoint, DELAY_QUEUE_SUFFIX),
        fifo=True,
        deduplication_scope=sqs.DeduplicationScope.MESSAGE_GROUP,
        fifo_throughput_limit=sqs.FifoThroughputLimit.PER_MESSAGE_GROUP_ID,
        delivery_delay=Duration.seconds(hop_seconds),
        **settings,
    )


def due_queue(scope: Construct, *, endpoint: str, **settings: Any) -> EndpointQueue:
    """Where the message timers of a FIFO endpoint run: a standard queue."""
    name = beside(endpoint, DUE_QUEUE_SUFFIX)
    return _waiting_queue(scope, "DueQueue", queue_name=name, **settings)


def parking_queue(scope: Construct, *, endpoint: str, **settings: Any) -> EndpointQueue:
    """Where what is to be parked gathers: a standard queue, for it is received thousands at a time."""
    name = beside(endpoint, PARKING_QUEUE_SUFFIX)
    return _waiting_queue(scope, "ParkingQueue", queue_name=name, **settings)


def _waiting_queue(scope: Construct, construct_id: str, **settings: Any) -> EndpointQueue:
    return EndpointQueue(
        scope,
        construct_id,
        no_redrive=_ONLY_WAITING,
        visibility_timeout=Duration.seconds(DELAY_QUEUE_VISIBILITY_SECONDS),
        **settings,
    )


def error_queue(scope: Construct, *, endpoint: str, **settings: Any) -> EndpointQueue:
    """What could not be delivered, with the reason, for a person to read."""
    return EndpointQueue(
        scope,
        "ErrorQueue",
        no_redrive="The last stop: nothing but a person reads it.",
        queue_name=beside(endpoint, ERROR_QUEUE_SUFFIX),
        **settings,
    )


class DestinationQueue(Construct):
    """The queue, with a dead-letter queue for what the endpoint's own consumers cannot handle.

    Both are FIFO if the endpoint's name says so.

    Args:
        settings: of both, as `EndpointQueue` takes them: the removal policy, and a key if one is given.

    Raises:
        InvalidEndpoint: no room in the name for the suffix of a FIFO dead-letter queue.
    """

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        endpoint: str,
        **settings: Any,
    ) -> None:
        super().__init__(scope, construct_id)
        # SQS does not take FifoQueue=false: a standard queue says nothing.
        fifo = True if endpoint.endswith(FIFO_SUFFIX) else None
        self.dead_letter_queue = EndpointQueue(
            self,
            "DeadLetterQueue",
            no_redrive="A dead-letter queue itself.",
            queue_name=_dead_letter_queue_name(endpoint),
            fifo=fifo,
            **settings,
        )
        self.queue = EndpointQueue(
            self,
            "Queue",
            no_redrive=None,
            queue_name=endpoint,
            fifo=fifo,
            dead_letter_queue=sqs.DeadLetterQueue(
                queue=self.dead_letter_queue, max_receive_count=RECEIVES_BEFORE_DEAD_LETTER
            ),
            **settings,
        )


def _dead_letter_queue_name(endpoint: str) -> str:
    """FIFO beside a FIFO queue: SQS takes no other."""
    if not endpoint.endswith(FIFO_SUFFIX):
        return endpoint + DEAD_LETTER_QUEUE_SUFFIX
    suffix = DEAD_LETTER_QUEUE_SUFFIX + FIFO_SUFFIX
    base = beside(endpoint, "")
    most = MAX_QUEUE_NAME_CHARS - len(suffix)
    if len(base) > most:
        raise InvalidEndpoint(
            f"endpoint {endpoint!r} has {len(base)} characters before {FIFO_SUFFIX!r}; the limit is "
            f"{most} (SQS takes {MAX_QUEUE_NAME_CHARS}, and {suffix!r} is added for its dead-letter "
            "queue); shorten it, or create the queue yourself and use -c queueArn=ARN"
        )
    return base + suffix
