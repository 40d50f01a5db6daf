"""sqsdelay's errors as boto3's: the ``ClientError`` that SQS would answer such a request with."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

from botocore.exceptions import BotoCoreError, ClientError

from sqsdelay.core.message import size_of
from sqsdelay.errors import (
    ConfigurationError,
    QueueMissing,
    QueueUnavailable,
    SendFailed,
    SqsDelayError,
)
from sqsdelay.limits import (
    BATCH_ENTRY_ID,
    FORBIDDEN_BODY_CHARACTER,
    MAX_BATCH_BYTES,
    MAX_BATCH_ENTRIES,
)

_PREFIX: Final = "AWS.SimpleQueueService."
_INVALID: Final = ("InvalidParameterValue", "InvalidParameterValueException")
"""A code and, where it differs, the newer name that boto3's exception classes go by."""


def check_batch(client: Any, entries: Sequence[Mapping[str, Any]], *, any_size: bool) -> None:
    """Refuse a batch that SQS refuses as a whole; parts of it could each pass.

    Args:
        any_size: large bodies will not be sent to SQS.

    Raises:
        ClientError: with the code SQS gives; nothing was sent.
    """
    count = len(entries)
    if count > MAX_BATCH_ENTRIES:
        text = (
            f"Maximum number of entries per request are {MAX_BATCH_ENTRIES}. You have sent {count}."
        )
        raise _batch_refusal(client, "TooManyEntriesInBatchRequest", text)
    ids = Counter(entry["Id"] for entry in entries)
    for entry_id, times in ids.items():
        if not BATCH_ENTRY_ID.fullmatch(entry_id):
            text = (
                f"{entry_id!r}: a batch entry id can only contain alphanumeric characters, hyphens "
                "and underscores. It can be at most 80 letters long."
            )
            raise _batch_refusal(client, "InvalidBatchEntryId", text)
        if times > 1:
            raise _batch_refusal(client, "BatchEntryIdsNotDistinct", f"Id {entry_id} repeated.")
    size = sum(
        size_of(entry["MessageBody"], entry.get("MessageAttributes", {})) for entry in entries
    )
    if size > MAX_BATCH_BYTES and not any_size:
        text = f"Batch requests cannot be longer than {MAX_BATCH_BYTES} bytes. You have sent {size} bytes."
        raise _batch_refusal(client, "BatchRequestTooLong", text)


def _batch_refusal(client: Any, name: str, text: str) -> Exception:
    return _client_error(client, "SendMessageBatch", (_PREFIX + name, name), text)


def refusal(client: Any, operation: str, error: SqsDelayError, body: str) -> Exception:
    """What boto3 would raise: what it did raise where it was SQS that refused, else a like of it."""
    own = error.__cause__
    of_sqs = isinstance(error, QueueUnavailable | SendFailed | ConfigurationError)
    if of_sqs and isinstance(own, ClientError | BotoCoreError):
        return own
    raised = _client_error(
        client, operation, _codes(error, body), str(error), sender=is_senders_fault(error)
    )
    raised.__cause__ = error
    return raised


def is_senders_fault(error: SqsDelayError) -> bool:
    """Whether the same message will never be taken."""
    if isinstance(error, SendFailed):
        return not error.transient
    return isinstance(error, ValueError | ConfigurationError | QueueMissing)


def failed_entry(entry_id: str, raised: Exception) -> dict[str, Any]:
    """The same in a batch answer's ``Failed``."""
    answer: Mapping[str, Any] = {}
    if isinstance(raised, ClientError):
        answer = raised.response.get("Error", {})
    return {
        "Id": entry_id,
        "SenderFault": answer.get("Type") == "Sender",
        "Code": answer.get("Code", type(raised).__name__),
        "Message": answer.get("Message", str(raised)),
    }


def _codes(error: SqsDelayError, body: str) -> tuple[str, str]:
    if isinstance(error, QueueMissing):
        return _PREFIX + "NonExistentQueue", "QueueDoesNotExist"
    if isinstance(error, SendFailed):
        return error.code, error.code
    if isinstance(error, ValueError) and FORBIDDEN_BODY_CHARACTER.search(body):
        return "InvalidMessageContents", "InvalidMessageContents"
    return _INVALID if is_senders_fault(error) else ("ServiceUnavailable", "ServiceUnavailable")


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
        "ResponseMetadata": {
            "RequestId": "",
            "HTTPStatusCode": 400 if sender else 503,
            "HTTPHeaders": {},
            "RetryAttempts": 0,
        },
    }
    raised: Exception = client.exceptions.from_code(name)(response, operation)
    return raised
