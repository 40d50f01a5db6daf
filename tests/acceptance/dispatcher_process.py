"""A dispatcher process that kills itself at a named step, or is killed by its parent.

What it delivers it writes down: at least once as lines of a file (its write survives the process),
exactly once as rows of the table ``effects`` in the store's own database.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

from sqsdelay.core.delay import SystemClock
from sqsdelay.core.stored_message import StoredMessage
from sqsdelay.dispatching import ExactlyOnce
from sqsdelay.dispatching.dispatcher import Dispatcher, DispatchSettings
from sqsdelay.ports.queues import Failure
from sqsdelay.ports.stores import Claim, DelayedMessageStore
from sqsdelay.stores import DynamoDbStore, open_store
from sqsdelay.stores.sqlite.sqlite_store import SqliteStore
from tests.messages import a_message
from tests.patience import PATIENCE_SECONDS

AFTER_CLAIM = "after-claim"
DURING_SEND = "during-send"
BEFORE_REMOVAL = "before-removal"
BEFORE_COMMIT = "before-commit"
BEFORE_REMOVAL_HANGS = "before-removal-hangs"
"""Lives on, with its claim, until someone ends it."""


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(60)


class FileOutbox:
    """Appends the ids it sends to a file, and dies half-way through where told to."""

    max_ahead_seconds = 0

    def __init__(self, path: str, step: str | None, send_seconds: float) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        self._step = step
        self._send_seconds = send_seconds

    def check(self) -> None:
        """Always ready."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def send(self, messages: Sequence[StoredMessage]) -> list[Failure | None]:
        half = len(messages) // 2
        self._write(messages[:half])
        if self._step == DURING_SEND:
            die()
        time.sleep(self._send_seconds)
        self._write(messages[half:])
        return [None] * len(messages)

    def _write(self, messages: Sequence[StoredMessage]) -> None:
        os.write(self._file, "".join(f"{m.message_id}\n" for m in messages).encode())

    def reject(self, messages: Sequence[tuple[StoredMessage, str]]) -> list[Failure | None]:
        raise AssertionError("nothing fails here")


def effects(step: str | None, marker: str, send_seconds: float) -> ExactlyOnce:
    """Writes a row per message into the store's database."""

    def deliver(transaction: Any, messages: Sequence[StoredMessage]) -> None:
        for position, message in enumerate(messages):
            if step == DURING_SEND and position == len(messages) // 2:
                die()
            transaction.execute(f"INSERT INTO effects VALUES ({marker})", (message.message_id,))
        time.sleep(send_seconds)

    def reject(transaction: Any, message: StoredMessage, reason: str) -> None:
        raise AssertionError("nothing fails here")

    return ExactlyOnce(deliver=deliver, reject=reject)


def die_at(store: DelayedMessageStore, step: str | None) -> None:
    """Make claims of this store die at a step."""
    whole = store.claim

    @contextmanager
    def claim(limit: int, **given: Any) -> Iterator[Claim]:
        with whole(limit, **given) as claim:
            if claim.messages and step == AFTER_CLAIM:
                die()
            remove = claim.remove

            def removing(message_ids: Sequence[str]) -> list[bool]:
                if step == BEFORE_REMOVAL:
                    die()
                if step == BEFORE_REMOVAL_HANGS:
                    threading.Event().wait()
                removed = remove(message_ids)
                if message_ids and step == BEFORE_COMMIT:
                    die()
                return removed

            claim.remove = removing  # type: ignore[method-assign]
            yield claim

    store.claim = claim  # type: ignore[method-assign]


def main(given: Mapping[str, Any], ready: Callable[[], object] = int) -> None:
    """Dispatch until SIGTERM, which ends this once ``ready`` was called."""
    os.environ.update(given.get("environment", {}))
    store = open_store(given["store"], endpoint="orders")
    if isinstance(store, DynamoDbStore):
        store._table.lease_seconds = given["lease_seconds"]
    elif hasattr(store, "_lease_seconds"):
        store._lease_seconds = given["lease_seconds"]
    die_at(store, given["step"])
    destination: FileOutbox | ExactlyOnce
    if given["exactly_once"]:
        marker = "?" if isinstance(store, SqliteStore) else "%s"
        destination = effects(given["step"], marker, given["send_seconds"])
    else:
        destination = FileOutbox(given["file"], given["step"], given["send_seconds"])
    settings = DispatchSettings(batch_size=given["batch"], poll_seconds=0.2)
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    ready()
    Dispatcher(store, destination, settings=settings).run(stop)
    store.close()


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


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
