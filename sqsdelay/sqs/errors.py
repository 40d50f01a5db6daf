"""botocore's errors in sqsdelay's terms, translated once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar

from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    ConnectionError,
    HTTPClientError,
    NoCredentialsError,
    ParamValidationError,
    PartialCredentialsError,
)
from botocore.parsers import ResponseParserError

from sqsdelay.errors import (
    ConfigurationError,
    QueueMissing,
    QueueUnavailable,
    QueueUnreachable,
    SendFailed,
    SqsDelayError,
)
from sqsdelay.ports.queues import Failure

MISSING_QUEUE: Final = frozenset(
    {"AWS.SimpleQueueService.NonExistentQueue", "QueueDoesNotExist", "NonExistentQueue"}
)

# What no later attempt will cure. Everything else (throttling, 5xx, denied access, expired
# credentials, a queue that is gone for now) may work again, and is waited for.
PERMANENT: Final = frozenset(
    {
        "AWS.SimpleQueueService.BatchRequestTooLong",
        "AWS.SimpleQueueService.UnsupportedOperation",
        "BatchRequestTooLong",
        "InvalidAttributeValue",
        "InvalidMessageContents",
        "InvalidParameterCombination",
        "InvalidParameterValue",
        "InvalidParameterValueException",
        "MissingParameter",
        "UnsupportedOperation",
        "ValidationError",
        "ValidationException",
    }
)


_UNREADABLE: Final = (ResponseParserError, AttributeError, LookupError, TypeError, ValueError)
"""What botocore's parser raises at an answer that is no SQS answer (a gateway's page, a list)."""

T = TypeVar("T")


class UnreadableAnswer(BotoCoreError):
    """Whatever answered, it was not SQS."""

    fmt = "the answer cannot be read ({kind}: {reason}); check for a proxy between here and SQS"


_UNANSWERED: Final = (ConnectionError, HTTPClientError, UnreadableAnswer)


def asked(call: Callable[..., T], **arguments: Any) -> T:
    """Make a call of a client's.

    Raises:
        ClientError, BotoCoreError: and nothing else, whatever comes for an answer.
    """
    try:
        return call(**arguments)
    except (ClientError, BotoCoreError):
        raise
    except _UNREADABLE as error:
        raise UnreadableAnswer(kind=type(error).__name__, reason=error) from error


def failure_of(error: ClientError | BotoCoreError, queue_url: str) -> Failure:
    """What a failed call means for each of its entries."""
    code = _code(error)
    permanent = code in PERMANENT or isinstance(error, ParamValidationError)
    translation = translated(error, queue_url)
    translation.__cause__ = error
    outage = isinstance(translation, QueueUnavailable)
    return Failure(code, translation, transient=not permanent, outage=outage)


def translated(error: ClientError | BotoCoreError, queue: str) -> SqsDelayError:
    """The error to raise for a failed call on ``queue`` (its name or URL)."""
    code = _code(error)
    if code in MISSING_QUEUE:
        return QueueMissing(f"queue {queue} does not exist; create it, or correct the name")
    if code in PERMANENT or isinstance(error, ParamValidationError):
        return SendFailed(f"SQS refused the call on {queue}: {error}", code=code, transient=False)
    if isinstance(error, NoCredentialsError | PartialCredentialsError):
        return ConfigurationError(
            f"{error}; set AWS_PROFILE or AWS_ACCESS_KEY_ID as for the AWS CLI"
        )
    kind = QueueUnreachable if isinstance(error, _UNANSWERED) else QueueUnavailable
    return kind(f"queue {queue} cannot be used now: {error}; try again later")


def entry_failure(code: str, text: str, queue_url: str, *, sender_fault: bool) -> Failure:
    """What one ``Failed`` entry of a batch answer means."""
    if code in MISSING_QUEUE:
        return Failure(code, QueueMissing(f"queue {queue_url} does not exist"), transient=True)
    permanent = sender_fault and (code in PERMANENT or not _may_pass(code))
    error = SendFailed(f"SQS failed the entry: {code}: {text}", code=code, transient=not permanent)
    return Failure(code, error, transient=not permanent, retry_at_once=not sender_fault)


def _may_pass(code: str) -> bool:
    """Denied access and throttling are marked as the sender's fault too, yet they pass."""
    return any(word in code for word in ("AccessDenied", "Throttl", "Kms", "KMS", "Expired"))


def _code(error: ClientError | BotoCoreError) -> str:
    if isinstance(error, ClientError):
        return str(error.response.get("Error", {}).get("Code", "Unknown"))
    return type(error).__name__
