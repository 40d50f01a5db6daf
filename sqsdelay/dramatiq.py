"""Dramatiq on SQS with delays of any length: `unrestricted_actors`, over the package dramatiq_sqs."""

from __future__ import annotations

import logging
from base64 import b64encode
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, cast

from dramatiq import Broker, Message
from dramatiq.common import current_millis

from sqsdelay.core import limits
from sqsdelay.core.message import id_of_try
from sqsdelay.core.readable import one_line
from sqsdelay.errors import ConfigurationError, SqsDelayError

if TYPE_CHECKING:
    from sqsdelay.sqs.sender import DelaySender


logger = logging.getLogger(__name__)

__all__ = ["unrestricted_actors"]

SqsBroker = TypeVar("SqsBroker", bound=Broker)


def unrestricted_actors(
    broker: SqsBroker,
    *,
    hop_seconds: int = limits.DEFAULT_HOP_SECONDS,
    max_delay_seconds: int = limits.DEFAULT_MAX_DELAY_SECONDS,
) -> SqsBroker:
    """The broker itself, whose messages may now have a ``delay`` of any length.

    A delayed message, of a retry, pipeline or group too, waits in SQS, in whole seconds rounded up; then a
    worker gets what it would have got without a delay. Messages without one are sent as before.

    Args:
        broker: a ``dramatiq_sqs.SQSBroker``.
        hop_seconds: the delay queues' delivery delay, 900 unless they were created with less.
        max_delay_seconds: the farthest that a message may be due, ten years unless the delay consumer
            has another limit.

    Raises:
        ConfigurationError: another broker, or a setting out of range.
    """
    from sqsdelay.sqs.sender import DelaySender

    given: Any = broker
    if not (hasattr(given, "sqs") and hasattr(given, "queues")):
        raise ConfigurationError(
            f"{type(broker).__name__} is not a broker on SQS; give a dramatiq_sqs.SQSBroker"
        )
    client = given.sqs.meta.client
    delays = DelaySender(client, hop_seconds=hop_seconds, max_delay_seconds=max_delay_seconds)
    plain = given.enqueue
    if isinstance(plain, partial) and plain.func is _enqueue:
        plain = plain.args[0]
    given.enqueue = partial(_enqueue, plain, given, delays)
    return broker


def _enqueue(
    plain: Any, broker: Any, delays: DelaySender, message: Message[Any], *, delay: int | None = None
) -> Message[Any]:
    """Stands in for a broker's method, the plain one."""
    if not delay or delay < 0:
        return cast(Message[Any], plain(message, delay=delay))
    broker._ensure_queue(message.queue_name)
    broker.emit_before("enqueue", message, delay)
    retries = message.options.get("retries")
    try:
        delays.send(
            broker.queues[message.queue_name].url,
            b64encode(message.encode()).decode(),
            delay=timedelta(milliseconds=delay),
            message_id=id_of_try(message.message_id, retries),
        )
    except SqsDelayError as error:
        if not retries:
            raise
        # Dramatiq deletes a message whose retry cannot be sent: better that a worker holds it.
        told = (message.message_id, one_line(error))
        logger.error("a retry of message %s waits in a worker: %s", *told)
        held = message.copy(options={"eta": current_millis() + delay})
        # The most that the broker takes by itself.
        most = limits.MAX_MESSAGE_TIMER_SECONDS * 1000
        return cast(Message[Any], plain(held, delay=min(delay, most)))
    broker.emit_after("enqueue", message, delay)
    return message
