"""Work in a process of its own, so that its CPU time and memory are its own."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from typing import Any, TypeVar

T = TypeVar("T")


def in_process(environment: Mapping[str, str], do: Callable[..., T], *arguments: Any) -> T:
    """``do`` in a fresh process with these environment variables and no other of AWS's."""
    with ProcessPoolExecutor(
        1, mp_context=get_context("spawn"), initializer=_set_environment, initargs=(environment,)
    ) as pool:
        return pool.submit(do, *arguments).result()


def _set_environment(variables: Mapping[str, str]) -> None:
    for name in [name for name in os.environ if name.startswith(("AWS_", "SQSDELAY_"))]:
        del os.environ[name]
    os.environ.update(variables)


@contextmanager
def stdout_away() -> Iterator[None]:
    """A function's log and metrics go to stdout."""
    kept = os.dup(1)
    sys.stdout.flush()
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), 1)
    try:
        yield
    finally:
        sys.stdout.flush()
        os.dup2(kept, 1)
        os.close(kept)
