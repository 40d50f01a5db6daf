"""What a check of queues or exchanges finds wrong, and the remedy."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that a check found wrong.

    Args:
        subject: what it is wrong with: a queue, an exchange, a binding, a store.
        text: what is wrong with it.
        remedy: the command or advice that fixes it.
        fatal: False for a warning: delays work regardless.
    """

    subject: str
    text: str
    remedy: str
    fatal: bool = True
