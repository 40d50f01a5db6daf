"""Claims: leases of objects, and what of their messages is in hand, written beside them."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Final

from sqsdelay.core.stored_message import StoredMessage
from sqsdelay.stores.calls import CONCURRENCY
from sqsdelay.stores.s3.bucket import Changed
from sqsdelay.stores.s3.changes import Changes
from sqsdelay.stores.s3.layout import State, is_found_by_id, message_of, new_part
from sqsdelay.stores.s3.wheel import Held, Waiting

CLAIM_BYTES: Final = 32 * 2**20
"""Of objects that one claim leases, before they are compressed: of large messages it takes fewer."""

_SURE_MS: Final = 10_000
"""Of a lease left: enough to delete an object in, whatever an answer takes."""


class S3Claim:
    """Messages of the objects that are leased: up to so many, due by then, of open destinations."""

    transaction: Final = None

    def __init__(
        self, changes: Changes, lease_ms: int, limit: int, due_by_ms: int, closed: Collection[str]
    ) -> None:
        self.limit = limit
        self.due_by_ms = due_by_ms
        self.closed = frozenset(closed)
        self._wheel = changes.wheel
        self._changes = changes
        self._owner = new_part()
        self._lease_ms = lease_ms
        self._lock = threading.RLock()
        self._leased: list[Held] = []
        self._places: dict[str, tuple[Held, int]] = {}
        self.messages: list[StoredMessage] = []

    def take(self, due: Sequence[Waiting]) -> None:
        """Lease objects in this order, those that nobody has and that hold something due.

        As many as hold ``limit`` messages, several at a time; fewer where they are large, or S3 takes
        so long that the first lease might end before the last begins.
        """
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

    def _take(self, waiting: Waiting, limit: int) -> None:
        """Lease one object, for up to ``limit`` messages of it.

        Of messages that share an id, one: a claim is settled by ids. The others are for later claims.
        """
        wheel, now_ms = self._wheel, self._wheel.now_ms()
        held = wheel.held(waiting)
        if held.state.leased(now_ms):
            return
        settled = self._given_up(held.state.freed())
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
            message = message_of(line, state.failures.get(position, 0))
            if message.destination not in self.closed and message.message_id not in self._places:
                # At once, so that no other object that is taken at this moment gives the id again.
                self._places[message.message_id] = (held, position)
                chosen[position] = message
        return chosen

    def _given_up(self, state: State) -> State | None:
        """The state once batches of those who no longer lease it are given up; None if one took all."""
        batches = self._wheel.batches
        if state.moving and not batches.abort(state.moving):
            return None
        state = self._wheel.settled(replace(state, moving=""))
        went = [n for n, batch in state.moved.items() if not batches.abort(batch)]
        return replace(state.without(went), moved={})

    def attempt(self) -> AbstractContextManager[None]:
        return nullcontext()

    def remove(self, message_ids: Sequence[str]) -> list[bool]:
        places = [(m, *self._places[m]) for m in message_ids if m in self._places]
        notes = self._changes.notes(m for m, held, n in places if is_found_by_id(held.lines[n]))
        removed = self._settle(message_ids, State.without)
        gone = {m for m, is_gone in zip(message_ids, removed, strict=True) if is_gone}
        self._changes.forget({m: etag for m, etag in notes.items() if m in gone})
        return removed

    def count_failures(
        self, message_ids: Sequence[str], *, retry_after_seconds: float
    ) -> list[bool]:
        until_ms = self._wheel.now_ms() + round(retry_after_seconds * 1000)

        def counted(state: State, positions: Collection[int]) -> State:
            more = {n: state.failures.get(n, 0) + 1 for n in positions}
            return replace(state.kept(positions, until_ms), failures={**state.failures, **more})

        return self._settle(message_ids, counted)

    def hold(self, message_ids: Sequence[str], *, seconds: float) -> list[bool]:
        until_ms = self._wheel.now_ms() + round(seconds * 1000)
        return self._settle(message_ids, lambda state, where: state.kept(where, until_ms))

    def _settle(
        self, message_ids: Sequence[str], change: Callable[[State, Collection[int]], State]
    ) -> list[bool]:
        """Change the states of what is in hand of these, an object at a time."""
        with self._lock:
            here: dict[int, dict[str, int]] = {}
            for message_id in message_ids:
                held, position = self._places.get(message_id, (None, 0))
                if held is not None and position in held.state.hand:
                    here.setdefault(id(held), {})[message_id] = position

            def settle(held: Held) -> Iterable[str]:
                places = here[id(held)]
                written = self._write(held, lambda state: change(state, places.values()))
                return places if written else ()

            those = [held for held in self._leased if id(held) in here]
            done = {m for ids in self._wheel.bucket.each(settle, those) for m in ids}
            return [message_id in done for message_id in message_ids]

    def _write(self, held: Held, change: Callable[[State], State]) -> bool:
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
        self._write_held(State.freed)

    def _write_held(self, change: Callable[[State], State]) -> None:
        with self._lock:
            held = [each for each in self._leased if each.state.hand]
            self._wheel.bucket.each(lambda each: self._write(each, change), held)
