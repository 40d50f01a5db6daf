"""Messages in real time, and dispatchers in threads."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from sqsdelay.core.delay import SystemClock
from sqsdelay.core.stored_message import StoredMessage
from sqsdelay.dispatching.dispatcher import Dispatcher
from tests.messages import a_message
from tests.patience import PATIENCE_SECONDS


def now_ms() -> int:
    return SystemClock().now_ms()


def message(message_id: str, in_ms: int = 0) -> StoredMessage:
    return a_message(message_id, now_ms() + in_ms)


@contextmanager
def dispatching(*dispatchers: Dispatcher) -> Iterator[None]:
    """The dispatchers, each in a thread; what they raise is raised at the end."""
    stop = threading.Event()
    with ThreadPoolExecutor(len(dispatchers)) as pool:
        running = [pool.submit(each.run, stop) for each in dispatchers]
        try:
            yield
        finally:
            stop.set()
        for run in running:
            run.result(timeout=PATIENCE_SECONDS)
