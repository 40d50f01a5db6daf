"""What a job has staged in an S3 store: many attempts stage objects, one decision publishes them.

What a run of a job stages is one batch, whatever endpoints it is for. It counts once the job's record has
it, with the names of the attempts that Spark has committed: a task that ran twice has written twice, and
counts once. A job may be run again under its name, so what its runs have stored is kept beside the
endpoints' folders::

    <prefix>.jobs/<hash of the name>/record.json              the batches of its runs
    <prefix>.jobs/<hash of the name>/<batch>~<attempt>.marks  ids and contents, 64 bits each

A batch gets into the record under the condition that this is still the one that all tasks have read. So of
two runs at a time one is told to begin anew.
"""

from __future__ import annotations

import json
import logging
from array import array
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from math import gcd
from typing import Any, Final
from urllib.parse import urlsplit

from sqsdelay.core.readable import one_line
from sqsdelay.errors import StoreError, StoreUnavailable
from sqsdelay.spark.sink.options import Options
from sqsdelay.spark.sink.run import JOB_SECONDS, JOB_VERSION, Run, Staged, check_version, insist
from sqsdelay.stores import s3_settings_of
from sqsdelay.stores.s3.bucket import Changed, ObjectBucket, digest
from sqsdelay.stores.s3.layout import DEFAULT_SLOTS, RECORD, Hierarchy, job_of, times_of
from sqsdelay.stores.s3.wheel import Wheel
from sqsdelay.stores.shared import VERSION

logger = logging.getLogger(__name__)

_FULL: Final = 1 << 64
_OTHERS: Final = ".others.marks"


def wheel_of(url: str, endpoint: str) -> Wheel:
    """The wheel of one endpoint in the S3 store of a URL, to write to in bulk. Raises ConfigurationError,
    StoreMissing, StoreUnavailable, SchemaMismatch."""
    parts = urlsplit(url)
    settings = s3_settings_of(parts)
    bucket = ObjectBucket(parts.netloc, None, None)
    bucket.check()
    hierarchy = Hierarchy(settings.get("slots", DEFAULT_SLOTS))
    wheel = Wheel(bucket, endpoint, prefix=settings["prefix"], hierarchy=hierarchy)
    wheel.check_version()
    return wheel


@dataclass(frozen=True)
class Job:
    """A run of a job, and what earlier runs of it have stored; ``wheel`` is any endpoint's."""

    wheel: Wheel = field(compare=False)
    run: Run

    @property
    def _folder(self) -> str:
        return self.wheel.batches.folder(self.run.batch)

    def check(self) -> None:
        """Raise SchemaMismatch where another sqsdelay has run the job."""
        self._record()
        # Where it lay before it had a version.
        old = f"{self.wheel.prefix}jobs/{job_of(self.run.batch)}/{RECORD}"
        if self.wheel.bucket.exists(old):
            check_version(None, old)

    def stored(self, part: int = 0, parts: int = 1) -> tuple[str, array[int], array[int]]:
        """A digest of the batches that count, and the marks of their messages' ids and contents, as far as
        they may be of task ``part`` of ``parts``."""
        runs = {} if self.run.job is None else self._record()[1]
        bucket, ids, contents = self.wheel.bucket, array("q"), array("q")
        keys = [self._marks(b, a) for b, run in runs.items() for a in _shared(run, part, parts)]
        for key, found in zip(keys, bucket.each(bucket.get, keys), strict=True):
            if found is None:
                raise StoreUnavailable(
                    f"{key} in bucket {bucket.name} is gone, which tells what the job has "
                    "stored; give the job another name"
                )
            half = len(found[0]) // 2
            ids.frombytes(found[0][:half])
            contents.frombytes(found[0][half:])
        return _known(runs), ids, contents

    def mark(self, attempt: str, ids: array[int], contents: array[int]) -> None:
        """Keep the marks of what an attempt has staged, if the job can be run again."""
        if self.run.job is not None:
            key = self._marks(self.run.batch, attempt)
            self.wheel.bucket.put(key, ids.tobytes() + contents.tobytes())

    def leave(self, attempt: str, endpoints: Sequence[str]) -> None:
        """Note the endpoints of an attempt besides the first. A report of all would be large, and the driver
        keeps those of all tasks."""
        self.wheel.bucket.put(self._others(attempt), json.dumps(endpoints).encode())

    def endpoints(self, staged: Sequence[Staged]) -> list[str]:
        """All that attempts have staged for, as the store's prefixes have them. Raises StoreUnavailable."""
        found, bucket = {each.endpoint for each in staged}, self.wheel.bucket
        keys = [self._others(each.attempt) for each in staged if each.others]
        for key, kept in zip(keys, bucket.each(bucket.get, keys), strict=True):
            if kept is None:
                raise StoreUnavailable(f"{key} is gone; run the job again")
            found.update(json.loads(kept[0]))
        return sorted(found)

    def publish(self, staged: Sequence[Staged], endpoints: Sequence[str], *, parts: int) -> int:
        """Put the run into the record: all of it counts from then on. It is given up if another run has
        stored the very same messages meanwhile: returns how many. Raises StoreUnavailable: nothing counts."""
        bucket, batch, key = self.wheel.bucket, self.run.batch, f"{self._folder}{RECORD}"
        first, *more = {each.known for each in staged}
        messages, total = sum(e.messages for e in staged), sum(e.total for e in staged) % _FULL
        told = {
            "version": JOB_VERSION,
            "attempts": sorted(each.attempt for each in staged),
            "endpoints": endpoints,
            "messages": messages,
            "total": total,
            "last_ms": max(each.last_ms for each in staged),
            # Rows were shared out by their ids among so many tasks, which begin their attempts' names; 1
            # where a task may have had any.
            "parts": parts,
        }
        while True:
            record, runs, etag = self._record()
            if batch in runs:  # An answer was lost.
                return 0
            # A record only grows at its end: what others have stored since comes after what was known.
            counting, ends = list(runs), range(len(runs) + 1)
            known = next((n for n in ends if _known(counting[:n]) == first), None)
            if more or known != len(runs):
                others = [runs[each] for each in counting[known:]]
                stored = sum(o["messages"] for o in others), sum(o["total"] for o in others) % _FULL
                if not more and known is not None and stored == (messages, total):
                    self.abort(staged)
                    return messages
                raise StoreUnavailable(
                    f"another run of the job {self.run.job!r} has stored messages at the same time; none "
                    "of this run's is in the store: run it again, and it stores those that are missing"
                )
            with suppress(Changed):
                # From now on nobody gives it up and forgets that unseen, however long this stands still.
                etag = etag or bucket.put_json(key, {"runs": {}})
                every, late_ms = record.get("runs", {}), self.wheel.now_ms() - times_of(batch)[1]
                # Others may have given it up by now, and in half a day forgotten that they have.
                if batch in every or late_ms > JOB_SECONDS * 500:
                    why = f"the job took longer than {JOB_SECONDS} s and was given up; none of its messages "
                    raise StoreUnavailable(f"{why}is in the store: run it again")
                fields = {"job": self.run.job, "runs": every | {batch: told}}
                bucket.put_json(key, fields, over=etag)
                return 0

    def abort(self, staged: Sequence[Staged]) -> bool:
        """Give the run up, and delete what any of its attempts has written; False where it is published."""
        batches, batch, bucket = self.wheel.batches, self.run.batch, self.wheel.bucket
        if not batches.abort(batch):
            return False
        places = [f"{batches.root}{each}/v{VERSION}/" for each in self.endpoints(staged)]
        places.append(f"{self._folder}{batch}~")
        keys = [key for place in places for key, _ in bucket.listed(place) if batch in key]
        # Spark may have it given up twice, and its endpoints are to be known then.
        bucket.each(bucket.delete, [key for key in keys if not key.endswith(_OTHERS)])
        return True

    def _marks(self, batch: str, attempt: str) -> str:
        return f"{self._folder}{batch}~{attempt}.marks"

    def _others(self, attempt: str) -> str:
        # As marks, they are swept with the job.
        return f"{self._folder}{self.run.batch}~{attempt}{_OTHERS}"

    def _record(self) -> tuple[dict[str, Any], dict[str, Any], str | None]:
        """The job's record, the runs in it that count, and its ETag. Raises SchemaMismatch."""
        record, etag = self.wheel.bucket.get_json(f"{self._folder}{RECORD}")
        runs = {b: run for b, run in record.get("runs", {}).items() if run["attempts"]}
        for each in runs.values():
            check_version(each.get("version"), f"{self._folder}{RECORD}")
        return record, runs, etag


def _shared(run: Mapping[str, Any], part: int, parts: int) -> list[str]:
    """The attempts of a run that may have had rows of this task: the remainder of one hash by both numbers
    agrees in what the numbers have in common."""
    common = gcd(run["parts"], parts)
    return [a for a in run["attempts"] if (int(a.partition("x")[0]) - part) % common == 0]


def _known(batches: Iterable[str]) -> str:
    return digest("\n".join(batches))[:16]


def published(staged: Sequence[Staged], options: Options) -> int:
    """Publish what committed attempts have staged: in all endpoints, or in none. Returns how many messages
    another run of the job had stored meanwhile, and this one then did not. Raises StoreUnavailable:
    nothing is published, and the job can be run again, with a name or without."""
    seconds, parts = options.retry_seconds, options.parts
    try:
        job = insist(lambda: _job(staged, options), seconds)
        endpoints = insist(lambda: job.endpoints(staged), seconds)
        return insist(lambda: job.publish(staged, endpoints, parts=parts), seconds)
    except StoreUnavailable:
        if given_up(staged, options):
            raise
        return 0  # An answer was lost: it was published.


def given_up(staged: Sequence[Staged], options: Options) -> bool:
    """Give up what a job that failed has staged; what cannot be now is, when its slot comes near. False
    where it is published."""
    try:
        return _job(staged, options).abort(staged)
    except StoreError as error:
        logger.warning("what the job has staged is left: %s", one_line(error))
        return True


def _job(staged: Sequence[Staged], options: Options) -> Job:
    return Job(wheel_of(str(options.store), staged[0].endpoint), staged[0].run)
