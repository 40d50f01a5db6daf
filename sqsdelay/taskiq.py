"""taskiq on SQS with ``delay`` labels of any length: `unrestricted_tasks`, over taskiq-aio-sqs."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from taskiq import AsyncBroker, BrokerMessage

from sqsdelay.core.limits import DEFAULT_HOP_SECONDS, DEFAULT_MAX_DELAY_SECONDS
from sqsdelay.core.message import id_of_try
from sqsdelay.errors import ConfigurationError, InvalidDelay

if TYPE_CHECKING:
    from mypy_boto3_sqs import SQSClient

    from sqsdelay.sqs.sender import DelaySender


__all__ = ["unrestricted_tasks"]

SqsBroker = TypeVar("SqsBroker", bound=AsyncBroker)


def unrestricted_tasks(
    broker: SqsBroker,
    *,
    client: SQSClient | None = None,
    hop_seconds: int = DEFAULT_HOP_SECONDS,
    max_delay_seconds: int = DEFAULT_MAX_DELAY_SECONDS,
) -> SqsBroker:
    """The broker itself, whose tasks may now have a ``delay`` label of any length, in seconds.

    A delayed task, a retry too, waits in SQS, in whole seconds rounded up; then a worker gets what it would
    have got without a delay. FIFO queues take delays. Tasks without one are sent as before.

    Args:
        broker: a ``taskiq_aio_sqs.SQSBroker``.
        client: a boto3 SQS client of the broker's region; made from the default session when left out,
            with the broker's region and endpoint.
        hop_seconds: the delay queues' delivery delay, 900 unless they were created with less.
        max_delay_seconds: the farthest that a task may be due, ten years unless the delay
            consumer has another limit.

    Raises:
        ConfigurationError: another broker, one with keys of its own and no client, or a setting out of
            range.
    """
    from sqsdelay.sqs.client import default_client
    from sqsdelay.sqs.sender import DelaySender

    given: Any = broker
    if not (hasattr(given, "build_kick_kwargs") and hasattr(given, "_resolve_queue")):
        raise ConfigurationError(
            f"{type(broker).__name__} is not a broker on SQS; give a taskiq_aio_sqs.SQSBroker"
        )
    if client is None:
        if getattr(given, "_aws_access_key_id", None) is not None:
            raise ConfigurationError(
                "the broker has its own keys, which boto3 does not see; "
                "give client=boto3.client('sqs', …) with the same keys"
            )
        client = default_client(
            connections=_CONNECTIONS,
            region=getattr(given, "_aws_region", None),
            endpoint_url=getattr(given, "_aws_endpoint_url", None),
        )
    delays = DelaySender(client, hop_seconds=hop_seconds, max_delay_seconds=max_delay_seconds)
    plain = given.kick
    if isinstance(plain, partial) and plain.func is _kick:
        plain = plain.args[0]
    given.kick = partial(_kick, plain, given, delays)
    return broker


_CONNECTIONS = 8
"""Sends in flight at a time, each in a thread of its own: boto3 has no other way."""


async def _kick(plain: Any, broker: Any, delays: DelaySender, message: BrokerMessage) -> None:
    """Stands in for a broker's method, the plain one."""
    seconds = _seconds(message.labels.get("delay"))
    if not seconds:
        await plain(message)
        return
    _, queue, queue_url = broker._resolve_queue(message)
    # The broker's own request, subclasses' changes included, but for the delay it would refuse.
    undelayed = message.model_copy(update={"labels": {**message.labels, "delay": 0}})
    request = await broker.build_kick_kwargs(undelayed, queue=queue, queue_url=queue_url)
    await asyncio.to_thread(
        delays.send,
        request["QueueUrl"],
        request["MessageBody"],
        delay=seconds,
        attributes=request.get("MessageAttributes"),
        message_id=id_of_try(message.task_id, message.labels.get("_retries")),
        message_group_id=request.get("MessageGroupId"),
        message_deduplication_id=request.get("MessageDeduplicationId"),
    )


def _seconds(label: Any) -> float:
    """A ``delay`` label as seconds, 0 where there is none. Raises InvalidDelay: it is no number."""
    try:
        return float(label or 0)
    except (TypeError, ValueError) as error:
        raise InvalidDelay(f"the label delay={label!r} is not a number; give seconds") from error
