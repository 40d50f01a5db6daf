"""An endpoint: a destination queue and the names of the queues that serve its delays."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Final
from urllib.parse import urlsplit

from sqsdelay.core import limits
from sqsdelay.errors import InvalidEndpoint

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
    """One queue: its name and, if the caller gave them, its account, region and URL."""

    name: str
    account_id: str | None = None
    region: str | None = None
    url: str | None = None


@dataclass(frozen=True)
class Endpoint:
    """A destination queue with the queues beside it that serve its delays: a delay queue and an error
    queue. A FIFO queue takes no message timers: the last leg of a delay waits on a standard queue, the due
    queue, and is sent on from there."""

    queue: QueueRef

    @classmethod
    def parse(cls, text: str) -> Endpoint:
        """The endpoint of a queue name, queue URL or queue ARN. Raises InvalidEndpoint: not one of those, or
        a name too long for the suffixes sqsdelay adds."""
        if not isinstance(text, str):
            raise InvalidEndpoint(f"endpoint {text!r} is not a queue name, queue URL or queue ARN")
        return _parsed(text)

    @property
    def name(self) -> str:
        return self.queue.name

    @property
    def address(self) -> str:
        """The URL, ARN or name that this endpoint was given by; `parse` reads it."""
        queue = self.queue
        if queue.url is None and queue.region is not None:
            return f"arn:aws:sqs:{queue.region}:{queue.account_id}:{queue.name}"
        return queue.url or queue.name

    @cached_property
    def delay_queue(self) -> QueueRef:
        return self._beside(limits.DELAY_QUEUE_SUFFIX)

    @cached_property
    def error_queue(self) -> QueueRef:
        return self._beside(limits.ERROR_QUEUE_SUFFIX)

    @cached_property
    def fifo(self) -> bool:
        """Whether the destination is a FIFO queue."""
        return self.queue.name.endswith(limits.FIFO_SUFFIX)

    @cached_property
    def due_queue(self) -> QueueRef:
        """Where a FIFO endpoint's message timers run; a standard endpoint has none."""
        return self._beside(limits.DUE_QUEUE_SUFFIX)

    @cached_property
    def parking_queue(self) -> QueueRef:
        """Where the delay consumer function gathers what is to be parked; deployed with an S3 store."""
        return self._beside(limits.PARKING_QUEUE_SUFFIX)

    @property
    def hand_over_queue(self) -> QueueRef:
        """Where the last leg waits as a message timer: the due queue, or the destination itself."""
        return self.due_queue if self.fifo else self.queue

    @property
    def queues(self) -> tuple[QueueRef, ...]:
        """All the queues of the endpoint."""
        due = (self.due_queue,) if self.fifo else ()
        return (self.queue, *due, self.delay_queue, self.error_queue)

    @property
    def twin(self) -> QueueRef:
        """The destination of the other kind whose delay queue would have the same name."""
        return self._beside("" if self.fifo else limits.FIFO_SUFFIX)

    def _beside(self, suffix: str) -> QueueRef:
        name = self.queue.name.removesuffix(limits.FIFO_SUFFIX) + suffix
        return QueueRef(name, self.queue.account_id, self.queue.region)


def collision(endpoint: Endpoint, exists: Callable[[QueueRef], bool]) -> str | None:
    """Why an endpoint cannot be, beside another of its account; None if it can. ``orders`` and
    ``orders.fifo`` would share ``orders-delay.fifo``. A FIFO queue beside a standard endpoint harms nobody
    while it is no endpoint itself, which its due queue shows."""
    if (endpoint.fifo or exists(endpoint.due_queue)) and exists(endpoint.twin):
        return (
            f"{endpoint.name} would share the delay queue {endpoint.delay_queue.name} with "
            f"{endpoint.twin.name}, which exists; rename one of them"
        )
    for what, suffix, kind in (
        ("due", limits.DUE_QUEUE_SUFFIX, limits.FIFO_SUFFIX),
        ("parking", limits.PARKING_QUEUE_SUFFIX, ""),
        ("parking", limits.PARKING_QUEUE_SUFFIX, limits.FIFO_SUFFIX),
    ):
        if not endpoint.name.endswith(suffix):
            continue
        owner = replace(endpoint.queue, name=endpoint.name.removesuffix(suffix) + kind, url=None)
        if exists(owner) and exists(Endpoint(owner).delay_queue):
            return f"{endpoint.name} is the {what} queue of the endpoint {owner.name}; rename the endpoint"
    return None


@lru_cache(maxsize=1_000)  # Thousands of messages go to a few queues.
def _parsed(text: str) -> Endpoint:
    if text.startswith("arn:"):
        match = _ARN.fullmatch(text)
        if match is None:
            raise InvalidEndpoint(
                f"endpoint {text!r} is not a queue ARN; write arn:aws:sqs:REGION:ACCOUNT:NAME"
            )
        ref = QueueRef(match[3], match[2], match[1])
    elif "://" in text:
        ref = _from_url(text)
    else:
        ref = QueueRef(text)
    _check_name(ref.name)
    return Endpoint(ref)


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
    base = name.removesuffix(limits.FIFO_SUFFIX)
    if not limits.QUEUE_NAME.fullmatch(base):
        raise InvalidEndpoint(
            f"endpoint {name!r} is not a queue name; use letters, digits, '-' and '_'"
        )
    if len(base) > limits.MAX_ENDPOINT_CHARS:
        raise InvalidEndpoint(
            f"endpoint {name!r} has {len(base)} characters; the limit is {limits.MAX_ENDPOINT_CHARS} "
            f"(SQS takes {limits.MAX_QUEUE_NAME_CHARS}, and {limits.ERROR_QUEUE_SUFFIX!r} is added); "
            "shorten it"
        )
    if base.endswith(
        (limits.ERROR_QUEUE_SUFFIX, limits.DELAY_QUEUE_SUFFIX.removesuffix(limits.FIFO_SUFFIX))
    ):
        raise InvalidEndpoint(
            f"endpoint {name!r} ends like one of sqsdelay's own queues; name the destination queue"
        )
