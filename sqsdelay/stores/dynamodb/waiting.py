"""Messages as they wait: written where no cursor can be beyond them, found, cancelled and moved by id.

Nothing is ever written behind a cursor. A far message must be due `layout.FAR_MS` after DynamoDB has
confirmed it, by the date of that answer: no cursor was so far ahead when it was written. Whoever finds
that it is not, however long the write took, writes a near message instead, which no cursor passes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, Final

from sqsdelay.core.message import due_ms_of_id
from sqsdelay.core.stored_message import Amendment, StoredMessage, check_stored_due
from sqsdelay.errors import ConfigurationError
from sqsdelay.stores.calls import TOLD_AHEAD_MS, Amendments
from sqsdelay.stores.dynamodb import layout
from sqsdelay.stores.dynamodb.layout import EXPIRY, PARTITION, Entry, Item, Lane, Place, number
from sqsdelay.stores.dynamodb.leases import LeasedTable
from sqsdelay.stores.dynamodb.table import NOT_THERE, THERE
from sqsdelay.stores.shared import ID_TOLERANCE_MS, Wakes, needs_lookup, tells_due

_MOST_HOURS_KNOWN: Final = 50_000

LEFT_AT: Final = "a"
DUE: Final = "u"
CANCELLED: Final = "c"

_NUMBERS: Final = {"at_ms": LEFT_AT, "due_ms": DUE, "cancelled_ms": CANCELLED}
"""An amendment's fields, and the attributes that hold them."""

NEVER_CANCELLED: Final = (
    f"{NOT_THERE} OR {EXPIRY} <= :now_s "
    f"OR (attribute_exists({DUE}) AND attribute_not_exists({CANCELLED}))"
)
"""DynamoDB may keep expired ones for days."""

_TOLD: Final = "told"


class Waiting(Wakes, Amendments):
    """An endpoint's messages and amendments, by message id. DynamoDB forgets amendments that have expired."""

    _table: LeasedTable
    _lookup: bool
    """Keep look-up items for ids that do not tell when their message is due."""
    _told_until_ms = 0

    def _entries(self, messages: Iterable[StoredMessage]) -> list[Entry]:
        """Messages where they are to be written; all are checked. Raises MessageTooLarge,
        StoreUnavailable."""
        # DynamoDB answers here at the latest: by the machine's own clock, which may be slow, a
        # message that is due soon would be written as a far one, where a dispatcher can release it
        # before its writer sees that it is late and writes a near one.
        self._table.register()
        now_ms = self._table.clock.now_ms()
        entries = []
        for message in messages:
            place = self._place(message.message_id, message.due_ms, now_ms)
            largest = Entry(place, message, True, held_until_ms=1)
            self._table.item(largest)
            entries.append(Entry(place, message, needs_lookup(message, lookup=self._lookup)))
        return entries

    def _prepare(self, places: Iterable[Place]) -> None:
        """Register the shards, and the hours that these far messages are due in, before they are
        written: listing goes by those."""
        self._table.register()
        known = self._table.remembered
        hours = {place.due_ms // layout.HOUR_MS for place in places if place.lane is Lane.FAR}
        new = [hour for hour in hours if hour not in known]
        if len(known) > _MOST_HOURS_KNOWN:
            known.clear()

        def register(hour: int) -> None:
            ends_ms = (hour + 1) * layout.HOUR_MS
            self._table.put({**self._table.hour(hour), EXPIRY: number(layout.expiry(ends_ms))})
            self._table.remember(hour)

        self._table.each(register, new)

    def _put(self, entry: Entry) -> bool:
        """Write a message; whether it is new."""
        place = entry.place
        if entry.looked_up and not self._announce(place):
            return False
        new, read_ms = self._table.put(self._table.item(entry), NOT_THERE)
        if place.lane is Lane.NEAR or place.due_ms - read_ms >= layout.FAR_MS:
            return new
        if not new:
            lease = self._table.read_lease(place.shard)
            if place.position > max(lease.cursor, lease.taken_far):
                # It is there, and will still be come across.
                return False
        # Written too late, or by somebody who may not have noticed that it was.
        self._table.put_near(entry)
        if new:
            self._table.delete(self._table.message(place))
        return True

    def _announce(self, place: Place) -> bool:
        """Write the look-up item; False where the message is there already. One without a message is of
        somebody who died after he had written it: it is taken over."""
        item = self._table.lookup_item(place)
        if self._table.put(item, NOT_THERE)[0]:
            return True
        if self._find(place.message_id) is not None:
            return False
        self._table.put(item)
        return True

    def find(self, message_id: str) -> StoredMessage | None:
        entry = self._find(message_id)
        return None if entry is None else entry.message

    def find_due(self, message_id: str, due_ms: int) -> StoredMessage | None:
        """As `find`; with ``lookup=False``, an id of the user's own is found by its due time."""
        entry = self._find(message_id, due_ms)
        return None if entry is None else entry.message

    def _find(self, message_id: str, due_ms: int | None = None) -> Entry | None:
        """A message that is not released yet. Raises ConfigurationError: nothing tells its place, and no
        look-up items are kept; SchemaMismatch: the table is of another version. ``due_ms``: when it is
        due, if that is known: where nothing else tells its place, this does."""
        entries = map(self._table.entry, self._candidates(message_id, due_ms))
        for entry in sorted(entries, key=lambda entry: entry.place.lane is Lane.FAR):
            place = entry.place
            if (
                place.lane is Lane.NEAR
                or place.position > self._table.read_lease(place.shard).cursor
            ):
                return entry
        return None

    def _candidates(self, message_id: str, due_ms: int | None) -> list[Item]:
        """The items that may be the message: by a look-up item, or where its id says."""
        told = due_ms_of_id(message_id)
        if told is None and not self._lookup:
            told = due_ms
        if told is None and not self._lookup:
            raise ConfigurationError(
                f"message_id {message_id!r} does not contain its message's due time, and this store "
                "keeps no look-up items (lookup=off); leave message_id out and use the id that send "
                "returns, or open the store without lookup=off"
            )
        places = []
        if told is not None:
            counts = {self._table.shards, *self._table.read_leases().counts}
            shards = {layout.shard_of(message_id, count) for count in counts}
            places = [Place(told, message_id, lane, shard) for shard in shards for lane in Lane]
        keys = [self._table.lookup(message_id), *map(self._table.message, places)]
        found = []
        for item in self._table.get_checked(keys):
            if item[PARTITION] == keys[0][PARTITION]:
                # One that was moved may have left another behind, which the cursor has passed.
                return self._table.get([self._table.message(layout.looked_up(item, message_id))])
            found.append(item)
        if found or told is None:
            return found
        # A relayed message is due a little later than its sender could tell.
        until_ms = told + ID_TOLERANCE_MS
        return [item for place in places for item in self._table.about(place, until_ms)]

    def cancel(self, message_ids: Sequence[str]) -> list[bool]:
        return self._table.each(self._cancel, message_ids)

    def _cancel(self, message_id: str) -> bool:
        entry = self._find(message_id)
        if entry is None:
            return False
        actions = [self._delete(entry)]
        if entry.looked_up:
            actions.append({"Delete": {"Key": self._table.lookup(message_id)}})
        return self._table.transact_unless_in_hand(entry.place, actions) is not None

    def reschedule(self, message_id: str, due_ms: int) -> bool:
        check_stored_due(due_ms)
        entry = self._find(message_id)
        if entry is None:
            return False
        place = self._place(message_id, due_ms, self._table.clock.now_ms())
        # Whatever is kept for new messages: one that was moved by its id can be moved again.
        moved = replace(entry.at(place), looked_up=not tells_due(message_id, due_ms))
        self._prepare([place])
        read_ms = self._table.transact_unless_in_hand(entry.place, self._move(entry, moved))
        if read_ms is None:
            return False
        if place.lane is Lane.FAR and due_ms - read_ms < layout.FAR_MS:
            self._table.put_near(moved)
            self._table.delete(self._table.message(place))
        self._wake()
        return True

    def _move(self, entry: Entry, moved: Entry) -> list[dict[str, Any]]:
        """The actions that move a message which is still where it was found."""
        put = {"Item": self._table.item(moved)}
        if moved.place != entry.place:
            actions = [self._delete(entry), {"Put": put}]
        else:
            actions = [{"Put": {**put, "ConditionExpression": THERE}}]
        if moved.looked_up:
            actions.append({"Put": {"Item": self._table.lookup_item(moved.place)}})
        elif entry.looked_up:
            actions.append({"Delete": {"Key": self._table.lookup(entry.message_id)}})
        return actions

    def _delete(self, entry: Entry) -> dict[str, Any]:
        return {"Delete": {"Key": self._table.message(entry.place), "ConditionExpression": THERE}}

    def _place(self, message_id: str, due_ms: int, now_ms: int) -> Place:
        lane = Lane.FAR if due_ms - now_ms > layout.FAR_FROM_MS else Lane.NEAR
        return Place(due_ms, message_id, lane, layout.shard_of(message_id, self._table.shards))

    def _tell(self, until_ms: int) -> None:
        table = self._table
        said = until_ms <= self._told_until_ms and _TOLD in table.remembered
        if said and table.is_recent(_TOLD):
            return
        # The table may be another one by now.
        if not (table.get_checked([table.amended]) and said):
            until = number(-(-(until_ms + TOLD_AHEAD_MS) // 1000))
            # Not where another process has said so for longer.
            item = {**table.amended, EXPIRY: until}
            table.put(item, f"{NOT_THERE} OR {EXPIRY} < :until", until=until)
            self._told_until_ms = until_ms + TOLD_AHEAD_MS
        table.remember(_TOLD)

    def _asked(self) -> int:
        told = self._table.get_checked([self._table.amended])
        return 1000 * int(told[0][EXPIRY]["N"]) if told else 0

    def _write(self, amendments: Sequence[Amendment]) -> None:
        self._table.each(self._amend, amendments)

    def _amend(self, amendment: Amendment) -> None:
        if amendment.due_ms is None or amendment.cancelled_ms is not None:
            self._table.put(self._item(amendment))
            return
        now_s = number(self._now_ms() // 1000)
        new, _ = self._table.put(self._item(amendment), NEVER_CANCELLED, now_s=now_s)
        if not new:
            found = next(iter(self._valid(self._found([amendment.message_id]))), None)
            self._table.put(self._item(amendment.after(found)))

    def _item(self, amendment: Amendment) -> Item:
        numbers = {name: getattr(amendment, field) for field, name in _NUMBERS.items()}
        return {
            **self._table.amendment(amendment.message_id),
            **{name: number(value) for name, value in numbers.items() if value is not None},
            EXPIRY: number(-(-amendment.until_ms // 1000)),
        }

    def _found(self, message_ids: Sequence[str]) -> Iterable[Amendment]:
        keys = [self._table.amendment(message_id) for message_id in dict.fromkeys(message_ids)]
        prefix = len(self._table.amendment("")[PARTITION]["S"])
        for item in self._table.get_checked(keys):
            told = {f: int(item[name]["N"]) for f, name in _NUMBERS.items() if name in item}
            yield Amendment(message_id=item[PARTITION]["S"][prefix:], **told)
