"""`unrestricted`: a boto3 SQS client, resource or queue whose ``DelaySeconds`` has no limit."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from inspect import iscoroutinefunction
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from boto3.resources.base import ServiceResource
from botocore.client import BaseClient
from botocore.exceptions import BotoCoreError, ClientError
from botocore.validate import validate_parameters

from sqsdelay import errors
from sqsdelay.core import limits
from sqsdelay.core.endpoint import Endpoint
from sqsdelay.core.limits import DEFAULT_HOP_SECONDS, DEFAULT_MAX_DELAY_SECONDS
from sqsdelay.core.message import MESSAGE_ID, Message, size_of, text_of
from sqsdelay.errors import InvalidMessage, QueueMissing, SendFailed, SqsDelayError
from sqsdelay.parking.parking import DEFAULT_PARK_AFTER_SECONDS, StoreOf, parking_settings
from sqsdelay.ports.queues import Failure, SendReceipt
from sqsdelay.sending.router import SenderSettings
from sqsdelay.sending.sender import QueueSender, SendResult
from sqsdelay.sqs.queues import SqsQueues

if TYPE_CHECKING:
    from mypy_boto3_sqs import SQSClient
    from mypy_boto3_sqs.service_resource import Queue, SQSServiceResource

    from sqsdelay.ledger.events import Ledger
    from sqsdelay.ports.queues import LargeBodies, Tracing
    from sqsdelay.ports.stores import ParkingPlace

Boto3 = TypeVar("Boto3", "SQSClient", "SQSServiceResource", "Queue")


def unrestricted(
    client: Boto3,
    *,
    hop_seconds: int = DEFAULT_HOP_SECONDS,
    max_delay_seconds: int = DEFAULT_MAX_DELAY_SECONDS,
    store: ParkingPlace | StoreOf | None = None,
    park_after_seconds: int = DEFAULT_PARK_AFTER_SECONDS,
    large_bodies: LargeBodies | None = None,
    ledger: Ledger | None = None,
    tracing: Tracing | None = None,
) -> Boto3:
    """The client, with ``DelaySeconds`` of any length in ``send_message`` and ``send_message_batch``.

    It is an instance of a subclass of the client's own class and shares all that the client has: its
    connections, credentials, ``meta``, event hooks and exception classes. So ``isinstance``, paginators,
    waiters, botocore's ``Stubber``, tracing libraries and type checkers see an SQS client. Neither the
    client that you pass nor any class of boto3's is changed.

    A message whose delay fits a message timer is passed on untouched. `DelaySender` sends the
    others, and the response has boto3's shape; ``docs/boto3.md`` says what the fields hold.
    Errors are boto3's: a ``ClientError`` with SQS's code, and sqsdelay's error as its ``__cause__``.

    Args:
        client: a boto3 SQS client, or an SQS resource (the service, a queue): then everything
            reached from it sends in this way too. An unrestricted one gets these settings instead.
        hop_seconds, max_delay_seconds, store, park_after_seconds, large_bodies: as for `DelaySender`.
        ledger: where to record the messages sent with long delays.
        tracing: traces the sends of these messages.

    Raises:
        ConfigurationError: not an SQS client or resource; a setting out of range.
    """
    settings = SenderSettings(
        hop_seconds=hop_seconds,
        max_delay_seconds=max_delay_seconds,
        concurrency=1,  # A call's batches are few.
        parking=parking_settings(store, park_after_seconds),
        large_bodies=large_bodies,
        ledger=ledger,
        tracing=tracing,
    )
    given: Any = client
    if iscoroutinefunction(getattr(given, "_make_api_call", None)):
        raise errors.ConfigurationError(f"{given!r} is asynchronous; give a boto3 client")
    if isinstance(given, ServiceResource) and given.meta.service_name == "sqs":
        return cast(Boto3, _with_client(given, _unrestricted_client(given.meta.client, settings)))
    if isinstance(given, BaseClient) and given.meta.service_model.service_name == "sqs":
        return cast(Boto3, _unrestricted_client(given, settings))
    raise errors.ConfigurationError(
        f"{given!r} is not an SQS client; give boto3.client('sqs'), boto3.resource('sqs') or its Queue"
    )


class UnrestrictedClient:
    """What is put before a client's own class: it sends long delays with a `QueueSender` over the plain one.
    Delays up to a hop are boto3's own affair."""

    _plain: Any
    _sender: QueueSender
    _settings: SenderSettings

    def send_message(self, *args: Any, **kwargs: Any) -> Any:
        plain: Any = super()
        queue_url: Any = kwargs.get("QueueUrl")
        # Arguments without names boto3 refuses itself.
        if args or not self._is_late(queue_url, kwargs):
            return plain.send_message(*args, **kwargs)
        self._validate("SendMessage", kwargs)
        entry = _plain_bytes(kwargs)
        messages = _messages(self, "SendMessage", queue_url, [entry])
        seen: _Seen = []
        (result,) = self._results(queue_url, messages, seen)
        if result.error is not None:
            raise refusal(self, "SendMessage", result.error, entry["MessageBody"])
        return {**_answer(entry, result, seen), "ResponseMetadata": _metadata(seen)}

    def send_message_batch(self, *args: Any, **kwargs: Any) -> Any:
        """Two requests, one answer. What it raises means that nothing was sent."""
        plain: Any = super()
        queue_url: Any = kwargs.get("QueueUrl")
        given: Any = kwargs.get("Entries")
        given = given if isinstance(given, list | tuple) else ()
        if args or not any(self._is_late(queue_url, entry) for entry in given):
            return plain.send_message_batch(*args, **kwargs)
        self._validate(_BATCH, kwargs)
        entries = [_plain_bytes(entry) for entry in given]
        check_batch(self, entries, any_size=self._settings.large_bodies is not None)
        delayed = [entry for entry in entries if self._is_late(queue_url, entry)]
        others = [entry for entry in entries if not self._is_late(queue_url, entry)]
        messages = _messages(self, _BATCH, queue_url, delayed)
        # First, since what it raises then means that nothing was sent.
        direct = plain.send_message_batch(**kwargs | {"Entries": others}) if others else {}
        seen: _Seen = []
        results = self._results(queue_url, messages, seen)
        wrong = [result.error for result in results]
        if not others and wrong[0] is not None and all(map(_call_failed, wrong)):
            raise refusal(self, _BATCH, wrong[0], "")
        answers: dict[str, Any] = {name: list(direct.get(name, ())) for name in _OUTCOMES}
        for entry, result in zip(delayed, results, strict=True):
            if result.error is None:
                answers["Successful"].append({"Id": entry["Id"], **_answer(entry, result, seen)})
            else:
                raised = refusal(self, _BATCH, result.error, entry["MessageBody"])
                answers["Failed"].append(failed_entry(entry["Id"], raised))
        positions = {entry["Id"]: position for position, entry in enumerate(entries)}
        for entered in answers.values():
            entered.sort(key=lambda one: positions[one["Id"]])
        # SQS leaves out what is empty.
        told = {name: entered for name, entered in answers.items() if entered}
        return {**told, "ResponseMetadata": direct.get("ResponseMetadata") or _metadata(seen)}

    def _is_late(self, queue_url: Any, entry: Any) -> bool:
        """Whether SQS would refuse the entry's delay. What is no number boto3 refuses itself."""
        seconds = entry.get("DelaySeconds") if isinstance(entry, dict) else None
        if not isinstance(seconds, int):
            return False
        fifo = isinstance(queue_url, str) and queue_url.endswith(limits.FIFO_SUFFIX)
        return seconds > (0 if fifo else self._settings.hop_seconds)

    def _validate(self, operation: str, kwargs: dict[str, Any]) -> None:
        """As boto3 does before a request, even where the client has that switched off."""
        model = cast(Any, self).meta.service_model.operation_model(operation)
        validate_parameters(kwargs, model.input_shape)

    def _results(
        self, queue_url: str, messages: Sequence[Message | InvalidMessage], seen: _Seen
    ) -> list[SendResult]:
        """A result for each, those that are no messages included."""
        good = [message for message in messages if isinstance(message, Message)]
        sent = iter(self._sender.send_noting(queue_url, good, seen.append))
        return [
            next(sent) if isinstance(message, Message) else SendResult(error=message)
            for message in messages
        ]


def _unrestricted_client(client: Any, settings: SenderSettings) -> Any:
    """A client like the one given, with our behaviour before that of its class of boto3's."""
    plain = client.__dict__.get("_plain", client)
    sender = QueueSender(SqsQueues(plain, traced=True), settings)
    kind: Any = type(UnrestrictedClient.__name__, (UnrestrictedClient, type(plain)), {})
    derived = kind.__new__(kind)
    derived.__dict__.update(client.__dict__, _plain=plain, _sender=sender, _settings=settings)
    return derived


def _with_client(resource: Any, client: Any) -> Any:
    """The same resource, over another client; what was loaded of it stays."""
    identifiers = [getattr(resource, name) for name in resource.meta.identifiers]
    copied = type(resource)(*identifiers, client=client)
    copied.meta.data = resource.meta.data
    return copied


def md5s(entry: Mapping[str, Any]) -> dict[str, str]:
    """What SQS answers for a message, under the names it uses. ``entry``: ``MessageBody``,
    ``MessageAttributes`` and ``MessageSystemAttributes`` in boto3's shape, binary values as bytes."""
    hashed = {"MessageBody": entry["MessageBody"].encode()}
    for name in ("MessageAttributes", "MessageSystemAttributes"):
        if entry.get(name):
            hashed[name] = _encoded(entry[name])
    return {
        f"MD5Of{name}": hashlib.md5(content, usedforsecurity=False).hexdigest()
        for name, content in hashed.items()
    }


def _encoded(attributes: Mapping[str, Any]) -> bytes:
    parts = []
    for name in sorted(attributes):
        attribute = attributes[name]
        binary = attribute["DataType"].startswith("Binary")
        value = attribute["BinaryValue"] if binary else attribute["StringValue"].encode()
        parts += [_sized(name.encode()), _sized(attribute["DataType"].encode())]
        parts += [b"\x02" if binary else b"\x01", _sized(value)]
    return b"".join(parts)


def _sized(content: bytes) -> bytes:
    return len(content).to_bytes(4, "big") + content


_PREFIX: Final = "AWS.SimpleQueueService."


def check_batch(client: Any, entries: Sequence[Mapping[str, Any]], *, any_size: bool) -> None:
    """Refuse a batch that SQS refuses as a whole; parts of it could each pass. Raises ClientError: with
    the code SQS gives; nothing was sent. ``any_size``: large bodies will not be sent to SQS."""
    count, most = len(entries), limits.MAX_BATCH_BYTES
    ids = Counter(entry["Id"] for entry in entries)
    size = sum(
        size_of(entry["MessageBody"], entry.get("MessageAttributes", {})) for entry in entries
    )
    if count > limits.MAX_BATCH_ENTRIES:
        name = "TooManyEntriesInBatchRequest"
        text = f"Maximum number of entries per request are {limits.MAX_BATCH_ENTRIES}. You have sent {count}."
    elif wrong := [each for each in ids if not limits.BATCH_ENTRY_ID.fullmatch(each)]:
        name = "InvalidBatchEntryId"
        text = (
            f"{wrong[0]!r}: a batch entry id can only contain alphanumeric characters, hyphens "
            "and underscores. It can be at most 80 letters long."
        )
    elif twice := [each for each, times in ids.items() if times > 1]:
        name, text = "BatchEntryIdsNotDistinct", f"Id {twice[0]} repeated."
    elif size > most and not any_size:
        name = "BatchRequestTooLong"
        text = f"Batch requests cannot be longer than {most} bytes. You have sent {size} bytes."
    else:
        return
    raise _client_error(client, _BATCH, (_PREFIX + name, name), text)


def refusal(client: Any, operation: str, error: SqsDelayError, body: str) -> Exception:
    """What boto3 would raise: what it did raise where it was SQS that refused, else a like of it."""
    own = error.__cause__
    of_sqs = isinstance(error, errors.QueueUnavailable | SendFailed | errors.ConfigurationError)
    if of_sqs and isinstance(own, ClientError | BotoCoreError):
        return own
    code, name, sender = _meaning(error, body)
    raised = _client_error(client, operation, (code, name), str(error), sender=sender)
    raised.__cause__ = error
    return raised


def failed_entry(entry_id: str, raised: Exception) -> dict[str, Any]:
    """The same in a batch answer's ``Failed``."""
    answer: Any = raised.response.get("Error", {}) if isinstance(raised, ClientError) else {}
    return {
        "Id": entry_id,
        "SenderFault": answer.get("Type") == "Sender",
        "Code": answer.get("Code", type(raised).__name__),
        "Message": answer.get("Message", str(raised)),
    }


def _meaning(error: SqsDelayError, body: str) -> tuple[str, str, bool]:
    """SQS's code, the name that boto3's exception class goes by, and whether the same message will never be
    taken."""
    if isinstance(error, SendFailed):
        return error.code, error.code, not error.transient
    if isinstance(error, QueueMissing):
        return _PREFIX + "NonExistentQueue", "QueueDoesNotExist", True
    if isinstance(error, errors.SchemaMismatch | errors.StoreMissing):
        return _PREFIX + "UnsupportedOperation", "UnsupportedOperation", True
    if isinstance(error, ValueError) and limits.FORBIDDEN_BODY_CHARACTER.search(body):
        return "InvalidMessageContents", "InvalidMessageContents", True
    if isinstance(error, ValueError | errors.ConfigurationError):
        return "InvalidParameterValue", "InvalidParameterValueException", True
    return "ServiceUnavailable", "ServiceUnavailable", False


def _client_error(
    client: Any, operation: str, codes: tuple[str, str], text: str, *, sender: bool = True
) -> Exception:
    code, name = codes
    response = {
        "Error": {
            "Code": code,
            "QueryErrorCode": name,
            "Type": "Sender" if sender else "Receiver",
            "Message": text,
        },
        "ResponseMetadata": {**_NO_REQUEST, "HTTPStatusCode": 400 if sender else 503},
    }
    raised: Exception = client.exceptions.from_code(name)(response, operation)
    return raised


_TRACE_HEADER: Final = "AWSTraceHeader"

_BATCH: Final = "SendMessageBatch"
_OUTCOMES: Final = ("Successful", "Failed")
_NO_REQUEST: Final = {"RequestId": "", "HTTPStatusCode": 200, "HTTPHeaders": {}, "RetryAttempts": 0}
"""``ResponseMetadata`` where SQS was not asked: the message was parked in a store."""


_Seen = list[SendReceipt | Failure]
"""What SQS said to the sends of one call."""


def _metadata(seen: _Seen) -> Mapping[str, Any]:
    """Of SQS's last answer."""
    return next((each.metadata for each in reversed(seen) if each.metadata), _NO_REQUEST)


def _messages(
    client: Any, operation: str, queue_url: str, entries: Sequence[Mapping[str, Any]]
) -> list[Message | InvalidMessage]:
    """The entries as messages of ours; what is wrong with one in its place. Raises ClientError: what is
    wrong with all of them."""
    try:
        fifo = Endpoint.parse(queue_url).fifo
        return [_message(entry, fifo=fifo) for entry in entries]
    except SqsDelayError as error:
        refused = refusal(client, operation, error, "")
    raise refused


def _message(entry: Mapping[str, Any], *, fifo: bool) -> Message | InvalidMessage:
    deduplication_id = entry.get("MessageDeduplicationId")
    if fifo and deduplication_id is None:
        # Content-based deduplication: this is how SQS derives the id, from the body.
        body = entry["MessageBody"].encode("utf-8", "surrogatepass")
        deduplication_id = hashlib.sha256(body).hexdigest()
    system = entry.get("MessageSystemAttributes", {})
    for name in system:
        if name != _TRACE_HEADER or "StringValue" not in system[name]:
            return InvalidMessage(
                f"message system attribute {name!r}; SQS takes {_TRACE_HEADER!r} only, as a String"
            )
    return Message(
        entry["MessageBody"],
        delay=entry["DelaySeconds"],
        attributes=entry.get("MessageAttributes", {}),
        message_group_id=entry.get("MessageGroupId"),
        message_deduplication_id=deduplication_id,
        trace_header=text_of(system, _TRACE_HEADER),
    )


def _plain_bytes(entry: Mapping[str, Any]) -> dict[str, Any]:
    """The entry with bytes for all that boto3 takes for binary: text, bytearrays, open files."""
    attributes = {name: dict(each) for name, each in entry.get("MessageAttributes", {}).items()}
    for attribute in attributes.values():
        if "BinaryValue" in attribute:
            binary = attribute["BinaryValue"]
            content = binary.read() if hasattr(binary, "read") else binary
            text = isinstance(content, str)
            attribute["BinaryValue"] = content.encode() if text else bytes(content)
    return {**entry, "MessageAttributes": attributes} if attributes else dict(entry)


def _answer(entry: Mapping[str, Any], result: SendResult, seen: _Seen) -> dict[str, Any]:
    """An entry's answer without its ``Id``."""
    ours, expected = {MESSAGE_ID: result.message_id}, md5s(entry)
    if result.sqs_message_id is None:
        return {**expected, "MessageId": result.message_id, **ours}
    receipts = (each for each in reversed(seen) if isinstance(each, SendReceipt))
    receipt = next(each for each in receipts if each.sqs_message_id == result.sqs_message_id)
    left_out = ("Id", "ResponseMetadata")
    answer = {name: value for name, value in receipt.answered.items() if name not in left_out}
    told = {name: value for name, value in answer.items() if name.startswith("MD5")}
    if told.items() <= md5s(receipt.sent).items():
        # SQS has what was sent, to the bit; the caller knows the MD5s of what it gave.
        answer = {name: value for name, value in answer.items() if name not in told}
        answer |= {name: value for name, value in expected.items() if name in told}
    return {**answer, **ours}


def _call_failed(error: SqsDelayError | None) -> bool:
    """Whether it is a reason that boto3 raises rather than reports per entry."""
    return error is not None and not isinstance(error, ValueError | SendFailed)
