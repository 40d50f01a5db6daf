"""The wheel: an endpoint's objects by the slots of their due times. It has no hand that could pass anything.

What is due soon is found by listing from the beginning, and an object is deleted only when all its
messages are gone. So nothing can be written behind the wheel, however long a write takes: the next
listing finds it.
"""

from __future__ import annotations

import logging
import threading
import zlib
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final, TypeVar
from urllib.parse import quote

from sqsdelay.core.readable import one_line
from sqsdelay.errors import SchemaMismatch, StoreUnavailable
from sqsdelay.stores.s3.batches import Batches
from sqsdelay.stores.s3.bucket import CONCURRENCY, Changed, ObjectBucket
from sqsdelay.stores.s3.objects import VERSION, Line, State, packed, size_of, unpacked
from sqsdelay.stores.s3.slots import Hierarchy, ObjectName, Slot, new_batch, new_part, parse

logger = logging.getLogger(__name__)

MAX_OBJECT_MESSAGES: Final = 5_000
"""Messages in one object: what one dispatcher leases at once, and a hot slot is spread by."""

MAX_OBJECT_BYTES: Final = 8 * 2**20
"""Bytes in one object, before it is compressed, unless a single message is larger."""

_WRITTEN_BYTES: Final = 2 * MAX_OBJECT_BYTES
"""Of lines that are compressed and written at a time."""

_FIRST_OBJECTS: Final = 100
"""Of a slot that is far away: enough to know the earliest, however many there are."""

LINE_BYTES: Final = 300
"""What a line takes in memory besides its text."""

_KEPT_BYTES: Final = 32 * 2**20
"""Of lines read, kept in memory."""


T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Waiting:
    """An object that counts, and the ETag of the state beside it; None where it has none."""

    name: ObjectName
    state_etag: str | None


class Wheel:
    """An endpoint's objects."""

    def __init__(
        self, bucket: ObjectBucket, endpoint: str, *, prefix: str, hierarchy: Hierarchy
    ) -> None:
        self.bucket = bucket
        self.hierarchy = hierarchy
        prefix = f"{prefix.strip('/')}/" if prefix.strip("/") else ""
        self.prefix = f"{prefix}{quote(endpoint, safe='')}/"
        self.slots_prefix = f"{self.prefix}v{VERSION}/"
        self.batches = Batches(bucket, self.prefix)
        self._checked = False
        self._lock = threading.Lock()
        self._lines: OrderedDict[str, list[Line]] = OrderedDict()
        self._kept_bytes = 0
        self._unreadable: set[ObjectName] = set()
        self._states: OrderedDict[str, tuple[str, State]] = OrderedDict()

    def now_ms(self) -> int:
        return self.bucket.clock.now_ms()

    def check_version(self) -> None:
        """Refuse what another sqsdelay wrote. It is looked for once, before anything is read or written."""
        if self._checked:
            return
        for found in self.bucket.listed(f"{self.prefix}v", start_after=f"{self.slots_prefix}~"):
            raise SchemaMismatch(
                f"bucket {self.bucket.name} has {found.key}, which another version of sqsdelay wrote; "
                f"this one reads version {VERSION} only: use the same sqsdelay everywhere, or another "
                "prefix"
            )
        self._checked = True

    def key(self, name: ObjectName) -> str:
        return self.slots_prefix + name.path

    def state_key(self, name: ObjectName) -> str:
        return self.slots_prefix + name.state_path

    def listed(self, *, until_ms: int | None = None, or_first: bool = False) -> list[Waiting]:
        """Objects whose slot starts by then, by slot and first due time; those that count.

        Args:
            until_ms: None for all.
            or_first: where there are none, those of the first slot that has any; where it has many, the
                earliest, as if none of their messages had gone.

        What was left behind by writers that were given up is deleted on the way.
        """
        self.check_version()
        names: list[ObjectName] = []
        states: dict[ObjectName, str] = {}
        for found in self.bucket.listed(self.slots_prefix):
            parsed = parse(found.key.removeprefix(self.slots_prefix))
            if parsed is None:
                continue
            name, is_state = parsed
            beyond = until_ms is not None and name.slot.start_ms > until_ms
            if beyond and not (or_first and all(name.slot == first.slot for first in names[:1])):
                break
            if is_state:
                states[name] = found.etag
            else:
                names.append(name)
                if beyond and len(names) == _FIRST_OBJECTS:
                    break
        kept = set(names)
        for name in states:
            # Whoever deleted the object did not come to its state. One that is being leased anew at this
            # moment, by somebody with an older listing, is noticed by him: the object is not there.
            if name not in kept and not self.bucket.exists(self.key(name)):
                self.bucket.delete(self.state_key(name))
        undecided: set[str] = set()
        return [
            Waiting(name, states.get(name))
            for name in names
            if name not in self._unreadable and self._counts(name, undecided)
        ]

    def _counts(self, name: ObjectName, undecided: set[str]) -> bool:
        if name.batch in undecided:
            return False
        visible = self.batches.visible(name)
        if visible is None:
            # A job's batch may have thousands of objects: it is asked about once.
            undecided.add(name.batch)
        if visible is False:
            self.bucket.delete(self.key(name), self.state_key(name))
        return visible is True

    def lines(self, name: ObjectName) -> list[Line] | None:
        """An object's messages; None where it is gone."""
        key = self.key(name)
        with self._lock:
            kept = self._lines.get(key)
            if kept is not None:
                self._lines.move_to_end(key)
                return kept
        found = self.bucket.get(key)
        if found is None:
            return None
        try:
            lines = unpacked(found[0])
        except (OSError, EOFError, zlib.error) as error:
            raise self._put_aside(name, error) from error
        with self._lock:
            self._lines[key] = lines
            self._kept_bytes += _size(lines)
            while self._kept_bytes > _KEPT_BYTES and len(self._lines) > 1:
                self._kept_bytes -= _size(self._lines.popitem(last=False)[1])
        return lines

    def _put_aside(self, name: ObjectName, error: Exception) -> StoreUnavailable:
        """One object that nobody can read must not stop the others: it is passed over from now on."""
        self._unreadable.add(name)
        text = (
            f"{self.key(name)} in bucket {self.bucket.name}, or the state beside it, cannot be "
            f"read, and is skipped: {one_line(repr(error))}; restore it, and restart"
        )
        logger.error(text)
        return StoreUnavailable(text)

    def forget(self, name: ObjectName) -> None:
        """An object is gone: keep nothing of it in memory."""
        with self._lock:
            dropped = self._lines.pop(self.key(name), None)
            self._kept_bytes -= 0 if dropped is None else _size(dropped)
            self._states.pop(self.state_key(name), None)

    def state(self, waiting: Waiting) -> tuple[State, str | None]:
        """What has become of an object's messages, and the ETag that says so."""
        if waiting.state_etag is None:
            return State(), None
        key = self.state_key(waiting.name)
        with self._lock:
            kept = self._states.get(key)
        if kept is not None and kept[0] == waiting.state_etag:
            return kept[1], kept[0]
        return self.fresh_state(waiting.name)

    def fresh_state(self, name: ObjectName) -> tuple[State, str | None]:
        """The same as it is now."""
        found = self.bucket.get(self.state_key(name))
        if found is None:
            return State(), None
        try:
            state = State.of(found[0])
        except (ValueError, TypeError, AttributeError) as error:
            raise self._put_aside(name, error) from error
        self._keep_state(name, found[1], state)
        return state, found[1]

    def write_state(self, name: ObjectName, state: State, over: str | None) -> str:
        """Replace a state; its new ETag.

        Raises:
            Changed: somebody else has, or the object was finished.
        """
        etag = self.bucket.put(self.state_key(name), state.to_bytes(), over=over)
        self._keep_state(name, etag, state)
        return etag

    def lease(self, name: ObjectName, state: State, over: str | None) -> str | None:
        """As `write_state`; None where somebody was faster, or the object is gone since it was listed.

        An object without state may be one that was finished. With one it is there.
        """
        try:
            etag = self.write_state(name, state, over)
        except Changed:
            return None
        if self.bucket.exists(self.key(name)):
            return etag
        self.finish(name)
        return None

    def _keep_state(self, name: ObjectName, etag: str, state: State) -> None:
        with self._lock:
            self._states[self.state_key(name)] = (etag, state)
            if len(self._states) > 10_000:
                self._states.popitem(last=False)

    def finish(self, name: ObjectName) -> None:
        """All its messages are gone. The object first: without its state all would be back."""
        self.bucket.delete(self.key(name), self.state_key(name))
        self.forget(name)

    def settled(self, state: State) -> State:
        """A state without moves whose batches are decided; one that moves all is looked at elsewhere."""
        if not state.moved:
            return state
        gone, left = set(), {}
        for position, batch in state.moved.items():
            committed = self.batches.committed(batch)
            if committed:
                gone.add(position)
            elif committed is None:
                left[position] = batch
        return replace(state, moved=left).without(gone)

    def present(self, waiting: Waiting) -> list[tuple[int, Line, State]]:
        """The messages of an object that have not left it, by position."""
        state = self._rest(waiting)
        if state is None:
            return []
        lines = self.lines(waiting.name) or []
        return [(n, line, state) for n, line in enumerate(lines) if n not in state.gone]

    def count(self, waiting: Waiting) -> int:
        """How many messages of an object wait."""
        if waiting.state_etag is None:
            return waiting.name.count
        state = self._rest(waiting)
        return 0 if state is None else max(0, waiting.name.count - len(state.gone))

    def _rest(self, waiting: Waiting) -> State | None:
        """What has left an object; None where all of it was moved."""
        state, _ = self.state(waiting)
        if state.moving and self.batches.committed(state.moving):
            return None
        return self.settled(state)

    def write(self, lines: Sequence[Line], *, now_ms: int) -> None:
        """Keep messages: one object alone for those of one slot, else a batch of them.

        Raises:
            StoreUnavailable: none was kept.
        """
        parts = list(self.portioned(lines, now_ms=now_ms))
        if len(parts) < 2:
            for slot, part in parts:
                self.put(slot, part)
            return
        batch = new_batch(max(line.due_ms for line in lines), now_ms)
        self.put_all(parts, batch)
        self.batches.commit(batch)

    def portioned(
        self, lines: Iterable[Line], *, now_ms: int, seconds: int | None = None
    ) -> Iterable[tuple[Slot, list[Line]]]:
        """Lines by slot of that length, in due order, so many as fit into an object.

        Without a length it is chosen by how far away each is.
        """
        by_slot: dict[Slot, list[Line]] = {}
        for line in lines:
            slot = (
                self.hierarchy.slot(line.due_ms, now_ms)
                if seconds is None
                else Slot.of(line.due_ms, seconds)
            )
            by_slot.setdefault(slot, []).append(line)
        for slot in sorted(by_slot):
            ordered = sorted(by_slot[slot], key=lambda line: (line.due_ms, line.message_id))
            for part in portions(
                ordered, lambda line: len(line.text), MAX_OBJECT_BYTES, MAX_OBJECT_MESSAGES
            ):
                yield slot, part

    def put_all(
        self,
        parts: Iterable[tuple[Slot, list[Line]]],
        batch: str,
        *,
        between: Callable[[], object] = bool,
    ) -> None:
        """Write objects of a batch, several at a time, as far as memory goes; ``between`` before each few."""
        for few in portions(parts, lambda part: size_of(part[1]), _WRITTEN_BYTES, CONCURRENCY):
            between()
            self.bucket.each(lambda part: self.put(*part, batch=batch), few)

    def put(self, slot: Slot, lines: Sequence[Line], *, batch: str = "") -> ObjectName:
        """Write one object."""
        first_ms, last_ms, size = lines[0].due_ms, lines[-1].due_ms, size_of(lines)
        name = ObjectName(slot, first_ms, last_ms, len(lines), size, new_part(), batch)
        self.bucket.put(self.key(name), packed(lines))
        return name


def portions(
    items: Iterable[T], size: Callable[[T], int], most_bytes: int, most: int
) -> Iterable[list[T]]:
    """Items in order, so many together as are at most so many bytes; one that is larger is alone."""
    few: list[T] = []
    total = 0
    for item in items:
        if few and (len(few) == most or total + size(item) > most_bytes):
            yield few
            few, total = [], 0
        few.append(item)
        total += size(item)
    if few:
        yield few


def _size(lines: Sequence[Line]) -> int:
    return size_of(lines) + len(lines) * LINE_BYTES
