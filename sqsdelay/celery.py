"""Celery on SQS with any ``eta`` and ``countdown``: a transport for Celery's ``broker_transport`` setting.

With ``app.conf.broker_transport = "sqsdelay.celery:Transport"`` a task that is due later waits in SQS, not
in the memory of a worker.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from datetime import UTC, datetime
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from botocore.exceptions import ClientError
from celery import current_app
from celery.utils.time import maybe_iso8601, maybe_make_aware
from kombu.transport import SQS

from sqsdelay.core import limits
from sqsdelay.core.message import id_of_try
from sqsdelay.core.readable import one_line
from sqsdelay.errors import QueueUnavailable, SqsDelayError
from sqsdelay.sqs.sender import DelaySender

if TYPE_CHECKING:
    from mypy_boto3_sqs import SQSClient

logger = logging.getLogger(__name__)

__all__ = ["HOP_OPTION", "MAX_DELAY_OPTION", "Channel", "Transport"]

HOP_OPTION: Final = "hop_seconds"
"""In ``broker_transport_options``: the delay queues' delivery delay, 900 unless they were created with
less."""

MAX_DELAY_OPTION: Final = "max_delay_seconds"
"""In ``broker_transport_options``: the farthest that a task may be due, ten years unless the delay
consumer has another limit."""


class Channel(SQS.Channel):
    """kombu's SQS channel; what is due later it sends with sqsdelay.

    The queue and the message are those kombu would have sent, ``eta`` header included: the worker finds
    it in the past and runs the task at once.
    """

    _sending: _Delayed | None = None

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self._senders: dict[str | None, tuple[SQSClient, DelaySender]] = {}
        super().__init__(*arguments, **options)

    def _put(self, queue: str, message: dict[str, Any], **options: Any) -> None:
        headers = message.get("headers") or {}
        # A redelivered message is not sent: kombu changes the visibility of the one it has.
        delayed = None if message.get("redelivered") else _delayed(headers)
        if delayed is None:
            super()._put(queue, message, **options)
            return
        try:
            self._put_delayed(delayed, queue, message, **options)
        except SqsDelayError as error:
            if not headers.get("retries") or _may_have_been_sent(error):
                raise
            # Celery rejects a task whose retry cannot be sent, and kombu 5.7 deletes it then.
            task = one_line(headers.get("id"))
            logger.error("a retry of task %s waits in a worker: %s", task, one_line(error))
            super()._put(queue, message, **options)

    def _put_delayed(
        self, delayed: _Delayed, queue: str, message: dict[str, Any], **options: Any
    ) -> None:
        self._sending = delayed
        try:
            # A copy: kombu takes the attributes out of what it sends, and it may be sent again. Its tag
            # for what it sends is another each time: SQS could not tell that both are one message.
            copy = {**message, "properties": {**message["properties"], "delivery_tag": ""}}
            super()._put(queue, copy, **options)
        finally:
            self._sending = None

    @property
    def transport_options(self) -> dict[str, Any]:
        """The app's, with limits of seconds for kombu's clients where ``client-config`` has no others."""
        options: dict[str, Any] = super().transport_options
        wait_seconds = options.get("wait_time_seconds", self.default_wait_time_seconds)
        within = {
            "connect_timeout": limits.CONNECT_SECONDS,
            # kombu sends and receives with one client, by long polls.
            "read_timeout": wait_seconds + limits.ANSWER_SECONDS,
            "retries": {"mode": "standard", "total_max_attempts": limits.CALL_ATTEMPTS},
        }
        return {**options, "client-config": within | (options.get("client-config") or {})}

    def sqs(self, queue: str | None = None) -> Any:
        client = super().sqs(queue=queue)
        return client if self._sending is None else _Client(self, queue, client, self._sending)

    def sender(self, queue: str | None, client: SQSClient) -> DelaySender:
        """The sender over kombu's client, made again when kombu has renewed that (STS)."""
        known = self._senders.get(queue)
        if known is None or known[0] is not client:
            options = self.transport_options
            sender = DelaySender(
                client,
                hop_seconds=options.get(HOP_OPTION, limits.DEFAULT_HOP_SECONDS),
                max_delay_seconds=options.get(MAX_DELAY_OPTION, limits.DEFAULT_MAX_DELAY_SECONDS),
                idempotent=True,  # kombu publishes again what it got no answer for
            )
            known = self._senders[queue] = (client, sender)
        return known[1]


class Transport(SQS.Transport):
    """kombu's SQS transport, over `Channel`.

    A publish fails as kombu's does: where SQS cannot be used now, kombu tries once more over a new
    connection and then raises its ``OperationalError``. sqsdelay's other errors (no delay queue, message
    too large, due too far ahead, …) come as they are. A retry is not lost for one of these, nor where
    SQS refuses (access denied, throttled): it waits in a worker, as it would without sqsdelay, and the
    error is logged.
    """

    Channel = Channel
    connection_errors = (*SQS.Transport.connection_errors, QueueUnavailable)


class _Delayed(NamedTuple):
    """When the message that is being sent is due, and its id."""

    due_at: datetime
    message_id: str | None


class _Client:
    """kombu's client while it sends a message that is due later."""

    def __init__(
        self, channel: Channel, queue: str | None, client: SQSClient, delayed: _Delayed
    ) -> None:
        self._channel, self._queue, self._client, self._delayed = channel, queue, client, delayed

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    def send_message(self, **request: Any) -> None:
        self._channel.sender(self._queue, self._client).send(
            request["QueueUrl"],
            request["MessageBody"],
            due_at=self._delayed.due_at,
            attributes=request.get("MessageAttributes"),
            message_id=self._delayed.message_id,
            message_group_id=request.get("MessageGroupId"),
            message_deduplication_id=request.get("MessageDeduplicationId"),
        )


def _delayed(headers: Mapping[str, Any]) -> _Delayed | None:
    try:
        eta = maybe_iso8601(headers.get("eta"))
    except (TypeError, ValueError):
        return None  # the worker says what is wrong with it
    if eta is None:
        return None
    # One without a time zone is read as the worker reads it.
    due_at = maybe_make_aware(eta, current_app.timezone)
    message_id = id_of_try(headers.get("id"), headers.get("retries"))
    return _Delayed(due_at, message_id) if due_at > datetime.now(UTC) else None


def _may_have_been_sent(error: SqsDelayError) -> bool:
    """Whether SQS did not say no: kombu tries again, and its copy and ours are one by their id."""
    if not isinstance(error, QueueUnavailable):
        return False
    refused = error.__cause__
    if not isinstance(refused, ClientError):
        return True
    answer, failed = refused.response.get("ResponseMetadata", {}), HTTPStatus.INTERNAL_SERVER_ERROR
    return bool(answer.get("HTTPStatusCode", failed) >= failed)
