"""A worker's receivers share the requests that send and delete: as few calls as there are full batches."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Final

from sqsdelay.core.clock import BrokerClock
from sqsdelay.core.endpoint import QueueRef
from sqsdelay.core.message import OutgoingMessage
from sqsdelay.core.received_message import ReceivedMessage
from sqsdelay.core.shared_calls import SharedCalls
from sqsdelay.limits import DELAY_QUEUE_SUFFIX, FIFO_SUFFIX, MAX_BATCH_ENTRIES
from sqsdelay.ports.queues import Failure, Queues, SendReceipt

LINGER_MS: Final = 5.0
"""What a batch that is not full waits for others: less than a call takes."""


class SharedBatches:
    """The `Queues` port over another, for several threads: their batches leave together, up to ten entries
    in one. Each thread gets the answers to its own entries.

    What goes to a FIFO queue where order matters, that is any but a delay queue, is sent as it comes.

    Args:
        queues: the queue service.
        lanes: calls under way.
    """

    def __init__(self, queues: Queues, *, lanes: int) -> None:
        self._queues = queues
        self._sends = SharedCalls[OutgoingMessage, SendReceipt | Failure](
            self._send, linger_ms=LINGER_MS, lanes=lanes
        )
        self._deletes = SharedCalls[ReceivedMessage, Failure | None](
            self._delete, linger_ms=LINGER_MS, lanes=lanes
        )

    @property
    def broker_clock(self) -> BrokerClock:
        return self._queues.broker_clock

    def url(self, queue: QueueRef) -> str:
        return self._queues.url(queue)

    def synchronise(self, queue: QueueRef) -> None:
        self._queues.synchronise(queue)

    def attributes(self, queue_url: str) -> Mapping[str, str]:
        return self._queues.attributes(queue_url)

    def send_batch(
        self, queue_url: str, entries: Sequence[OutgoingMessage]
    ) -> list[SendReceipt | Failure]:
        ordered = queue_url.endswith(FIFO_SUFFIX) and not queue_url.endswith(DELAY_QUEUE_SUFFIX)
        if ordered or len(entries) == MAX_BATCH_ENTRIES:
            return self._queues.send_batch(queue_url, entries)
        sizes = [entry.size for entry in entries]
        return self._sends.call(queue_url, entries, sizes=sizes, most=MAX_BATCH_ENTRIES)

    def receive_batch(
        self,
        queue_url: str,
        *,
        wait_seconds: int,
        limit: int = MAX_BATCH_ENTRIES,
        visibility_seconds: int | None = None,
    ) -> list[ReceivedMessage]:
        return self._queues.receive_batch(
            queue_url,
            wait_seconds=wait_seconds,
            limit=limit,
            visibility_seconds=visibility_seconds,
        )

    def delete_batch(
        self, queue_url: str, copies: Sequence[ReceivedMessage]
    ) -> list[Failure | None]:
        if len(copies) == MAX_BATCH_ENTRIES:
            return self._queues.delete_batch(queue_url, copies)
        sizes = [0] * len(copies)
        return self._deletes.call(queue_url, copies, sizes=sizes, most=MAX_BATCH_ENTRIES)

    def hide_batch(
        self, queue_url: str, copies: Sequence[tuple[ReceivedMessage, int]]
    ) -> list[Failure | None]:
        return self._queues.hide_batch(queue_url, copies)

    def _send(
        self, queue_url: Hashable, entries: list[OutgoingMessage]
    ) -> Sequence[SendReceipt | Failure]:
        return self._queues.send_batch(str(queue_url), entries)

    def _delete(
        self, queue_url: Hashable, copies: list[ReceivedMessage]
    ) -> Sequence[Failure | None]:
        return self._queues.delete_batch(str(queue_url), copies)
