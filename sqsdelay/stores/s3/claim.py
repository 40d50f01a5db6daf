"""Claims: leases of objects, and what of their messages is in hand, written beside them."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Final

from sqsdelay.core.stored_message import StoredMessage
from sqsdelay.stores.s3.bucket import CONCURRENCY, Changed
from sqsdelay.stores.s3.changes import Changes
from sqsdelay.stores.s3.objects import Line, State, found_by_id, with_failures
from sqsdelay.stores.s3.slots import new_part
from sqsdelay.stores.s3.wheel import Waiting, Wheel

CLAIM_BYTES: Final = 32 * 2**20
"""Of objects that one claim leases, before they are compressed: of large messages it takes fewer."""

_SURE_MS: Final = 10_000
"""Of a lease left: enough to delete an object in, whatever an answer takes."""


@dataclass(slots=True)
class Leased:
    """An object that is ours until the lease ends."""

    waiting: Waiting
    state: State
    etag: str | None
    lines: Sequence[Line]


class S3Claim:
    """Messages of the objects that are leased: up to so many, due by then, of open destinations."""

    transaction: Final = None

    def __init__(
        self,
        wheel: Wheel,
        changes: Changes,
        *,
        lease_ms: int,
        limit: int,
        due_by_ms: int,
        closed: Collection[str],
    ) -> None:
        self.limit = limit
        self.due_by_ms = due_by_ms
        self.closed = closed
        self._wheel = wheel
        self._changes = changes
        self._owner = new_part()
        self._lease_ms = lease_ms
        self._lock = threading.RLock()
        self._leased: list[Leased] = []
        self._places: dict[str, tuple[Leased, int]] = {}
        self.messages: list[StoredMessage] = []

    def take(self, due: Sequence[Waiting]) -> None:
        """Lease objects in this order, those that nobody has and that hold something due.

        As many as hold ``limit`` messages, several at a time; fewer where they are large, or S3 takes
        so long that the first lease might end before the last begins.
        """
        left, begun_ms = deque(due), self._wheel.now_ms()
        while left and self._wheel.now_ms() - begun_ms < self._lease_ms // 3:
            room = self.limit - len(self.messages)
            size = sum(each.waiting.name.size for each in self._leased)
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
        state, etag = wheel.state(waiting)
        if state.leased(now_ms):
            return
        settled = self._given_up(state.freed())
        lines = None if settled is None else wheel.lines(waiting.name)
        if settled is None or not lines or len(settled.gone) >= len(lines):
            wheel.finish(waiting.name)
            return
        leased = Leased(waiting, settled, etag, lines)
        with self._lock:
            chosen = self._due(leased, limit)
        until_ms, hand = now_ms + self._lease_ms, frozenset(position for position, _ in chosen)
        mine = replace(settled, owner=self._owner, until_ms=until_ms, hand=hand)
        etag = wheel.lease(waiting.name, mine, etag) if chosen else None
        with self._lock:
            if etag is None:
                for _, message in chosen:
                    del self._places[message.message_id]
                return
            leased.state, leased.etag = mine, etag
            self._leased.append(leased)
            self.messages += [message for _, message in chosen]

    def _due(self, leased: Leased, limit: int) -> list[tuple[int, StoredMessage]]:
        """What of an object may be released: the earliest, by position, each id once."""
        now_ms, state = self._wheel.now_ms(), leased.state
        chosen: list[tuple[int, StoredMessage]] = []
        for position, line in enumerate(leased.lines):
            if line.due_ms > self.due_by_ms or len(chosen) == limit:
                break
            if position in state.gone or state.held.get(position, 0) > now_ms:
                continue
            message = with_failures(line, state.failures.get(position, 0))
            if message.destination not in self.closed and message.message_id not in self._places:
                # At once, so that no other object that is taken at this moment gives the id again.
                self._places[message.message_id] = (leased, position)
                chosen.append((position, message))
        return chosen

    def _given_up(self, state: State) -> State | None:
        """The state once batches of those who no longer lease it are given up; None if one took all."""
        batches = self._wheel.batches
        if state.moving and not batches.abort(state.moving):
            return None
        state = self._wheel.settled(replace(state, moving=""))
        for position, batch in list(state.moved.items()):
            if not batches.abort(batch):
                state = state.without([position])
        return replace(state, moved={})

    def attempt(self) -> AbstractContextManager[None]:
        return nullcontext()

    def remove(self, message_ids: Sequence[str]) -> list[bool]:
        places = [(m, *self._places[m]) for m in message_ids if m in self._places]
        notes = self._changes.notes(
            m for m, leased, position in places if found_by_id(leased.lines[position])
        )
        answers = self._settle(message_ids, lambda state, positions: state.without(positions))
        gone = [m for m, removed in zip(message_ids, answers, strict=True) if removed]
        self._changes.forget({m: notes[m] for m in gone if m in notes})
        return answers

    def count_failures(
        self, message_ids: Sequence[str], *, retry_after_seconds: float
    ) -> list[bool]:
        until_ms = self._wheel.now_ms() + round(retry_after_seconds * 1000)

        def counted(state: State, positions: frozenset[int]) -> State:
            more = {n: state.failures.get(n, 0) + 1 for n in positions}
            return replace(_held(state, positions, until_ms), failures={**state.failures, **more})

        return self._settle(message_ids, counted)

    def hold(self, message_ids: Sequence[str], *, seconds: float) -> list[bool]:
        until_ms = self._wheel.now_ms() + round(seconds * 1000)
        return self._settle(message_ids, lambda state, where: _held(state, where, until_ms))

    def _settle(
        self, message_ids: Sequence[str], change: Callable[[State, frozenset[int]], State]
    ) -> list[bool]:
        with self._lock:
            here: dict[int, dict[str, int]] = {}
            for message_id in message_ids:
                leased, position = self._places.get(message_id, (None, 0))
                if leased is not None and position in leased.state.hand:
                    here.setdefault(id(leased), {})[message_id] = position

            def settle(leased: Leased) -> Iterable[str]:
                positions = frozenset(here[id(leased)].values())
                written = self._write(leased, lambda state: change(state, positions))
                return here[id(leased)] if written else ()

            those = [leased for leased in self._leased if id(leased) in here]
            done = {m for ids in self._wheel.bucket.each(settle, those) for m in ids}
            return [message_id in done for message_id in message_ids]

    def _write(self, leased: Leased, change: Callable[[State], State]) -> bool:
        """Change a state of ours; False where the lease was lost."""
        wheel, name = self._wheel, leased.waiting.name
        while True:
            state = change(leased.state)
            if not state.hand:
                state = state.freed()
            mine = wheel.now_ms() < leased.state.until_ms - _SURE_MS
            all_gone = len(state.gone) >= len(leased.lines)
            try:
                if not (mine and all_gone):
                    leased.etag = wheel.write_state(name, state, leased.etag)
                leased.state = state
                if all_gone:
                    wheel.finish(name)
                return True
            except Changed:
                found, etag = wheel.fresh_state(name)
                if etag is None or found.owner != self._owner:
                    leased.state = replace(leased.state, hand=frozenset())
                    return False
                # Somebody has cancelled or moved another message of it.
                leased.state, leased.etag = found, etag

    def renew(self) -> None:
        """Hold what is in hand for another lease."""
        with self._lock:
            until_ms = self._wheel.now_ms() + self._lease_ms
            self._write_held(lambda state: replace(state, until_ms=until_ms))

    def release(self) -> None:
        """Free what is left in hand."""
        with self._lock:
            self._write_held(State.freed)

    def _write_held(self, change: Callable[[State], State]) -> None:
        held = [leased for leased in self._leased if leased.state.hand]
        self._wheel.bucket.each(lambda leased: self._write(leased, change), held)


def _held(state: State, positions: frozenset[int], until_ms: int) -> State:
    held = {**state.held, **dict.fromkeys(positions, until_ms)}
    return replace(state, held=held, hand=state.hand - positions)
