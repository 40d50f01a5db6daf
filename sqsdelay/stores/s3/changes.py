"""Finding, cancelling and moving one message, by its id and where that says it lies; amendments."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from typing import Any, Final

from sqsdelay.core import stored_message
from sqsdelay.core.message import due_ms_of_id
from sqsdelay.core.stored_message import Amendment, StoredMessage
from sqsdelay.errors import ConfigurationError, StoreUnavailable
from sqsdelay.stores.calls import TOLD_AHEAD_MS, Amendments
from sqsdelay.stores.s3.bucket import Changed
from sqsdelay.stores.s3.layout import State, digest, line_of, new_batch
from sqsdelay.stores.s3.wheel import Held, Present, Wheel
from sqsdelay.stores.shared import ID_TOLERANCE_MS, Wakes

_SHARDS: Final = 3
"""Letters of a hash: 4,096 objects. A batch of ten reads ten of them, and two who amend seldom meet."""


class Changes(Wakes, Amendments):
    """What is done to single messages; and amendments, spread over objects by a hash of their ids."""

    _wheel: Wheel
    _lookup: bool

    @abstractmethod
    def _forget(self) -> None:
        """What was listed has changed."""

    def _announce(self, message: StoredMessage) -> bool:
        """Write when the message is due, before it is stored; False where its id is stored already. What is
        there without a message is of somebody who died before it was written."""
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
            dues[:] = fields.get("due_ms", [])
            return {"due_ms": [*dues, due_ms]}

        self._wheel.bucket.change(self._wheel.id_key(message_id), noted)
        return not dues

    def find(self, message_id: str) -> StoredMessage | None:
        """A message that has not left the store. Raises ConfigurationError: its id does not tell where it
        lies, and nothing else does."""
        self._wheel.check_version()
        return next((found.message for found in self._copies(message_id)), None)

    def _copies(self, message_id: str) -> list[Present]:
        """The message as often as it is there: it may have been stored twice by who was not answered."""
        for first_ms, last_ms in self._spans(message_id):
            found = [
                each
                for waiting in self._wheel.listed(until_ms=last_ms)
                if waiting.name.first_ms <= last_ms and waiting.name.last_ms >= first_ms
                for each in self._wheel.present(waiting)
                if each.line.message_id == message_id and first_ms <= each.line.due_ms <= last_ms
            ]
            if found:
                return found
        return []

    def _spans(self, message_id: str) -> Iterator[tuple[int, int]]:
        """Between which due times it can be."""
        told = due_ms_of_id(message_id)
        dues = self._wheel.bucket.get_json(self._wheel.id_key(message_id))[0].get("due_ms", [])
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

    def cancel(self, message_ids: Sequence[str]) -> list[bool]:
        self._wheel.check_version()
        cancelled = [self._cancel(message_id) for message_id in message_ids]
        self._forget()
        return cancelled

    def _cancel(self, message_id: str) -> bool:
        gone = False
        for _ in self._wheel.bucket.attempts():
            notes = self._wheel.notes([message_id])
            copies = self._copies(message_id)
            if not copies:
                return gone
            held = self._free(copies[0])
            if held is None:
                return False
            if self._write_state(held, held.state.without([copies[0].position])):
                gone = True
                if len(copies) == 1:
                    self._wheel.forget_notes(notes)
                    return True
        raise _busy(message_id)

    def reschedule(self, message_id: str, due_ms: int) -> bool:
        stored_message.check_stored_due(due_ms)
        self._wheel.check_version()
        moved = self._move(message_id, due_ms)
        self._forget()
        self._wake()
        return moved

    def _move(self, message_id: str, due_ms: int) -> bool:
        wheel = self._wheel
        for _ in wheel.bucket.attempts():
            copies = self._copies(message_id)
            held = self._free(copies[0]) if copies else None
            if held is None:
                return False
            found, *others = copies
            now_ms = wheel.now_ms()
            # The id does not tell this due time.
            line = line_of(replace(found.message, due_ms=due_ms), found_by_id=True)
            batch = new_batch(max(due_ms, found.name.last_ms), now_ms)
            wheel.put(wheel.hierarchy.slot(due_ms, now_ms), [line], batch=batch)
            moved = {**held.state.moved, found.position: batch}
            if not self._write_state(held, replace(held.state, moved=moved)):
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
                    if (held := self._free(copy)) is not None:
                        self._write_state(held, held.state.without([copy.position]))
            return True
        raise _busy(message_id)

    def _free(self, found: Present) -> Held | None:
        """The object with the state that can be written; None where the message is in hand."""
        held, position = self._wheel.held_now(found.name), found.position
        leased, gone = held.state.leased(self._wheel.now_ms()), held.state.gone
        if leased and held.state.moving:
            raise _busy(found.line.message_id)
        if leased and position in held.state.hand:
            return None
        state = self._wheel.given_up(held.state, [position])
        if state is None or (position in state.gone and position not in gone):
            # It went elsewhere since it was found.
            raise _busy(found.line.message_id)
        held.state = state
        return None if position in gone else held

    def _write_state(self, held: Held, state: State) -> bool:
        """False where somebody else was faster."""
        wheel = self._wheel
        try:
            if held.etag is None and not wheel.lease(held, State()):
                return False
            wheel.write_state(held, state)
        except Changed:
            return False
        held.lines = wheel.lines(held.name) or ()
        if held.lines and held.empty and not state.leased(wheel.now_ms()):
            wheel.finish(held.name)
        return True

    def _tell(self, until_ms: int) -> None:
        def told(fields: dict[str, Any]) -> dict[str, Any] | None:
            enough = fields.get("until_ms", 0) >= until_ms
            return None if enough else {"until_ms": until_ms + TOLD_AHEAD_MS}

        self._wheel.check_version()
        self._wheel.bucket.change(self._key_of("until"), told)

    def _asked(self) -> int:
        self._wheel.check_version()
        return int(self._wheel.bucket.get_json(self._key_of("until"))[0].get("until_ms", 0))

    def _write(self, amendments: Sequence[Amendment]) -> None:
        """Those of the same objects that have expired are forgotten on the way."""
        spread: dict[str, list[Amendment]] = {}
        for each in amendments:
            spread.setdefault(self._shard_key(each.message_id), []).append(each)

        def leave(key: str) -> None:
            def left(fields: dict[str, Any]) -> dict[str, Any]:
                latest = stored_message.latest_amendments([*self._valid(_of(fields)), *spread[key]])
                return {"amendments": [asdict(each) for each in latest.values()]}

            self._wheel.bucket.change(key, left)

        self._wheel.bucket.each(leave, spread)

    def _found(self, message_ids: Sequence[str]) -> Iterable[Amendment]:
        wanted, bucket = set(message_ids), self._wheel.bucket
        found = bucket.each(bucket.get_json, sorted(set(map(self._shard_key, wanted))))
        return [a for fields, _ in found for a in _of(fields) if a.message_id in wanted]

    def _shard_key(self, message_id: str) -> str:
        return self._key_of(digest(message_id)[:_SHARDS])

    def _key_of(self, name: str) -> str:
        return f"{self._wheel.prefix}amendments/{name}.json"


def _busy(message_id: str) -> StoreUnavailable:
    return StoreUnavailable(
        f"message {message_id!r} is being moved between slots at this moment; try again in a second"
    )


def _of(fields: Mapping[str, Any]) -> list[Amendment]:
    return [Amendment(**each) for each in fields.get("amendments", ())]
