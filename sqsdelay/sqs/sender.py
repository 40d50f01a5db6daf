"""`DelaySender` and `AsyncDelaySender`: the senders, wired to SQS."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from sqsdelay.core import limits
from sqsdelay.core.delay import check_range
from sqsdelay.core.loop_calls import DEFAULT_LINGER_MS, DEFAULT_MAX_WAITING, LoopCalls
from sqsdelay.parking.parking import DEFAULT_PARK_AFTER_SECONDS, StoreOf, parking_settings
from sqsdelay.ports import in_each_child
from sqsdelay.sending.async_sender import AsyncQueueSender
from sqsdelay.sending.router import DEFAULT_CONCURRENCY, SenderSettings
from sqsdelay.sending.sender import QueueSender
from sqsdelay.sqs.client import default_client, limit_whole_answers
from sqsdelay.sqs.queues import SqsQueues

if TYPE_CHECKING:
    from mypy_boto3_sqs import SQSClient

    from sqsdelay.core.delay import Clock
    from sqsdelay.ledger.events import Ledger
    from sqsdelay.ports.queues import LargeBodies, Tracing
    from sqsdelay.ports.stores import ParkingPlace

DEFAULT_DEADLINE_SECONDS: Final = 10
MAX_DEADLINE_SECONDS: Final = 60

_LAST_ATTEMPT: Final = 0.5
"""The part of the deadline that the last attempt has, to connect and to be answered; what fails sooner is
tried again."""

ASYNC_CONCURRENCY: Final = 16
"""Requests in flight of an `AsyncDelaySender` that makes its own sender."""


class DelaySender(QueueSender):
    """Sends to SQS with any delay. Thread-safe.

    Args:
        client: a boto3 SQS client; made from the default session when left out.
        unrestricted: False refuses delays above 900 seconds.
        hop_seconds: the delay queues' delivery delay; 900 unless the endpoint was created with less.
        max_delay_seconds: how far ahead a message may be due; ten years unless the endpoint's delay
            consumer has another value.
        concurrency: batches `send_many` keeps in flight, at most the client's connections.
        store: the endpoint's store, or a function from an endpoint's name to its store. Messages
            due far ahead are parked there at once, and `cancel`, `reschedule` and `pending` work.
        park_after_seconds: messages with more than this remaining are parked.
        large_bodies: where bodies too large for a message wait: a `sqsdelay.s3.Bucket`.
        idempotent: equal messages (id, content, and due time or delay) sent to a delay queue within
            five minutes are one, whichever process sends them: for senders that repeat a send whose
            outcome is unknown. SQS then also drops a message that is sent again because the earlier
            one was cancelled or rescheduled. Only a sender with the store can see that; such a sender
            is always idempotent.
        linger_ms: how long a message of `send` waits for those of other threads, 0 to 1,000: what meets
            shares requests of up to ten, at most ``concurrency`` of them in flight. 0 turns it off.
        deadline_seconds: how long one `send`, `cancel` or `reschedule` may take, 1 to 60: all its calls to
            SQS and their retries. A store, a bucket, credentials that boto3 fetches (STS, SSO) and a client
            that you pass have limits of their own, on top. `send_many` goes on as long as each of its
            requests is answered.
        ledger: where to record what was sent, cancelled and rescheduled; None records nothing.
        tracing: traces sends, e.g. `sqsdelay.opentelemetry.OpenTelemetryTracing`.
        clock: the local clock.

    Raises:
        ConfigurationError: a setting out of range.
    """

    def __init__(
        self,
        client: SQSClient | None = None,
        *,
        unrestricted: bool = True,
        hop_seconds: int = limits.DEFAULT_HOP_SECONDS,
        max_delay_seconds: int = limits.DEFAULT_MAX_DELAY_SECONDS,
        concurrency: int = DEFAULT_CONCURRENCY,
        store: ParkingPlace | StoreOf | None = None,
        park_after_seconds: int = DEFAULT_PARK_AFTER_SECONDS,
        large_bodies: LargeBodies | None = None,
        idempotent: bool = False,
        linger_ms: float = 0,
        deadline_seconds: float = DEFAULT_DEADLINE_SECONDS,
        ledger: Ledger | None = None,
        tracing: Tracing | None = None,
        clock: Clock | None = None,
    ) -> None:
        check_range(1, MAX_DEADLINE_SECONDS, deadline_seconds=deadline_seconds)
        begin_within = deadline_seconds
        if client is None:
            attempt_seconds = limits.CONNECT_SECONDS + limits.ANSWER_SECONDS
            patience = min(1, _LAST_ATTEMPT * deadline_seconds / attempt_seconds)
            begin_within -= patience * attempt_seconds
            # The router checks every value, which botocore then need not do again.
            client = default_client(
                connections=concurrency, parameter_validation=False, patience=patience
            )
            limit_whole_answers(client)
        connections = getattr(client.meta.config, "max_pool_connections", concurrency)
        super().__init__(
            SqsQueues(client, traced=True, clock=clock),
            SenderSettings(
                unrestricted=unrestricted,
                hop_seconds=hop_seconds,
                max_delay_seconds=max_delay_seconds,
                concurrency=min(concurrency, connections),
                parking=parking_settings(store, park_after_seconds),
                large_bodies=large_bodies,
                idempotent=idempotent,
                linger_ms=linger_ms,
                ledger=ledger,
                tracing=tracing,
                deadline_seconds=deadline_seconds,
                begin_within_seconds=begin_within,
            ),
        )
        in_each_child(self, DelaySender._begin_anew)


class AsyncDelaySender(AsyncQueueSender):
    """Sends to SQS with any delay from asyncio. For the tasks of one event loop at a time.

    What tasks send within a few milliseconds of each other shares requests of up to ten, made by the
    sender's threads. ``async with`` closes it; so does `aclose`.

    Args:
        sender: a `DelaySender` with your client, store and other settings; one with 16 requests in
            flight is made when left out. Its ``concurrency`` is the number of requests in flight.
        linger_ms: how long a message waits for others, 0 to 1,000; 0 turns sharing off.
        max_waiting: messages that wait or are in flight; further calls of `send` wait until one is done.

    Raises:
        ConfigurationError: a setting out of range.
    """

    def __init__(
        self,
        sender: QueueSender | None = None,
        *,
        linger_ms: float = DEFAULT_LINGER_MS,
        max_waiting: int = DEFAULT_MAX_WAITING,
    ) -> None:
        if sender is None:
            sender = DelaySender(concurrency=ASYNC_CONCURRENCY)
        super().__init__(sender, linger_ms=linger_ms, max_waiting=max_waiting)
        in_each_child(self._calls, LoopCalls.begin_anew)
