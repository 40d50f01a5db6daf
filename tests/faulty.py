"""The fakes of `sqsdelay.testing`, failing, or waiting, as a test tells them to."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

from sqsdelay.core.limits import ERROR_QUEUE_SUFFIX
from sqsdelay.core.message import OutgoingMessage
from sqsdelay.core.received_message import ReceivedMessage
from sqsdelay.core.stored_message import Amendment, StoredMessage
from sqsdelay.errors import MessageTooLarge, QueueUnavailable, SendFailed, StoreUnavailable
from sqsdelay.ports.queues import Failure, SendReceipt
from sqsdelay.ports.stores import Claim
from sqsdelay.testing import InMemoryQueues, InMemoryStore, ManualClock
from tests.patience import PATIENCE_SECONDS

AWAY: Final = Failure("Away", QueueUnavailable("away"), transient=True, outage=True)
"""SQS cannot be reached, or may not be asked."""

REFUSED: Final = Failure(
    "InvalidMessageContents",
    SendFailed("refused", code="InvalidMessageContents", transient=False),
    transient=False,
)
"""SQS will never take this."""


class FaultyQueues(InMemoryQueues):
    """Queues some of whose sends fail, or every delete, or every hide; what fails does not happen.

    ``failing``: sends to a queue of this name, and entries with this body to any but an error queue.
    """

    def __init__(self, clock: ManualClock, **arguments: Any) -> None:
        super().__init__(clock, **arguments)
        self.failing: dict[str, Failure] = {}
        self.deletes_fail = self.hides_fail = False

    def refuse(self, *names_or_bodies: str) -> None:
        """Refuse these from now on, and no others."""
        self.failing = dict.fromkeys(names_or_bodies, REFUSED)

    def send_batch(
        self, queue_url: str, entries: Sequence[OutgoingMessage]
    ) -> list[SendReceipt | Failure]:
        failures = [self._failure(queue_url, entry) for entry in entries]
        left = [entry for entry, failure in zip(entries, failures, strict=True) if failure is None]
        sent = iter(super().send_batch(queue_url, left) if left else ())
        return [next(sent) if failure is None else failure for failure in failures]

    def _failure(self, queue_url: str, entry: OutgoingMessage) -> Failure | None:
        if queue_url in self.failing or queue_url.endswith(ERROR_QUEUE_SUFFIX):
            return self.failing.get(queue_url)
        return self.failing.get(entry.body)

    def delete_batch(
        self, queue_url: str, copies: Sequence[ReceivedMessage]
    ) -> list[Failure | None]:
        if self.deletes_fail:
            return [AWAY] * len(copies)
        return super().delete_batch(queue_url, copies)

    def hide_batch(
        self, queue_url: str, copies: Sequence[tuple[ReceivedMessage, int]]
    ) -> list[Failure | None]:
        if self.hides_fail:
            return [AWAY] * len(copies)
        return super().hide_batch(queue_url, copies)


class GatedQueues(FaultyQueues):
    """Queues whose sends can be held, and that remember how full each request was.

    ``requests``: the bodies of each request, as they came. ``held``: names of queues whose sends
    wait until they are let go; ``arrived`` is released as each of them comes.
    """

    def __init__(self) -> None:
        super().__init__(ManualClock())
        self.requests: list[list[str]] = []
        self.arrived = threading.Semaphore(0)
        self.bug: BaseException | None = None
        self._held: dict[str, threading.Event] = {}

    def hold(self, queue: str) -> None:
        """Let no send to it end."""
        self._held[queue] = threading.Event()

    def let_go(self, queue: str) -> None:
        """Let them end."""
        self._held[queue].set()

    def await_arrival(self) -> None:
        """Wait until a held send has come."""
        assert self.arrived.acquire(timeout=PATIENCE_SECONDS)

    def send_batch(
        self, queue_url: str, entries: Sequence[OutgoingMessage]
    ) -> list[SendReceipt | Failure]:
        self.requests.append([entry.body for entry in entries])
        gate = self._held.get(queue_url)
        if gate is not None:
            self.arrived.release()
            assert gate.wait(PATIENCE_SECONDS)
        if self.bug is not None:
            raise self.bug
        return super().send_batch(queue_url, entries)


class FaultyStore(InMemoryStore):
    """A store some of whose methods, or its claims', are down.

    ``down``: their names. ``failures``: how often they fail before they are up again. ``until_ms``: when
    they are, by the clock. ``largest``: the most bytes of a body it takes.
    """

    def __init__(self, clock: ManualClock, down: Collection[str] = ()) -> None:
        super().__init__(clock)
        self.down = set(down)
        self.failures = 10**9
        self.until_ms = 1 << 62
        self.largest = 1 << 20

    def _raise_if_down(self, method: str) -> None:
        if method in self.down and self.failures and self._clock.now_ms() < self.until_ms:
            self.failures -= 1
            raise StoreUnavailable(f"{method}: the store is down")

    def store(self, messages: Sequence[StoredMessage], *, transaction: Any = None) -> list[bool]:
        self._raise_if_down("store")
        for message in messages:
            if len(message.body) > self.largest:
                raise MessageTooLarge(f"message {message.message_id} is too large for this store")
        return super().store(messages, transaction=transaction)

    @contextmanager
    def claim(self, limit: int, **given: Any) -> Iterator[Claim]:
        self._raise_if_down("claim")
        with super().claim(limit, **given) as claim:
            yield self._faulty(claim)

    @contextmanager
    def claim_ids(self, message_ids: Sequence[str]) -> Iterator[Claim]:
        self._raise_if_down("claim_ids")
        with super().claim_ids(message_ids) as claim:
            yield self._faulty(claim)

    def _faulty(self, claim: Claim) -> Claim:
        for method in ("remove", "count_failures"):
            setattr(claim, method, self._failing(method, getattr(claim, method)))
        return claim

    def _failing(self, method: str, call: Any) -> Any:
        def checked(*arguments: Any, **named: Any) -> Any:
            self._raise_if_down(method)
            return call(*arguments, **named)

        return checked

    def find(self, message_id: str) -> StoredMessage | None:
        self._raise_if_down("find")
        return super().find(message_id)

    def cancel(self, message_ids: Sequence[str]) -> list[bool]:
        self._raise_if_down("cancel")
        return super().cancel(message_ids)

    def amendments(self, message_ids: Sequence[str]) -> dict[str, Amendment]:
        self._raise_if_down("amendments")
        return super().amendments(message_ids)
