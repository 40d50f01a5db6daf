"""Turning the wheel: what comes near goes from coarse slots to finer ones, small objects are merged.

Whoever does it leases the objects, writes their messages anew as a batch, commits it, and deletes them.
Killed before the commit, he has changed nothing; after it, others delete what he has left. Messages can
be released from any slot, so that nothing is late for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, islice
from typing import Final

from sqsdelay.core.readable import one_line
from sqsdelay.errors import StoreUnavailable
from sqsdelay.stores.s3.bucket import Changed
from sqsdelay.stores.s3.objects import Line, State, ordered
from sqsdelay.stores.s3.slots import Slot, new_batch, new_part
from sqsdelay.stores.s3.wheel import MAX_OBJECT_MESSAGES, Waiting, Wheel

SPLIT_MESSAGES: Final = 20_000
"""A coarse slot with more is split; one with less is released from as it is, which takes fewer requests."""

MERGE_OBJECTS: Final = 4
"""So many small objects of a slot are merged when it comes near."""

SMALL: Final = MAX_OBJECT_MESSAGES // 4
"""Messages in an object that is small."""

CHUNK_MESSAGES: Final = 50_000
CHUNK_BYTES: Final = 32 * 2**20
"""Written anew at a time, compressed: what is in memory is some ten times as much."""

MAX_TURNS: Final = 8
"""Before a dispatcher looks for what is due again."""


@dataclass(frozen=True, slots=True)
class _Taken:
    waiting: Waiting
    state: State
    etag: str


class Turner:
    """Turns one endpoint's wheel.

    Args:
        split_messages: see `SPLIT_MESSAGES`.
    """

    def __init__(self, wheel: Wheel, *, lease_ms: int, split_messages: int) -> None:
        self._wheel = wheel
        self._lease_ms = lease_ms
        self._split_messages = split_messages

    def turn(self, objects: Sequence[Waiting]) -> int:
        """Split and merge what is near.

        Args:
            objects: what waits, as listed.

        Returns:
            How many objects were written anew: then what was listed has changed.
        """
        now_ms = self._wheel.now_ms()
        chunks = (
            (slot, chunk)
            for slot, found in groupby(objects, key=lambda each: each.name.slot)
            if self._wheel.hierarchy.is_near(slot, now_ms)
            for chunk in self._chunks(slot, list(found))
        )
        return sum(self._write_anew(*chunk) for chunk in islice(chunks, MAX_TURNS))

    def _chunks(self, slot: Slot, objects: list[Waiting]) -> Iterable[list[Waiting]]:
        """Objects to be written anew together."""
        finer = self._wheel.hierarchy.finer(slot)
        if finer is None or sum(each.name.count for each in objects) < self._split_messages:
            objects = [each for each in objects if each.name.count < SMALL]
            if len(objects) < MERGE_OBJECTS:
                return
        chunk: list[Waiting] = []
        messages = 0
        for each in objects:
            if messages + each.name.count > CHUNK_MESSAGES and chunk:
                yield chunk
                chunk, messages = [], 0
            chunk.append(each)
            messages += each.name.count
        yield chunk

    def _write_anew(self, slot: Slot, objects: list[Waiting]) -> int:
        """One chunk; how many objects of it were."""
        wheel = self._wheel
        last_ms = max(each.name.last_ms for each in objects)
        batch, owner = new_batch(last_ms, wheel.now_ms()), new_part()
        taken = [
            found
            for found in wheel.bucket.each(lambda each: self._take(each, owner, batch), objects)
            if found is not None
        ]
        try:
            lines = ordered(line for each in taken for line in self._lines(each))
            length = self._length(slot, len(lines))
            parts = list(wheel.portioned(lines, now_ms=wheel.now_ms(), seconds=length))
            if lines:
                wheel.bucket.each(lambda part: wheel.put(*part, batch=batch), parts)
            wheel.batches.commit(batch)
        except StoreUnavailable:
            # Given up, by us or by somebody whom it took too long: all is as it was.
            if wheel.batches.abort(batch):
                wheel.bucket.each(lambda each: self._free(each), taken)
            raise
        wheel.bucket.each(lambda each: wheel.finish(each.waiting.name), taken)
        return len(taken)

    def _length(self, slot: Slot, messages: int) -> int:
        finer = self._wheel.hierarchy.finer(slot)
        return slot.seconds if finer is None or messages < self._split_messages // 4 else finer

    def _take(self, waiting: Waiting, owner: str, batch: str) -> _Taken | None:
        """Lease an object to move all of it; None where it is in use or a message of it is held."""
        wheel, now_ms = self._wheel, self._wheel.now_ms()
        state, etag = wheel.state(waiting)
        state = wheel.settled(state)
        if state.owner or state.held or state.failures or state.moved or state.moving:
            return None
        mine = replace(state, owner=owner, until_ms=now_ms + self._lease_ms, moving=batch)
        try:
            etag = wheel.write_state(waiting.name, mine, etag)
        except Changed:
            return None
        if not wheel.bucket.exists(wheel.key(waiting.name)):
            # Released or written anew to its end since it was listed.
            wheel.finish(waiting.name)
            return None
        return _Taken(waiting, mine, etag)

    def _lines(self, taken: _Taken) -> Iterable[Line]:
        lines = self._wheel.lines(taken.waiting.name) or []
        self._wheel.forget(taken.waiting.name)
        return (line for n, line in enumerate(lines) if n not in taken.state.gone)

    def _free(self, taken: _Taken) -> None:
        freed = replace(taken.state.freed(), moving="")
        try:
            self._wheel.write_state(taken.waiting.name, freed, taken.etag)
        except Changed as error:
            raise StoreUnavailable(one_line(error)) from error
