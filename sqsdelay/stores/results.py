"""A result per message, in order, from the ids that a database returned."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from sqsdelay.core.stored_message import StoredMessage


def found_among(message_ids: Sequence[str], returned: Iterable[str]) -> list[bool]:
    """Whether each id was returned."""
    found = set(returned)
    return [message_id in found for message_id in message_ids]


def new_once(messages: Sequence[StoredMessage], inserted: Iterable[str]) -> list[bool]:
    """Whether each message is new; an id given twice in one call is new once."""
    left = set(inserted)
    new = []
    for message in messages:
        new.append(message.message_id in left)
        left.discard(message.message_id)
    return new
