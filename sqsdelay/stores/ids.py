"""Ids of stored messages: a result for each, their order on a page, and what an id tells of its place."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from sqsdelay.core.checked_message import due_ms_of_id
from sqsdelay.core.stored_message import StoredMessage

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
