"""Message ids made up here: they sort by due time, and the due time can be read from them.

``u`` and a ULID in small letters whose time is the due time, not when the id was made: ten letters of
milliseconds, sixteen of chance (80 bits). So a store can find a message by its id alone.
"""

from __future__ import annotations

import re
import secrets
from typing import Final

_LETTERS: Final = "0123456789abcdefghjkmnpqrstvwxyz"
"""Crockford's base 32. Source: the ULID specification; it has no ``u``, which so tells ours."""

_VALUES: Final = {letter: value for value, letter in enumerate(_LETTERS)}
_TIME_LETTERS: Final = 10
_CHANCE_BITS: Final = 80
_MADE_UP: Final = re.compile(r"u([0-7][0-9a-hjkmnp-tv-z]{9})[0-9a-hjkmnp-tv-z]{16}", re.ASCII)


def new_message_id(due_ms: int) -> str:
    """An id for a message whose sender gave none.

    Args:
        due_ms: when it is due, as far as is known now, epoch milliseconds.
    """
    value = (due_ms << _CHANCE_BITS) | secrets.randbits(_CHANCE_BITS)
    letters = "".join(_LETTERS[(value >> shift) & 31] for shift in range(125, -1, -5))
    return f"u{letters}"


def due_ms_of_id(message_id: str) -> int | None:
    """The due time that an id made up here carries, epoch milliseconds; None of any other id.

    It is when the message was due as its sender saw it: a relative delay counts from the broker's
    SentTimestamp, some milliseconds later, and a message can have been moved since.
    """
    made_up = _MADE_UP.fullmatch(message_id)
    if made_up is None:
        return None
    value = 0
    for letter in made_up[1]:
        value = value << 5 | _VALUES[letter]
    return value
