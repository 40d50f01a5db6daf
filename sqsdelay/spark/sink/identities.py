"""Ids that come more than once: noticed in a task while it sends, and between tasks afterwards."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final

from sqsdelay.core.message import Message

_TRACKED: Final = 1 << 19
"""Ids a task remembers, about 50 MB; of more it remembers a sample."""

_REPORTED: Final = 1 << 14
"""Ids of which a task tells the driver, 128 KiB: thousands of tasks stay within Spark's
``spark.driver.maxResultSize`` of 1 GiB."""


@dataclass(frozen=True, slots=True)
class Mark:
    """A message's id and its content, as numbers of 64 bits with a sign.

    Two rows with one id and one content are copies; with another content one of them is wrong.
    """

    message_id: int
    content: int

    @classmethod
    def of(cls, endpoint: str, message: Message) -> Mark:
        """The mark of a message to an endpoint."""
        content = blake2b(message.body.encode(), digest_size=8)
        rest = (
            endpoint,
            message.due_at,
            sorted(message.attributes.items()),
            message.message_group_id,
            message.message_deduplication_id,
        )
        content.update(repr(rest).encode())
        identity = blake2b(str(message.message_id).encode(), digest_size=8)
        return cls(_number(identity.digest()), _number(content.digest()))


def _number(digest: bytes) -> int:
    return int.from_bytes(digest, signed=True)


@dataclass(frozen=True, kw_only=True)
class IdSample:
    """The ids a task came across whose last ``level`` bits are 0: all of them at level 0."""

    level: int
    ids: array[int]


class SeenIds:
    """The ids that one task came across."""

    def __init__(self, *, tracked: int = _TRACKED) -> None:
        self._tracked = tracked
        self._level = 0
        self._contents: dict[int, int] = {}

    def note(self, mark: Mark) -> int | None:
        """The content that came with this id before; None if it is the first."""
        if mark.message_id & ((1 << self._level) - 1):
            return None
        before = self._contents.get(mark.message_id)
        if before is None:
            self._contents[mark.message_id] = mark.content
            if len(self._contents) > self._tracked:
                self._level, self._contents = _thinned(self._level, self._contents, self._tracked)
        return before

    def note_all(self, ids: Sequence[int], contents: Sequence[int]) -> bool:
        """Note messages of which none repeats an id; False, and nothing noted, if one may."""
        new = dict(zip(ids, contents, strict=True))
        if len(new) < len(ids):
            return False
        if self._level:
            mask = (1 << self._level) - 1
            new = {each: content for each, content in new.items() if not each & mask}
        if not self._contents.keys().isdisjoint(new):
            return False
        self._contents.update(new)
        if len(self._contents) > self._tracked:
            self._level, self._contents = _thinned(self._level, self._contents, self._tracked)
        return True

    def has(self, message_id: int) -> bool:
        """Whether an id came before, as far as that is known."""
        return message_id in self._contents

    def sample(self, most: int = _REPORTED) -> IdSample:
        """What the driver is told."""
        level, contents = _thinned(self._level, self._contents, most)
        return IdSample(level=level, ids=array("q", contents))


def _thinned(level: int, contents: dict[int, int], most: int) -> tuple[int, dict[int, int]]:
    while len(contents) > most:
        level += 1
        contents = {key: value for key, value in contents.items() if not key & ((1 << level) - 1)}
    return level, contents


def repeated_across(samples: Iterable[IdSample]) -> int:
    """Rows of one task whose id another task had, too: exact where all samples are whole."""
    samples = list(samples)
    level = max((sample.level for sample in samples), default=0)
    mask = (1 << level) - 1
    counted = Counter(key for sample in samples for key in sample.ids if not key & mask)
    return (counted.total() - len(counted)) << level
