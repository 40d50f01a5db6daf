"""Reading what waits: the next due time, counts and pages."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace

from sqsdelay.core.stored_message import StoredMessage
from sqsdelay.errors import SchemaMismatch
from sqsdelay.stores.ids import page_bounds
from sqsdelay.stores.s3.lines import VERSION, Line, message_of
from sqsdelay.stores.s3.wheel import Waiting, Wheel

_FRESH_MS = 5_000


class Listing:
    """One endpoint's, with the last listing for those who ask again at once."""

    def __init__(self, wheel: Wheel) -> None:
        self._wheel = wheel
        self._last: tuple[int, int, list[Waiting]] | None = None

    def check_version(self) -> None:
        """Refuse what a newer sqsdelay wrote.

        Raises:
            SchemaMismatch
        """
        newer = f"{self._wheel.prefix}v{VERSION + 1}/"
        for found in self._wheel.bucket.listed(newer):
            raise SchemaMismatch(
                f"bucket {self._wheel.bucket.name} has {found.key}, written by a newer sqsdelay; this "
                f"one reads version {VERSION} only: upgrade sqsdelay here"
            )

    def objects(self, *, until_ms: int | None = None, fresh: bool = False) -> list[Waiting]:
        """Objects of the slots that have begun by then (now when left out), or of the first slot.

        Args:
            fresh: a listing of this moment; else one of some seconds ago will do, that knows our writes.
        """
        now_ms = self._wheel.now_ms()
        last = self._last
        if not fresh and last is not None and 0 <= now_ms - last[0] < _FRESH_MS:
            return last[2]
        until_ms = now_ms if until_ms is None else until_ms
        found = self._wheel.listed(until_ms=until_ms, or_first=True)
        self._last = (now_ms, until_ms, found)
        return found

    def _until(self, before_ms: int) -> list[Waiting]:
        """Of this moment. What is overdue is asked after each look for it: some seconds old will do."""
        now_ms, last = self._wheel.now_ms(), self._last
        known = last is not None and 0 <= now_ms - last[0] < _FRESH_MS
        if last is not None and known and before_ms <= min(now_ms, last[1]):
            return last[2]
        return self._wheel.listed(until_ms=before_ms)

    def forget(self) -> None:
        """Something was written."""
        self._last = None

    def next_due_ms(self, objects: Iterable[Waiting], closed: Collection[str]) -> int | None:
        """When the earliest message is due that nobody holds, among these objects."""
        earliest: int | None = None
        now_ms = self._wheel.now_ms()
        for waiting in sorted(objects, key=lambda each: each.name.first_ms):
            if earliest is not None and waiting.name.first_ms >= earliest:
                break
            due_ms = self._first_due_ms(waiting, now_ms, closed)
            if due_ms is not None and (earliest is None or due_ms < earliest):
                earliest = due_ms
        return earliest

    def _first_due_ms(self, waiting: Waiting, now_ms: int, closed: Collection[str]) -> int | None:
        if waiting.state_etag is None and not closed:
            return waiting.name.first_ms
        for position, line, state in self._wheel.present(waiting):
            if state.leased(now_ms) and (state.moving or position in state.hand):
                continue
            if state.held.get(position, 0) > now_ms:
                continue
            if not closed or message_of(line).destination not in closed:
                return line.due_ms
        return None

    def count(self) -> int:
        """How many messages wait."""
        return sum(self._count(waiting) for waiting in self._wheel.listed())

    def _count(self, waiting: Waiting) -> int:
        if waiting.state_etag is None:
            return waiting.name.count
        state, _ = self._wheel.state(waiting)
        if state.moving and self._wheel.batches.committed(state.moving):
            return 0
        return max(0, waiting.name.count - len(self._wheel.settled(state).gone))

    def page(
        self,
        limit: int,
        after: tuple[int, str] | None,
        due_from_ms: int | None,
        due_before_ms: int | None,
    ) -> list[StoredMessage]:
        """Messages by due time and id. All that share the last one's are on its page: it may be longer."""
        from_ms, from_id, before_ms = page_bounds(after, due_from_ms, due_before_ms)
        found: dict[tuple[int, str, bytes], tuple[Line, int]] = {}
        for waiting in sorted(self._until(before_ms), key=lambda each: each.name.first_ms):
            if waiting.name.last_ms < from_ms or waiting.name.first_ms >= before_ms:
                continue
            if len(found) >= limit and waiting.name.first_ms > sorted(found)[limit - 1][0]:
                break
            for position, line, state in self._wheel.present(waiting):
                place = (line.due_ms, line.message_id)
                if place > (from_ms, from_id) and line.due_ms < before_ms:
                    found[*place, line.text] = (line, state.failures.get(position, 0))
        places = sorted(found)
        end = limit
        while 0 < end < len(places) and places[end][:2] == places[end - 1][:2]:
            end += 1
        return [_message(*found[place]) for place in places[:end]]


def _message(line: Line, failures: int) -> StoredMessage:
    message = message_of(line)
    return replace(message, failures=message.failures + failures)
