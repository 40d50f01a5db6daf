"""Finding, cancelling and moving one message, by its id and where that says it lies; amendments."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from typing import Any, Final

from sqsdelay.core.message import due_ms_of_id
from sqsdelay.core.stored_message import Amendment, StoredMessage, latest_amendments
from sqsdelay.errors import ConfigurationError, StoreUnavailable
from sqsdelay.stores.calls import TOLD_AHEAD_MS, Amendments
from sqsdelay.stores.s3.bucket import Changed, digest
from sqsdelay.stores.s3.layout import State, line_of, new_batch
from sqsdelay.stores.s3.wheel import Held, Present, Wheel
from sqsdelay.stores.shared import ID_TOLERANCE_MS

_SHARDS: Final = 3
"""Letters of a hash: 4,096 objects. A batch of ten reads ten of them, and two who amend seldom meet."""


class Changes:
    """What is done to single messages."""

    def __init__(self, wheel: Wheel, *, lookup: bool) -> None:
        self.wheel = wheel
        self._lookup = lookup

    def announce(self, message: StoredMessage) -> bool:
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

        self.wheel.bucket.change(self.wheel.id_key(message_id), noted)
        return not dues

    def find(self, message_id: str) -> StoredMessage | None:
        """A message that has not left the store. Raises ConfigurationError: its id does not tell where it
        lies, and nothing else does."""
        return next((found.message for found in self._copies(message_id)), None)

    def _copies(self, message_id: str) -> list[Present]:
        """The message as often as it is there: it may have been stored twice by who was not answered."""
        for first_ms, last_ms in self._spans(message_id):
            found = [
                each
                for waiting in self.wheel.listed(until_ms=last_ms)
                if waiting.name.first_ms <= last_ms and waiting.name.last_ms >= first_ms
                for each in self.wheel.present(waiting)
                if each.line.message_id == message_id and first_ms <= each.line.due_ms <= last_ms
            ]
            if found:
                return found
        return []

    def _spans(self, message_id: str) -> Iterator[tuple[int, int]]:
        """Between which due times it can be."""
        told = due_ms_of_id(message_id)
        dues = self.wheel.bucket.get_json(self.wheel.id_key(message_id))[0].get("due_ms", [])
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
        for _ in self.wheel.bucket.attempts():
            notes = self.wheel.notes([message_id])
            copies = self._copies(message_id)
            if not copies:
                return gone
            held = self._free(copies[0])
            if held is None:
                return False
            if self._write(held, held.state.without([copies[0].position])):
                gone = True
                if len(copies) == 1:
                    self.wheel.forget_notes(notes)
                    return True
        raise _busy(message_id)

    def reschedule(self, message_id: str, due_ms: int) -> bool:
        """Move a message unless it is being released."""
        wheel = self.wheel
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
            if not self._write(held, replace(held.state, moved=moved)):
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
                    held = self._free(copy)
                    if held is not None:
                        self._write(held, held.state.without([copy.position]))
            return True
        raise _busy(message_id)

    def _free(self, found: Present) -> Held | None:
        """The object with the state that can be written; None where the message is in hand."""
        held, position = self.wheel.held_now(found.name), found.position
        leased, gone = held.state.leased(self.wheel.now_ms()), held.state.gone
        if leased and held.state.moving:
            raise _busy(found.line.message_id)
        if leased and position in held.state.hand:
            return None
        state = self.wheel.given_up(held.state, [position])
        if state is None or (position in state.gone and position not in gone):
            # It went elsewhere since it was found.
            raise _busy(found.line.message_id)
        held.state = state
        return None if position in gone else held

    def _write(self, held: Held, state: State) -> bool:
        """False where somebody else was faster."""
        wheel = self.wheel
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


def _busy(message_id: str) -> StoreUnavailable:
    return StoreUnavailable(
        f"message {message_id!r} is being moved between slots at this moment; try again in a second"
    )


class S3Amendments(Amendments):
    """An endpoint's, spread over objects by a hash of their id."""

    def __init__(self, wheel: Wheel) -> None:
        super().__init__(wheel.now_ms)
        self._wheel = wheel
        self._bucket = wheel.bucket
        self._prefix = f"{wheel.prefix}amendments/"
        self._told = f"{self._prefix}until.json"

    def _tell(self, until_ms: int) -> None:
        def told(fields: dict[str, Any]) -> dict[str, Any] | None:
            enough = fields.get("until_ms", 0) >= until_ms
            return None if enough else {"until_ms": until_ms + TOLD_AHEAD_MS}

        self._wheel.check_version()
        self._bucket.change(self._told, told)

    def _asked(self) -> int:
        self._wheel.check_version()
        return int(self._bucket.get_json(self._told)[0].get("until_ms", 0))

    def _write(self, amendments: Sequence[Amendment]) -> None:
        """Those of the same objects that have expired are forgotten on the way."""
        spread: dict[str, list[Amendment]] = {}
        for each in amendments:
            spread.setdefault(self._key(each.message_id), []).append(each)

        def leave(key: str) -> None:
            def left(fields: dict[str, Any]) -> dict[str, Any]:
                latest = latest_amendments([*self._valid(_of(fields)), *spread[key]])
                return {"amendments": [asdict(each) for each in latest.values()]}

            self._bucket.change(key, left)

        self._bucket.each(leave, spread)

    def _found(self, message_ids: Sequence[str]) -> Iterable[Amendment]:
        wanted = set(message_ids)
        found = self._bucket.each(self._bucket.get_json, sorted(set(map(self._key, wanted))))
        return [a for fields, _ in found for a in _of(fields) if a.message_id in wanted]

    def _key(self, message_id: str) -> str:
        return f"{self._prefix}{digest(message_id)[:_SHARDS]}.json"


def _of(fields: Mapping[str, Any]) -> list[Amendment]:
    return [Amendment(**each) for each in fields.get("amendments", ())]
