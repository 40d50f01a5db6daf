"""Large bodies wait elsewhere, and the message carries a pointer, in the format of AWS's Extended Client
Libraries."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from sqsdelay.core.checked_message import CheckedMessage
from sqsdelay.core.message import MOST_ADDED_BYTES, Attribute, size_of
from sqsdelay.errors import MalformedMessage
from sqsdelay.limits import MAX_MESSAGE_BYTES, MAX_RETENTION_SECONDS
from sqsdelay.ports.queues import LargeBodies
from sqsdelay.sending.router import ToQueue, ToStore

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
    """The pointer a received message is; None if it holds its body itself.

    Raises:
        MalformedMessage: it claims to be a pointer and is not.
    """
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


class Offloading:
    """Takes large bodies off messages.

    Args:
        bodies: where they are kept.
    """

    def __init__(self, bodies: LargeBodies) -> None:
        self._bodies = bodies

    def as_new(self, message: CheckedMessage) -> CheckedMessage:
        """The message without the attributes that marked its body as a pointer.

        They are on what is received, and on what is sent again with all that was received. One whose
        body is a pointer still keeps them.
        """
        if not _SIZES & message.attributes.keys():
            return message
        try:
            read_pointer(message.body, message.attributes)
        except MalformedMessage:
            left = {n: value for n, value in message.attributes.items() if n not in _SIZES}
            return replace(message, attributes=left)
        return message

    def wants(self, message: CheckedMessage, limit: Callable[[int], int]) -> bool:
        """Whether the message is too large to carry its body itself.

        Args:
            limit: what the queues on its way take, bytes, for a message of so many.
        """
        size = message.size
        most = size + MOST_ADDED_BYTES
        return size > self._bodies.above_bytes or most > MAX_MESSAGE_BYTES or most > limit(most)

    def stand_in(self, message: CheckedMessage) -> CheckedMessage:
        """The message with a pointer's room for a body: all else can be checked before the body is put."""
        attributes = {**message.attributes, PAYLOAD_SIZE: payload_size(message.body)}
        return replace(message, body=_PLACEHOLDER, attributes=attributes)

    def put(self, body: str, prepared: ToQueue | ToStore) -> ToQueue | ToStore:
        """Keep the body, and put the pointer into the message that is ready to go.

        It is kept until the message's last day in the destination queue at least.

        Raises:
            ConfigurationError, BodyStoreMissing, BodyStoreUnavailable
        """
        due_ms = prepared.due_ms if isinstance(prepared, ToQueue) else prepared.stored.due_ms
        pointer = self._bodies.put(body, needed_until_ms=due_ms + MAX_RETENTION_SECONDS * 1000)
        if isinstance(prepared, ToStore):
            prepared.stored = replace(prepared.stored, body=pointer.encode("utf-8"))
        else:
            prepared.entry.body = pointer
            prepared.entry.size = size_of(pointer, prepared.entry.attributes)
        return prepared
