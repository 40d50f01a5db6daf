"""`DelaySender`: the sender, wired to SQS."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqsdelay.limits import MAX_MESSAGE_TIMER_SECONDS
from sqsdelay.sender import DEFAULT_CONCURRENCY, Sender
from sqsdelay.sqs.client import default_client
from sqsdelay.sqs.queues import SqsQueues

if TYPE_CHECKING:
    from mypy_boto3_sqs import SQSClient

    from sqsdelay.clock import Clock


class DelaySender(Sender):
    """Sends to SQS with any delay. Thread-safe.

    Args:
        client: a boto3 SQS client; made from the default session when left out.
        unrestricted: False refuses delays above 900 seconds.
        hop_seconds: the delay queues' delivery delay; 900 unless the endpoint was created with less.
        concurrency: batches `send_many` keeps in flight, at most the client's connections.
        clock: the local clock.
    """

    def __init__(
        self,
        client: SQSClient | None = None,
        *,
        unrestricted: bool = True,
        hop_seconds: int = MAX_MESSAGE_TIMER_SECONDS,
        concurrency: int = DEFAULT_CONCURRENCY,
        clock: Clock | None = None,
    ) -> None:
        if client is None:
            client = default_client(connections=concurrency)
        connections = getattr(client.meta.config, "max_pool_connections", concurrency)
        super().__init__(
            SqsQueues(client, clock=clock),
            unrestricted=unrestricted,
            hop_seconds=hop_seconds,
            concurrency=min(concurrency, connections),
        )
