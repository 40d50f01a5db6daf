"""`BodyReader`: the whole body of a received message, wherever it is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from sqsdelay.core.body_pointer import Pointer, read_pointer
from sqsdelay.core.message import Attribute
from sqsdelay.errors import MalformedMessage
from sqsdelay.s3.client import default_client
from sqsdelay.s3.faults import translated

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client


class BodyReader:
    """Reads the bodies that messages point to, from one bucket.

    Who may send a message may write any pointer; so the bucket is the receiver's to name. A pointer
    to anything else is refused, and nothing is read or deleted with the receiver's rights.

    Args:
        bucket: the bucket's name, as senders have it.
        client: a boto3 S3 client; made from the default session when left out.
        prefix: of the objects' keys; give the sender's where the bucket holds other things too.
    """

    def __init__(self, bucket: str, client: S3Client | None = None, *, prefix: str = "") -> None:
        self._bucket = bucket
        self._prefix = prefix
        self._client = client or default_client()

    def read(self, body: str, attributes: Mapping[str, Attribute]) -> str:
        """The body of a received message: the object it points to, or itself if it is no pointer.

        Raises:
            BodyMissing: the object is gone. Do not delete the message: the object may be restored.
            MalformedMessage: it is no pointer though it says so, it points elsewhere, or what it
                points to is no text.
            BodyStoreMissing, BodyStoreUnavailable
        """
        pointer = self._own_pointer(body, attributes)
        if pointer is None:
            return body
        with translated(pointer.bucket, key=pointer.key):
            found = self._client.get_object(Bucket=pointer.bucket, Key=pointer.key)
            content = found["Body"].read()
        try:
            return content.decode("utf-8")
        except UnicodeDecodeError as error:
            raise MalformedMessage(
                f"the object {pointer.key!r} in bucket {pointer.bucket} is not UTF-8, so no body: {error}"
            ) from error

    def delete(self, body: str, attributes: Mapping[str, Attribute]) -> None:
        """Delete the object a message points to, if it does. Delete the message first.

        Raises:
            MalformedMessage, BodyStoreMissing, BodyStoreUnavailable
        """
        pointer = self._own_pointer(body, attributes)
        if pointer is not None:
            with translated(pointer.bucket, key=pointer.key):
                self._client.delete_object(Bucket=pointer.bucket, Key=pointer.key)

    def _own_pointer(self, body: str, attributes: Mapping[str, Attribute]) -> Pointer | None:
        pointer = read_pointer(body, attributes)
        if pointer is None or (
            pointer.bucket == self._bucket and pointer.key.startswith(self._prefix)
        ):
            return pointer
        place = f"bucket {self._bucket!r}" + (f", keys {self._prefix!r}…" if self._prefix else "")
        raise MalformedMessage(
            f"the message points to {pointer.key[:80]!r} in bucket {pointer.bucket[:80]!r}, and this "
            f"reader reads {place} only; if you trust who sent it, give the reader that bucket"
        )
