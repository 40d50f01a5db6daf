"""`Bucket`: keeps the bodies that are too large for a message, while their messages wait."""

from __future__ import annotations

import threading
import uuid
from typing import TYPE_CHECKING

from sqsdelay.core.body_pointer import Pointer
from sqsdelay.core.clock import Clock, SystemClock
from sqsdelay.errors import InvalidSetting
from sqsdelay.limits import MAX_MESSAGE_BYTES
from sqsdelay.s3.client import default_client
from sqsdelay.s3.faults import translated
from sqsdelay.s3.lifecycle import Expiry, expiries

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client


class Bucket:
    """A bucket for large bodies; give it to a sender as ``large_bodies``. Thread-safe.

    sqsdelay never deletes a body: a receiver may, once it is no longer needed.

    Args:
        name: the bucket's name.
        client: a boto3 S3 client; made from the default session when left out.
        above_bytes: messages larger than this (body and attributes, in UTF-8) leave their body here;
            what SQS takes when left out.
        prefix: of the objects' keys, e.g. ``bodies/``.
        clock: lifecycle rules are counted from it.

    Raises:
        ConfigurationError: ``above_bytes`` out of range.
    """

    def __init__(
        self,
        name: str,
        client: S3Client | None = None,
        *,
        above_bytes: int = MAX_MESSAGE_BYTES,
        prefix: str = "",
        clock: Clock | None = None,
    ) -> None:
        if not 0 <= above_bytes <= MAX_MESSAGE_BYTES:
            raise InvalidSetting(
                f"above_bytes={above_bytes}; use 0 to {MAX_MESSAGE_BYTES}, the limit of SQS"
            )
        self.name = name
        self._above_bytes = above_bytes
        self._prefix = prefix
        self._clock = clock or SystemClock()
        self._client = client or default_client()
        self._expiries: list[Expiry] | None = None
        self._lock = threading.Lock()

    @property
    def above_bytes(self) -> int:
        return self._above_bytes

    def put(self, body: str, *, needed_until_ms: int) -> str:
        """Keep a body; returns the message body that points to it.

        Raises:
            ConfigurationError: a lifecycle rule could delete it before ``needed_until_ms``.
            BodyStoreMissing: there is no such bucket.
            BodyStoreUnavailable: the bucket could not be reached, or the write was denied.
        """
        pointer = Pointer(self.name, f"{self._prefix}{uuid.uuid4()}")
        with translated(self.name):
            for expiry in self._read_expiries():
                expiry.refuse(
                    self.name, now_ms=self._clock.now_ms(), needed_until_ms=needed_until_ms
                )
            self._client.put_object(
                Bucket=self.name,
                Key=pointer.key,
                Body=body.encode("utf-8"),
                ContentType="text/plain; charset=utf-8",
            )
        return pointer.to_body()

    def _read_expiries(self) -> list[Expiry]:
        """The bucket's expiry rules for our keys, read once."""
        with self._lock:
            if self._expiries is None:
                self._expiries = expiries(self._client, self.name, self._prefix)
            return self._expiries
