"""Jobs that write to the wheel in bulk: many attempts stage objects, one decision publishes them.

What a run of a job stages is one batch. It counts once the batch is decided, with the names of the
attempts that Spark has committed: a task that ran twice has written twice, and counts once. A job may
be run again under its name, so what earlier runs have stored is kept beside the wheel::

    <prefix><endpoint>/jobs/<hash of the name>/record.json              the batches of its runs
    <prefix><endpoint>/jobs/<hash of the name>/<batch>~<attempt>.marks  ids and contents, 64 bits each

A batch gets into the record before it is decided, under the condition that the record is still the one
that all of its tasks have read. So of two runs at a time one is told to begin anew, and a run that was
killed between the two writes is finished by the next that reads the record. A run over several endpoints
gets into the record of each, and then has one decision; the next run finishes it if all records have it, and
gives it up if not.
"""

from __future__ import annotations

from array import array
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from math import gcd
from typing import Final
from urllib.parse import urlsplit

from sqsdelay.errors import StoreUnavailable
from sqsdelay.stores import s3_settings_of
from sqsdelay.stores.s3.bucket import BATCH_SECONDS, LATEST_MS, Changed, ObjectBucket, digest
from sqsdelay.stores.s3.layout import (
    DEFAULT_SLOTS,
    JOBS,
    RECORD,
    Hierarchy,
    new_batch,
    parse,
)
from sqsdelay.stores.s3.wheel import Wheel

JOB_SECONDS: Final = 86_400
"""How long a run may take before others may give up what it has staged."""

_FULL: Final = 1 << 64


def wheel_of(url: str, endpoint: str) -> Wheel | None:
    """The wheel of one endpoint in the store of a URL, to write to in bulk.

    Returns:
        None where the URL names no S3 store, or one with look-up objects, which take a request for each
        message: such a store is written to as any other.

    Raises:
        ConfigurationError, StoreMissing, StoreUnavailable
        SchemaMismatch: a newer sqsdelay wrote to it.
    """
    parts = urlsplit(url)
    if parts.scheme != "s3":
        return None
    settings = s3_settings_of(parts)
    if settings.get("lookup"):
        return None
    bucket = ObjectBucket(parts.netloc, None, None)
    bucket.check()
    hierarchy = Hierarchy(settings.get("slots", DEFAULT_SLOTS))
    wheel = Wheel(bucket, endpoint, prefix=settings["prefix"], hierarchy=hierarchy)
    wheel.check_version()
    return wheel


def new_job_batch(now_ms: int) -> str:
    """A batch's name for one run of a job: it may be written to for `JOB_SECONDS`."""
    return new_batch(LATEST_MS, now_ms + (JOB_SECONDS - BATCH_SECONDS) * 1000)


@dataclass(frozen=True, slots=True)
class Staged:
    """What one attempt on a task has written of a batch.

    Args:
        attempt: its name, which no other attempt has.
        messages: how many.
        total: the sum of the marks of all of them, of 64 bits: of the same messages it is the same.
        last_ms: the latest due time among them.
        known: a digest of the batches of earlier runs that the attempt knew of, in their order.
    """

    attempt: str
    messages: int
    total: int
    last_ms: int
    known: str


@dataclass(frozen=True, slots=True)
class _Run:
    """A run that has staged all it had."""

    batch: str
    attempts: list[str]
    messages: int
    total: int
    last_ms: int
    parts: int = 1
    """Its rows were shared out by their ids among so many tasks, which begin their attempts' names; 1 where
    a task may have had any."""
    endpoints: list[str] = field(default_factory=list)
    """All that it has staged for, where these are several; as their prefixes have them."""

    def shared_with(self, part: int, parts: int) -> list[str]:
        """The attempts that may have had rows of this task: the remainder of one hash by both numbers
        agrees in what the numbers have in common."""
        common = gcd(self.parts, parts)
        return [
            attempt
            for attempt in self.attempts
            if common == 1 or (int(attempt.partition("x")[0]) - part) % common == 0
        ]


class Job:
    """What a job has stored of one endpoint.

    Args:
        name: the job's name; None for one that cannot be run again, and needs no record.
    """

    def __init__(self, wheel: Wheel, name: str | None) -> None:
        self._bucket = wheel.bucket
        self._batches = wheel.batches
        self._slots_prefix = wheel.slots_prefix
        self._wheel_prefix = wheel.prefix
        self._name = name
        self._prefix = f"{wheel.prefix}{JOBS}{digest(name or '')}/"

    def stored(self, part: int = 0, parts: int = 1) -> tuple[str, array[int], array[int]]:
        """A digest of the batches that count, and of their messages the ids and the contents, as marks.

        A batch that was only to be decided when its driver was killed is decided here.

        Args:
            part: the task that asks: marks are read of messages that may be its own.
            parts: among how many tasks the rows are shared out by their ids; of 1 all marks are read.
        """
        runs, _ = self._counting()
        ids, contents = array("q"), array("q")
        keys = [
            self._marks(run.batch, attempt)
            for run in runs
            for attempt in run.shared_with(part, parts)
        ]
        for key, found in zip(keys, self._bucket.each(self._bucket.get, keys), strict=True):
            if found is None:
                raise StoreUnavailable(
                    f"{key} in bucket {self._bucket.name} is gone, which tells what the job has "
                    "stored; give the job another name"
                )
            half = len(found[0]) // 2
            ids.frombytes(found[0][:half])
            contents.frombytes(found[0][half:])
        return _known(runs), ids, contents

    def mark(self, batch: str, attempt: str, ids: array[int], contents: array[int]) -> None:
        """Keep the marks of what an attempt has staged."""
        if self._name is not None and ids:
            self._bucket.put(self._marks(batch, attempt), ids.tobytes() + contents.tobytes())

    def commit(self, batch: str, staged: Sequence[Staged], *, parts: int = 1) -> bool:
        """Publish what these attempts have staged.

        Args:
            parts: among how many tasks their rows were shared out by their ids.

        Returns:
            False where another run has stored the very same messages meanwhile: these are given up.

        Raises:
            StoreUnavailable: another run has stored others, or it took longer than `JOB_SECONDS`. Nothing
                is stored.
        """
        run = _run(batch, staged, parts)
        if not self._note(run, staged):
            return False
        if not self._batches.commits(batch, run.attempts):
            raise _given_up()
        return True

    @property
    def endpoint(self) -> str:
        """As the prefix has it."""
        return self._wheel_prefix.removeprefix(self._batches.root).rstrip("/")

    def noted(
        self, batch: str, staged: Sequence[Staged], endpoints: Sequence[str], *, parts: int
    ) -> bool:
        """Put a run over several endpoints into this one's record; the rest as `commit`, which decides."""
        run = replace(_run(batch, staged, parts), endpoints=list(endpoints))
        return self._note(run, staged)

    def decide_for_all(self, batch: str, attempts: Mapping[str, Collection[str]]) -> None:
        """Publish what the attempts of all these endpoints have staged.

        Raises:
            StoreUnavailable: it was given up, and nothing is stored.
        """
        if not self._batches.decide_for_all(batch, attempts):
            raise _given_up()

    def is_given_up(self, batch: str) -> bool:
        """Give a run over several endpoints up in all of them; False where it is published."""
        return self._batches.decide_for_all(batch, {})

    def _note(self, run: _Run, staged: Sequence[Staged]) -> bool:
        """Put a run into the record; False where another has stored the same."""
        if self._name is None:
            return True
        first, *more = {each.known for each in staged}
        while True:
            runs, etag = _record(self._bucket, self._prefix + RECORD)
            if run in runs:
                return True
            counting = [each for each in runs if self._counts(each)]
            # A record only grows at its end: what others have stored since comes after what was known.
            ends = range(len(counting) + 1)
            known = next((n for n in ends if _known(counting[:n]) == first), None)
            if more or known != len(counting):
                self.abort(run.batch)
                others = counting[known:]
                stored = sum(each.messages for each in others), sum(e.total for e in others) % _FULL
                if not more and known is not None and stored == (run.messages, run.total):
                    return False
                raise StoreUnavailable(
                    f"another run of the job {self._name!r} has stored messages at the same time; none "
                    "of this run's is in the store: run it again, and it stores those that are missing"
                )
            fields = {"job": self._name, "runs": [asdict(each) for each in (*counting, run)]}
            with suppress(Changed):
                self._bucket.put_json(self._prefix + RECORD, fields, over=etag)
                return True

    def abort(self, batch: str) -> None:
        """Give a run up, and delete what any of its attempts has written."""
        if not self._batches.abort(batch):
            return
        bucket, slots = self._bucket, self._slots_prefix
        keys = [key for key, _ in bucket.listed(self._marks(batch, "").removesuffix(".marks"))]
        for key, _ in bucket.listed(slots):
            parsed = parse(key.removeprefix(slots))
            if parsed is not None and parsed[0].batch == batch:
                keys.append(key)
        bucket.each(bucket.delete, keys)

    def _counts(self, run: _Run) -> bool:
        """Whether a run in the record is published; it is now, if its driver did not come to that."""
        batches = self._batches
        committed = batches.committed(run.batch)
        if committed is not None:
            return committed
        if not run.endpoints:
            return batches.commits(run.batch, run.attempts)
        attempts = {name: self._attempts(name, run.batch) for name in run.endpoints}
        batches.decide_for_all(run.batch, attempts if all(attempts.values()) else {})
        return bool(batches.committed(run.batch))

    def _attempts(self, endpoint: str, batch: str) -> list[str]:
        """Those of a run that another endpoint's record has; none where it has not come to that."""
        inside = self._prefix.removeprefix(self._wheel_prefix)
        key = f"{self._batches.root}{endpoint}/{inside}{RECORD}"
        return next((r.attempts for r in _record(self._bucket, key)[0] if r.batch == batch), [])

    def _marks(self, batch: str, attempt: str) -> str:
        return f"{self._prefix}{batch}~{attempt}.marks"

    def _counting(self) -> tuple[list[_Run], str | None]:
        """The runs that are published, and the ETag of the record.

        One in the record is published here, if its driver did not come to that.
        """
        if self._name is None:
            return [], None
        runs, etag = _record(self._bucket, self._prefix + RECORD)
        return [run for run in runs if self._counts(run)], etag


def _given_up() -> StoreUnavailable:
    """What a run is told that others have given up."""
    return StoreUnavailable(
        f"the job took longer than {JOB_SECONDS} s, or another run of it began meanwhile, and was given "
        "up; none of its messages is in the store: run it again"
    )


def _run(batch: str, staged: Sequence[Staged], parts: int) -> _Run:
    return _Run(
        batch,
        [each.attempt for each in staged],
        sum(each.messages for each in staged),
        sum(each.total for each in staged) % _FULL,
        max(each.last_ms for each in staged),
        parts,
    )


def _known(runs: Sequence[_Run]) -> str:
    return digest("\n".join(run.batch for run in runs))[:16]


def _record(bucket: ObjectBucket, key: str) -> tuple[list[_Run], str | None]:
    fields, etag = bucket.get_json(key)
    return [_Run(**run) for run in fields.get("runs", ())], etag
