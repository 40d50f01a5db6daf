"""One run of a job whose rows are staged in an S3 store, as its driver begins it and publishes it."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from sqsdelay.core.readable import one_line
from sqsdelay.errors import StoreError
from sqsdelay.spark.sink.options import Options

if TYPE_CHECKING:
    from sqsdelay.stores.s3.jobs import Job, Staged

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Run:
    """One run of a job, as the driver began it.

    Args:
        batch: the name of what it stages.
        job: what the job is known by when it is run again; None where it never is.
        now_ms: its beginning, epoch milliseconds.
        after_ms: rows due later than this are staged.
    """

    batch: str
    job: str | None
    now_ms: int
    after_ms: int

    def of_stream(self, write_id: str) -> Run:
        """The same of a stream's micro-batch, which is known by its query and its number."""
        return replace(self, job=_named("stream", write_id))


def run_of(options: Options, now_ms: int) -> Run | None:
    """A new run of a job; None where its rows go to queues, or into a store that takes them one by one."""
    if options.store is None or options.plan:
        return None
    parts = urlsplit(options.store)
    if parts.scheme != "s3":
        return None
    from sqsdelay.stores.s3.jobs import new_job_batch
    from sqsdelay.stores.s3.slots import settings_of

    if settings_of(parts).get("lookup"):
        return None
    ahead = max(options.park_after, options.hop_seconds)
    return Run(
        batch=new_job_batch(now_ms),
        job=None if options.job is None else _named(options.job, options.batch, options.replay),
        now_ms=now_ms,
        after_ms=now_ms + ahead * 1000,
    )


def _named(*parts: object) -> str:
    """What a job, or a micro-batch, is known by in the store."""
    return json.dumps(parts, ensure_ascii=False)


@dataclass(frozen=True, slots=True)
class StagedPart:
    """What an attempt has staged for one endpoint."""

    endpoint: str
    run: Run
    staged: Staged


def published(parts: Iterable[StagedPart], options: Options) -> int:
    """Publish what committed attempts have staged, one endpoint after the other.

    Returns:
        How many messages another run of the same job had stored meanwhile, and this one then did not.

    Raises:
        StoreUnavailable: not all is published; the job, run again, stores what is missing.
    """
    stored_already = 0
    for (endpoint, run), staged in _by_endpoint(parts).items():
        if not _job(endpoint, run, options).commit(run.batch, staged):
            stored_already += sum(each.messages for each in staged)
    return stored_already


def given_up(parts: Iterable[StagedPart], options: Options) -> None:
    """Give up what a job that failed has staged; what cannot be now is, when its slot comes near."""
    for (endpoint, run), staged in _by_endpoint(parts).items():
        try:
            _job(endpoint, run, options).abort(run.batch, staged)
        except StoreError as error:
            logger.warning("what was staged for %s is left: %s", endpoint, one_line(error))


def _by_endpoint(parts: Iterable[StagedPart]) -> dict[tuple[str, Run], Sequence[Staged]]:
    found: dict[tuple[str, Run], list[Staged]] = {}
    for part in parts:
        found.setdefault((part.endpoint, part.run), []).append(part.staged)
    return {key: found[key] for key in sorted(found, key=lambda key: key[0])}


def _job(endpoint: str, run: Run, options: Options) -> Job:
    from sqsdelay.stores.s3.jobs import Job, wheel_of

    wheel = wheel_of(str(options.store), endpoint)
    assert wheel is not None, "a run stages in S3 stores only"
    return Job(wheel, run.job)
