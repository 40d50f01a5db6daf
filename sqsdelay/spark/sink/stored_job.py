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
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import lru_cache, partial
from math import gcd
from typing import TYPE_CHECKING, Any, Final

from sqsdelay.core.readable import one_line
from sqsdelay.errors import StoreError, StoreUnavailable
from sqsdelay.spark.sink.options import Options
from sqsdelay.spark.sink.run import JOB_SECONDS, JOB_VERSION, Run, Staged, check_version, insist
from sqsdelay.stores import s3_settings_of
from sqsdelay.stores.s3.bucket import Batches, Changed, ObjectBucket
from sqsdelay.stores.s3.layout import DEFAULT_SLOTS, RECORD, Hierarchy, digest, times_of
from sqsdelay.stores.s3.wheel import Wheel
from sqsdelay.stores.shared import VERSION

if TYPE_CHECKING:
    from sqsdelay.spark.sink.receipts import SentBefore

logger = logging.getLogger(__name__)

_OTHERS: Final = ".others.marks"


def bucket_of(url: str) -> ObjectBucket:
    """The bucket of an S3 store's URL."""
    return ObjectBucket(s3_settings_of(url)["bucket"], None, None)


@lru_cache(maxsize=64)
def _opened(bucket: ObjectBucket, url: str, endpoint: str) -> Wheel:
    """An endpoint's wheel, for all runs. Raises StoreMissing, StoreUnavailable, SchemaMismatch."""
    settings = s3_settings_of(url)
    hierarchy = Hierarchy(settings.get("slots", DEFAULT_SLOTS))
    wheel = Wheel(bucket, endpoint, prefix=settings["prefix"], hierarchy=hierarchy)
    wheel.check_version()
    return wheel


class Job:
    """A run of a job, and what earlier runs of it have stored in the S3 store of a URL."""

    def __init__(self, url: str, run: Run, bucket: ObjectBucket | None = None) -> None:
        self.run = run
        self._bucket = bucket = bucket or bucket_of(url)
        self._batches = Batches(bucket, s3_settings_of(url)["prefix"])
        self._folder = self._batches.folder(run.batch)
        self.wheel = partial(_opened, bucket, url)

    def stored(self, part: int = 0, parts: int = 1) -> tuple[str, SentBefore]:
        """A digest of the batches that count, and the marks of their messages, as far as they may be of task
        ``part`` of ``parts``."""
        import pyarrow as pa

        from sqsdelay.spark.sink.receipts import SentBefore

        runs = {} if self.run.job is None else self.record()[1]
        bucket, ids, contents, keys = self._bucket, array("q"), array("q"), list[str]()
        for batch, run in runs.items():
            # Whose rows may be this task's: the remainder of one hash by both numbers agrees in what the
            # numbers have in common.
            common = gcd(run["parts"], parts)
            ours = (a for a in run["attempts"] if (int(a.partition("x")[0]) - part) % common == 0)
            keys += [self._beside(batch, attempt) for attempt in ours]
        for key, found in zip(keys, bucket.each(bucket.get, keys), strict=True):
            if found is None:
                raise StoreUnavailable(
                    f"{key} in bucket {bucket.name} is gone, which tells what the job has "
                    "stored; give the job another name"
                )
            half = len(found[0]) // 2
            ids.frombytes(found[0][:half])
            contents.frombytes(found[0][half:])
        marks = SentBefore.of(pa.array(ids, pa.int64()), pa.array(contents, pa.int64()))
        return _known(runs), marks

    def leave(self, attempt: str, marks: bytes, others: Sequence[str]) -> None:
        """Keep the marks of what an attempt has staged, if the job can be run again; and endpoints besides
        the first. A report of all would be large, and the driver keeps those of all tasks."""
        if self.run.job is not None:
            self._bucket.put(self._beside(self.run.batch, attempt), marks)
        if others:
            key = self._beside(self.run.batch, attempt, _OTHERS)
            self._bucket.put(key, json.dumps(others).encode())

    def endpoints(self, staged: Sequence[Staged]) -> list[str]:
        """All that attempts have staged for, as the store's prefixes have them. Raises StoreUnavailable."""
        found, bucket = {each.endpoint for each in staged}, self._bucket
        left = [each.attempt for each in staged if each.others]
        keys = [self._beside(self.run.batch, attempt, _OTHERS) for attempt in left]
        for key, kept in zip(keys, bucket.each(bucket.get, keys), strict=True):
            if kept is None:
                raise StoreUnavailable(f"{key} is gone; run the job again")
            found.update(json.loads(kept[0]))
        return sorted(found)

    def publish(self, staged: Sequence[Staged], options: Options) -> None:
        """Put the run into the record: all of it counts from then on. Raises StoreUnavailable: nothing does,
        and the job can be run again."""
        batch, key = self.run.batch, f"{self._folder}{RECORD}"
        told = {
            "version": JOB_VERSION,
            "attempts": sorted(each.attempt for each in staged),
            "endpoints": self.endpoints(staged),
            "last_ms": max(each.last_ms for each in staged),
            # Rows were shared out by their ids among so many tasks, which begin their attempts' names; 1
            # where a task may have had any.
            "parts": options.parts,
        }
        while True:
            record, runs, etag = self.record()
            if batch in runs:  # An answer was lost.
                return
            if {each.known for each in staged} != {_known(runs)}:
                raise StoreUnavailable(
                    f"another run of this job ({options.job or 'a stream'}) has stored messages "
                    "at the same time; none of this run's is in the store: run again, it stores the rest"
                )
            with suppress(Changed):
                # From now on nobody gives it up and forgets that unseen, however long this stands still.
                etag = etag or self._bucket.put_json(key, {"runs": {}})
                every = record.get("runs", {})
                late_ms = self._bucket.clock.now_ms() - times_of(batch)[1]
                # Others may have given it up by now, and in half a day forgotten that they have.
                if batch in every or late_ms > JOB_SECONDS * 500:
                    why = f"the job took longer than {JOB_SECONDS} s and was given up; none of its messages "
                    raise StoreUnavailable(f"{why}is in the store: run it again")
                fields = {"job": options.job, "runs": every | {batch: told}}
                self._bucket.put_json(key, fields, over=etag)
                return

    def abort(self, staged: Sequence[Staged]) -> bool:
        """Give the run up, and delete what any of its attempts has written; False where it is published."""
        batches, batch, bucket = self._batches, self.run.batch, self._bucket
        if not batches.abort(batch):
            return False
        places = [f"{batches.root}{each}/v{VERSION}/" for each in self.endpoints(staged)]
        places.append(f"{self._folder}{batch}~")
        keys = [key for place in places for key, _ in bucket.listed(place) if batch in key]
        # Spark may have it given up twice, and its endpoints are to be known then.
        bucket.each(bucket.delete, [key for key in keys if not key.endswith(_OTHERS)])
        return True

    def _beside(self, batch: str, attempt: str, kind: str = ".marks") -> str:
        """What an attempt has left beside the record, swept with the job."""
        return f"{self._folder}{batch}~{attempt}{kind}"

    def record(self) -> tuple[dict[str, Any], dict[str, Any], str | None]:
        """The job's record, the runs in it that count, and its ETag. Raises SchemaMismatch."""
        record, etag = self._bucket.get_json(f"{self._folder}{RECORD}")
        runs = {b: run for b, run in record.get("runs", {}).items() if run.get("attempts", True)}
        for each in runs.values():
            check_version(each.get("version"), f"{self._folder}{RECORD}")
        return record, runs, etag


def _known(batches: Iterable[str]) -> str:
    return digest("\n".join(batches))[:16]


def published(staged: Sequence[Staged], options: Options) -> None:
    """Publish what committed attempts have staged: in all endpoints, or in none. Raises StoreUnavailable:
    nothing is published, and the job can be run again, with a name or without."""
    job = Job(str(options.store), staged[0].run)
    try:
        insist(lambda: job.publish(staged, options), options.retry_seconds)
    except StoreUnavailable:
        if given_up(staged, options):
            raise
        # An answer was lost: it was published.


def given_up(staged: Sequence[Staged], options: Options) -> bool:
    """Give up what a job that failed has staged; what cannot be now is, when its slot comes near. False
    where it is published."""
    try:
        return Job(str(options.store), staged[0].run).abort(staged)
    except StoreError as error:
        logger.warning("what the job has staged is left: %s", one_line(error))
        return True
