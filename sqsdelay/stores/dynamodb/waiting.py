"""Messages as they wait: written where no cursor can be beyond them, found, cancelled and moved by id.

Nothing is ever written behind a cursor. A far message must be due `layout.FAR_MS` after DynamoDB has
confirmed it, by the date of that answer: no cursor was so far ahead when it was written. Whoever finds
that it is not, however long the write took, writes a near message instead, which no cursor passes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Final

from sqsdelay.core.checked_message import due_ms_of_id
from sqsdelay.core.stored_message import StoredMessage
from sqsdelay.errors import ConfigurationError
from sqsdelay.stores.dynamodb.item import Entry, entry_of, item_of, moved_item
from sqsdelay.stores.dynamodb.lanes import Lanes
from sqsdelay.stores.dynamodb.layout import (
    EXPIRY,
    FAR_FROM_MS,
    FAR_MS,
    HOUR_MS,
    PARTITION,
    Item,
    Lane,
    Layout,
    Place,
    expiry,
    shard_of,
)
from sqsdelay.stores.dynamodb.leases import LeaseBook, not_in_hand
from sqsdelay.stores.dynamodb.lookups import looked_up, lookup_item
from sqsdelay.stores.dynamodb.table import ConditionFailed, Table
from sqsdelay.stores.ids import ID_TOLERANCE_MS, tells_due

_MOST_HOURS_KNOWN: Final = 50_000


class Waiting:
    """An endpoint's messages.

    Args:
        shards: how many new messages are spread over.
        lookup: keep look-up items for ids that do not tell when their message is due.
    """

    def __init__(
        self,
        table: Table,
        layout: Layout,
        lanes: Lanes,
        book: LeaseBook,
        *,
        shards: int,
        lookup: bool,
    ) -> None:
        self._table = table
        self._layout = layout
        self._lanes = lanes
        self._book = book
        self._shards = shards
        self._lookup = lookup
        self._hours_known: set[int] = set()
        self._hours_of = table.made_anew

    def items(self, messages: Iterable[StoredMessage]) -> list[tuple[Place, StoredMessage]]:
        """Where messages are to be written; all are checked.

        Raises:
            MessageTooLarge, StoreUnavailable
        """
        # DynamoDB answers here at the latest: by the machine's own clock, which may be slow, a
        # message that is due soon would be written as a far one, where a dispatcher can release it
        # before its writer sees that it is late and writes a near one.
        self._book.register()
        now_ms = self._table.clock.now_ms()
        found = [
            (self._place(message.message_id, message.due_ms, now_ms), message)
            for message in messages
        ]
        for place, message in found:
            item_of(self._layout, place, message, looked_up=True, held_until_ms=1)
        return found

    def prepare(self, places: Iterable[Place]) -> None:
        """Register the shards, and the hours that these far messages are due in, before they are
        written: listing goes by those."""
        self._book.register()
        if self._hours_of != self._table.made_anew:
            self._hours_of = self._table.made_anew
            self._hours_known.clear()
        hours = {place.due_ms // HOUR_MS for place in places if place.lane is Lane.FAR}
        new = sorted(hours - self._hours_known)
        self._table.each(self._put_hour, new)
        if len(self._hours_known) > _MOST_HOURS_KNOWN:
            self._hours_known.clear()
        self._hours_known.update(new)

    def _put_hour(self, hour: int) -> None:
        until = {"N": str(expiry((hour + 1) * HOUR_MS))}
        self._table.put({**self._layout.hour(hour), EXPIRY: until})

    def put(self, place: Place, message: StoredMessage) -> bool:
        """Write a message; whether it is new."""
        # An id made up by sqsdelay can always be found, also if its message was moved before it came here.
        wanted = self._lookup or due_ms_of_id(message.message_id) is not None
        needed = wanted and not tells_due(message.message_id, message.due_ms)
        if needed and not self._announce(place):
            return False
        return self._put(place, message, needed)

    def _announce(self, place: Place) -> bool:
        """Write the look-up item; False where the message is there already.

        One without a message is of somebody who died after he had written it: it is taken over.
        """
        item = lookup_item(self._layout, place)
        if self._table.put(item, only_new=True)[0]:
            return True
        if self.find(place.message_id) is not None:
            return False
        self._table.put(item)
        return True

    def _put(self, place: Place, message: StoredMessage, needed: bool) -> bool:
        item = item_of(self._layout, place, message, looked_up=needed)
        new, read_ms = self._table.put(item, only_new=True)
        if place.lane is Lane.NEAR or place.due_ms - read_ms >= FAR_MS:
            return new
        if not new and self._ahead_of_cursor(place):
            return False
        # Written too late, or by somebody who may not have noticed that it was.
        self._put_near(place, message, needed)
        if new:
            self._table.delete(self._layout.message(place))
        return True

    def _put_near(self, place: Place, message: StoredMessage, needed: bool) -> None:
        near = replace(place, lane=Lane.NEAR)
        if needed:
            self._table.put(lookup_item(self._layout, near))
        self._table.put(item_of(self._layout, near, message, looked_up=needed))

    def _ahead_of_cursor(self, place: Place) -> bool:
        """Whether a far message that is there will still be come across."""
        lease = self._book.one(place.shard)
        return place.position > max(lease.cursor, lease.taken_far)

    def find(self, message_id: str, due_ms: int | None = None) -> Entry | None:
        """A message that is not released yet.

        Args:
            due_ms: when it is due, if that is known: where nothing else tells its place, this does.

        Raises:
            ConfigurationError: nothing tells its place, and no look-up items are kept.
            SchemaMismatch: the table is of another version.
        """
        entries = [entry_of(self._layout, *found) for found in self._candidates(message_id, due_ms)]
        for entry in sorted(entries, key=lambda entry: entry.place.lane is Lane.FAR):
            if entry.place.lane is Lane.NEAR:
                return entry
            if not self._book.one(entry.place.shard).passed(entry.place):
                return entry
        return None

    def _candidates(self, message_id: str, due_ms: int | None) -> list[tuple[Item, Lane]]:
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
        places = [] if told is None else self._told_places(message_id, told)
        keys = [self._layout.lookup(message_id), *map(self._layout.message, places)]
        found: list[tuple[Item, Lane]] = []
        lookup = None
        for item in self._book.get(keys):
            if item[PARTITION]["S"] == keys[0][PARTITION]["S"]:
                lookup = looked_up(item, message_id)
            else:
                found.append((item, _lane(self._layout, item)))
        if lookup is not None:
            # One that was moved may have left another behind, which the cursor has passed.
            items = self._table.get([self._layout.message(lookup)])
            return [(item, lookup.lane) for item in items]
        if found or told is None:
            return found
        return self._near_by(message_id, told, places)

    def _told_places(self, message_id: str, told_ms: int) -> list[Place]:
        shards = {shard_of(message_id, count) for count in {self._shards, *self._counts()}}
        return [Place(told_ms, message_id, lane, shard) for shard in shards for lane in Lane]

    def _counts(self) -> list[int]:
        return list(self._book.read().counts)

    def _near_by(
        self, message_id: str, told_ms: int, places: list[Place]
    ) -> list[tuple[Item, Lane]]:
        """A relayed message is due a little later than its sender could tell."""
        return [
            (item, place.lane)
            for place in places
            for item in self._lanes.about(
                message_id, place.lane, place.shard, told_ms, told_ms + ID_TOLERANCE_MS
            )
        ]

    def cancel(self, message_id: str) -> bool:
        """Remove a message unless it is being released."""
        entry = self.find(message_id)
        if entry is None:
            return False
        actions = [self._delete(entry), self._not_in_hand(entry)]
        if entry.looked_up:
            actions.append({"Delete": {"Key": self._layout.lookup(message_id)}})
        try:
            self._table.transact(*actions)
        except ConditionFailed:
            return False
        return True

    def reschedule(self, message_id: str, due_ms: int) -> bool:
        """Move a message unless it is being released."""
        entry = self.find(message_id)
        if entry is None:
            return False
        now_ms = self._table.clock.now_ms()
        place = self._place(message_id, due_ms, now_ms)
        # Whatever is kept for new messages: one that was moved by its id can be moved again.
        needed = not tells_due(message_id, due_ms)
        self.prepare([place])
        actions = [self._not_in_hand(entry), *self._move(entry, place, needed)]
        try:
            read_ms = self._table.transact(*actions)
        except ConditionFailed:
            return False
        if place.lane is Lane.FAR and due_ms - read_ms < FAR_MS:
            near = replace(place, lane=Lane.NEAR)
            if needed:
                self._table.put(lookup_item(self._layout, near))
            self._table.put(self._moved(entry, near, needed))
            self._table.delete(self._layout.message(place))
        return True

    def _move(self, entry: Entry, place: Place, needed: bool) -> list[dict[str, Any]]:
        """The actions that move a message which is still where it was found."""
        put = {"Item": self._moved(entry, place, needed)}
        if place != entry.place:
            actions = [self._delete(entry), {"Put": put}]
        else:
            there = {"ConditionExpression": f"attribute_exists({PARTITION})"}
            actions = [{"Put": {**put, **there}}]
        if needed:
            actions.append({"Put": {"Item": lookup_item(self._layout, place)}})
        elif entry.looked_up:
            actions.append({"Delete": {"Key": self._layout.lookup(entry.message_id)}})
        return actions

    def _moved(self, entry: Entry, place: Place, needed: bool) -> Item:
        failures = entry.message.failures
        return moved_item(self._layout, entry, place, looked_up=needed, failures=failures)

    def _not_in_hand(self, entry: Entry) -> dict[str, Any]:
        return not_in_hand(self._layout, entry.place, self._table.clock.now_ms())

    def _delete(self, entry: Entry) -> dict[str, Any]:
        return {
            "Delete": {
                "Key": self._layout.message(entry.place),
                "ConditionExpression": f"attribute_exists({PARTITION})",
            }
        }

    def _place(self, message_id: str, due_ms: int, now_ms: int) -> Place:
        lane = Lane.FAR if due_ms - now_ms > FAR_FROM_MS else Lane.NEAR
        return Place(due_ms, message_id, lane, shard_of(message_id, self._shards))


def _lane(layout: Layout, item: Item) -> Lane:
    """Which lane an item is of, by its partition."""
    shard = item[PARTITION]["S"].rpartition("/")[2]
    return Lane.NEAR if item[PARTITION]["S"] == layout.near(int(shard)) else Lane.FAR
