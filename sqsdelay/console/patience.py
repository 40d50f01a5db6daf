"""Questions to something that may never answer: a page gives up waiting, whoever asked it goes on."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Final, Generic, TypeVar

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
