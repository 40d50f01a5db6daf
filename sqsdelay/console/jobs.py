"""Changes under way: each has an id that its form was given, so that a second click changes nothing."""

from __future__ import annotations

import logging
import secrets
import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Generator
from contextlib import closing
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from sqsdelay.core.clock import Clock, SystemClock
from sqsdelay.core.readable import one_line
from sqsdelay.errors import ConfigurationError, SqsDelayError

logger = logging.getLogger("sqsdelay.console")

KEPT: Final = 200
"""Ended jobs that can still be looked at."""

LINES_KEPT: Final = 500
"""Outcomes of one job that are shown; all are counted and logged."""

STOP_SECONDS: Final = 3.0
"""How long a console that is stopped waits for its jobs to let go of what they hold."""


class Result(StrEnum):
    """What became of one message."""

    DONE = "done"
    REQUESTED = "requested"
    """Left to the delay consumer."""
    NOT_DONE = "not-done"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of one message, in words."""

    message_id: str
    result: Result
    text: str


@dataclass(slots=True)
class Job:
    """A change of one or many messages.

    Args:
        key: its id.
        what: what it does, e.g. ``cancel``.
        endpoint: on whose messages.
        who: for whom.
        total: about how many messages it is for; None where that is not known.
        request: what was asked for, to tell a repeated request from another one.
    """

    key: str
    what: str
    endpoint: str
    who: str
    total: int | None
    started_ms: int
    request: object = None
    counts: Counter[Result] = field(default_factory=Counter)
    outcomes: list[Outcome] = field(default_factory=list)
    error: str | None = None
    finished: threading.Event = field(default_factory=threading.Event)

    @property
    def done(self) -> int:
        """Messages that have their outcome."""
        return sum(self.counts.values())


class Jobs:
    """Runs changes, each in a thread of its own.

    Args:
        clock: tells when they start.
    """

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._jobs: OrderedDict[str, Job] = OrderedDict()
        self._lock = threading.Lock()
        self._stop = threading.Event()

    def start(
        self,
        work: Callable[[], Generator[Outcome]],
        *,
        what: str,
        endpoint: str,
        who: str,
        total: int | None,
        key: str | None = None,
        request: object = None,
        at_end: Callable[[], None] = lambda: None,
    ) -> Job:
        """Begin, unless the same was asked for with that key before: that job is returned then.

        Args:
            request: all that was asked for, compared by ``==``.
            at_end: called once it has ended, however it did.

        Raises:
            ConfigurationError: the key is another change's.
        """
        key = key or new_key()
        with self._lock:
            known = self._jobs.get(key)
            asked = (what, endpoint, request)
            if known is not None and (known.what, known.endpoint, known.request) == asked:
                return known
            if known is not None:
                raise ConfigurationError(
                    f"key {key!r} was given for another change ({known.what} on {known.endpoint}); give "
                    "each change a key of its own"
                )
            job = Job(key, what, endpoint, who, total, self._clock.now_ms(), request)
            self._jobs[key] = job
            ended = [k for k, each in self._jobs.items() if each.finished.is_set()]
            for old in ended[: max(0, len(self._jobs) - KEPT)]:
                del self._jobs[old]
        threading.Thread(target=self._run, args=(job, work, at_end), daemon=True).start()
        return job

    def get(self, key: str) -> Job | None:
        """The job of that key, if it is still known."""
        with self._lock:
            return self._jobs.get(key)

    def stop(self) -> None:
        """End all jobs after the batch they are at."""
        self._stop.set()
        with self._lock:
            running = [job for job in self._jobs.values() if not job.finished.is_set()]
        for job in running:
            job.finished.wait(STOP_SECONDS / max(1, len(running)))

    def _run(
        self, job: Job, work: Callable[[], Generator[Outcome]], at_end: Callable[[], None]
    ) -> None:
        label = f"{job.what} {job.endpoint} by {job.who}"
        logger.info("%s: begun (%s)", one_line(label), job.key)
        try:
            with closing(work()) as outcomes:
                for outcome in outcomes:
                    job.counts[outcome.result] += 1
                    if len(job.outcomes) < LINES_KEPT:
                        job.outcomes.append(outcome)
                    line = f"{label}: {outcome.message_id}: {outcome.result}, {outcome.text}"
                    logger.info("%s", one_line(line))
                    if self._stop.is_set():
                        job.error = (
                            "the console was stopped; messages without an outcome were not touched"
                        )
                        break
        except SqsDelayError as error:
            job.error = one_line(error)
        except Exception as error:
            # It must end for whoever watches it, and the log has to say why.
            logger.exception("%s: failed", one_line(label))
            job.error = one_line(f"{type(error).__name__}: {error}")
        finally:
            counts = ", ".join(f"{count} {result}" for result, count in sorted(job.counts.items()))
            ended = f"failed: {job.error}" if job.error else "ended"
            logger.info("%s: %s, %s", one_line(label), one_line(ended), counts or "no messages")
            at_end()
            job.finished.set()


def new_key() -> str:
    """An id for a job that nobody else has."""
    return secrets.token_urlsafe(12)
