"""A dispatcher's way to its ledger: at once, or when the transaction it works in has committed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain

from sqsdelay.core.stored_message import StoredMessage
from sqsdelay.ledger.events import Event, Ledger, record_safely
from sqsdelay.ports.queues import Failure, Released
from sqsdelay.relaying import events


class Journal:
    """Records what one dispatcher released and rejected.

    Args:
        ledger: where to; None records nothing.
        now_ms: the destination's now, epoch milliseconds.
        in_transaction: events wait for the end of `transaction`, which may undo what they tell.
            Otherwise they are recorded before the messages leave the store: a dispatcher that dies
            in between releases, and records, again.
    """

    def __init__(
        self, ledger: Ledger | None, *, now_ms: Callable[[], int], in_transaction: bool
    ) -> None:
        self._ledger = ledger
        self._now_ms = now_ms
        self._in_transaction = in_transaction
        self._waiting: list[Iterable[Event]] = []

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Around a claim; what waits is recorded if it ends without an error."""
        self._waiting.clear()
        yield
        if self._ledger is not None:
            record_safely(self._ledger, chain.from_iterable(self._waiting))

    def released(
        self, messages: Sequence[StoredMessage], outcomes: Sequence[Failure | Released | None]
    ) -> None:
        """The destination was sent these; those that failed are left out."""
        if self._ledger is not None:
            sent = [
                (message, outcome)
                for message, outcome in zip(messages, outcomes, strict=True)
                if not isinstance(outcome, Failure)
            ]
            self._record(events.released(sent, at_ms=self._now_ms()))

    def rejected(
        self, messages: Sequence[tuple[StoredMessage, str]], failures: Sequence[Failure | None]
    ) -> None:
        """The error queue was sent these; those that failed are left out."""
        if self._ledger is not None:
            sent = [
                message
                for message, failure in zip(messages, failures, strict=True)
                if failure is None
            ]
            self._record(events.rejected(sent, at_ms=self._now_ms()))

    def _record(self, told: Iterable[Event]) -> None:
        if self._in_transaction:
            self._waiting.append(told)
        elif self._ledger is not None:
            record_safely(self._ledger, told)
