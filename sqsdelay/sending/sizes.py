"""What queues take; and bodies that are too large, which wait elsewhere while the message carries a pointer
in the format of AWS's Extended Client Libraries."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import inf
from typing import Final

from sqsdelay.core.endpoint import QueueRef
from sqsdelay.core.limits import MAX_MESSAGE_BYTES, MIN_QUEUE_LIMIT_BYTES
from sqsdelay.core.message import Attribute, CheckedMessage
from sqsdelay.core.readable import one_line
from sqsdelay.core.received_message import whole_number
from sqsdelay.errors import MalformedMessage, MessageTooLarge, SqsDelayError
from sqsdelay.ports.queues import Queues

logger = logging.getLogger(__name__)

LIMIT: Final = "MaximumMessageSize"
LIMIT_LIFETIME_SECONDS: Final = 300.0
"""How long an answer counts: a limit that was raised is known within this time."""


class SizeLimits:
    """What queues take, each asked once every five minutes. Thread-safe. To know it is no condition: a queue
    that does not exist, or may not be asked (AccessDenied), counts as one with SQS's own limit, and what is
    too large for it is refused when it is sent there."""

    def __init__(self, queues: Queues) -> None:
        self._queues = queues
        self._known: dict[QueueRef, tuple[int, float]] = {}

    def of(self, queue: QueueRef, *, size: int) -> int:
        """The queue's limit in bytes, as far as it matters for a message of ``size`` bytes. No queue's limit
        is below 1 KiB: for smaller messages it is not asked."""
        if size <= MIN_QUEUE_LIMIT_BYTES:
            return MAX_MESSAGE_BYTES
        now = self._queues.broker_clock.local.monotonic()
        limit, asked_at = self._known.get(queue, (MAX_MESSAGE_BYTES, -inf))
        if now - asked_at > LIMIT_LIFETIME_SECONDS:
            try:
                limit = limit_of(self._queues.attributes(self._queues.url(queue)))
            except SqsDelayError as error:
                limit = MAX_MESSAGE_BYTES
                told = queue.name, limit, one_line(error)
                logger.info("the limit of %s is not known, %s is assumed: %s", *told)
            self._known[queue] = limit, now
        return limit

    def check(self, queue: QueueRef, size: int) -> None:
        """Refuse a message the queue would refuse. Raises MessageTooLarge: with the queue, its limit and
        the remedy."""
        limit = self.of(queue, size=size)
        if size > limit:
            raise MessageTooLarge(
                f"message of {size} bytes (body and attributes in UTF-8) on its way through queue "
                f"{queue.name}, which takes {limit} (its {LIMIT}); shorten it, raise that to at most "
                f"{MAX_MESSAGE_BYTES}, or keep large bodies in S3 (large_bodies=Bucket(…), --bucket)"
            )


def limit_of(attributes: Mapping[str, str]) -> int:
    """What a queue of these attributes takes, in bytes; SQS's own limit where they do not tell."""
    return whole_number(attributes.get(LIMIT)) or MAX_MESSAGE_BYTES


PAYLOAD_SIZE: Final = "ExtendedPayloadSize"
"""The attribute (Number) by which receivers tell a pointer: the body's bytes in UTF-8."""

LEGACY_PAYLOAD_SIZE: Final = "SQSLargePayloadSize"
"""Its name in version 1 of the libraries; read, never written."""

_POINTER: Final = "software.amazon.payloadoffloading.PayloadS3Pointer"


@dataclass(frozen=True, slots=True)
class Pointer:
    """Where a body is."""

    bucket: str
    key: str

    def to_body(self) -> str:
        """The message body that represents it."""
        return json.dumps([_POINTER, {"s3BucketName": self.bucket, "s3Key": self.key}])


def payload_size(body: str) -> Attribute:
    """The attribute that goes with a pointer to this body."""
    return {"DataType": "Number", "StringValue": str(len(body.encode("utf-8")))}


def read_pointer(body: str, attributes: Mapping[str, Attribute]) -> Pointer | None:
    """The pointer a received message is; None if it holds its body itself. Raises MalformedMessage: it
    claims to be a pointer and is not."""
    if PAYLOAD_SIZE not in attributes and LEGACY_PAYLOAD_SIZE not in attributes:
        return None
    try:
        _, place = json.loads(body)
        return Pointer(str(place["s3BucketName"]), str(place["s3Key"]))
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        # Not the body itself: errors end up in logs.
        raise MalformedMessage(
            f"the message has the attribute {PAYLOAD_SIZE}, and its body of {len(body)} characters "
            "is not a pointer to a large body"
        ) from error


_SIZES: Final = frozenset({PAYLOAD_SIZE, LEGACY_PAYLOAD_SIZE})

_PLACEHOLDER: Final = Pointer("b" * 63, "k" * 1024).to_body()
"""As long as a pointer can be: S3 takes bucket names of 63 characters and keys of 1,024 bytes."""


def as_new(message: CheckedMessage) -> CheckedMessage:
    """The message without the attributes that marked its body as a pointer: who sends again what he received
    passes them on. One whose body is a pointer still keeps them."""
    if not _SIZES & message.attributes.keys():
        return message
    try:
        read_pointer(message.body, message.attributes)
    except MalformedMessage:
        left = {n: value for n, value in message.attributes.items() if n not in _SIZES}
        return replace(message, attributes=left)
    return message


def stand_in(message: CheckedMessage) -> CheckedMessage:
    """The message with a pointer's room for a body: all else can be checked before the body is put."""
    attributes = {**message.attributes, PAYLOAD_SIZE: payload_size(message.body)}
    return replace(message, body=_PLACEHOLDER, attributes=attributes)
