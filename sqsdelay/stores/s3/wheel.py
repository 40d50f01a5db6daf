"""The wheel: an endpoint's objects by the slots of their due times. It has no hand that could pass anything.

What is due soon is found by listing from the beginning, and an object is deleted only when all its messages
are gone. So nothing can be written behind the wheel, however long a write takes: the next listing finds it.
"""

from __future__ import annotations

import logging
import threading
import zlib
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple, TypeVar

from sqsdelay.core.readable import one_line
from sqsdelay.core.stored_message import StoredMessage
from sqsdelay.errors import StoreUnavailable
from sqsdelay.stores.calls import CONCURRENCY
from sqsdelay.stores.s3 import layout
from sqsdelay.stores.s3.bucket import Batches, Changed, ObjectBucket
from sqsdelay.stores.shared import VERSION, mismatch

logger = logging.getLogger(__name__)

_WRITTEN_BYTES: Final = 2 * layout.MAX_OBJECT_BYTES
"""Of lines that are compressed and written at a time."""

_FIRST_OBJECTS: Final = 100
"""Of a slot that is far away: enough to know the earliest, however many there are."""

_KEPT_BYTES: Final = 32 * 2**20
"""Of lines read, kept in memory."""

_KEPT_STATES: Final = 10_000

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Waiting:
    """An object that counts, and the ETag of the state beside it; None where it has none."""

    name: layout.ObjectName
    state_etag: str | None


class Present(NamedTuple):
    """A message that has not left its object, and the object's state."""

    name: layout.ObjectName
    position: int
    line: layout.Line
    state: layout.State

    @property
    def message(self) -> StoredMessage:
        """With the failures that were counted since it was written."""
        return layout.message_of(self.line, self.state.failures.get(self.position, 0))


@dataclass(slots=True, eq=False)
class Held:
    """An object with the state beside it, as it was read or written last. A state is written only over the
    one with this ETag: so of all who change messages of the object one is first, and the others see it."""

    name: layout.ObjectName
    state: layout.State
    etag: str | None
    lines: Sequence[layout.Line] = ()

    @property
    def empty(self) -> bool:
        """Whether all its messages are gone."""
        return len(self.state.gone) >= len(self.lines)


class Wheel:
    """An endpoint's objects."""

    def __init__(
        self, bucket: ObjectBucket, endpoint: str, *, prefix: str, hierarchy: layout.Hierarchy
    ) -> None:
        self.bucket = bucket
        self.hierarchy = hierarchy
        self.batches = Batches(bucket, prefix, endpoint)
        self.prefix = f"{self.batches.root}{self.batches.endpoint}/"
        self.slots_prefix = f"{self.prefix}v{VERSION}/"
        self._checked = False
        self._lock = threading.Lock()
        self._lines: OrderedDict[layout.ObjectName, list[layout.Line]] = OrderedDict()
        self._kept_bytes = 0
        self.unreadable: set[layout.ObjectName] = set()
        self._states: dict[layout.ObjectName, tuple[str, layout.State]] = {}

    def now_ms(self) -> int:
        return self.bucket.clock.now_ms()

    def check_version(self) -> None:
        """Refuse what another sqsdelay wrote. It is looked for once, before anything is read or written."""
        if self._checked:
            return
        for key, _ in self.bucket.listed(f"{self.prefix}v", start_after=f"{self.slots_prefix}~"):
            raise mismatch(f"{self.bucket.name}/{self.prefix}", f"it has {key}", "prefix")
        self._checked = True

    def key(self, name: layout.ObjectName, *, state: bool = False) -> str:
        return self.slots_prefix + name.path(state=state)

    def listed(self, *, until_ms: int | None = None, or_first: bool = False) -> list[Waiting]:
        """Objects whose slot starts by then (None: all), by first due time; those that count. ``or_first``:
        where there are none, those of the first slot that has any; where it has many, the earliest, as if
        none of their messages had gone. What was left behind by writers that were given up is deleted."""
        self.check_version()
        names, states = list[layout.ObjectName](), dict[layout.ObjectName, str]()
        for key, etag in self.bucket.listed(self.slots_prefix):
            parsed = layout.parse(key.removeprefix(self.slots_prefix))
            if parsed is None:
                continue
            name, is_state = parsed
            beyond = until_ms is not None and name.slot.start_ms > until_ms
            if beyond and not (or_first and all(name.slot == first.slot for first in names[:1])):
                break
            if is_state:
                states[name] = etag
            else:
                names.append(name)
                if beyond and len(names) == _FIRST_OBJECTS:
                    break
        kept = set(names)
        for name in states:
            # Whoever deleted the object did not come to its state. One that is being leased anew at this
            # moment, by somebody with an older listing, is noticed by him: the object is not there.
            if name not in kept and not self.bucket.exists(self.key(name)):
                self.bucket.delete(self.key(name, state=True))
        undecided: set[str] = set()
        return [
            Waiting(name, states.get(name))
            for name in sorted(names, key=lambda name: name.first_ms)
            if name not in self.unreadable and self._counts(name, undecided)
        ]

    def _counts(self, name: layout.ObjectName, undecided: set[str]) -> bool:
        if name.batch in undecided:
            return False
        try:
            visible = self.batches.visible(name)
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            logger.error("the batch %s is skipped: %s", name.batch, one_line(repr(error)))
            visible = None
        if visible is None:
            # A job's batch may have thousands of objects: it is asked about once.
            undecided.add(name.batch)
        if visible is False:
            self.bucket.delete(self.key(name), self.key(name, state=True))
        return visible is True

    def id_key(self, message_id: str) -> str:
        """Where it is noted when a message is due whose id does not tell."""
        return f"{self.prefix}ids/{layout.digest(message_id)}"

    def notes(self, message_ids: Iterable[str]) -> dict[str, str]:
        """What is noted of messages that are about to leave the store: the ETag of each one's object."""
        ids, bucket = list(message_ids), self.bucket
        found = bucket.each(lambda message_id: bucket.get_json(self.id_key(message_id)), ids)
        return {m: etag for m, (_, etag) in zip(ids, found, strict=True) if etag is not None}

    def forget_notes(self, notes: Mapping[str, str]) -> None:
        """The messages have left the store. What was noted since is of others with their ids."""
        bucket = self.bucket
        bucket.each(lambda m: bucket.delete_unchanged(self.id_key(m), notes[m]), notes)

    def lines(self, name: layout.ObjectName) -> list[layout.Line] | None:
        """An object's messages; None where it is gone."""
        with self._lock:
            if name in self._lines:
                self._lines.move_to_end(name)
                return self._lines[name]
        if (found := self.bucket.get(self.key(name))) is None:
            return None
        try:
            lines = layout.unpacked(found[0])
        except (OSError, EOFError, zlib.error) as error:
            raise self._put_aside(name, error) from error
        with self._lock:
            self._kept_bytes += 0 if name in self._lines else name.memory
            self._lines[name] = lines
            while self._kept_bytes > _KEPT_BYTES and len(self._lines) > 1:
                self._kept_bytes -= self._lines.popitem(last=False)[0].memory
        return lines

    def _put_aside(self, name: layout.ObjectName, error: Exception) -> StoreUnavailable:
        """One object that nobody can read must not stop the others: it is passed over from now on."""
        self.unreadable.add(name)
        text = (
            f"{self.key(name)} in bucket {self.bucket.name}, or the state beside it, cannot be "
            f"read, and is skipped: {one_line(repr(error))}; restore it, and restart"
        )
        logger.error(text)
        return StoreUnavailable(text)

    def forget(self, name: layout.ObjectName) -> None:
        """An object is gone: keep nothing of it in memory."""
        with self._lock:
            self._kept_bytes -= 0 if self._lines.pop(name, None) is None else name.memory
        self._states.pop(name, None)

    def held(self, waiting: Waiting) -> Held:
        """An object and its state as it was when it was listed."""
        if waiting.state_etag is None:
            return Held(waiting.name, layout.State(), None)
        etag, state = self._states.get(waiting.name, ("", layout.State()))
        if etag != waiting.state_etag:
            return self.held_now(waiting.name)
        return Held(waiting.name, state, etag)

    def held_now(self, name: layout.ObjectName) -> Held:
        """An object and its state as it is now."""
        held = Held(name, layout.State(), None)
        try:
            fields, held.etag = self.bucket.get_json(self.key(name, state=True))
            held.state = layout.State.of(fields)
        except (ValueError, TypeError, AttributeError) as error:
            raise self._put_aside(name, error) from error
        if held.etag is not None:
            self._keep(held)
        return held

    def _keep(self, held: Held) -> None:
        if len(self._states) >= _KEPT_STATES:
            self._states.clear()
        self._states[held.name] = (str(held.etag), held.state)

    def write_state(self, held: Held, state: layout.State) -> None:
        """Replace the state of an object. Raises Changed: somebody else has, or the object was finished."""
        key = self.key(held.name, state=True)
        held.etag = self.bucket.put_json(key, state.fields(), over=held.etag)
        held.state = state
        self._keep(held)

    def lease(self, held: Held, state: layout.State) -> bool:
        """As `write_state`; False where somebody was faster, or the object, which may have had no state, was
        finished since it was listed."""
        try:
            self.write_state(held, state)
        except Changed:
            return False
        if self.bucket.exists(self.key(held.name)):
            return True
        self.finish(held.name)
        return False

    def finish(self, name: layout.ObjectName) -> None:
        """All its messages are gone. The object first: without its state all would be back."""
        self.bucket.delete(self.key(name), self.key(name, state=True))
        self.forget(name)

    def settled(self, state: layout.State) -> layout.State:
        """A state without moves whose batches are decided; one that moves all is looked at elsewhere."""
        decided = {n: self.batches.committed(batch) for n, batch in state.moved.items()}
        left = {n: batch for n, batch in state.moved.items() if decided[n] is None}
        return replace(state, moved=left).without(n for n in decided if decided[n])

    def given_up(
        self, state: layout.State, positions: Collection[int] | None = None
    ) -> layout.State | None:
        """A state once batches of those who no longer lease it are given up: that which moves all, and those
        that move messages at these positions, or any; None where all went elsewhere."""
        if state.moving and not self.batches.abort(state.moving):
            return None
        state = self.settled(replace(state, moving=""))
        mine = {n: b for n, b in state.moved.items() if positions is None or n in positions}
        left = {n: batch for n, batch in state.moved.items() if n not in mine}
        went = [n for n, batch in mine.items() if not self.batches.abort(batch)]
        return replace(state.without(went), moved=left)

    def _rest(self, waiting: Waiting) -> layout.State | None:
        """What has left an object; None where all of it was moved."""
        state = self.held(waiting).state
        if state.moving and self.batches.committed(state.moving):
            return None
        return self.settled(state) if state.moved else state

    def present(self, waiting: Waiting) -> list[Present]:
        """The messages of an object that have not left it, by position."""
        name, state = waiting.name, self._rest(waiting)
        if state is None:
            return []
        lines = enumerate(self.lines(name) or ())
        return [Present(name, n, line, state) for n, line in lines if n not in state.gone]

    def count(self, waiting: Waiting) -> int:
        """How many messages of an object wait."""
        state = self._rest(waiting)
        return 0 if state is None else max(0, waiting.name.count - len(state.gone))

    def write(self, lines: Sequence[layout.Line]) -> None:
        """Keep messages, or none: one object alone for those of one slot, else a batch of them."""
        now_ms = self.now_ms()
        parts = list(portioned(lines, lambda due_ms: self.hierarchy.slot(due_ms, now_ms)))
        last_ms = max((line.due_ms for line in lines), default=0)
        batch = layout.new_batch(last_ms, now_ms) if len(parts) > 1 else ""
        self.put_all(parts, batch)
        if batch:
            self.batches.commit(batch)

    def put_all(
        self,
        parts: Iterable[tuple[layout.Slot, list[layout.Line]]],
        batch: str,
        *,
        between: Callable[[], object] = bool,
    ) -> None:
        """Write objects of a batch, several at a time, as far as memory goes; ``between`` before each few."""
        most = _WRITTEN_BYTES, CONCURRENCY
        for few in portions(parts, lambda part: layout.size_of(part[1]), *most):
            between()
            self.bucket.each(lambda part: self.put(*part, batch=batch), few)

    def put(self, slot: layout.Slot, lines: Sequence[layout.Line], *, batch: str = "") -> None:
        """Write one object."""
        between, size = (lines[0].due_ms, lines[-1].due_ms), layout.size_of(lines)
        name = layout.ObjectName(slot, *between, len(lines), size, layout.new_part(), batch)
        self.bucket.put(self.key(name), layout.packed(lines))


def portioned(
    lines: Iterable[layout.Line], slot_of: Callable[[int], layout.Slot]
) -> Iterable[tuple[layout.Slot, list[layout.Line]]]:
    """Lines by the slot of their due time, in due order, so many as fit into an object."""
    by_slot: dict[layout.Slot, list[layout.Line]] = {}
    for line in lines:
        by_slot.setdefault(slot_of(line.due_ms), []).append(line)
    most = layout.MAX_OBJECT_BYTES, layout.MAX_OBJECT_MESSAGES
    for slot in sorted(by_slot):
        for part in portions(sorted(by_slot[slot]), lambda line: len(line.text), *most):
            yield slot, part


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
