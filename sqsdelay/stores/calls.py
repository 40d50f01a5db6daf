"""Calls on an AWS service: a client and threads that belong to this process, and many calls at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from typing import Any, Final, TypeVar

from sqsdelay.ports.forks import in_each_child

CONCURRENCY: Final = 16
"""Calls in flight."""

T = TypeVar("T")
R = TypeVar("R")


class Calls:
    """What a store on an AWS service calls it with.

    Args:
        client: a boto3 client; None to make one, and to close it with this.
        make: makes it.
    """

    def __init__(self, client: Any, make: Callable[[], Any]) -> None:
        self._owned = client is None
        self.client = make() if client is None else client
        self._threads = _threads()
        in_each_child(self, lambda calls: calls._begin_anew())

    def _begin_anew(self) -> None:
        self._threads = _threads()
        if self._owned:
            self.client.close()

    def each(self, do: Callable[[T], R], items: Iterable[T]) -> list[R]:
        """``do`` for each item, several at a time; answers in order. Never from within ``do``.

        After an error no more are begun, and it is raised when all that have begun are done.
        """
        given = list(items)
        if len(given) < 2:
            return [do(item) for item in given]
        futures = [self._threads.submit(do, item) for item in given]
        wait(futures, return_when=FIRST_EXCEPTION)
        wait([future for future in futures if not future.cancel()])
        return [future.result() for future in futures]

    def close(self) -> None:
        self._threads.shutdown()
        if self._owned:
            self.client.close()


def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(CONCURRENCY, thread_name_prefix="store")
