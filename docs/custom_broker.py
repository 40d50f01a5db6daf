"""A broker of one's own: a folder for each queue, a file for each message.

Small, but complete: its outbox and its sender pass the contracts ``sqsdelay.testing.OutboxContract``
and ``sqsdelay.testing.SenderContract``. Delays wait in a delayed message store; a dispatcher releases
them through the outbox.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from sqsdelay import Message, Route, SendResult
from sqsdelay.dispatching import Failure
from sqsdelay.errors import QueueMissing, QueueUnavailable, SqsDelayError
from sqsdelay.stores import Clock, DelayedMessageStore, StoredMessage, SystemClock, to_store


class FolderOutbox:
    """Where a dispatcher sends due messages: ``root/DESTINATION/*.json``."""

    max_ahead_seconds = 0  # a folder has no message timer

    def __init__(self, root: Path, *, errors: str = "errors", clock: Clock | None = None) -> None:
        self._root = root
        self._errors = errors
        self._clock = clock or SystemClock()

    def check(self) -> None:
        self.folder(self._errors)

    def now_ms(self) -> int:
        return self._clock.now_ms()

    def send(self, messages: Sequence[StoredMessage]) -> list[Failure | None]:
        return [self._answer(message.destination, message) for message in messages]

    def reject(self, messages: Sequence[tuple[StoredMessage, str]]) -> list[Failure | None]:
        return [self._answer(self._errors, message, reason) for message, reason in messages]

    def folder(self, queue: str) -> Path:
        found = self._root / queue
        if not found.is_dir():
            raise QueueMissing(f"{found} does not exist; make the folder, or correct the name")
        return found

    def _answer(
        self, queue: str, message: StoredMessage, reason: str | None = None
    ) -> Failure | None:
        """None once the message is in its queue; a failure says whether to try again."""
        try:
            if reason is None and message.due_ms > self.now_ms():
                raise QueueUnavailable(f"{message.message_id} is not due yet; it is released later")
            self._write(self.folder(queue), message, reason)
        except SqsDelayError as error:
            outage = isinstance(error, QueueUnavailable)
            return Failure(type(error).__name__, error, transient=True, outage=outage)
        except OSError as error:  # of the disk: an outage, not the message's fault
            away = QueueUnavailable(f"{queue} cannot be written: {error}")
            return Failure("OSError", away, transient=True, outage=True)
        return None

    def _write(self, folder: Path, message: StoredMessage, reason: str | None) -> None:
        """A file appears whole or not at all."""
        said = {"id": message.message_id, "body": message.body.decode(), "reason": reason}
        written = folder / f"{uuid.uuid4().hex}.new"
        with written.open("w") as file:
            json.dump(said, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(written, written.with_suffix(".json"))


class FolderSender:
    """Sends what is due now, and keeps the rest in the store."""

    def __init__(self, outbox: FolderOutbox, store: DelayedMessageStore) -> None:
        self._outbox = outbox
        self._store = store

    def send(self, endpoint: str, body: str, **fields: Any) -> SendResult:
        result = self._sent(endpoint, Message(body, **fields))
        if result.error is not None:
            raise result.error
        return result

    def send_many(self, endpoint: str, messages: Iterable[Message]) -> list[SendResult]:
        return [self._sent(endpoint, message) for message in messages]

    def _sent(self, endpoint: str, message: Message) -> SendResult:
        now_ms = self._outbox.now_ms()
        try:
            self._outbox.folder(endpoint)
            stored = to_store(message, endpoint, now_ms=now_ms)
            direct = stored.due_ms <= now_ms
            if direct:
                (failure,) = self._outbox.send([stored])
                if failure is not None:
                    raise failure.error
            else:
                self._store.store([stored])
        except SqsDelayError as error:
            return SendResult(message.message_id, error=error)
        due = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=stored.due_ms)
        return SendResult(stored.message_id, Route.DIRECT if direct else Route.STORE, due)
