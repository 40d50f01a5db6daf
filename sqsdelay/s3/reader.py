"""`BodyReader`: the whole body of a received message, wherever it is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import boto3

from sqsdelay.message import Attribute
from sqsdelay.payload import read_pointer
from sqsdelay.s3.faults import translated

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client


class BodyReader:
    """Reads the bodies that messages point to, from the buckets they name.

    Args:
        client: a boto3 S3 client; made from the default session when left out.
    """

    def __init__(self, client: S3Client | None = None) -> None:
        self._client = client or boto3.client("s3")

    def read(self, body: str, attributes: Mapping[str, Attribute]) -> str:
        """The body of a received message: the object it points to, or itself if it is no pointer.

        Raises:
            BodyMissing: the object is gone. Do not delete the message: the object may be restored.
            MalformedMessage: it is no pointer though it says so.
            BodyStoreMissing, BodyStoreUnavailable
        """
        pointer = read_pointer(body, attributes)
        if pointer is None:
            return body
        with translated(pointer.bucket, key=pointer.key):
            found = self._client.get_object(Bucket=pointer.bucket, Key=pointer.key)
            return found["Body"].read().decode("utf-8")

    def delete(self, body: str, attributes: Mapping[str, Attribute]) -> None:
        """Delete the object a message points to, if it does. Delete the message first.

        Raises:
            MalformedMessage, BodyStoreMissing, BodyStoreUnavailable
        """
        pointer = read_pointer(body, attributes)
        if pointer is not None:
            with translated(pointer.bucket, key=pointer.key):
                self._client.delete_object(Bucket=pointer.bucket, Key=pointer.key)
