"""Questions that many pages ask: one at a time, answered in seconds, or said to be unanswered."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from dataclasses import dataclass, replace
from typing import Final, Generic, TypeVar

from sqsdelay.core.delay import Clock, utc
from sqsdelay.core.readable import one_line
from sqsdelay.errors import SqsDelayError

T = TypeVar("T")

PATIENCE_SECONDS: Final = 4.0
"""Longest that a page waits for an answer. What is asked has a longer limit of its own, after which it
fails; a page shows what is known meanwhile."""
TROUBLED_SECONDS: Final = 1.0
"""The same, where the last question failed: the page shows why, and the next one whether it still does."""
MOST_UNANSWERED: Final = 8
"""Questions that may wait for an answer at a time: as many as a PostgreSQL store has connections."""
COST_SHARE: Final = 5
"""An answer is kept for so many times what it took: a slow store is asked a fifth of the time."""
MOST_KEPT_SECONDS: Final = 60.0
"""No answer is kept longer because it was slow."""
OLD_SECONDS: Final = 10
"""What is older says how old it is, and no worker is judged by it unless it is asked for more seldom."""
GONE_SECONDS: Final = 60
"""What is older is no longer shown as if it were so."""


def in_words(error: Exception) -> str:
    """What went wrong, on one line; the kind, too, of an error that is not ours."""
    ours = isinstance(error, SqsDelayError)
    return one_line(error if ours else f"{type(error).__name__}: {error}")


def _in_thread(ask: Callable[[], T]) -> Future[T]:
    """Ask in a thread that ends with the process, whatever it waits for."""
    answer: Future[T] = Future()

    def run() -> None:
        try:
            answer.set_result(ask())
        except BaseException as error:
            answer.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return answer


class Patience:
    """Asks one server, which may hang; ``error`` is raised where it does not answer."""

    def __init__(self, what: str, error: type[SqsDelayError]) -> None:
        self._what, self._error = what, error
        self._free = threading.Semaphore(MOST_UNANSWERED)

    def ask(self, ask: Callable[[], T]) -> T:
        """The answer; an error where there is none within `PATIENCE_SECONDS`, or where many wait already."""
        unanswered = f"{MOST_UNANSWERED} earlier requests"
        if self._free.acquire(timeout=PATIENCE_SECONDS):
            answer = _in_thread(ask)
            answer.add_done_callback(lambda _: self._free.release())
            wait([answer], PATIENCE_SECONDS)
            if answer.done():
                return answer.result()
            unanswered = f"for {PATIENCE_SECONDS:.0f} s"
        raise self._error(f"{self._what} has not answered {unanswered}; try again later")


@dataclass(frozen=True, slots=True)
class Sample(Generic[T]):
    """The last answer there was, when it was asked for, and what is wrong with getting a newer one."""

    value: T | None = None
    at_ms: int | None = None
    trouble: str | None = None
    trouble_ms: int | None = None  # when that was found out; None where it is so at this moment
    poll_seconds: float = 0.0  # how often it is asked for, at least

    @property
    def unknown(self) -> str:
        """How it is said that what it tells of the present is not known."""
        return "unknown" if self.at_ms is None else f"unknown since {utc(self.at_ms):%H:%M:%S}"

    def age_seconds(self, now_ms: int) -> int:
        """How old the answer is; 0 where there is none."""
        return 0 if self.at_ms is None else max(0, now_ms - self.at_ms) // 1000

    def tells(self, now_ms: int) -> bool:
        """Whether one can conclude from it what is so at this moment."""
        old = self.age_seconds(now_ms) > max(OLD_SECONDS, self.poll_seconds)
        return self.value is not None and self.trouble is None and not old


class Sampled(Generic[T]):
    """A question whose answer is shared by all who ask within ``fresh_seconds``. Thread-safe."""

    def __init__(self, ask: Callable[[], T], fresh_seconds: float, *, clock: Clock) -> None:
        self._ask, self._fresh_seconds, self._clock = ask, fresh_seconds, clock
        self._lock = threading.Lock()
        self._sample: Sample[T] = Sample(poll_seconds=fresh_seconds)
        self._asking: Future[None] | None = None
        self._asked_at, self._good_until = 0.0, float("-inf")
        self._late = self._changed = False

    def start(self) -> None:
        """Ask, unless the answer is fresh or somebody does; do not wait."""
        with self._lock:
            now = self._clock.monotonic()
            if now >= self._good_until and self._asking is None:
                self._asked_at, self._late = now, False
                self._asking = _in_thread(self._answer)

    def get(self, patience_seconds: float | None = None) -> Sample[T]:
        """The answer, asked for now if it is not fresh; so long is waited for it, or as any page does."""
        self.start()
        with self._lock:
            asking, waited = self._asking, self._clock.monotonic() - self._asked_at
            failed = self._sample.trouble is not None
        patience = PATIENCE_SECONDS if patience_seconds is None else patience_seconds
        if asking is not None:
            patience = min(patience, TROUBLED_SECONDS) if failed else patience
            wait([asking], max(0.0, patience - waited))
            self._late = self._late or not asking.done()
        return self.known()

    def known(self) -> Sample[T]:
        """The last answer, without asking; where a page has waited for a newer one in vain, it says so."""
        with self._lock:
            if self._asking is None or not self._late or self._sample.trouble:
                return self._sample
            waited = self._clock.monotonic() - self._asked_at
            told = f"no answer for {waited:.0f} s; still waiting"
            return replace(self._sample, trouble=told, trouble_ms=None)

    def forget(self) -> None:
        """What is known is out of date: something was changed."""
        with self._lock:
            self._good_until = float("-inf")
            # An answer that is under way may be from before the change.
            self._changed = self._asking is not None

    def _answer(self) -> None:
        at_ms, began = self._clock.now_ms(), self._clock.monotonic()
        try:
            sample = Sample(self._ask(), at_ms, poll_seconds=self._fresh_seconds)
            # From the question on: the answer was true then.
            kept = min(MOST_KEPT_SECONDS, COST_SHARE * (self._clock.monotonic() - began))
            good_until = began + max(self._fresh_seconds, kept)
        except Exception as error:
            # Whatever it is, a page has to show it, and to ask again.
            trouble, now_ms = in_words(error), self._clock.now_ms()
            sample = replace(self._sample, trouble=trouble, trouble_ms=now_ms)
            good_until = self._clock.monotonic() + min(self._fresh_seconds, OLD_SECONDS)
        with self._lock:
            self._sample = sample
            self._good_until = float("-inf") if self._changed else good_until
            self._asking, self._changed = None, False
