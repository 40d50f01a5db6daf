"""What a job has staged in an S3 store: many attempts stage objects, one decision publishes them.

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

import json
import logging
import time
from array import array
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import chain, groupby
from math import gcd
from operator import attrgetter
from typing import Final, TypeVar
from urllib.parse import urlsplit

from sqsdelay.core.readable import one_line
from sqsdelay.errors import StoreError, StoreUnavailable
from sqsdelay.spark.sink.options import Options
from sqsdelay.spark.sink.run import JOB_SECONDS, Staged, insist
from sqsdelay.stores import s3_settings_of
from sqsdelay.stores.s3.bucket import Changed, ObjectBucket, digest
from sqsdelay.stores.s3.layout import DEFAULT_SLOTS, JOBS, RECORD, Hierarchy, parse
from sqsdelay.stores.s3.wheel import Wheel

logger = logging.getLogger(__name__)

_FULL: Final = 1 << 64
_Answer = TypeVar("_Answer")


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


@dataclass(frozen=True, slots=True)
class _Recorded:
    """A run that has staged all it had."""

    batch: str
    attempts: list[str]
    messages: int
    total: int
    last_ms: int
    parts: int
    """Its rows were shared out by their ids among so many tasks, which begin their attempts' names; 1 where
    a task may have had any."""
    endpoints: list[str]
    """All that it has staged for, where these are several; as their prefixes have them."""

    def shared_with(self, part: int, parts: int) -> list[str]:
        """The attempts that may have had rows of this task: the remainder of one hash by both numbers
        agrees in what the numbers have in common."""
        common = gcd(self.parts, parts)
        if common == 1:
            return self.attempts
        return [a for a in self.attempts if (int(a.partition("x")[0]) - part) % common == 0]


class Job:
    """What a job has stored of one endpoint; ``name`` is None where it cannot be run again, and needs no
    record."""

    def __init__(self, wheel: Wheel, name: str | None) -> None:
        self.wheel = wheel
        self._bucket = wheel.bucket
        self._batches = wheel.batches
        self._name = name
        self._folder = f"{JOBS}{digest(name or '')}/"

    @property
    def endpoint(self) -> str:
        """As the prefix has it."""
        return self._batches.endpoint

    def stored(self, part: int = 0, parts: int = 1) -> tuple[str, array[int], array[int]]:
        """A digest of the batches that count, and the marks of their messages' ids and contents, as far as
        they may be of task ``part`` of ``parts``. A batch that was only to be decided when its driver
        was killed is decided here."""
        runs, _ = self._record(self.endpoint)
        runs = [run for run in runs if self._counts(run)]
        ids, contents = array("q"), array("q")
        keys = [self._marks(run.batch, a) for run in runs for a in run.shared_with(part, parts)]
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

    def leave(self, staged: Sequence[Staged]) -> Staged:
        """Keep what an attempt has staged for endpoints besides the first; what its driver is told then. A
        report of all would be large, and the driver keeps those of all tasks."""
        first, *others = staged
        told = [[e.endpoint, e.messages, e.total, e.last_ms, e.known] for e in others]
        self._bucket.put(self._others(first), json.dumps(told).encode())
        return replace(first, others=len(others))

    def left(self, told: Sequence[Staged]) -> list[Staged]:
        """What attempts have staged for other endpoints than the first. Raises StoreUnavailable."""
        keys = map(self._others, told)
        found = []
        for one, kept in zip(told, self._bucket.each(self._bucket.get, keys), strict=True):
            if kept is None:
                raise StoreUnavailable(f"{self._others(one)} is gone; run the job again")
            found += [Staged(e, one.run, one.attempt, *more) for e, *more in json.loads(kept[0])]
        return found

    def _others(self, staged: Staged) -> str:
        # As marks, they are swept with the job.
        return self._marks(staged.run.batch, f"{staged.attempt}.others")

    def note(self, staged: Sequence[Staged], *, parts: int, endpoints: list[str]) -> bool:
        """Put a run into the record, before it is decided. False where another run has stored the very same
        messages meanwhile: these are given up. Raises StoreUnavailable where it has stored others:
        nothing is stored."""
        if self._name is None:
            return True
        attempts, messages = [each.attempt for each in staged], sum(e.messages for e in staged)
        total, last_ms = sum(e.total for e in staged) % _FULL, max(e.last_ms for e in staged)
        told = attempts, messages, total, last_ms, parts, endpoints
        run = _Recorded(staged[0].run.batch, *told)
        first, *more = {each.known for each in staged}
        while True:
            runs, etag = self._record(self.endpoint)
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
                self._bucket.put_json(self._record_key(self.endpoint), fields, over=etag)
                return True

    def decide(self, batch: str, attempts: Mapping[str, Collection[str]], *, for_all: bool) -> None:
        """Publish what these attempts have staged, ``for_all`` endpoints or for this one. Raises
        StoreUnavailable."""
        batches, mine = self._batches, attempts[self.endpoint]
        if not (
            batches.commits_for_all(batch, attempts) if for_all else batches.commits(batch, mine)
        ):
            raise StoreUnavailable(
                f"the job took longer than {JOB_SECONDS} s, or another run of it began meanwhile, and "
                "was given up; none of its messages is in the store: run it again"
            )

    def abort(self, batch: str, *, for_all: bool = False) -> bool:
        """Give a run up, and delete what any of its attempts has written; False where it is published."""
        if not self._batches.abort(batch, for_all=for_all):
            return False
        bucket, slots = self._bucket, self.wheel.slots_prefix
        keys = [key for key, _ in bucket.listed(self._marks(batch, "").removesuffix(".marks"))]
        for key, _ in bucket.listed(slots):
            parsed = parse(key.removeprefix(slots))
            if parsed is not None and parsed[0].batch == batch:
                keys.append(key)
        bucket.each(bucket.delete, keys)
        return True

    def _counts(self, run: _Recorded) -> bool:
        """Whether a run in the record is published; it is now, if its driver did not come to that."""
        batches = self._batches
        committed = batches.committed(run.batch)
        if committed is not None:
            return committed
        if not run.endpoints:
            return batches.commits(run.batch, run.attempts)
        attempts = {
            name: [a for r in self._record(name)[0] if r.batch == run.batch for a in r.attempts]
            for name in run.endpoints
        }
        if all(attempts.values()):
            batches.commits_for_all(run.batch, attempts)
        else:
            batches.abort(run.batch, for_all=True)
        return bool(batches.committed(run.batch))

    def _marks(self, batch: str, attempt: str) -> str:
        return f"{self.wheel.prefix}{self._folder}{batch}~{attempt}.marks"

    def _record_key(self, endpoint: str) -> str:
        return f"{self._batches.root}{endpoint}/{self._folder}{RECORD}"

    def _record(self, endpoint: str) -> tuple[list[_Recorded], str | None]:
        """The job's runs over an endpoint of the store, and the ETag of their record."""
        if self._name is None:
            return [], None
        fields, etag = self._bucket.get_json(self._record_key(endpoint))
        return [_Recorded(**run) for run in fields.get("runs", ())], etag


def _known(runs: Sequence[_Recorded]) -> str:
    return digest("\n".join(run.batch for run in runs))[:16]


def published(
    staged: Sequence[Staged],
    options: Options,
    *,
    sleep: Callable[[float], None] = time.sleep,
) -> int:
    """Publish what committed attempts have staged: in all endpoints, or in none. Returns how many messages
    another run of the job had stored meanwhile, and this one then did not. Raises StoreUnavailable:
    nothing is published, and the job can be run again, with a name or without."""

    def insisted(call: Callable[[], _Answer]) -> _Answer:
        return insist(call, options.retry_seconds, sleep=sleep)

    staged = insisted(lambda: _whole(staged, options))
    by_endpoint = _by_endpoint(staged)
    jobs = {insisted(partial(_job, each[0], options)): each for each in by_endpoint}
    names = [job.endpoint for job in jobs] if len(jobs) > 1 else []
    try:
        new = [
            job
            for job, each in jobs.items()
            if insisted(partial(job.note, each, parts=options.parts, endpoints=names))
        ]
        attempts = {job.endpoint: [each.attempt for each in jobs[job]] for job in new}
        for job in new[:1]:
            batch = jobs[job][0].run.batch
            insisted(partial(job.decide, batch, attempts, for_all=bool(names)))
    except StoreUnavailable:
        if len(jobs) == 1 or given_up(staged, options):
            raise
        new = list(jobs)  # An answer was lost: it was decided.
    return sum(each.messages for job in jobs if job not in new for each in jobs[job])


def given_up(staged: Sequence[Staged], options: Options) -> bool:
    """Give up what a job that failed has staged; what cannot be now is, when its slot comes near. False
    where it is published."""
    for_all = len({each.endpoint for each in staged}) > 1 or any(each.others for each in staged)
    try:
        staged = _whole(staged, options)
    except StoreError as error:
        logger.warning("what was staged for some endpoints is left: %s", one_line(error))
    for first, *_ in _by_endpoint(staged):
        try:
            job = _job(first, options)
            if not job.abort(first.run.batch, for_all=for_all):
                return False
        except StoreError as error:
            logger.warning("what was staged for %s is left: %s", first.endpoint, one_line(error))
    return True


def _whole(staged: Sequence[Staged], options: Options) -> Sequence[Staged]:
    """What attempts have told, and what they left in the store."""
    asked = _by_endpoint([each for each in staged if each.others])
    left = [_job(each[0], options).left(each) for each in asked]
    return [*(replace(each, others=0) for each in staged), *chain.from_iterable(left)]


def _by_endpoint(staged: Sequence[Staged]) -> list[list[Staged]]:
    by = attrgetter("endpoint")
    return [list(each) for _, each in groupby(sorted(staged, key=by), by)]


def _job(staged: Staged, options: Options) -> Job:
    return Job(wheel_of(str(options.store), staged.endpoint), staged.run.job)
