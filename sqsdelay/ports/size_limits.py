"""The largest message each queue takes: its ``MaximumMessageSize``, which is often less than SQS's own."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Final

from sqsdelay.core.endpoint import QueueRef
from sqsdelay.core.message import OutgoingMessage
from sqsdelay.core.one_line import one_line
from sqsdelay.core.received_message import whole_number
from sqsdelay.errors import MessageTooLarge, SqsDelayError
from sqsdelay.limits import MAX_MESSAGE_BYTES, MIN_QUEUE_LIMIT_BYTES
from sqsdelay.ports.queues import Failure, Queues, SendReceipt

logger = logging.getLogger(__name__)

LIMIT: Final = "MaximumMessageSize"
LIMIT_LIFETIME_SECONDS: Final = 300.0
"""How long an answer counts: a limit that was raised is known within this time."""


class SizeLimits:
    """What queues take, each asked once every five minutes. Thread-safe.

    To know it is no condition: a queue that does not exist, or may not be asked (AccessDenied), counts
    as one with SQS's own limit, and what is too large for it is refused when it is sent there.
    """

    def __init__(self, queues: Queues) -> None:
        self._queues = queues
        self._known: dict[QueueRef, tuple[int, float]] = {}

    def of(self, queue: QueueRef, *, size: int) -> int:
        """The queue's limit in bytes, as far as it matters for a message of ``size`` bytes.

        No queue's limit is below 1 KiB: for smaller messages it is not asked.
        """
        if size <= MIN_QUEUE_LIMIT_BYTES:
            return MAX_MESSAGE_BYTES
        now = self._queues.broker_clock.local.monotonic()
        limit, asked_at = self._known.get(queue, (0, 0.0))
        if not limit or now - asked_at > LIMIT_LIFETIME_SECONDS:
            limit = self._ask(queue)
            self._known[queue] = (limit, now)
        return limit

    def check(self, queue: QueueRef, size: int) -> None:
        """Refuse a message the queue would refuse.

        Raises:
            MessageTooLarge: with the queue, its limit and the remedy.
        """
        limit = self.of(queue, size=size)
        if size > limit:
            raise MessageTooLarge(
                f"message of {size} bytes (body and attributes in UTF-8) on its way through queue "
                f"{queue.name}, which takes {limit} (its {LIMIT}); shorten it, raise that to at most "
                f"{MAX_MESSAGE_BYTES}, or give DelaySender(large_bodies=Bucket(…))"
            )

    def _ask(self, queue: QueueRef) -> int:
        try:
            return limit_of(self._queues.attributes(self._queues.url(queue)).get(LIMIT))
        except SqsDelayError as error:
            logger.info(
                "the limit of %s is not known, %s is assumed: %s",
                queue.name,
                MAX_MESSAGE_BYTES,
                one_line(error),
            )
            return MAX_MESSAGE_BYTES


def limit_of(attribute: str | None) -> int:
    """A queue's attribute as bytes; SQS's own limit where it is not told."""
    return whole_number(attribute) or MAX_MESSAGE_BYTES


def send_fitting(
    queues: Queues,
    queue_url: str,
    entries: Sequence[OutgoingMessage],
    smaller: Callable[[int], OutgoingMessage | None],
) -> list[SendReceipt | Failure]:
    """Send, and what is refused for good once more without what we added to it.

    So a message that fits its queue does not fail for our words, and nobody need be allowed to read
    the queue's attributes.

    Args:
        smaller: the entry at this position without our own; None where it has nothing of ours.
    """
    outcomes = queues.send_batch(queue_url, entries)
    again = {
        position: bare
        for position, outcome in enumerate(outcomes)
        if isinstance(outcome, Failure)
        and not outcome.transient
        and entries[position].size > MIN_QUEUE_LIMIT_BYTES
        and (bare := smaller(position)) is not None
    }
    if again:
        retried = queues.send_batch(queue_url, list(again.values()))
        for position, outcome in zip(again, retried, strict=True):
            if not isinstance(outcome, Failure):
                outcomes[position] = outcome
    return outcomes
