"""boto3 clients with time limits of seconds, and botocore's errors as ours."""

from __future__ import annotations

import io
import logging
import math
import platform
import socket
import time
from collections.abc import Callable
from functools import cache, partial
from http.client import HTTPResponse
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

import boto3
import botocore
from botocore import exceptions
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError
from botocore.parsers import ResponseParserError

from sqsdelay import errors
from sqsdelay.core.delay import may_begin
from sqsdelay.core.limits import ANSWER_SECONDS, CALL_ATTEMPTS, CONNECT_SECONDS
from sqsdelay.core.readable import one_line
from sqsdelay.errors import ConfigurationError, QueueMissing, SendFailed, SqsDelayError
from sqsdelay.ports import in_each_child
from sqsdelay.ports.queues import Failure

if TYPE_CHECKING:
    from mypy_boto3_sqs import SQSClient


logger = logging.getLogger(__name__)


def client_config(
    *,
    connections: int,
    parameter_validation: bool = True,
    wait_seconds: int = 0,
    attempts: int = CALL_ATTEMPTS,
    patience: float = 1,
) -> Config:
    """The settings of a client of sqsdelay's. Whole calls are retried by botocore ("standard" mode:
    throttling, 5xx, lost connections). No call is without a time limit: botocore's own minute for each of six
    attempts is an outage. ``parameter_validation``: False for a caller that has checked all it passes:
    botocore's own check of every value is a tenth of the work of a batch send. ``wait_seconds``: of the long
    polls it will be used for; an answer may take so much longer. ``attempts``: on one call, the first
    included. ``patience``: the part of the usual time limits that each attempt has."""
    return Config(
        connect_timeout=patience * CONNECT_SECONDS,
        read_timeout=wait_seconds + patience * ANSWER_SECONDS,
        retries={"mode": "standard", "total_max_attempts": attempts},
        # Room for more threads than the caller knows of: connections are made when they are needed, and one
        # without a place here is made anew for each request.
        max_pool_connections=max(64, connections),
        tcp_keepalive=True,
        parameter_validation=parameter_validation,
        user_agent=_user_agent(),
    )


@cache
def _user_agent() -> str:
    """Who asks, put together once: botocore's own is put together twice for each request, a tenth of
    the work of a batch send."""
    # boto3 adds botocore's name and version.
    return f"sqsdelay Boto3/{boto3.__version__} Python/{platform.python_version()}"


def default_client(
    *, region: str | None = None, endpoint_url: str | None = None, **settings: Any
) -> SQSClient:
    """An SQS client of the default session (environment, profile and region as with the AWS CLI).

    ``region`` and ``endpoint_url`` are instead of the session's, ``settings`` as for `client_config`. Raises
    ConfigurationError: no region, an unknown profile, or another setting boto3 cannot use."""
    config = client_config(**settings)
    try:
        client = boto3.client("sqs", config=config, region_name=region, endpoint_url=endpoint_url)
    except (BotoCoreError, ValueError) as error:
        raise ConfigurationError(
            f"{str(error).rstrip('.')}; set AWS_DEFAULT_REGION and AWS_PROFILE (or AWS_ENDPOINT_URL), "
            "or give sqsdelay --region and --profile before its command"
        ) from error
    client.meta.events.register_first(
        "needs-retry.sqs", partial(_before_a_retry, settings.get("attempts", CALL_ATTEMPTS))
    )
    # A closed client opens connections again when it needs them; the parent's are left to the parent.
    in_each_child(client, type(client).close)
    return client


KNOWN_BOTOCORE: Final = "1.43.106"
"""The newest that `limit_whole_answers` is tested with; the private parts it needs are there since 1.39."""


class _InTime(io.RawIOBase):
    """What comes on a socket, until the socket's time limit has passed once."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._raw = sock.makefile("rb", buffering=0)
        self._until = time.monotonic() + cast(float, sock.gettimeout())  # Clients of ours have one.

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        # At 0 the socket would not wait at all, and that is no timeout.
        self._sock.settimeout(max(self._until - time.monotonic(), 0.001))
        return self._raw.readinto(buffer)

    def close(self) -> None:
        self._raw.close()
        super().close()


class _Answer(HTTPResponse):
    def __init__(self, sock: socket.socket, *args: Any, **kwargs: Any) -> None:
        super().__init__(sock, *args, **kwargs)
        self.fp.close()
        self.fp = io.BufferedReader(_InTime(sock))


def limit_whole_answers(client: SQSClient, left: Callable[[], float] = lambda: math.inf) -> None:
    """Let the client's time limit be that of an answer, and not anew of each part of it that comes; and let
    no limit be longer than the seconds that are ``left``."""
    limited = property(
        lambda connection: max(min(connection.given, left()), 0.001),
        lambda connection, seconds: setattr(connection, "given", seconds),
    )
    own = {"response_class": _Answer, "timeout": limited}
    try:
        # botocore has no public way to replace them.
        pools = cast(Any, client)._endpoint.http_session._pool_classes_by_scheme
        for scheme, pool in pools.items():
            connection = type("Connection", (pool.ConnectionCls,), own)
            pools[scheme] = type("Pool", (pool,), {"ConnectionCls": connection})
    except AttributeError as error:
        logger.warning(
            "a send may take longer than deadline_seconds where an answer trickles in: botocore %s is not as "
            "%s (%s); install that",
            botocore.__version__,
            KNOWN_BOTOCORE,
            one_line(error),
        )


def _before_a_retry(most: int, **event: Any) -> None:
    """Say what a call waits for, where botocore would try again in silence; end it if there is no time
    for the pause, which takes up to 1 s and then 2 s (botocore's standard mode)."""
    attempts, error = event["attempts"], event.get("caught_exception")
    if attempts == most:
        return
    if not may_begin(2 ** (attempts - 1)):
        if error is not None:
            raise error
        http, answer = event["response"]
        if http.status_code >= 400:
            raise ClientError(answer, event["operation"].name)
    if error is not None:
        why = one_line(error)
        logger.warning("waiting for SQS, attempt %d of %d failed: %s", attempts, most, why)


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


class UnreadableAnswer(exceptions.HTTPClientError):
    """Whatever answered, it was not SQS."""

    fmt = "the answer cannot be read ({kind}: {reason}); check for a proxy between here and SQS"


class OutOfTime(exceptions.HTTPClientError):
    """The call's time was over before this request."""

    fmt = "the time for this call (deadline_seconds, or the function's) is over"


def asked(call: Callable[..., T], **arguments: Any) -> T:
    """Make a call of a client's. Raises ClientError, BotoCoreError, and nothing else, whatever comes for an
    answer."""
    if not may_begin():
        raise OutOfTime()
    try:
        return call(**arguments)
    except (ClientError, BotoCoreError):
        raise
    except _UNREADABLE as error:
        raise UnreadableAnswer(kind=type(error).__name__, reason=error) from error


def failure_of(error: ClientError | BotoCoreError, queue_url: str) -> Failure:
    """What a failed call means for each of its entries."""
    translation = translated(error, queue_url)
    translation.__cause__ = error
    transient = not isinstance(translation, SendFailed)
    outage = isinstance(translation, errors.QueueUnavailable)
    return Failure(_code(error), translation, transient=transient, outage=outage)


def translated(error: ClientError | BotoCoreError, queue: str) -> SqsDelayError:
    """The error to raise for a failed call on ``queue`` (its name or URL)."""
    code = _code(error)
    if code in MISSING_QUEUE:
        return QueueMissing(f"queue {queue} does not exist; create it, or correct the name")
    if code in PERMANENT or isinstance(error, exceptions.ParamValidationError):
        return SendFailed(f"SQS refused the call on {queue}: {error}", code=code, transient=False)
    if isinstance(error, exceptions.NoCredentialsError | exceptions.PartialCredentialsError):
        remedy = "set AWS_PROFILE or AWS_ACCESS_KEY_ID as for the AWS CLI"
        return ConfigurationError(f"{error}; {remedy}")
    unanswered = isinstance(error, exceptions.ConnectionError | exceptions.HTTPClientError)
    kind = errors.QueueUnreachable if unanswered else errors.QueueUnavailable
    return kind(f"queue {queue} cannot be used now: {error}; try again later")


def entry_failure(code: str, text: str, queue_url: str, *, sender_fault: bool) -> Failure:
    """What one ``Failed`` entry of a batch answer means."""
    if code in MISSING_QUEUE:
        return Failure(code, QueueMissing(f"queue {queue_url} does not exist"), transient=True)
    # Denied access and throttling are marked as the sender's fault too, yet they pass.
    passes = any(word in code for word in ("AccessDenied", "Throttl", "Kms", "KMS", "Expired"))
    permanent = sender_fault and (code in PERMANENT or not passes)
    error = SendFailed(f"SQS failed the entry: {code}: {text}", code=code, transient=not permanent)
    return Failure(code, error, transient=not permanent, retry_at_once=not sender_fault)


def _code(error: ClientError | BotoCoreError) -> str:
    if isinstance(error, ClientError):
        return str(error.response.get("Error", {}).get("Code", "Unknown"))
    return type(error).__name__
