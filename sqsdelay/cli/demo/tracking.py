"""What the demo knows of its messages: sent how, relayed how often, arrived when and intact or not."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from sqsdelay.core.delay import delay_ms, due_at_ms, seconds_until
from sqsdelay.core.message import MESSAGE_ID, WAS_DUE_AT, Message, attributes_of, text_of
from sqsdelay.core.outgoing import was_due_ms
from sqsdelay.core.received_message import ReceivedMessage
from sqsdelay.ledger.events import Event
from sqsdelay.relaying.mover import Outcome, Status
from sqsdelay.sending.sender import Route, SendResult

TOO_LATE_MS: Final = 2_000


@dataclass(slots=True)
class Tracked:
    """One message: as sent, and what has been seen of it since. Times are the broker's."""

    message: Message
    route: Route
    due_ms: int
    hops: int = 0
    arrivals: int = 0
    shown_late_ms: int | None = None
    received_ms: int | None = None
    intact: bool = True

    @property
    def late_ms(self) -> int | None:
        """How long after it was due, or after it was sent if that was later, its queue showed it."""
        if self.received_ms is None:
            return None
        received_late_ms = self.received_ms - self.due_ms
        if self.shown_late_ms is None:
            return received_late_ms
        return min(self.shown_late_ms, received_late_ms)

    @property
    def waited_ms(self) -> int | None:
        """How long it then lay there until it was received."""
        if self.received_ms is None or self.late_ms is None:
            return None
        return self.received_ms - self.due_ms - self.late_ms

    def handed_over(self, outcome: Outcome) -> None:
        """The consumer sent it to its destination; lateness is that of the first time."""
        if self.shown_late_ms is None:
            self.shown_late_ms = outcome.late_ms

    def arrived(self, copy: ReceivedMessage) -> None:
        """Count an arrival; times are those of the first."""
        self.arrivals += 1
        self.intact = self.intact and self._is_as_sent(copy)
        if self.received_ms is None and copy.first_receive_ms is not None:
            self.received_ms = copy.first_receive_ms
            relayed_ms = was_due_ms(copy.attributes)
            if relayed_ms is None:
                self._direct(copy.sent_ms or 0)
            else:
                self.due_ms = relayed_ms

    def _direct(self, sent_ms: int) -> None:
        """A relative delay counts from the broker's SentTimestamp; a message timer has whole seconds."""
        if self.message.due_at is not None:
            self.due_ms = max(due_at_ms(self.message.due_at), sent_ms)
        else:
            self.due_ms = sent_ms + delay_ms(self.message.delay or 0)
        timer_seconds = seconds_until(self.due_ms, sent_ms)
        self.shown_late_ms = sent_ms + 1000 * timer_seconds - self.due_ms

    def _is_as_sent(self, copy: ReceivedMessage) -> bool:
        ours = (MESSAGE_ID, WAS_DUE_AT)
        users = {name: value for name, value in copy.attributes.items() if name not in ours}
        return copy.body == self.message.body and users == attributes_of(self.message.attributes)


@dataclass(frozen=True, slots=True)
class Summary:
    """How a run went. ``worst_late_ms`` is None if nothing arrived."""

    sent: int
    delivered: int
    lost: int
    duplicated: int
    early: int
    altered: int
    worst_late_ms: int | None

    @property
    def good(self) -> bool:
        """Nothing lost, duplicated, early or altered, and nothing more than 2 s late."""
        bad = self.lost or self.duplicated or self.early or self.altered
        return not bad and (self.worst_late_ms or 0) <= TOO_LATE_MS


class Tracker:
    """All messages of a run, by message id. Thread-safe."""

    def __init__(self) -> None:
        self._tracked: dict[str, Tracked] = {}
        self._lock = threading.Lock()

    def sent(self, message: Message, result: SendResult) -> None:
        """A message was sent; its ``message_id`` is set."""
        assert result.route is not None
        assert result.due is not None
        tracked = Tracked(message, result.route, due_at_ms(result.due))
        with self._lock:
            self._tracked[message.message_id or ""] = tracked

    def relayed(self, outcomes: Sequence[Outcome]) -> None:
        """The consumer settled copies: a hop each."""
        with self._lock:
            for outcome in outcomes:
                if outcome.status in (Status.REQUEUED, Status.HANDED_OVER):
                    self._tracked[outcome.copy.message_id].hops += 1
                if outcome.status is Status.HANDED_OVER:
                    self._tracked[outcome.copy.message_id].handed_over(outcome)

    def arrived(self, copies: Iterable[ReceivedMessage]) -> None:
        """Copies were received at the destination."""
        with self._lock:
            for copy in copies:
                self._tracked[text_of(copy.attributes, MESSAGE_ID) or ""].arrived(copy)

    def dated(self, event: Event) -> Event:
        """A reception, with what a receiver does not know of a direct message: when it was due."""
        entry = self._tracked[event.message_id]
        return replace(event, due_ms=entry.due_ms, late_ms=entry.late_ms)

    def rows(self) -> list[tuple[str, Tracked]]:
        """Message ids and messages, in the order sent."""
        with self._lock:
            return list(self._tracked.items())

    def summary(self) -> Summary:
        """The run so far."""
        tracked = [entry for _, entry in self.rows()]
        late = [entry.late_ms for entry in tracked if entry.late_ms is not None]
        return Summary(
            sent=len(tracked),
            delivered=sum(entry.arrivals > 0 for entry in tracked),
            lost=sum(entry.arrivals == 0 for entry in tracked),
            duplicated=sum(entry.arrivals > 1 for entry in tracked),
            early=sum(lateness < 0 for lateness in late),
            altered=sum(not entry.intact for entry in tracked),
            worst_late_ms=max(late, default=None),
        )
