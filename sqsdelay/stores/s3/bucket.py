"""The calls on a bucket: conditional writes, reads, listings; S3's errors in the store's terms."""

from __future__ import annotations

import hashlib
import json
import random
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from sqsdelay.core.clock import Clock
from sqsdelay.errors import StoreError, StoreMissing, StoreUnavailable
from sqsdelay.limits import ANSWER_SECONDS, CALL_ATTEMPTS, CONNECT_SECONDS
from sqsdelay.stores.calls import CONCURRENCY, Calls
from sqsdelay.stores.clocks import ServiceClock

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

_ATTEMPTS: Final = 40
_LONGEST_PAUSE: Final = 1.0
"""Seconds. Two dozen who change one object at once are done long before the last attempt."""

_CHANGED: Final = frozenset(
    {"PreconditionFailed", "ConditionalRequestConflict", "412", "409"}
    | {"BucketAlreadyOwnedByYou", "BucketAlreadyExists"}
)
_NO_KEY: Final = frozenset({"NoSuchKey", "404"})
_NO_BUCKET: Final = frozenset({"NoSuchBucket", "InvalidBucketName"})


class Changed(StoreError):
    """The object is not as a conditional write demands."""


class Gone(StoreUnavailable):
    """There is no object of that key."""


def _default_client() -> S3Client:
    """A client of the default session; a bucket that does not answer is given up within seconds."""
    config = Config(
        connect_timeout=CONNECT_SECONDS,
        read_timeout=4 * ANSWER_SECONDS,  # an object of some MiB takes its time
        retries={"mode": "standard", "total_max_attempts": CALL_ATTEMPTS},
        max_pool_connections=CONCURRENCY,
        tcp_keepalive=True,
    )
    return boto3.client("s3", config=config)


class ObjectBucket(Calls):
    """One bucket; as in `S3Store`, ``client`` may be left out, and ``clock`` is for tests only."""

    pause: Callable[[float], None] = staticmethod(time.sleep)
    """Seconds; another one in virtual time."""

    def __init__(self, name: str, client: S3Client | None, clock: Clock | None) -> None:
        super().__init__(client, _default_client)
        self.name = name
        self.clock = ServiceClock(clock)

    def _begin_anew(self) -> None:
        super()._begin_anew()
        self.clock.begin_anew()

    def _call(self, call: Callable[..., Any], **arguments: Any) -> Any:
        with self._translated():
            answer = call(Bucket=self.name, **arguments)
        self.clock.read(answer)
        return answer

    @contextmanager
    def _translated(self) -> Iterator[None]:
        """botocore's errors in the store's terms."""
        try:
            yield
        except (ClientError, BotoCoreError) as error:
            answer: Any = error.response if isinstance(error, ClientError) else {}
            code = str(answer.get("Error", {}).get("Code", ""))
            if code in _CHANGED:
                raise Changed(str(error)) from error
            if code in _NO_KEY:
                raise Gone(str(error)) from error
            if code in _NO_BUCKET:
                raise self._missing() from error
            raise StoreUnavailable(f"bucket {self.name} cannot be used now: {error}") from error

    def _missing(self) -> StoreMissing:
        return StoreMissing(
            f"bucket {self.name} does not exist; create it (sqsdelay store create), or correct the "
            "store's URL"
        )

    def put(self, key: str, body: bytes, *, over: str | None = None) -> str:
        """Write an object that is new, or in place of the one with that ETag; its ETag.

        An attempt whose answer was lost may have written it: then it holds these very bytes. So whoever
        writes sees to it that no two writes are of the same bytes.

        Raises:
            Changed: there is another, or the one with that ETag is gone.
        """
        condition: dict[str, Any] = {"IfNoneMatch": "*"} if over is None else {"IfMatch": over}
        try:
            answer = self._call(self.client.put_object, Key=key, Body=body, **condition)
        except Gone as error:
            raise Changed(f"{key} is gone") from error
        except Changed:
            found = self.get(key)
            if found is not None and found[0] == body:
                return found[1]
            raise
        return str(answer["ETag"])

    def attempts(self) -> Iterator[None]:
        """Attempts on a conditional write, after longer and longer pauses: where others are faster."""
        for attempt in range(_ATTEMPTS):
            if attempt:
                self.pause(random.uniform(0, min(_LONGEST_PAUSE, 0.01 * 2**attempt)))
            yield

    def put_json(self, key: str, fields: Mapping[str, Any], *, over: str | None = None) -> str:
        """As `put`; no two are the same bytes, so that a writer recognises his own."""
        text = json.dumps({**fields, "write": secrets.token_hex(6)})
        return self.put(key, text.encode(), over=over)

    def get_json(self, key: str) -> tuple[dict[str, Any], str | None]:
        """Fields and ETag of an object of JSON; no fields and None where there is none."""
        found = self.get(key)
        return ({}, None) if found is None else (json.loads(found[0]), found[1])

    def change(self, key: str, change: Callable[[dict[str, Any]], dict[str, Any] | None]) -> None:
        """Write JSON in place of what is there, as often as others are faster.

        Args:
            change: what is to be there, from what is, no fields for none; None leaves it.

        Raises:
            StoreUnavailable: others were faster each time.
        """
        for _ in self.attempts():
            found, etag = self.get_json(key)
            fields = change(found)
            if fields is None:
                return
            with suppress(Changed):
                self.put_json(key, fields, over=etag)
                return
        raise StoreUnavailable(f"{key} is changed by too many at once; try again in a second")

    def get(self, key: str) -> tuple[bytes, str] | None:
        """An object's bytes and ETag; None where there is none."""
        try:
            answer = self._call(self.client.get_object, Key=key)
        except Gone:
            return None
        with self._translated():
            return answer["Body"].read(), answer["ETag"]

    def exists(self, key: str) -> bool:
        try:
            self._call(self.client.head_object, Key=key)
        except Gone:
            return False
        return True

    def delete(self, *keys: str) -> None:
        """Delete objects, one after the other in this order; S3 takes nothing for that."""
        for key in keys:
            self._call(self.client.delete_object, Key=key)

    def delete_unchanged(self, key: str, etag: str) -> None:
        """Delete an object if it still is the one with that ETag."""
        with suppress(Changed, Gone):
            self._call(self.client.delete_object, Key=key, IfMatch=etag)

    def listed(self, prefix: str, *, start_after: str = "") -> Iterator[tuple[str, str]]:
        """Keys in order, each with its object's ETag; read page by page."""
        more: dict[str, Any] = {"StartAfter": start_after} if start_after else {}
        while True:
            page = self._call(self.client.list_objects_v2, Prefix=prefix, **more)
            for found in page.get("Contents", ()):
                yield found["Key"], found["ETag"]
            if not page.get("IsTruncated"):
                return
            more = {"ContinuationToken": page["NextContinuationToken"]}

    def check(self) -> None:
        """Raise StoreMissing unless the bucket is there."""
        try:
            self._call(self.client.head_bucket)
        except Gone as error:
            raise self._missing() from error

    def create(self) -> None:
        """Create the bucket unless it is there."""
        try:
            self.check()
        except StoreMissing:
            region, place = self.client.meta.region_name, {}
            if region not in (None, "us-east-1"):
                place = {"CreateBucketConfiguration": {"LocationConstraint": region}}
            with suppress(Changed):
                self._call(self.client.create_bucket, **place)


def digest(text: str) -> str:
    """A short name for text that cannot be a key itself."""
    return hashlib.sha256(text.encode()).hexdigest()[:40]
