"""Finding, cancelling and moving one message, by its id and where that says it lies; amendments."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from sqsdelay.core.checked_message import due_ms_of_id
from sqsdelay.core.stored_message import Amendment, StoredMessage, latest_amendments
from sqsdelay.errors import ConfigurationError, StoreUnavailable
from sqsdelay.stores.ids import ID_TOLERANCE_MS, tells_due
from sqsdelay.stores.s3.bucket import Changed, digest
from sqsdelay.stores.s3.objects import Line, State, moved
from sqsdelay.stores.s3.slots import new_batch
from sqsdelay.stores.s3.wheel import Waiting, Wheel

_SHARDS: Final = 3
"""Letters of a hash: 4,096 objects. A batch of ten reads ten of them, and two who amend seldom meet."""

_TOLD_AHEAD_MS: Final = 86_400_000
"""So much longer than the amendment at hand there are said to be some: a write a day."""


@dataclass(frozen=True, slots=True)
class Found:
    """Where a message lies."""

    waiting: Waiting
    position: int
    line: Line
    failures: int


class Changes:
    """What is done to single messages."""

    def __init__(self, wheel: Wheel, *, lookup: bool) -> None:
        self._wheel = wheel
        self._lookup = lookup

    def needs_lookup(self, message: StoredMessage) -> bool:
        """Whether an object of its own is to tell when the message is due.

        An id made up by sqsdelay can always be found. So it has one whatever ``lookup`` says if it
        tells another due time: of a message that was moved before it came here, or by a wrong clock.
        """
        wanted = self._lookup or due_ms_of_id(message.message_id) is not None
        return wanted and not tells_due(message.message_id, message.due_ms)

    def announce(self, message: StoredMessage) -> bool:
        """Write when the message is due, before it is stored; False where its id is stored already.

        What is there without a message is of somebody who died before he had written it.
        """
        if self._note_due(message.message_id, message.due_ms):
            return True
        if self.find(message.message_id) is not None:
            return False
        # Whoever has just removed the former one may be about to forget what he found noted of it.
        self._note_due(message.message_id, message.due_ms)
        return True

    def _note_due(self, message_id: str, due_ms: int) -> bool:
        """Note one more time at which the message may be due; whether it is the first."""
        dues: list[int] = []

        def noted(fields: dict[str, Any]) -> dict[str, Any]:
            dues[:] = fields["due_ms"] if fields else []
            return {"due_ms": [*dues, due_ms]}

        self._wheel.bucket.change(self._id_key(message_id), noted)
        return not dues

    def _noted(self, message_id: str) -> tuple[list[int], str | None]:
        fields, etag = self._wheel.bucket.get_json(self._id_key(message_id))
        return (fields["due_ms"] if fields else []), etag

    def notes(self, message_ids: Iterable[str]) -> dict[str, str]:
        """What is noted of messages that are about to leave the store: the ETag of each one's object."""
        ids = list(message_ids)
        found = self._wheel.bucket.each(self._noted, ids)
        return {m: etag for m, (_, etag) in zip(ids, found, strict=True) if etag is not None}

    def forget(self, notes: Mapping[str, str]) -> None:
        """The messages have left the store. What was noted since is of others with their ids."""
        self._wheel.bucket.each(
            lambda note: self._wheel.bucket.delete_unchanged(self._id_key(note[0]), note[1]),
            notes.items(),
        )

    def _id_key(self, message_id: str) -> str:
        return f"{self._wheel.prefix}ids/{digest(message_id)}"

    def find(self, message_id: str) -> Found | None:
        """A message that has not left the store.

        Raises:
            ConfigurationError: its id does not tell where it lies, and nothing else does.
        """
        return next(iter(self._copies(message_id)), None)

    def _copies(self, message_id: str) -> list[Found]:
        """The message as often as it is there: it may have been stored twice by who was not answered."""
        for first_ms, last_ms in self._spans(message_id):
            found = [
                Found(waiting, position, line, state.failures.get(position, 0))
                for waiting in self._wheel.listed(until_ms=last_ms)
                if waiting.name.first_ms <= last_ms and waiting.name.last_ms >= first_ms
                for position, line, state in self._wheel.present(waiting)
                if line.message_id == message_id and first_ms <= line.due_ms <= last_ms
            ]
            if found:
                return found
        return []

    def _spans(self, message_id: str) -> Iterator[tuple[int, int]]:
        """Between which due times it can be."""
        told = due_ms_of_id(message_id)
        dues, _ = self._noted(message_id)
        if not dues and told is None and not self._lookup:
            raise ConfigurationError(
                f"message_id {message_id!r} does not contain its message's due time, and this store "
                "keeps no look-up objects; leave message_id out and use the id that send returns, or "
                "open the store with ?lookup=on before you send"
            )
        for due_ms in reversed(dues):
            yield due_ms, due_ms
        if told is not None:
            yield told, told + ID_TOLERANCE_MS

    def cancel(self, message_id: str) -> bool:
        """Remove a message unless it is being released."""
        gone = False
        for _ in self._wheel.bucket.attempts():
            notes = self.notes([message_id])
            copies = self._copies(message_id)
            if not copies:
                return gone
            state, etag = self._free(copies[0])
            if state is None:
                return False
            if self._write(copies[0], state.without([copies[0].position]), etag):
                gone = True
                if len(copies) == 1:
                    self.forget(notes)
                    return True
        raise _busy(message_id)

    def reschedule(self, message_id: str, due_ms: int) -> bool:
        """Move a message unless it is being released."""
        wheel = self._wheel
        for _ in wheel.bucket.attempts():
            copies = self._copies(message_id)
            if not copies:
                return False
            found, *others = copies
            state, etag = self._free(found)
            if state is None:
                return False
            now_ms = wheel.now_ms()
            line = moved(found.line, due_ms, state.failures.get(found.position, 0))
            batch = new_batch(max(due_ms, found.waiting.name.last_ms), now_ms)
            wheel.put(wheel.hierarchy.slot(due_ms, now_ms), [line], batch=batch)
            going = replace(state, moved={**state.moved, found.position: batch})
            if not self._write(found, going, etag):
                wheel.batches.abort(batch)
                continue
            self._note_due(message_id, due_ms)
            if not wheel.batches.commits(batch):
                # Whoever began to release it meanwhile has given the move up.
                return False
            # What differs is another message, though its sender gave it the same id: it stays.
            for copy in (other for other in others if other.line.text == found.line.text):
                # The message is elsewhere, whatever becomes of these.
                with suppress(StoreUnavailable):
                    state, etag = self._free(copy)
                    if state is not None:
                        self._write(copy, state.without([copy.position]), etag)
            return True
        raise _busy(message_id)

    def _free(self, found: Found) -> tuple[State | None, str | None]:
        """The state of the object, as it can be written; None where the message is in hand."""
        state, etag = self._wheel.fresh_state(found.waiting.name)
        leased = state.leased(self._wheel.now_ms())
        if leased and state.moving:
            raise _busy(found.line.message_id)
        if leased and found.position in state.hand:
            return None, etag
        if state.moving and not self._wheel.batches.abort(state.moving):
            # All went elsewhere since it was found.
            raise _busy(found.line.message_id)
        state = replace(state, moving="")
        batch = state.moved.get(found.position)
        if batch is not None and not self._wheel.batches.abort(batch):
            raise _busy(found.line.message_id)
        if found.position in state.gone:
            return None, etag
        left = {n: b for n, b in state.moved.items() if n != found.position}
        return replace(state, moved=left), etag

    def _write(self, found: Found, state: State, etag: str | None) -> bool:
        """False where somebody else was faster."""
        wheel, name = self._wheel, found.waiting.name
        try:
            if etag is None:
                etag = wheel.lease(name, State(), None)
            if etag is None:
                return False
            wheel.write_state(name, state, etag)
        except Changed:
            return False
        lines = wheel.lines(name)
        if lines and len(state.gone) >= len(lines) and not state.leased(wheel.now_ms()):
            wheel.finish(name)
        return True


def _busy(message_id: str) -> StoreUnavailable:
    return StoreUnavailable(
        f"message {message_id!r} is being moved between slots at this moment; try again in a second"
    )


class Amendments:
    """An endpoint's, spread over objects by a hash of their id.

    One object more tells until when there are any; it is written before the first of them. So where
    nobody cancels or moves messages, a batch of copies costs one request instead of one each.
    """

    def __init__(self, wheel: Wheel) -> None:
        self._wheel = wheel
        self._bucket = wheel.bucket
        self._prefix = f"{wheel.prefix}amendments/"
        self._told = f"{self._prefix}until.json"
        self._told_until_ms = 0

    def leave(self, amendments: Sequence[Amendment]) -> None:
        """Leave some; those of the same objects that have expired are forgotten on the way."""
        self._wheel.check_version()
        latest = latest_amendments(amendments)
        if latest:
            self._tell(max(each.until_ms for each in latest.values()))
            spread = self._spread(latest)
            self._bucket.each(
                lambda key: self._leave(key, [latest[m] for m in spread[key]]), spread
            )

    def _tell(self, until_ms: int) -> None:
        """Say that there are some, until then."""

        def told(fields: dict[str, Any]) -> dict[str, Any] | None:
            if fields and fields["until_ms"] >= until_ms:
                return None
            return {"until_ms": until_ms + _TOLD_AHEAD_MS}

        self._bucket.change(self._told, told)

    def _leave(self, key: str, amendments: Sequence[Amendment]) -> None:
        now_ms = self._bucket.clock.now_ms()

        def left(fields: dict[str, Any]) -> dict[str, Any]:
            valid = [each for each in _amendments(fields) if each.until_ms > now_ms]
            latest = latest_amendments([*valid, *amendments])
            return {"amendments": [asdict(each) for each in latest.values()]}

        self._bucket.change(key, left)

    def read(self, message_ids: Sequence[str]) -> dict[str, Amendment]:
        """The amendments of those messages that have one."""
        self._wheel.check_version()
        now_ms = self._bucket.clock.now_ms()
        if now_ms >= self._told_until_ms:
            # That there are none is asked for each time.
            told, _ = self._bucket.get_json(self._told)
            self._told_until_ms = told["until_ms"] if told else 0
            if now_ms >= self._told_until_ms:
                return {}
        wanted = set(message_ids)
        return {
            each.message_id: each
            for fields, _ in self._bucket.each(self._bucket.get_json, self._spread(message_ids))
            for each in _amendments(fields)
            if each.message_id in wanted and each.until_ms > now_ms
        }

    def _spread(self, message_ids: Iterable[str]) -> dict[str, list[str]]:
        """Ids by the object that their amendments are in."""
        spread: dict[str, list[str]] = {}
        for message_id in message_ids:
            key = f"{self._prefix}{digest(message_id)[:_SHARDS]}.json"
            spread.setdefault(key, []).append(message_id)
        return spread


def _amendments(fields: Mapping[str, Any]) -> list[Amendment]:
    return [Amendment(**each) for each in fields["amendments"]] if fields else []
