"""Questions that many pages ask: one at a time, answered in seconds, or said to be unanswered."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from sqsdelay.core.clock import Clock, SystemClock
from sqsdelay.core.readable import one_line
from sqsdelay.errors import SqsDelayError

T = TypeVar("T")

PATIENCE_SECONDS: Final = 4.0
"""Longest that a page waits for an answer. What is asked has a longer limit of its own, after which it
fails; a page shows what is known meanwhile."""

MOST_UNANSWERED: Final = 8
"""Questions that may wait for an answer at a time: as many as a PostgreSQL store has connections."""


class Answer(Generic[T]):
    """An answer that is waited for."""

    def __init__(self, what: str, error: type[SqsDelayError]) -> None:
        self._what = what
        self._error = error
        self._began = time.monotonic()
        self._future: Future[T] = Future()

    def fill(self, ask: Callable[[], T]) -> None:
        """Get it, however long that takes."""
        try:
            self._future.set_result(ask())
        except BaseException as error:
            self._future.set_exception(error)

    def get(self) -> T:
        """The answer, or what was raised instead.

        Raises:
            SqsDelayError: there is none yet, `PATIENCE_SECONDS` after it was asked for.
        """
        waited = time.monotonic() - self._began
        try:
            return self._future.result(max(0.0, PATIENCE_SECONDS - waited))
        except TimeoutError:
            if self._future.done():
                return self._future.result()
            raise self._error(
                f"{self._what} has not answered for {time.monotonic() - self._began:.0f} s; try again "
                "later"
            ) from None


class Patience:
    """Asks one server, which may hang.

    Args:
        what: the server, for errors.
        error: what to raise where it does not answer.
    """

    def __init__(self, what: str, error: type[SqsDelayError]) -> None:
        self._what = what
        self._error = error
        self._free = threading.Semaphore(MOST_UNANSWERED)

    def begin(self, ask: Callable[[], T]) -> Answer[T]:
        """Ask, in a thread of its own.

        Raises:
            SqsDelayError: many have asked, and none of them was answered yet.
        """
        if not self._free.acquire(timeout=PATIENCE_SECONDS):
            raise self._error(
                f"{self._what} has not answered {MOST_UNANSWERED} earlier requests; try again later"
            )
        answer: Answer[T] = Answer(self._what, self._error)

        def run() -> None:
            try:
                answer.fill(ask)
            finally:
                self._free.release()

        threading.Thread(target=run, daemon=True).start()
        return answer

    def ask(self, ask: Callable[[], T]) -> T:
        """Ask, and wait for the answer.

        Raises:
            SqsDelayError: there is none within `PATIENCE_SECONDS`, or what was raised instead.
        """
        return self.begin(ask).get()


COST_SHARE: Final = 20
"""An answer stays fresh for so many times what it took: a slow store is asked a twentieth of the time."""


@dataclass(frozen=True, slots=True)
class Sample(Generic[T]):
    """The last answer there was, and what is wrong with getting a newer one.

    Args:
        value: the last answer; None where there was none yet.
        at_ms: when that was asked for, epoch milliseconds.
        trouble: why it is not fresh; None where it is.
    """

    value: T | None
    at_ms: int | None
    trouble: str | None = None


class Sampled(Generic[T]):
    """A question whose answer is shared by all who ask within a moment.

    Args:
        ask: gets the answer.
        fresh_seconds: how long an answer is good for, at least.
        clock: tells when.
        patience_seconds: how long to wait for an answer; None as long as any page waits.
    """

    def __init__(
        self,
        ask: Callable[[], T],
        *,
        fresh_seconds: float,
        clock: Clock | None = None,
        patience_seconds: float | None = None,
    ) -> None:
        self._ask = ask
        self._fresh_seconds = fresh_seconds
        self._clock = clock or SystemClock()
        self._patience_seconds = patience_seconds
        self._lock = threading.Lock()
        self._sample: Sample[T] = Sample(None, None)
        self._good_until = float("-inf")
        self._asking: threading.Event | None = None
        self._asked_at = 0.0
        self._changed = False

    def start(self) -> None:
        """Ask, unless the answer is fresh or somebody does; do not wait."""
        with self._lock:
            now = self._clock.monotonic()
            if now < self._good_until or self._asking is not None:
                return
            self._asking, self._asked_at = threading.Event(), now
            asking = self._asking
        threading.Thread(target=self._run, args=(asking,), daemon=True).start()

    def get(self) -> Sample[T]:
        """The answer, asked for now if it is not fresh."""
        self.start()
        with self._lock:
            asking, asked_at = self._asking, self._asked_at
        if asking is not None:
            waited = self._clock.monotonic() - asked_at
            given = self._patience_seconds
            asking.wait(max(0.0, (PATIENCE_SECONDS if given is None else given) - waited))
        return self.known()

    def known(self) -> Sample[T]:
        """The last answer, without asking."""
        with self._lock:
            if self._asking is None:
                return self._sample
            waited = self._clock.monotonic() - self._asked_at
            trouble = f"no answer for {waited:.0f} s; still waiting"
            return Sample(self._sample.value, self._sample.at_ms, trouble)

    def forget(self) -> None:
        """What is known is out of date: something was changed."""
        with self._lock:
            self._good_until = float("-inf")
            # An answer that is under way may be from before the change.
            self._changed = self._asking is not None

    def _run(self, asking: threading.Event) -> None:
        at_ms, began = self._clock.now_ms(), self._clock.monotonic()
        trouble, value = None, None
        try:
            value = self._ask()
        except SqsDelayError as error:
            trouble = one_line(error)
        except Exception as error:
            # Whatever it is, a page has to show it, and to ask again.
            trouble = one_line(f"{type(error).__name__}: {error}")
        with self._lock:
            ended = self._clock.monotonic()
            fresh = max(self._fresh_seconds, COST_SHARE * (ended - began))
            if trouble is None:
                self._sample = Sample(value, at_ms)
            else:
                self._sample = Sample(self._sample.value, self._sample.at_ms, trouble)
                fresh = min(fresh, self._fresh_seconds)
            self._good_until = float("-inf") if self._changed else ended + fresh
            self._asking, self._changed = None, False
        asking.set()
