"""An S3 client in memory: objects, listings and conditional writes as S3 has them, and faults on request."""

from __future__ import annotations

import io
import threading
from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from botocore.exceptions import ClientError


def _error(code: str, status: int) -> ClientError:
    answer: Any = {"Error": {"Code": code}, "ResponseMetadata": {"HTTPStatusCode": status}}
    return ClientError(answer, "S3")


class InMemoryS3:
    """What `boto3.client("s3")` has of what stores call. Clients share ``objects``.

    Args:
        objects: by key; one bucket, whatever its name.
        around: called with the operation's name and a function that does it; may raise instead, or after.
    """

    def __init__(
        self,
        objects: dict[str, bytes] | None = None,
        *,
        around: Callable[[str, Callable[[], Any]], Any] | None = None,
        page: int = 1000,
    ) -> None:
        self.objects = {} if objects is None else objects
        self.requests: Counter[str] = Counter()
        self.meta = SimpleNamespace(region_name="us-east-1", endpoint_url="memory://s3")
        self._around = around or (lambda _, call: call())
        self._page = page
        self._lock = threading.RLock()

    def _do(self, name: str, call: Callable[[], Any]) -> Any:
        def locked() -> Any:
            with self._lock:
                self.requests[name] += 1
                return call()

        return self._around(name, locked)

    def put_object(
        self,
        *,
        Bucket: str,
        Key: str,
        Body: bytes,
        IfNoneMatch: str | None = None,
        IfMatch: str | None = None,
    ) -> dict[str, Any]:
        def put() -> dict[str, Any]:
            there = self.objects.get(Key)
            if IfNoneMatch == "*" and there is not None:
                raise _error("PreconditionFailed", 412)
            if IfMatch is not None and there is None:
                raise _error("NoSuchKey", 404)
            if IfMatch is not None and there is not None and etag(there) != IfMatch:
                raise _error("PreconditionFailed", 412)
            self.objects[Key] = Body
            return {"ETag": etag(Body)}

        return self._do("PutObject", put)  # type: ignore[no-any-return]

    def get_object(self, *, Bucket: str, Key: str) -> dict[str, Any]:
        def get() -> dict[str, Any]:
            if Key not in self.objects:
                raise _error("NoSuchKey", 404)
            body = self.objects[Key]
            return {"Body": io.BytesIO(body), "ETag": etag(body)}

        return self._do("GetObject", get)  # type: ignore[no-any-return]

    def head_object(self, *, Bucket: str, Key: str) -> dict[str, Any]:
        def head() -> dict[str, Any]:
            if Key not in self.objects:
                raise _error("404", 404)
            return {"ETag": etag(self.objects[Key])}

        return self._do("HeadObject", head)  # type: ignore[no-any-return]

    def delete_object(self, *, Bucket: str, Key: str, IfMatch: str | None = None) -> dict[str, Any]:
        def delete() -> dict[str, Any]:
            there = self.objects.get(Key)
            if IfMatch is not None and there is None:
                raise _error("NoSuchKey", 404)
            if IfMatch is not None and there is not None and etag(there) != IfMatch:
                raise _error("PreconditionFailed", 412)
            self.objects.pop(Key, None)
            return {}

        return self._do("DeleteObject", delete)  # type: ignore[no-any-return]

    def list_objects_v2(
        self, *, Bucket: str, Prefix: str = "", StartAfter: str = "", ContinuationToken: str = ""
    ) -> dict[str, Any]:
        def listing() -> dict[str, Any]:
            start = max(StartAfter, ContinuationToken)
            keys = sorted(k for k in self.objects if k.startswith(Prefix) and k > start)
            page = keys[: self._page]
            found = [
                {"Key": k, "ETag": etag(self.objects[k]), "Size": len(self.objects[k])}
                for k in page
            ]
            answer: dict[str, Any] = {"Contents": found, "IsTruncated": len(keys) > len(page)}
            if answer["IsTruncated"]:
                answer["NextContinuationToken"] = page[-1]
            return answer

        return self._do("ListObjectsV2", listing)  # type: ignore[no-any-return]

    def head_bucket(self, *, Bucket: str) -> dict[str, Any]:
        return self._do("HeadBucket", dict)  # type: ignore[no-any-return]

    def close(self) -> None:
        """As a real client's."""


def etag(body: bytes) -> str:
    """Of equal bodies the same. Python keeps a body's hash with it: a listing need not read all bodies."""
    return f'"{hash(body):x}"'
