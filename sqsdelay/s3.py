"""Large bodies in Amazon S3 (boto3)."""

from __future__ import annotations

import logging
import threading
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from sqsdelay import errors
from sqsdelay.core.delay import Clock, SystemClock, check_range, utc
from sqsdelay.core.limits import ANSWER_SECONDS, CALL_ATTEMPTS, CONNECT_SECONDS, MAX_MESSAGE_BYTES
from sqsdelay.core.message import Attribute
from sqsdelay.sending.sizes import Pointer, read_pointer

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

__all__ = ["BodyReader", "Bucket"]


def default_client() -> S3Client:
    """A client of the default session; a bucket that does not answer is given up within seconds."""
    config = Config(
        connect_timeout=CONNECT_SECONDS,
        read_timeout=ANSWER_SECONDS,
        retries={"mode": "standard", "total_max_attempts": CALL_ATTEMPTS},
        tcp_keepalive=True,
    )
    return boto3.client("s3", config=config)


_MISSING_BUCKET: Final = frozenset({"NoSuchBucket", "InvalidBucketName"})


@contextmanager
def translated(bucket: str, *, key: str | None = None) -> Iterator[None]:
    """botocore's errors in a call on a bucket, or on one object of it."""
    try:
        yield
    except (ClientError, BotoCoreError) as error:
        response: Any = error.response if isinstance(error, ClientError) else {}
        code = response.get("Error", {}).get("Code", "")
        if code == "NoSuchKey":
            raise errors.BodyMissing(
                f"the body {key} is no longer in bucket {bucket}; keep the message, and restore the "
                "object or look for what deleted it (a lifecycle rule, another receiver)"
            ) from error
        if code in _MISSING_BUCKET:
            told = f"bucket {bucket} does not exist; create it, or correct the name"
            raise errors.BodyStoreMissing(told) from error
        raise errors.BodyStoreUnavailable(f"bucket {bucket} cannot be used now: {error}") from error


logger = logging.getLogger(__name__)

_DAY_MS: Final = 24 * 3600 * 1000


def expiry_rules(client: S3Client, bucket: str, prefix: str) -> list[Any]:
    """The bucket's rules that delete objects of this prefix; none where they may not be read: the log says
    so."""
    try:
        rules: list[Any] = client.get_bucket_lifecycle_configuration(Bucket=bucket).get("Rules", [])
    except ClientError as error:
        code = error.response.get("Error", {}).get("Code", "")
        if code == "AccessDenied":
            logger.warning("lifecycle rules of %s not read, s3:GetLifecycleConfiguration", bucket)
        elif code != "NoSuchLifecycleConfiguration":
            raise
        return []
    return [rule for rule in rules if _deletes(rule, prefix)]


def _deletes(rule: Mapping[str, Any], prefix: str) -> bool:
    filtered = rule.get("Filter", {})
    both = filtered.get("And", filtered)
    if rule.get("Status") != "Enabled" or not {"Days", "Date"} & set(rule.get("Expiration", {})):
        return False
    ruled = both.get("Prefix", rule.get("Prefix", "")) or ""
    # Bodies carry no tags.
    tagged = both.get("Tag") or both.get("Tags")
    return not tagged and bool(prefix.startswith(ruled) or ruled.startswith(prefix))


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
        check_range(0, MAX_MESSAGE_BYTES, ", the limit of SQS", above_bytes=above_bytes)
        self.name, self._above_bytes, self._prefix = name, above_bytes, prefix
        self._clock, self._client = clock or SystemClock(), client or default_client()
        self._rules: list[Any] | None = None
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
            self._check_rules(needed_until_ms)
            self._client.put_object(
                Bucket=self.name,
                Key=pointer.key,
                Body=body.encode("utf-8"),
                ContentType="text/plain; charset=utf-8",
            )
        return pointer.to_body()

    def _check_rules(self, needed_until_ms: int) -> None:
        """Refuse a rule that could delete an object put now too early; the rules are read once."""
        with self._lock:
            if self._rules is None:
                self._rules = expiry_rules(self._client, self.name, self._prefix)
        for rule in self._rules:
            days, at = (rule["Expiration"].get(name) for name in ("Days", "Date"))
            now_ms = self._clock.now_ms()
            ends_ms = now_ms + (days or 0) * _DAY_MS if at is None else round(at.timestamp() * 1000)
            if ends_ms < needed_until_ms:
                raise errors.ConfigurationError(
                    f"lifecycle rule {rule.get('ID', 'without a name')!r} of bucket {self.name} deletes "
                    f"bodies at {utc(ends_ms):%Y-%m-%d}, and this one is needed until "
                    f"{utc(needed_until_ms):%Y-%m-%d} (its due time and 14 days in the destination queue); "
                    "lengthen the rule, keep it from these keys (prefix=), or use another bucket"
                )


class BodyReader:
    """Reads the bodies that messages point to, from one bucket.

    Anyone who may send a message can write any pointer, so the receiver names the bucket. A pointer
    to anything else is refused, and nothing is read or deleted with the receiver's rights.

    Args:
        bucket: the bucket's name, as senders have it.
        client: a boto3 S3 client; made from the default session when left out.
        prefix: of the objects' keys; give the sender's where the bucket holds other things too.
    """

    def __init__(self, bucket: str, client: S3Client | None = None, *, prefix: str = "") -> None:
        self._bucket, self._prefix, self._client = bucket, prefix, client or default_client()

    def read(self, body: str, attributes: Mapping[str, Attribute]) -> str:
        """The body of a received message: the object it points to, or itself if it is no pointer.

        Raises:
            BodyMissing: the object is gone. Do not delete the message: the object may be restored.
            MalformedMessage: it claims to be a pointer but is not, it points elsewhere, or what it
                points to is not text.
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
            told = f"the object {pointer.key!r} in bucket {pointer.bucket} is not a body, because it is "
            raise errors.MalformedMessage(f"{told}not UTF-8: {error}") from error

    def delete(self, body: str, attributes: Mapping[str, Attribute]) -> None:
        """Delete the object that a message points to, if any. Delete the message first.

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
        raise errors.MalformedMessage(
            f"the message points to {pointer.key[:80]!r} in bucket {pointer.bucket[:80]!r}, and this "
            f"reader reads {place} only; if you trust who sent it, give the reader that bucket"
        )
