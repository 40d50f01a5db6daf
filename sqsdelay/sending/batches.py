"""One call's messages to one endpoint: checked, routed, sent in full batches, a result for each."""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import Any, Final

from sqsdelay.core.delay import begun_within, utc
from sqsdelay.core.endpoint import Endpoint
from sqsdelay.core.message import CheckedMessage, Message, Route, checked, full_batches, size_of
from sqsdelay.errors import SchemaMismatch, SqsDelayError
from sqsdelay.ledger.events import Event, EventKind, Source, record_safely
from sqsdelay.limits import MAX_BATCH_ENTRIES
from sqsdelay.ports.queues import Failure, Queues, SendReceipt
from sqsdelay.sending.router import Asked, Router, SenderSettings, ToQueue, ToStore
from sqsdelay.sending.sizes import Offloading

logger = logging.getLogger(__name__)

STORED_AT_ONCE: Final = 500
"""Messages of one call to a store that does not care."""


@dataclass(frozen=True, slots=True)
class SendResult:
    """What became of one message.

    ``message_id`` is what receivers deduplicate on: the id given or generated for a delayed message,
    and SQS's own for a direct message without one. ``due`` is exact for ``due_at`` and estimated
    with the broker's clock for ``delay``. A message that was sent has an ``sqs_message_id``, unless
    it was parked; one that was not has an ``error``.
    """

    message_id: str | None = None
    route: Route | None = None
    due: datetime | None = None
    sqs_message_id: str | None = None
    error: SqsDelayError | None = None


_PENDING: Final = SendResult()
_Ready = list[tuple[int, ToQueue]]


class BatchSender:
    """Checks, routes and sends messages. Thread-safe."""

    def __init__(self, queues: Queues, settings: SenderSettings) -> None:
        self._queues = queues
        self._ledger = settings.ledger
        self._begin_within_seconds = settings.begin_within_seconds
        large_bodies = settings.large_bodies
        self._offloading = None if large_bodies is None else Offloading(large_bodies)
        self.router = Router(queues, settings)
        self.stores = self.router.stores

    def send(
        self,
        endpoint: Endpoint,
        messages: Iterable[Message | CheckedMessage],
        *,
        concurrency: int = 1,
        note: Callable[[SendReceipt | Failure], None] | None = None,
    ) -> list[SendResult]:
        """Send them all; a result per message, in order.

        Args:
            concurrency: batches in flight.
            note: called in this thread with what became of each message that was sent to a queue.
        """
        asked = Asked()
        results: list[SendResult] = []
        ready: _Ready = []
        to_store: list[tuple[int, ToStore]] = []
        for position, message in enumerate(messages):
            results.append(_PENDING)
            try:
                prepared = self._prepare(endpoint, message, asked)
            except SqsDelayError as error:
                results[position] = SendResult(getattr(message, "message_id", None), error=error)
                continue
            if isinstance(prepared, ToStore):
                to_store.append((position, prepared))
            else:
                ready.append((position, prepared))
        self._park_all(endpoint, to_store, results)
        batches = list(
            full_batches(ready, target=lambda r: r[1].queue_url, size=lambda r: r[1].entry.size)
        )
        send = partial(self._send_batch, endpoint)
        lanes = min(concurrency, len(batches))
        with ThreadPoolExecutor(lanes) if lanes > 1 else nullcontext() as pool:
            sent = map(send, batches) if pool is None else pool.map(send, batches)
            for batch, outcomes in zip(batches, sent, strict=True):
                for (position, prepared), outcome in zip(batch, outcomes, strict=True):
                    if note is not None:
                        note(outcome)
                    results[position] = _sent(prepared, outcome)
        return results

    def in_time(self) -> AbstractContextManager[None]:
        """For one send: no request begins that could end too late."""
        return begun_within(self._begin_within_seconds)

    def together(self, endpoint: Endpoint, message: CheckedMessage) -> tuple[Hashable, int]:
        """What a message can share a request with, and how many go into one. Nobody is asked: at
        worst a request is less full."""
        route = self.router.expected_route(endpoint, message)
        return route, STORED_AT_ONCE if route is Route.STORE else MAX_BATCH_ENTRIES

    def preview(self, endpoint: Endpoint, message: Message) -> SendResult:
        """What `send` would do with a message now, without sending it.

        Raises:
            As the sender's `preview`.
        """
        prepared = self._prepare(endpoint, message, Asked(), put=False)
        if isinstance(prepared, ToStore):
            return _parked(prepared, None)
        return SendResult(prepared.message_id, prepared.route, utc(prepared.due_ms))

    def _prepare(
        self, endpoint: Endpoint, given: Message | CheckedMessage, asked: Asked, *, put: bool = True
    ) -> ToQueue | ToStore:
        """Checked, and its body put elsewhere if it is too large, unless ``put`` is False."""
        message = given if isinstance(given, CheckedMessage) else checked(given, fifo=endpoint.fifo)
        large = self._offloading
        if large is None:
            return self.router.prepare(endpoint, message, asked)
        message = large.as_new(message)
        if not (
            large.wants(message, lambda size: self.router.limit(endpoint, message, size=size))
            or self.router.too_large_to_park(endpoint, message)
        ):
            return self.router.prepare(endpoint, message, asked)
        prepared = self.router.prepare(endpoint, large.stand_in(message), asked)
        if not put:
            return prepared
        if isinstance(prepared, ToStore):
            pointer = large.put(message.body, due_ms=prepared.stored.due_ms)
            prepared.stored = replace(prepared.stored, body=pointer.encode("utf-8"))
        else:
            pointer = prepared.entry.body = large.put(message.body, due_ms=prepared.due_ms)
            prepared.entry.size = size_of(pointer, prepared.entry.attributes)
        return prepared

    def _send_batch(
        self, endpoint: Endpoint, batch: Sequence[tuple[int, ToQueue]]
    ) -> list[SendReceipt | Failure]:
        try:
            self._heed_amendments(endpoint, [prepared for _, prepared in batch])
        except SchemaMismatch as error:
            return [Failure(type(error).__name__, error, transient=False)] * len(batch)
        now_ms = self._queues.broker_clock.proven_ms()
        if now_ms is not None:
            # Else the timers stay as they were worked out: by a local clock they could end early.
            for _, prepared in batch:
                prepared.set_timer(now_ms)
        outcomes = self._queues.send_batch(
            batch[0][1].queue_url, [prepared.entry for _, prepared in batch]
        )
        self._record(
            endpoint,
            (
                {
                    "message_id": prepared.message_id or outcome.sqs_message_id,
                    "due_ms": prepared.due_ms,
                    "size": prepared.entry.size,
                    "batch": len(batch),
                    "route": prepared.route,
                    "timer_seconds": prepared.entry.delay_seconds,
                    "sqs_message_id": outcome.sqs_message_id,
                }
                for (_, prepared), outcome in zip(batch, outcomes, strict=True)
                if isinstance(outcome, SendReceipt)
            ),
        )
        return outcomes

    def _record(self, endpoint: Endpoint, sent: Iterable[dict[str, Any]]) -> None:
        """Record messages that a queue or the store has taken, by what an event tells of each."""
        if self._ledger is not None:
            told = partial(
                Event,
                kind=EventKind.SENT,
                at_ms=self._queues.broker_clock.now_ms(),
                endpoint=endpoint.name,
                source=Source.SENDER,
            )
            record_safely(self._ledger, (told(**each) for each in sent))

    def _heed_amendments(self, endpoint: Endpoint, batch: Sequence[ToQueue]) -> None:
        """Set messages apart from former ones of the same id that were cancelled or moved.

        Otherwise the delay queue, which forgets nothing for five minutes, would swallow them, or the
        delay consumer would take them for what the amendment was about.
        """
        named = [p for p in batch if p.named and p.route is Route.DELAY_QUEUE]
        if self.stores is None or not named:
            return
        ids = [prepared.message_id or "" for prepared in named]
        amendments = self.stores.parking(endpoint.name).amendments(ids)
        latest_ms = self._queues.broker_clock.latest_ms()
        for message_id, prepared in zip(ids, named, strict=True):
            if message_id in amendments:
                amendment = amendments[message_id]
                # Unread, set apart from whatever there may be: a second copy is better than none.
                prepared.sent_after(latest_ms if amendment is None else amendment.at_ms)

    def _park_all(
        self, endpoint: Endpoint, to_store: Sequence[tuple[int, ToStore]], results: list[SendResult]
    ) -> None:
        if not to_store:
            return
        parking = to_store[0][1].parking
        at_once = parking.store.stored_at_once or STORED_AT_ONCE
        for start in range(0, len(to_store), at_once):
            chunk = to_store[start : start + at_once]
            outcomes = parking.park([prepared.stored for _, prepared in chunk])
            taken = []
            for (position, prepared), outcome in zip(chunk, outcomes, strict=True):
                error = outcome if isinstance(outcome, SqsDelayError) else None
                results[position] = _parked(prepared, error)
                if error is None:
                    taken.append(prepared.stored)
            self._record(
                endpoint,
                (
                    {
                        "message_id": stored.message_id,
                        "due_ms": stored.due_ms,
                        "size": len(stored.body) + size_of("", stored.attributes),
                        "route": Route.STORE,
                    }
                    for stored in taken
                ),
            )


def _sent(prepared: ToQueue, outcome: SendReceipt | Failure) -> SendResult:
    due = utc(prepared.due_ms)
    if isinstance(outcome, Failure):
        return SendResult(prepared.message_id, prepared.route, due, error=outcome.error)
    message_id = prepared.message_id or outcome.sqs_message_id
    return SendResult(message_id, prepared.route, due, outcome.sqs_message_id)


def _parked(prepared: ToStore, error: SqsDelayError | None) -> SendResult:
    stored = prepared.stored
    return SendResult(stored.message_id, Route.STORE, utc(stored.due_ms), error=error)
