"""Ids of stored messages: a result for each, their order on a page, what an id tells of its place; and
amendments, which are found by them, where each look costs a request."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from sqsdelay.core.message import due_ms_of_id
from sqsdelay.core.readable import one_line
from sqsdelay.core.stored_message import Amendment, StoredMessage, latest_amendments
from sqsdelay.errors import StoreError

ID_TOLERANCE_MS: Final = 5_000
"""How much later than its id says a message may be due and still be found by it. Between a sender's
estimate and SentTimestamp lies the way to SQS."""

_NO_END: Final = 2**63 - 1
"""The largest integer of SQLite and of PostgreSQL's bigint."""

NO_START: Final = -(2**63)
"""The smallest: a row written by hand may be due before 1970, and is listed too."""


def tells_due(message_id: str, due_ms: int) -> bool:
    """Whether the id tells when the message is due, near enough to find it without anything else."""
    told = due_ms_of_id(message_id)
    return told is not None and 0 <= due_ms - told <= ID_TOLERANCE_MS


def needs_lookup(message: StoredMessage, *, lookup: bool) -> bool:
    """Whether something besides its id is to tell when a message is due, so that it can be found by its id.

    An id made up by sqsdelay can always be found. So that is so whatever ``lookup`` says if it tells
    another due time: of a message that was moved before it came here, or by a wrong clock.
    """
    wanted = lookup or due_ms_of_id(message.message_id) is not None
    return wanted and not tells_due(message.message_id, message.due_ms)


def page_bounds(
    after: tuple[int, str] | None, due_from_ms: int | None, due_before_ms: int | None
) -> tuple[int, str, int]:
    """Due time and id the page comes after, and the due time it ends before.

    No id is empty, so what is due from an instant on comes after that instant with an empty id.
    """
    first = NO_START if due_from_ms is None else due_from_ms
    start = max(after or (NO_START, ""), (first, ""))
    return (*start, _NO_END if due_before_ms is None else due_before_ms)


def new_once(messages: Sequence[StoredMessage], inserted: Iterable[str]) -> list[bool]:
    """Whether each message is new; an id given twice in one call is new once."""
    left = set(inserted)
    new = []
    for message in messages:
        new.append(message.message_id in left)
        left.discard(message.message_id)
    return new


TOLD_AHEAD_MS: Final = 86_400_000
"""So much longer than the amendment at hand there are said to be some: a write a day."""


class Amendments(ABC):
    """An endpoint's amendments, which expire.

    One record more tells until when there may be any: it is written before the first of them, and outlives
    them all. So where nobody cancels or moves messages, a batch of copies costs one read instead of one
    each. ``now_ms``: what they expire by, epoch milliseconds."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._some_until_ms = 0

    def leave(self, amendments: Sequence[Amendment]) -> None:
        """Write amendments, of each message the last. Raises as `read` does."""
        last = latest_amendments(amendments)
        if not last:
            return
        with _readable(last):
            self._tell(max(each.until_ms for each in last.values()))
            self._write(list(last.values()))

    def read(self, message_ids: Sequence[str]) -> dict[str, Amendment]:
        """The amendments of those messages that have one. Raises StoreError: one of them is malformed, or
        of another version."""
        with _readable(message_ids):
            if message_ids and self._now_ms() >= self._some_until_ms:
                # That there are none is asked for each time.
                self._some_until_ms = self._asked()
            if not message_ids or self._now_ms() >= self._some_until_ms:
                return {}
            return {each.message_id: each for each in self._valid(self._found(message_ids))}

    def _valid(self, amendments: Iterable[Amendment]) -> list[Amendment]:
        """Those that have not expired."""
        return [each for each in amendments if each.until_ms > self._now_ms()]

    @abstractmethod
    def _tell(self, until_ms: int) -> None:
        """Say that there are some until then, and `TOLD_AHEAD_MS` longer, unless it is said for as long."""

    @abstractmethod
    def _asked(self) -> int:
        """Until when there may be some, epoch milliseconds; 0 where nothing is said."""

    @abstractmethod
    def _write(self, amendments: Sequence[Amendment]) -> None:
        """Write them; one that moves what was cancelled before keeps when that was."""

    @abstractmethod
    def _found(self, message_ids: Sequence[str]) -> Iterable[Amendment]:
        """Those of these messages, expired ones too."""


@contextmanager
def _readable(message_ids: Iterable[str]) -> Iterator[None]:
    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise StoreError(
            f"amendments of {one_line(', '.join(message_ids))} are not as this sqsdelay writes them: "
            f"{error!r}; use the same sqsdelay everywhere, or mend what was written by hand"
        ) from error
