"""Dramatiq on SQS with delays of any length: `unrestricted_actors`, over the package dramatiq_sqs."""

from __future__ import annotations

import logging
from base64 import b64encode
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, TypeVar

from dramatiq import Broker, Message
from dramatiq.common import current_millis

from sqsdelay.core.readable import one_line
from sqsdelay.errors import ConfigurationError, SqsDelayError
from sqsdelay.limits import (
    DEFAULT_HOP_SECONDS,
    DEFAULT_MAX_DELAY_SECONDS,
    ID,
    MAX_MESSAGE_TIMER_SECONDS,
)

if TYPE_CHECKING:
    from sqsdelay.sqs.sender import DelaySender


logger = logging.getLogger(__name__)

__all__ = ["unrestricted_actors"]

SqsBroker = TypeVar("SqsBroker", bound=Broker)


def unrestricted_actors(
    broker: SqsBroker,
    *,
    hop_seconds: int = DEFAULT_HOP_SECONDS,
    max_delay_seconds: int = DEFAULT_MAX_DELAY_SECONDS,
) -> SqsBroker:
    """The broker itself, whose messages may now have a ``delay`` of any length.

    A delayed message waits in SQS, in whole seconds rounded up, and a worker gets what it would have got
    without a delay. This is true for the delays of retries, pipelines and groups, too. Messages without a
    delay are sent as before.

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
    delays = DelaySender(
        given.sqs.meta.client, hop_seconds=hop_seconds, max_delay_seconds=max_delay_seconds
    )
    known = given.enqueue
    given.enqueue = _Enqueue(given, known.plain if isinstance(known, _Enqueue) else known, delays)
    return broker


class _Enqueue:
    """Stands in for a broker's method."""

    def __init__(self, broker: Any, plain: Any, delays: DelaySender) -> None:
        self._broker = broker
        self._delays = delays
        self.plain = plain

    def __call__(self, message: Message[Any], *, delay: int | None = None) -> Message[Any]:
        if not delay or delay < 0:
            sent: Message[Any] = self.plain(message, delay=delay)
            return sent
        broker = self._broker
        broker._ensure_queue(message.queue_name)
        broker.emit_before("enqueue", message, delay)
        try:
            self._delays.send(
                broker.queues[message.queue_name].url,
                b64encode(message.encode()).decode(),
                delay=timedelta(milliseconds=delay),
                message_id=_message_id(message),
            )
        except SqsDelayError as error:
            if not message.options.get("retries"):
                raise
            # Dramatiq deletes a message whose retry cannot be sent: better that a worker holds it.
            logger.error(
                "a retry of message %s waits in a worker: %s", message.message_id, one_line(error)
            )
            held = message.copy(options={"eta": current_millis() + delay})
            retried: Message[Any] = self.plain(held, delay=min(delay, _MOST_PLAIN_MS))
            return retried
        broker.emit_after("enqueue", message, delay)
        return message


_MOST_PLAIN_MS: Final = MAX_MESSAGE_TIMER_SECONDS * 1000
"""The most that the broker takes by itself."""


def _message_id(message: Message[Any]) -> str | None:
    """The message's id, with the number of the retry: a retry is another message to deduplicate on."""
    retries = message.options.get("retries")
    message_id = f"{message.message_id}.{retries}" if retries else message.message_id
    return message_id if ID.fullmatch(message_id) else None
