"""The broker's time, for an operator's changes: they apply to what was sent by now."""

from __future__ import annotations

from sqsdelay.core.endpoint import QueueRef
from sqsdelay.errors import SqsDelayError
from sqsdelay.ports.queues import Queues


def latest_of_sqs(queues: Queues, queue: QueueRef) -> int:
    """The most that SQS's clock may read now, epoch milliseconds; asked for where it is not known.

    Raises:
        QueueMissing, QueueUnavailable: it does not tell.
    """
    if not queues.broker_clock.synchronised:
        try:
            queues.synchronise(queue)
        except SqsDelayError:
            # A refusal is dated, too; what is no answer of SQS's tells nothing.
            if not queues.broker_clock.synchronised:
                raise
    return queues.broker_clock.latest_ms()
