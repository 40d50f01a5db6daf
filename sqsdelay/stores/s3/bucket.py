"""The calls on a bucket: conditional writes, reads, listings; S3's errors in the store's terms; and batches,
which such a write makes visible."""

from __future__ import annotations

import json
import random
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from sqsdelay.core.delay import Clock
from sqsdelay.core.limits import ANSWER_SECONDS
from sqsdelay.errors import StoreError, StoreMissing, StoreUnavailable
from sqsdelay.stores.calls import Calls, ServiceClock
from sqsdelay.stores.s3.layout import BATCH_SECONDS, JOBS, RECORD, ObjectName, job_of, times_of

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


class Changed(StoreUnavailable):
    """The object is not as a conditional write demands: somebody else was faster."""


class Mangled(StoreError, ValueError):
    """An object's text was written by somebody else, or cut off."""


class Gone(StoreUnavailable):
    """There is no object of that key."""


class ObjectBucket(Calls):
    """One bucket; as in `S3Store`, ``client`` may be left out, and ``clock`` is for tests only."""

    pause: Callable[[float], None] = staticmethod(time.sleep)
    """Seconds; another one in virtual time."""

    def __init__(self, name: str, client: S3Client | None, clock: Clock | None) -> None:
        # An object of some MiB takes its time.
        super().__init__("s3", client, answer_seconds=4 * ANSWER_SECONDS)
        self.name = name
        self.clock = ServiceClock(clock)

    def _call(self, call: Callable[..., Any], **arguments: Any) -> Any:
        answer = self.answered(call, Bucket=self.name, **arguments)
        self.clock.read(answer)
        return answer

    def _refused(self, error: Exception, response: Any) -> StoreError:
        code = str(response.get("Error", {}).get("Code", ""))
        if code in _CHANGED:
            return Changed(str(error))
        if code in _NO_KEY:
            return Gone(str(error))
        if code in _NO_BUCKET:
            return self._missing()
        return StoreUnavailable(f"bucket {self.name} cannot be used now: {error}")

    def _missing(self) -> StoreMissing:
        return StoreMissing(
            f"bucket {self.name} does not exist at {self.client.meta.endpoint_url}; create it (sqsdelay "
            "store create), or correct the store's URL"
        )

    def put(self, key: str, body: bytes, *, over: str | None = None) -> str:
        """Write an object that is new, or in place of the one with that ETag; its ETag. An attempt whose
        answer was lost may have written it: then it holds these very bytes, which no other write is of.
        Raises Changed: there is another, or the one with that ETag is gone."""
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
        """Fields and ETag of an object of JSON; no fields and None where there is none. Raises `Mangled`."""
        found = self.get(key)
        if found is None:
            return {}, None
        try:
            return dict(json.loads(found[0])), found[1]
        except (ValueError, TypeError) as error:
            told = f"{key} in bucket {self.name} is not as sqsdelay writes it; restore it; delete it only "
            raise Mangled(f"{told}below ids/ or amendments/") from error

    def change(self, key: str, change: Callable[[dict[str, Any]], dict[str, Any] | None]) -> None:
        """Write JSON in place of what is there, which ``change`` gets (no fields for none), as often as
        others are faster; None leaves it. Raises StoreUnavailable: others were faster each time."""
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

        def read(**given: Any) -> tuple[bytes, str]:
            answer = self.client.get_object(**given)
            self.clock.read(answer)  # The answer is dated, and its body takes its time.
            return answer["Body"].read(), answer["ETag"]

        with suppress(Gone):
            return self.answered(read, Bucket=self.name, Key=key)
        return None

    def exists(self, key: str) -> bool:
        with suppress(Gone):
            self._call(self.client.head_object, Key=key)
            return True
        return False

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


COMMITTED: Final = "committed"
ABORTED: Final = "aborted"

_REMEMBERED: Final = 10_000


class Batches:
    """The decisions of one endpoint, below the prefix of its keys; of a job, which is for any, no endpoint is
    named.

    Objects of a batch become visible together, by one write that happens once. What a batch's decision
    says, ``committed`` or ``aborted``, never changes: whoever decides first does so by a write that demands
    that there is none yet. So a writer who stood still for hours cannot commit what others have given up,
    and whoever finds him standing still can give his batch up.

    A job's batch is decided for all endpoints that it writes to, in the job's record beside their folders:
    by the attempts that count, none if it was given up. What other attempts have written never counts.
    """

    def __init__(self, bucket: ObjectBucket, prefix: str, endpoint: str = "") -> None:
        self.bucket = bucket
        self.root = f"{prefix.strip('/')}/" if prefix.strip("/") else ""
        """What the prefixes of all endpoints of the store have in common."""
        self.endpoint = quote(endpoint, safe="")
        self.prefix = f"{self.root}{self.endpoint}/decided/"
        self.jobs = f"{self.root}{JOBS}"
        self._known: dict[str, frozenset[str] | bool] = {}

    def folder(self, batch: str) -> str:
        """Where the job lies whose batch it is."""
        return f"{self.jobs}{job_of(batch)}/"

    def _counting(self, batch: str) -> frozenset[str] | bool | None:
        """Whose objects count: those of these attempts, all, or none; None while nothing is decided."""
        counting: frozenset[str] | bool | None
        if batch not in self._known:
            if job_of(batch):
                record, _ = self.bucket.get_json(f"{self.folder(batch)}{RECORD}")
                run = record.get("runs", {}).get(batch)
                # By what another sqsdelay has there, all objects might count as given up.
                if run is not None and not isinstance(run["attempts"], list):
                    raise TypeError(f"attempts are {run['attempts']!r}, not a list")
                counting = None if run is None else frozenset(run["attempts"])
            else:
                decided, etag = self.bucket.get_json(f"{self.prefix}{batch}")
                counting = None if etag is None else decided.get("decision") == COMMITTED
            if counting is None:
                return None
            self._remember(batch, counting)
        return self._known[batch]

    def _remember(self, batch: str, counting: frozenset[str] | bool) -> None:
        if len(self._known) >= _REMEMBERED:
            self._known.clear()
        self._known[batch] = counting

    def committed(self, batch: str) -> bool | None:
        """True, False where it was given up, None while nothing is decided."""
        counting = self._counting(batch)
        return None if counting is None else bool(counting)

    def commit(self, batch: str) -> None:
        """Make all of it visible. Raises StoreUnavailable: it was given up, and nothing of it is stored."""
        if not self.commits(batch):
            raise StoreUnavailable(
                f"the batch took longer than {BATCH_SECONDS} s and was given up; nothing of it is "
                "stored: try again"
            )

    def commits(self, batch: str) -> bool:
        """As `commit`; False where it was given up."""
        return self._comes_to(batch, COMMITTED)

    def abort(self, batch: str) -> bool:
        """Give it up, a job's in all its endpoints; False where it is committed."""

        def given_up(record: dict[str, Any]) -> dict[str, Any] | None:
            runs = record.get("runs", {})
            return None if batch in runs else record | {"runs": runs | {batch: {"attempts": []}}}

        if not job_of(batch):
            return self._comes_to(batch, ABORTED)
        self.bucket.change(f"{self.folder(batch)}{RECORD}", given_up)
        return not self.committed(batch)

    def _comes_to(self, batch: str, decision: str) -> bool:
        """Decide; False where the opposite was decided before."""
        decided, key = decision, f"{self.prefix}{batch}"
        try:
            self.bucket.put_json(key, {"decision": decision})
        except Changed:
            decided = str(self.bucket.get_json(key)[0].get("decision"))
        self._remember(batch, decided == COMMITTED)
        return (decided == COMMITTED) is (decision == COMMITTED)

    def visible(self, name: ObjectName) -> bool | None:
        """Whether an object counts; False where it never will, None while that is not decided."""
        if not name.batch:
            return True
        counting = self._counting(name.batch)
        if counting is None:
            begun_ms = times_of(name.batch)[1]
            if self.bucket.clock.now_ms() - begun_ms < BATCH_SECONDS * 1000:
                return None
            # Its writer is dead, or will find that it was given up.
            self.abort(name.batch)
            counting = self._counting(name.batch)
        return name.attempt in counting if isinstance(counting, frozenset) else bool(counting)
