"""An endpoint: a destination queue and the names of the queues that serve its delays."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from typing import Final
from urllib.parse import urlsplit

from sqsdelay.errors import InvalidEndpoint
from sqsdelay.limits import (
    DELAY_QUEUE_SUFFIX,
    ERROR_QUEUE_SUFFIX,
    MAX_ENDPOINT_CHARS,
    MAX_QUEUE_NAME_CHARS,
    QUEUE_NAME,
)

_ARN: Final = re.compile(r"arn:[a-z-]+:sqs:([a-z0-9-]+):(\d{12}):([^:/]+)", re.ASCII)
_AWS_HOST: Final = re.compile(
    r"(?:sqs|queue)\.([a-z0-9-]+)\.(?:amazonaws\.com(?:\.cn)?|api\.aws)"
    r"|([a-z0-9-]+)\.queue\.amazonaws\.com",
    re.ASCII,
)
"""Source: docs.aws.amazon.com/general/latest/gr/sqs-service.html; the second form is the legacy one."""
_ACCOUNT: Final = re.compile(r"\d{12}", re.ASCII)


@dataclass(frozen=True, slots=True)
class QueueRef:
    """One queue: its name, and where the caller said so, its account, region and URL."""

    name: str
    account_id: str | None = None
    region: str | None = None
    url: str | None = None


@dataclass(frozen=True)
class Endpoint:
    """A destination queue with its delay queue and error queue."""

    queue: QueueRef

    @classmethod
    def parse(cls, text: str) -> Endpoint:
        """The endpoint of a queue name, queue URL or queue ARN.

        Raises:
            InvalidEndpoint: not one of those, or a name too long for the suffixes sqsdelay adds.
        """
        if not isinstance(text, str):
            raise InvalidEndpoint(f"endpoint {text!r} is not a queue name, queue URL or queue ARN")
        if text.startswith("arn:"):
            ref = _from_arn(text)
        elif "://" in text:
            ref = _from_url(text)
        else:
            ref = QueueRef(text)
        _check_name(ref.name)
        return cls(ref)

    @property
    def name(self) -> str:
        return self.queue.name

    @cached_property
    def delay_queue(self) -> QueueRef:
        return self._beside(DELAY_QUEUE_SUFFIX)

    @cached_property
    def error_queue(self) -> QueueRef:
        return self._beside(ERROR_QUEUE_SUFFIX)

    def _beside(self, suffix: str) -> QueueRef:
        return QueueRef(self.queue.name + suffix, self.queue.account_id, self.queue.region)


def _from_arn(text: str) -> QueueRef:
    match = _ARN.fullmatch(text)
    if match is None:
        raise InvalidEndpoint(
            f"endpoint {text!r} is not a queue ARN; write arn:aws:sqs:REGION:ACCOUNT:NAME"
        )
    region, account_id, name = match.groups()
    return QueueRef(name, account_id, region)


def _from_url(text: str) -> QueueRef:
    try:
        parts = urlsplit(text)
        host = parts.hostname or ""
    except ValueError as error:
        raise InvalidEndpoint(f"endpoint {text!r} is not a queue URL: {error}") from error
    segments = [segment for segment in parts.path.split("/") if segment]
    if not segments:
        raise InvalidEndpoint(f"endpoint {text!r} is not a queue URL: it has no queue name")
    account = segments[-2] if len(segments) > 1 and _ACCOUNT.fullmatch(segments[-2]) else None
    match = _AWS_HOST.fullmatch(host)
    region = (match[1] or match[2]) if match else None
    return QueueRef(segments[-1], account, region, text.rstrip("/"))


def _check_name(name: str) -> None:
    if name.endswith(".fifo"):
        raise InvalidEndpoint(
            f"endpoint {name!r} is a FIFO queue, which takes no message timers; "
            "use a standard queue as the endpoint"
        )
    if not QUEUE_NAME.fullmatch(name):
        raise InvalidEndpoint(
            f"endpoint {name!r} is not a queue name; use letters, digits, '-' and '_'"
        )
    if len(name) > MAX_ENDPOINT_CHARS:
        raise InvalidEndpoint(
            f"endpoint {name!r} has {len(name)} characters; the most is {MAX_ENDPOINT_CHARS} "
            f"(SQS takes {MAX_QUEUE_NAME_CHARS}, and {ERROR_QUEUE_SUFFIX!r} is added); shorten it"
        )
    if name.endswith((ERROR_QUEUE_SUFFIX, DELAY_QUEUE_SUFFIX.removesuffix(".fifo"))):
        raise InvalidEndpoint(
            f"endpoint {name!r} carries a suffix of sqsdelay's own queues; name the destination queue"
        )
