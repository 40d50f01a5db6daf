"""Answers per message, in order, from the set of ids a database touched."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from sqsdelay.core.stored_message import StoredMessage


def answered(message_ids: Sequence[str], touched: Iterable[str]) -> list[bool]:
    """For each id whether it was touched."""
    found = set(touched)
    return [message_id in found for message_id in message_ids]


def new_once(messages: Sequence[StoredMessage], inserted: Iterable[str]) -> list[bool]:
    """For each message whether it is new; an id given twice in one call is new once."""
    left = set(inserted)
    answers = []
    for message in messages:
        answers.append(message.message_id in left)
        left.discard(message.message_id)
    return answers
