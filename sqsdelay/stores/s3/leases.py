"""Leases of objects, by those who release their messages (`S3Claim`) and who write them anew (`Turner`).

A claim writes beside an object what of its messages is in hand, and what is gone. A turner splits coarse
slots that come near, and merges small objects: it leases them, writes their messages anew as a batch,
commits it, and deletes them. Killed before the commit, it has changed nothing; after it, others delete what
it has left. Messages are released from any slot, so nothing is late for it.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from itertools import groupby
from operator import attrgetter
from typing import Final

from sqsdelay.core.stored_message import StoredMessage
from sqsdelay.errors import StoreUnavailable
from sqsdelay.stores.calls import CONCURRENCY
from sqsdelay.stores.s3 import layout
from sqsdelay.stores.s3.bucket import Changed
from sqsdelay.stores.s3.wheel import Held, Waiting, Wheel, portioned, portions
from sqsdelay.stores.shared import HoldingClaim

CLAIM_BYTES: Final = 32 * 2**20
"""Of objects that one claim leases, before they are compressed: of large messages it takes fewer."""

_SURE_MS: Final = 10_000
"""Of a lease left: enough to delete an object in, whatever an answer takes."""

SPLIT_MESSAGES: Final = 20_000
SPLIT_BYTES: Final = 16 * layout.MAX_OBJECT_BYTES
"""A coarse slot with more is split; one with less is released from as it is, which takes fewer requests."""

MERGE_OBJECTS: Final = 4
"""So many small objects of a slot are merged when it comes near."""

SMALL: Final = layout.MAX_OBJECT_MESSAGES // 4
SMALL_BYTES: Final = layout.MAX_OBJECT_BYTES // 4
"""Messages, and their bytes, in an object that is small: it has less of both. So four of them are merged
into three at the most, and nothing is written that comes out the same."""

CHUNK_OBJECTS: Final = 256
CHUNK_BYTES: Final = 32 * 2**20
"""Written anew at a time, as they lie in memory; at the worst that holds three times as much."""


class S3Claim(HoldingClaim):
    """Messages of the objects that are leased: up to so many, due by then, of open destinations."""

    transaction: Final = None

    def __init__(
        self, wheel: Wheel, lease_ms: int, limit: int, due_by_ms: int, closed: Collection[str]
    ) -> None:
        self.limit = limit
        self.due_by_ms = due_by_ms
        self.closed = frozenset(closed)
        self._wheel = wheel
        self._owner = layout.new_part()
        self._lease_ms = lease_ms
        self._lock = threading.RLock()
        self._leased: list[Held] = []
        self._places: dict[str, tuple[Held, int]] = {}
        self.messages: list[StoredMessage] = []

    def take(self, due: Sequence[Waiting]) -> None:
        """Lease objects in this order, those that nobody has and that hold something due: as many as hold
        ``limit`` messages; fewer where they are large, or S3 so slow that the first lease might end before
        the last begins."""
        left, begun_ms = deque(due), self._wheel.now_ms()
        while left and self._wheel.now_ms() - begun_ms < self._lease_ms // 3:
            room = self.limit - len(self.messages)
            size = sum(each.name.size for each in self._leased)
            few: list[tuple[Waiting, int]] = []
            while left and room > 0 and len(few) < CONCURRENCY:
                size += left[0].name.size
                if size > CLAIM_BYTES and (few or self._leased):
                    break
                few.append((left[0], room))
                room -= left.popleft().name.count
            if not few:
                return
            self._wheel.bucket.each(lambda each: self._take(*each), few)

    def make_sure(self) -> None:
        """Keep what is in hand still: whoever stood still while he leased may have lost some of it."""
        soon_ms = self._wheel.now_ms() + self._lease_ms * 2 // 3
        if any(held.state.until_ms < soon_ms for held in self._leased):
            self.renew()
            self.messages = [m for m in self.messages if self._is_in_hand(m.message_id)]

    def _is_in_hand(self, message_id: str) -> bool:
        held, position = self._places.get(message_id, (None, 0))
        return held is not None and position in held.state.hand

    def _take(self, waiting: Waiting, limit: int) -> None:
        """Lease one object, for up to ``limit`` messages of it. Of those that share an id, one: a claim is
        settled by ids."""
        wheel, now_ms = self._wheel, self._wheel.now_ms()
        held = wheel.held(waiting)
        if held.state.leased(now_ms):
            return
        settled = wheel.given_up(held.state.freed())
        if settled is not None:
            held.state, held.lines = settled, wheel.lines(held.name) or ()
        if settled is None or held.empty:
            wheel.finish(held.name)
            return
        with self._lock:
            chosen = self._due(held, limit)
        until_ms, hand = now_ms + self._lease_ms, frozenset(chosen)
        mine = replace(settled, owner=self._owner, until_ms=until_ms, hand=hand)
        leased = bool(chosen) and wheel.lease(held, mine)
        with self._lock:
            if leased:
                self._leased.append(held)
                self.messages += chosen.values()
            else:
                for message in chosen.values():
                    del self._places[message.message_id]

    def _due(self, held: Held, limit: int) -> dict[int, StoredMessage]:
        """What of an object may be released: the earliest, by position, each id once."""
        now_ms, state = self._wheel.now_ms(), held.state
        chosen: dict[int, StoredMessage] = {}
        for position, line in enumerate(held.lines):
            if line.due_ms > self.due_by_ms or len(chosen) == limit:
                break
            if position in state.gone or state.held.get(position, 0) > now_ms:
                continue
            message = layout.message_of(line, state.failures.get(position, 0))
            if message.destination not in self.closed and message.message_id not in self._places:
                # At once, so that no other object that is taken at this moment gives the id again.
                self._places[message.message_id] = (held, position)
                chosen[position] = message
        return chosen

    def attempt(self) -> AbstractContextManager[None]:
        return nullcontext()

    def remove(self, message_ids: Sequence[str]) -> list[bool]:
        places = [(m, *self._places[m]) for m in message_ids if m in self._places]
        found_by_id = [m for m, held, n in places if layout.is_found_by_id(held.lines[n])]
        notes = self._wheel.notes(found_by_id)
        removed = self._settle(message_ids, layout.State.without)
        gone = {m for m, is_gone in zip(message_ids, removed, strict=True) if is_gone}
        self._wheel.forget_notes({m: etag for m, etag in notes.items() if m in gone})
        return removed

    def _hold(self, message_ids: Sequence[str], seconds: float, failed: int) -> list[bool]:
        until_ms = self._wheel.now_ms() + round(seconds * 1000)
        return self._settle(message_ids, lambda state, where: state.kept(where, until_ms, failed))

    def _settle(
        self,
        message_ids: Sequence[str],
        change: Callable[[layout.State, Collection[int]], layout.State],
    ) -> list[bool]:
        """Change the states of what is in hand of these, an object at a time."""
        with self._lock:
            here: dict[Held, dict[str, int]] = {}
            for message_id in filter(self._is_in_hand, message_ids):
                held, position = self._places[message_id]
                here.setdefault(held, {})[message_id] = position

            def settle(held: Held) -> Iterable[str]:
                places = here[held]
                written = self._write(held, lambda state: change(state, places.values()))
                return places if written else ()

            done = {m for ids in self._wheel.bucket.each(settle, here) for m in ids}
            return [message_id in done for message_id in message_ids]

    def _write(self, held: Held, change: Callable[[layout.State], layout.State]) -> bool:
        """Change a state of ours; False where the lease was lost."""
        wheel = self._wheel
        while True:
            before, state = held.state, change(held.state)
            if not state.hand:
                state = state.freed()
            mine = wheel.now_ms() < before.until_ms - _SURE_MS
            all_gone = len(state.gone) >= len(held.lines)
            try:
                if mine and all_gone:
                    held.state = state
                else:
                    wheel.write_state(held, state)
                if all_gone:
                    wheel.finish(held.name)
                return True
            except Changed:
                found = wheel.held_now(held.name)
                if found.etag is None or found.state.owner != self._owner:
                    held.state = replace(before, hand=frozenset())
                    return False
                # Somebody has cancelled or moved another message of it.
                held.state, held.etag = found.state, found.etag

    def renew(self) -> None:
        """Hold what is in hand for another lease."""
        wheel, lease_ms = self._wheel, self._lease_ms
        self._write_held(lambda state: replace(state, until_ms=wheel.now_ms() + lease_ms))

    def release(self) -> None:
        """Free what is left in hand."""
        self._write_held(layout.State.freed)

    def _write_held(self, change: Callable[[layout.State], layout.State]) -> None:
        with self._lock:
            held = [each for each in self._leased if each.state.hand]
            self._wheel.bucket.each(lambda each: self._write(each, change), held)


class Turner:
    """Turns one endpoint's wheel."""

    split_messages = SPLIT_MESSAGES

    def __init__(self, wheel: Wheel, *, lease_ms: int) -> None:
        self._wheel = wheel
        self._lease_ms = lease_ms

    def turn(self, objects: Sequence[Waiting], *, until_ms: int) -> int:
        """Split and merge what is near of what was listed; begin nothing from ``until_ms`` on. Returns how
        many objects were written anew: then what was listed has changed, and there may be more."""
        written, wheel = 0, self._wheel
        slot_of = attrgetter("name.slot")
        for slot, found in groupby(sorted(objects, key=slot_of), key=slot_of):
            if not wheel.hierarchy.is_near(slot, wheel.now_ms()):
                continue
            seconds, chunks = self._chunks(slot, list(found))
            for chunk in chunks:
                if wheel.now_ms() >= until_ms:
                    return written
                written += self._write_anew(chunk, slot, seconds)
        return written

    def _chunks(
        self, slot: layout.Slot, objects: list[Waiting]
    ) -> tuple[int, Iterable[list[Waiting]]]:
        """Objects to be written anew together, and to slots of which length."""
        finer = self._wheel.hierarchy.finer(slot)
        messages = sum(each.name.count for each in objects)
        large = messages >= self.split_messages or sum(e.name.size for e in objects) >= SPLIT_BYTES
        small = [e for e in objects if e.name.count < SMALL and e.name.size < SMALL_BYTES]
        memory = attrgetter("name.memory")
        # So many small ones are merged first: each chunk that is split writes to all finer slots.
        if finer is not None and large and len(small) <= CHUNK_OBJECTS:
            return finer, portions(objects, memory, CHUNK_BYTES, CHUNK_OBJECTS)
        chunks = portions(small, memory, CHUNK_BYTES, CHUNK_OBJECTS)
        return slot.seconds, (chunk for chunk in chunks if len(chunk) >= MERGE_OBJECTS)

    def _write_anew(self, objects: list[Waiting], slot: layout.Slot, seconds: int) -> int:
        """One chunk; how many objects of it were."""
        wheel = self._wheel
        last_ms = max(each.name.last_ms for each in objects)
        batch, owner = layout.new_batch(last_ms, wheel.now_ms()), layout.new_part()
        leased = wheel.bucket.each(lambda each: self._take(each, owner, batch), objects)
        taken = [each for each in leased if each is not None]
        if len(taken) < MERGE_OBJECTS and (seconds == slot.seconds or not taken):
            # The others are in use: these would come out the same.
            wheel.bucket.each(self._free, taken)
            return 0
        try:
            # Of a message that is there twice, one. What differs in anything is another.
            lines = {line for each in taken for line in self._lines(each, taken)}
            parts = portioned(lines, lambda due_ms: layout.Slot.of(due_ms, seconds))
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

    def _lines(self, each: Held, taken: Sequence[Held]) -> Iterable[layout.Line]:
        self._renew(taken)
        lines = self._wheel.lines(each.name) or []
        self._wheel.forget(each.name)
        return (line for n, line in enumerate(lines) if n not in each.state.gone)

    def _renew(self, taken: Sequence[Held]) -> None:
        """Hold the objects for another lease, once a third of it is over."""
        now_ms = self._wheel.now_ms()
        late = [e for e in taken if e.state.until_ms < now_ms + self._lease_ms * 2 // 3]
        write, until_ms = self._wheel.write_state, now_ms + self._lease_ms
        self._wheel.bucket.each(lambda e: write(e, replace(e.state, until_ms=until_ms)), late)

    def _free(self, each: Held) -> None:
        self._wheel.write_state(each, replace(each.state.freed(), moving=""))
