"""Look-up items: where a message lies whose id does not tell."""

from __future__ import annotations

from typing import Final

from sqsdelay.stores.dynamodb.item import number
from sqsdelay.stores.dynamodb.layout import EXPIRY, Item, Lane, Layout, Place, expiry

LANE: Final = "w"
DUE: Final = "u"
SHARD: Final = "n"


def lookup_item(layout: Layout, place: Place) -> Item:
    """The look-up item of a message."""
    return {
        **layout.lookup(place.message_id),
        LANE: {"S": place.lane.value},
        DUE: number(place.due_ms),
        SHARD: number(place.shard),
        EXPIRY: number(expiry(place.due_ms)),
    }


def looked_up(item: Item, message_id: str) -> Place:
    """The place that a look-up item tells."""
    return Place(int(item[DUE]["N"]), message_id, Lane(item[LANE]["S"]), int(item[SHARD]["N"]))
