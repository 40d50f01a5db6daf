"""Turning the wheel: what comes near goes from coarse slots to finer ones, small objects are merged.

Whoever does it leases the objects, writes their messages anew as a batch, commits it, and deletes them.
Killed before the commit, he has changed nothing; after it, others delete what he has left. Messages can
be released from any slot, so that nothing is late for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Final

from sqsdelay.core.readable import one_line
from sqsdelay.errors import StoreUnavailable
from sqsdelay.stores.s3.bucket import Changed
from sqsdelay.stores.s3.layout import Line, Slot, State, new_batch, new_part
from sqsdelay.stores.s3.wheel import (
    LINE_BYTES,
    MAX_OBJECT_BYTES,
    MAX_OBJECT_MESSAGES,
    Held,
    Waiting,
    Wheel,
    portioned,
    portions,
)

SPLIT_MESSAGES: Final = 20_000
SPLIT_BYTES: Final = 16 * MAX_OBJECT_BYTES
"""A coarse slot with more is split; one with less is released from as it is, which takes fewer requests."""

MERGE_OBJECTS: Final = 4
"""So many small objects of a slot are merged when it comes near."""

SMALL: Final = MAX_OBJECT_MESSAGES // 4
SMALL_BYTES: Final = MAX_OBJECT_BYTES // 4
"""Messages, and their bytes, in an object that is small: it has less of both. So four of them are merged
into three at the most, and nothing is written that comes out the same."""

CHUNK_OBJECTS: Final = 256
CHUNK_BYTES: Final = 32 * 2**20
"""Written anew at a time, as they lie in memory; at the worst that holds three times as much."""


class Turner:
    """Turns one endpoint's wheel."""

    def __init__(self, wheel: Wheel, *, lease_ms: int, split_messages: int) -> None:
        self._wheel = wheel
        self._lease_ms = lease_ms
        self._split_messages = split_messages

    def turn(self, objects: Sequence[Waiting], *, until_ms: int) -> int:
        """Split and merge what is near.

        Args:
            objects: what waits, as listed.
            until_ms: nothing is begun then or later; what is left is for the next turn.

        Returns:
            How many objects were written anew: then what was listed has changed, and there may be more.
        """
        written, wheel = 0, self._wheel
        for slot, found in groupby(objects, key=lambda each: each.name.slot):
            if not wheel.hierarchy.is_near(slot, wheel.now_ms()):
                continue
            seconds, chunks = self._chunks(slot, list(found))
            for chunk in chunks:
                if wheel.now_ms() >= until_ms:
                    return written
                written += self._write_anew(chunk, slot, seconds)
        return written

    def _chunks(self, slot: Slot, objects: list[Waiting]) -> tuple[int, Iterable[list[Waiting]]]:
        """Objects to be written anew together, and to slots of which length."""
        finer = self._wheel.hierarchy.finer(slot)
        messages = sum(each.name.count for each in objects)
        large = messages >= self._split_messages or sum(e.name.size for e in objects) >= SPLIT_BYTES
        small = [e for e in objects if e.name.count < SMALL and e.name.size < SMALL_BYTES]
        # So many small ones are merged first: each chunk that is split writes to all finer slots.
        if finer is not None and large and len(small) <= CHUNK_OBJECTS:
            return finer, portions(objects, _memory, CHUNK_BYTES, CHUNK_OBJECTS)
        chunks = portions(small, _memory, CHUNK_BYTES, CHUNK_OBJECTS)
        return slot.seconds, (chunk for chunk in chunks if len(chunk) >= MERGE_OBJECTS)

    def _write_anew(self, objects: list[Waiting], slot: Slot, seconds: int) -> int:
        """One chunk; how many objects of it were."""
        wheel = self._wheel
        last_ms = max(each.name.last_ms for each in objects)
        batch, owner = new_batch(last_ms, wheel.now_ms()), new_part()
        leased = wheel.bucket.each(lambda each: self._take(each, owner, batch), objects)
        taken = [each for each in leased if each is not None]
        if len(taken) < MERGE_OBJECTS and (seconds == slot.seconds or not taken):
            # The others are in use: these would come out the same.
            wheel.bucket.each(self._free, taken)
            return 0
        try:
            # Of a message that is there twice, one. What differs in anything is another.
            lines = {line for each in taken for line in self._lines(each, taken)}
            parts = portioned(lines, lambda due_ms: Slot.of(due_ms, seconds))
            wheel.put_all(parts, batch, between=lambda: self._renew(taken))
            wheel.batches.commit(batch)
        except StoreUnavailable:
            # Given up, by us or by somebody whom it took too long: all is as it was.
            if wheel.batches.abort(batch):
                wheel.bucket.each(self._free, taken)
            raise
        wheel.bucket.each(lambda each: wheel.finish(each.name), taken)
        return len(taken)

    def _take(self, waiting: Waiting, owner: str, batch: str) -> Held | None:
        """Lease an object to move all of it; None where it is in use or a message of it is held."""
        held, until_ms = self._wheel.held(waiting), self._wheel.now_ms() + self._lease_ms
        state = self._wheel.settled(held.state)
        if state.owner or state.held or state.failures or state.moved or state.moving:
            return None
        mine = replace(state, owner=owner, until_ms=until_ms, moving=batch)
        return held if self._wheel.lease(held, mine) else None

    def _lines(self, each: Held, taken: Sequence[Held]) -> Iterable[Line]:
        self._renew(taken)
        lines = self._wheel.lines(each.name) or []
        self._wheel.forget(each.name)
        return (line for n, line in enumerate(lines) if n not in each.state.gone)

    def _renew(self, taken: Sequence[Held]) -> None:
        """Hold the objects for another lease, once a third of it is over."""
        now_ms = self._wheel.now_ms()
        late = [e for e in taken if e.state.until_ms < now_ms + self._lease_ms * 2 // 3]
        until_ms = now_ms + self._lease_ms
        self._wheel.bucket.each(lambda e: self._write(e, replace(e.state, until_ms=until_ms)), late)

    def _free(self, each: Held) -> None:
        self._write(each, replace(each.state.freed(), moving=""))

    def _write(self, each: Held, state: State) -> None:
        try:
            self._wheel.write_state(each, state)
        except Changed as error:
            raise StoreUnavailable(one_line(error)) from error


def _memory(waiting: Waiting) -> int:
    return waiting.name.size + waiting.name.count * LINE_BYTES
