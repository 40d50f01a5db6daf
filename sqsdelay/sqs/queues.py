"""SQS queues over boto3: the `Queues` port, one vendor call per method."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any, Final, TypeVar

import tenacity
from botocore.exceptions import BotoCoreError, ClientError

from sqsdelay.core.delay import BrokerClock, Clock, SystemClock
from sqsdelay.core.endpoint import QueueRef
from sqsdelay.core.limits import MAX_BATCH_ENTRIES
from sqsdelay.core.message import Attribute, OutgoingMessage
from sqsdelay.core.received_message import ReceivedMessage, from_boto3
from sqsdelay.errors import InvalidEndpoint, QueueUnavailable
from sqsdelay.ports.queues import Failure, SendReceipt
from sqsdelay.sqs.client import MISSING_QUEUE, asked, entry_failure, failure_of, translated

if TYPE_CHECKING:
    from mypy_boto3_sqs import SQSClient

logger = logging.getLogger(__name__)

ENTRY_ATTEMPTS: Final = 4
"""Sends of an entry that SQS fails with ``SenderFault`` false, the first included."""

_Answer = TypeVar("_Answer", bound=Mapping[str, Any])


class SqsQueues:
    """Amazon SQS through one boto3 client. Thread-safe, as the client is. The ``client``'s retries cover
    calls that fail as a whole, its time limits calls that are not answered. ``receiving``: the client that
    receives, the same if left out: an answer to a long poll takes longer, and a client has one limit for all
    its calls. ``traced``: an instrumentation of the client may add its trace to attributes that have none.
    What a relay sends on keeps the trace it came with. ``entry_wait``: pause between attempts on failed
    entries."""

    def __init__(
        self,
        client: SQSClient,
        *,
        receiving: SQSClient | None = None,
        traced: bool = False,
        clock: Clock | None = None,
        entry_wait: tenacity.wait.WaitBaseT | None = None,
    ) -> None:
        self._client = client
        self._receiving = receiving or client
        self._attributes = _OwnFirst if traced else _AsGiven
        self._clock = clock or SystemClock()
        self.broker_clock = BrokerClock(self._clock)
        self._urls: dict[QueueRef, str] = {}
        self._last_date = ("", 0)
        self._dateless = False
        self._entry_wait = entry_wait or tenacity.wait_random_exponential(multiplier=0.1, max=2)

    def url(self, queue: QueueRef) -> str:
        if queue.url is not None:
            self._check_region(queue)
            return queue.url
        known = self._urls.get(queue)
        if known is None:
            known = self._urls[queue] = self._look_up(queue)
        return known

    def synchronise(self, queue: QueueRef) -> None:
        if self._dateless:
            return
        try:
            self._look_up(queue)
        except QueueUnavailable:
            # A refusal is dated, too: to send one need not be allowed to ask for a queue's URL.
            if not self.broker_clock.synchronised:
                raise
        if not self.broker_clock.synchronised:
            # SQS's answers are dated. Asking a server whose are not would cost a request a message.
            self._dateless = True
            told = "answers carry no Date header: the local clock stands in for the broker's"
            logger.warning(told)

    def _check_region(self, queue: QueueRef) -> None:
        region = self._client.meta.region_name
        if queue.region is not None and queue.region != region:
            raise InvalidEndpoint(
                f"queue {queue.name} is in the region {queue.region}, and the client calls {region}; "
                f"use a client of {queue.region} (sqsdelay --region {queue.region})"
            )

    def _look_up(self, queue: QueueRef) -> str:
        self._check_region(queue)
        wanted: dict[str, str] = {"QueueName": queue.name}
        if queue.account_id is not None:
            wanted["QueueOwnerAWSAccountId"] = queue.account_id
        answer = self._call(queue.name, self._client.get_queue_url, **wanted)
        return str(_told(answer, "QueueUrl", queue.name))

    def attributes(self, queue_url: str) -> Mapping[str, str]:
        ask = self._client.get_queue_attributes
        answer = self._call(queue_url, ask, QueueUrl=queue_url, AttributeNames=["All"])
        attributes = _told(answer, "Attributes", queue_url)
        return {str(name): value for name, value in attributes.items()}

    def send_batch(
        self, queue_url: str, entries: Sequence[OutgoingMessage]
    ) -> list[SendReceipt | Failure]:
        kind = self._attributes
        wired = [_send_entry(str(n), each, kind(each.attributes)) for n, each in enumerate(entries)]
        outcomes: list[SendReceipt | Failure] = self._send_once(queue_url, wired)
        if any(map(_is_for_retry, outcomes)):
            retrying = tenacity.Retrying(
                stop=tenacity.stop_after_attempt(ENTRY_ATTEMPTS - 1),
                wait=self._entry_wait,
                retry=tenacity.retry_if_result(lambda again: any(map(_is_for_retry, again))),
                retry_error_callback=lambda _: None,
            )
            retrying(self._send_failed_again, queue_url, wired, outcomes)
        return outcomes

    def _send_failed_again(
        self, queue_url: str, wired: list[Any], outcomes: list[SendReceipt | Failure]
    ) -> list[SendReceipt | Failure]:
        positions = [i for i, outcome in enumerate(outcomes) if _is_for_retry(outcome)]
        again = self._send_once(queue_url, [wired[position] for position in positions])
        for position, outcome in zip(positions, again, strict=True):
            outcomes[position] = outcome
        return outcomes

    def _send_once(self, queue_url: str, wired: list[Any]) -> list[SendReceipt | Failure]:
        if len(wired) == 1:
            return [self._send_single(queue_url, wired[0])]
        try:
            answer = self._ask(self._client.send_message_batch, QueueUrl=queue_url, Entries=wired)
        except (ClientError, BotoCoreError) as error:
            failure = self._call_failure(error, queue_url)
            if not failure.transient:
                # One entry can make SQS refuse the whole batch: find out which, lose none.
                return [self._send_single(queue_url, entry) for entry in wired]
            return [failure] * len(wired)
        done = {str(entry.get("Id")): entry for entry in answer.get("Successful", ())}
        failures = _entry_failures(answer, queue_url)
        return [
            failures.get(entry["Id"])
            or _receipt(entry, done.get(entry["Id"], {}), answer)
            or _unanswered(queue_url)
            for entry in wired
        ]

    def _send_single(self, queue_url: str, wired: dict[str, Any]) -> SendReceipt | Failure:
        arguments = {name: value for name, value in wired.items() if name != "Id"}
        try:
            answer = self._ask(self._client.send_message, QueueUrl=queue_url, **arguments)
        except (ClientError, BotoCoreError) as error:
            return self._call_failure(error, queue_url)
        return _receipt(wired, answer, answer) or _unanswered(queue_url)

    def _call_failure(self, error: ClientError | BotoCoreError, queue_url: str) -> Failure:
        failure = failure_of(error, queue_url)
        if failure.code in MISSING_QUEUE:
            self._urls = {queue: url for queue, url in self._urls.items() if url != queue_url}
        return failure

    def receive_batch(
        self,
        queue_url: str,
        *,
        wait_seconds: int,
        limit: int = MAX_BATCH_ENTRIES,
        visibility_seconds: int | None = None,
    ) -> list[ReceivedMessage]:
        # The older name of MessageSystemAttributeNames, which every SQS server knows.
        wanted: dict[str, Any] = {"AttributeNames": ["All"], "MessageAttributeNames": ["All"]}
        wanted |= {"MaxNumberOfMessages": limit, "WaitTimeSeconds": wait_seconds}
        if visibility_seconds is not None:
            wanted["VisibilityTimeout"] = visibility_seconds
        if queue_url.endswith(".fifo"):
            # With an attempt id, a retry after a lost answer gets the same copies at once instead
            # of leaving them invisible until the visibility timeout has passed.
            wanted["ReceiveRequestAttemptId"] = str(uuid.uuid4())
        receive = self._receiving.receive_message
        answer = self._call(queue_url, receive, QueueUrl=queue_url, **wanted)
        received_at = self._clock.monotonic()
        return [from_boto3(raw, received_at=received_at) for raw in answer.get("Messages", ())]

    def delete_batch(
        self, queue_url: str, copies: Sequence[ReceivedMessage]
    ) -> list[Failure | None]:
        handles = [copy.receipt_handle for copy in copies]
        entries = [{"Id": str(n), "ReceiptHandle": handle} for n, handle in enumerate(handles)]
        delete = self._client.delete_message_batch
        outcomes, answered = self._per_entry(queue_url, delete, entries)
        for position, failure in enumerate(outcomes):
            if answered and failure is not None:
                # Once more, by itself: what stays is received again, and may become a duplicate.
                (outcomes[position],), _ = self._per_entry(queue_url, delete, [entries[position]])
        return outcomes

    def hide_batch(
        self, queue_url: str, copies: Sequence[tuple[ReceivedMessage, int]]
    ) -> list[Failure | None]:
        entries = [
            {"Id": str(n), "ReceiptHandle": copy.receipt_handle, "VisibilityTimeout": seconds}
            for n, (copy, seconds) in enumerate(copies)
        ]
        hide = self._client.change_message_visibility_batch
        return self._per_entry(queue_url, hide, entries)[0]

    def _per_entry(
        self, queue_url: str, call: Callable[..., Any], entries: list[dict[str, Any]]
    ) -> tuple[list[Failure | None], bool]:
        """An outcome per entry, and whether the call was answered at all."""
        try:
            answer = self._ask(call, QueueUrl=queue_url, Entries=entries)
        except (ClientError, BotoCoreError) as error:
            return [failure_of(error, queue_url)] * len(entries), False
        failures = _entry_failures(answer, queue_url)
        done = {entry.get("Id") for entry in answer.get("Successful", ())}
        outcomes = [
            None if entry["Id"] in done else failures.get(entry["Id"]) or _unanswered(queue_url)
            for entry in entries
        ]
        return outcomes, True

    def _call(self, queue: str, call: Callable[..., _Answer], **arguments: Any) -> _Answer:
        try:
            return self._ask(call, **arguments)
        except (ClientError, BotoCoreError) as error:
            raise translated(error, queue) from error

    def _ask(self, call: Callable[..., _Answer], **arguments: Any) -> _Answer:
        """Make a call, and learn the broker's time from its answer, be it a refusal: of SQS's, and not of a
        proxy on the way, whose clock says nothing."""
        asked_at = self._clock.monotonic()
        try:
            answer = asked(call, **arguments)
        except ClientError as error:
            if error.response.get("ResponseMetadata", {}).get("RequestId"):
                self._observe(error.response, asked_at)
            raise
        self._observe(answer, asked_at)
        return answer

    def _observe(self, answer: Mapping[str, Any], asked_at: float) -> None:
        """Learn the broker's time from an answer's ``Date``. That second had begun when it came, and had not
        ended when it was asked for."""
        date = answer.get("ResponseMetadata", {}).get("HTTPHeaders", {}).get("date")
        if not date:
            return
        if date != self._last_date[0]:
            try:
                self._last_date = (date, round(parsedate_to_datetime(date).timestamp() * 1000))
            except ValueError:
                return
        self.broker_clock.observe(self._last_date[1], asked_at=asked_at)


class _AsGiven(dict[str, Attribute]):
    """Attributes that an instrumentation of boto3 cannot write its own trace into."""

    def __setitem__(self, name: str, value: Attribute) -> None: ...

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy is a plain one: it is filled item by item, which these would not take."""
        return dict, (dict(self),)


class _OwnFirst(_AsGiven):
    """It can, where they have none."""

    def __setitem__(self, name: str, value: Attribute) -> None:
        self.setdefault(name, value)


def _send_entry(
    entry_id: str, message: OutgoingMessage, attributes: dict[str, Attribute]
) -> dict[str, Any]:
    optional: dict[str, Any] = {
        "MessageAttributes": attributes or None,
        "DelaySeconds": message.delay_seconds,
        "MessageGroupId": message.group_id,
        "MessageDeduplicationId": message.deduplication_id,
    }
    if message.trace_header is not None:
        header = {"DataType": "String", "StringValue": message.trace_header}
        optional["MessageSystemAttributes"] = {"AWSTraceHeader": header}
    given = {name: value for name, value in optional.items() if value is not None}
    return {"Id": entry_id, "MessageBody": message.body, **given}


def _receipt(
    sent: Mapping[str, Any], answered: Mapping[str, Any], answer: Mapping[str, Any]
) -> SendReceipt | None:
    """An entry's, from the answer to its request; None where that does not say it was taken."""
    if "MessageId" not in answered:
        return None
    return SendReceipt(answered["MessageId"], sent, answered, answer.get("ResponseMetadata"))


def _entry_failures(answer: Mapping[str, Any], queue_url: str) -> dict[str, Failure]:
    found, metadata = dict[str, Failure](), answer.get("ResponseMetadata")
    for failed in answer.get("Failed", ()):
        code, text = failed.get("Code", "Unknown"), failed.get("Message", "")
        fault = bool(failed.get("SenderFault"))
        failure = entry_failure(code, text, queue_url, sender_fault=fault)
        found[str(failed.get("Id"))] = replace(failure, metadata=metadata)
    return found


def _is_for_retry(outcome: SendReceipt | Failure) -> bool:
    """An entry that failed in an answered batch; calls that failed as a whole botocore has retried."""
    return isinstance(outcome, Failure) and outcome.retry_at_once


def _told(answer: Mapping[str, Any], what: str, queue: str) -> Any:
    """What an answer must hold; one without it is no answer, whatever its status."""
    if what not in answer:
        raise QueueUnavailable(f"the answer on queue {queue} has no {what}; try again later")
    return answer[what]


def _unanswered(queue_url: str) -> Failure:
    text = "the answer does not mention this entry"
    return entry_failure("Unanswered", text, queue_url, sender_fault=False)
