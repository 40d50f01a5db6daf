"""Pointers to bodies that wait elsewhere, in the format of AWS's Extended Client Libraries.

Source: amazon-sqs-java-extended-client-lib and amazon-sqs-python-extended-client-lib: the body is a
JSON array of a class name and an object, and an attribute tells the body's size.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from sqsdelay.core.message import Attribute
from sqsdelay.errors import MalformedMessage

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
