"""The simple model: what was promised for each message, and every way a promise can be broken."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from sqsdelay.core.message import MESSAGE_ID, WAS_DUE_AT, Attribute, text_of

LATENESS_MS: Final = 2000
"""Rounding a message timer up, and a broker's clock known to the second: a second each."""


@dataclass(slots=True)
class Promise:
    """One message, as its sender knows it.

    ``dues`` are the due times that may be in force: one, unless the answer to a change was lost.
    ``required`` is False where nobody confirmed the message, or a cancellation may have got it.
    ``forbidden`` is True once a cancellation was confirmed. ``excuses`` are the faults that hit it
    and from which a second delivery may come.
    """

    message_id: str
    body: str
    attributes: Mapping[str, Attribute]
    group_id: str | None
    parks: bool
    dues: set[int]
    former_dues: set[int] = field(default_factory=set)
    required: bool = False
    forbidden: bool = False
    changed: bool = False
    sends: int = 0
    excuses: set[str] = field(default_factory=set)
    handed_over: int = 0
    delivered: int = 0
    visible_ms: int | None = None

    def move(self, due_ms: int) -> None:
        """A new due time was confirmed."""
        self.former_dues |= self.dues
        self.dues = {due_ms}

    def may_move(self, due_ms: int) -> None:
        """A new due time may be in force."""
        self.dues.add(due_ms)

    def judge_hand_over(self, *, now_ms: int, visible_ms: int, amendments_read: bool) -> list[str]:
        """The message left for its destination: too early, too late, again, or against a promise?"""
        wrong = []
        dues = self.dues if amendments_read else self.dues | self.former_dues
        if visible_ms < min(dues):
            wrong.append(f"{self.message_id} arrives {min(dues) - visible_ms} ms early")
        latest_ms = max(*dues, now_ms) + LATENESS_MS
        if visible_ms > latest_ms:
            wrong.append(f"{self.message_id} arrives {visible_ms - latest_ms} ms too late")
        if self.forbidden and amendments_read:
            wrong.append(f"{self.message_id} was cancelled, and leaves for its destination")
        if self.handed_over and not self.excuses:
            wrong.append(f"{self.message_id} is handed over twice, and nothing had broken")
        self.handed_over += 1
        self.visible_ms = min(visible_ms, self.visible_ms or visible_ms)
        return wrong

    def judge_content(
        self, body: str, attributes: Mapping[str, Attribute], group_id: str | None
    ) -> list[str]:
        """Whether the message is what was sent, and says which message it is and when it was due."""
        wrong = []
        users = {n: v for n, v in attributes.items() if not n.startswith("sqsdelay.")}
        if (body, users, group_id) != (self.body, self.attributes, self.group_id):
            wrong.append(f"{self.message_id} is not as sent: {body!r}, {users}, {group_id!r}")
        if text_of(attributes, MESSAGE_ID) != self.message_id:
            wrong.append(f"{self.message_id} does not carry its id")
        due = text_of(attributes, WAS_DUE_AT)
        behind = [due_ms - int(due) for due_ms in self.dues | self.former_dues if due is not None]
        if due is not None and not any(0 <= ms <= 1000 for ms in behind):
            wrong.append(f"{self.message_id} says it was due at {due}, not at one of {self.dues}")
        return wrong

    def judge_end(self) -> list[str]:
        """Everything has been served: is anything missing?"""
        if self.required and not self.delivered:
            return [f"{self.message_id} was accepted, and never delivered"]
        return []
