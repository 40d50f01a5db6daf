"""Amendments where a store finds them by the ids of their messages, and each look costs a request."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from sqsdelay.core.stored_message import Amendment, latest_amendments

TOLD_AHEAD_MS: Final = 86_400_000
"""So much longer than the amendment at hand there are said to be some: a write a day."""


class Amendments(ABC):
    """An endpoint's amendments, which expire.

    One record more tells until when there may be any: it is written before the first of them, and outlives
    them all. So where nobody cancels or moves messages, a batch of copies costs one read instead of one each.

    Args:
        now_ms: what they expire by, epoch milliseconds.
    """

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._told_until_ms = self._some_until_ms = 0

    def leave(self, amendments: Sequence[Amendment]) -> None:
        """Write amendments, of each message the last."""
        last = list(latest_amendments(amendments).values())
        if not last:
            return
        until_ms = max(each.until_ms for each in last)
        if until_ms > self._told_until_ms or not self._is_told():
            self._tell(until_ms + TOLD_AHEAD_MS)
            self._told_until_ms = until_ms + TOLD_AHEAD_MS
        self._write(last)

    def read(self, message_ids: Sequence[str]) -> dict[str, Amendment]:
        """The amendments of those messages that have one."""
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
    def _is_told(self) -> bool:
        """Whether what this process has said is still written there."""

    @abstractmethod
    def _tell(self, until_ms: int) -> None:
        """Say that there are some until then, unless it is said for as long, or nearly so."""

    @abstractmethod
    def _asked(self) -> int:
        """Until when there may be some, epoch milliseconds; 0 where nothing is said."""

    @abstractmethod
    def _write(self, amendments: Sequence[Amendment]) -> None:
        """Write them; one that moves what was cancelled before keeps when that was."""

    @abstractmethod
    def _found(self, message_ids: Sequence[str]) -> Iterable[Amendment]:
        """Those of these messages, expired ones too."""
