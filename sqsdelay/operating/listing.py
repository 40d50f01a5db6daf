"""What is pending, listed page by page: any number of messages in the memory of one page."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from sqsdelay.core.stored_message import StoredMessage
from sqsdelay.errors import InvalidSetting
from sqsdelay.ports.stores import ParkingPlace

PAGE: Final = 100
"""Messages in memory at once: at the 1 MiB of a body, 100 MiB."""

_CURSOR: Final = re.compile(r"(\d{1,15}):(.+)", re.ASCII | re.DOTALL)

Cursor = tuple[int, str]
"""Due time, epoch milliseconds, and id of the last message listed."""


def parse_cursor(text: str) -> Cursor:
    """Where a page ended, as `Listing.cursor` has it.

    Raises:
        ConfigurationError: it is none that was given out.
    """
    found = _CURSOR.fullmatch(text)
    if found is None:
        raise InvalidSetting(
            f"{text!r} is not a cursor; give the one below the last page, such as "
            "1893456000000:order-7"
        )
    return int(found[1]), found[2]


class Listing:
    """Messages from a cursor on, within due times."""

    def __init__(
        self, *, after: Cursor | None, due_from_ms: int | None, due_before_ms: int | None
    ) -> None:
        self._after = after
        self._due_from_ms = due_from_ms
        self._due_before_ms = due_before_ms
        self.listed = 0

    @property
    def cursor(self) -> str:
        """Where the next page begins, once something was listed."""
        due_ms, message_id = self._after or (0, "")
        return f"{due_ms}:{message_id}"

    def read(self, store: ParkingPlace, limit: int) -> Iterator[StoredMessage]:
        """So many messages at most, the earliest due first."""
        while self.listed < limit:
            page = self._page(store, min(PAGE, limit - self.listed))
            if not page:
                return
            for message in page:
                self._after = message.due_ms, message.message_id
                self.listed += 1
                yield message

    def has_more(self, store: ParkingPlace) -> bool:
        """Whether there are messages behind those that were listed."""
        return bool(self.listed and self._page(store, 1))

    def _page(self, store: ParkingPlace, limit: int) -> list[StoredMessage]:
        return store.pending(
            limit,
            after=self._after,
            due_from_ms=self._due_from_ms,
            due_before_ms=self._due_before_ms,
        )
