"""S3's errors in sqsdelay's terms, translated once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from botocore.exceptions import BotoCoreError, ClientError

from sqsdelay.errors import BodyMissing, BodyStoreMissing, BodyStoreUnavailable

_MISSING_BUCKET: Final = frozenset({"NoSuchBucket", "InvalidBucketName"})
_MISSING_OBJECT: Final = "NoSuchKey"


@contextmanager
def translated(bucket: str, *, key: str | None = None) -> Iterator[None]:
    """botocore's errors in a call on a bucket, or on one object of it."""
    try:
        yield
    except ClientError as error:
        code = error.response.get("Error", {}).get("Code", "")
        if code == _MISSING_OBJECT:
            raise BodyMissing(
                f"the body {key} is no longer in bucket {bucket}; keep the message, and restore the "
                "object or look for what deleted it (a lifecycle rule, another receiver)"
            ) from error
        if code in _MISSING_BUCKET:
            raise BodyStoreMissing(
                f"bucket {bucket} does not exist; create it, or correct the name"
            ) from error
        raise BodyStoreUnavailable(f"bucket {bucket} cannot be used now: {error}") from error
    except BotoCoreError as error:
        raise BodyStoreUnavailable(f"bucket {bucket} cannot be used now: {error}") from error
