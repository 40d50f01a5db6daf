"""Sending to several destinations: one that is out of reach must not hold up the others."""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from typing import Final

from sqsdelay.core.backoff import DestinationBackoff
from sqsdelay.core.clock import Clock
from sqsdelay.core.readable import one_line
from sqsdelay.core.stored_message import StoredMessage
from sqsdelay.errors import InvalidMessage, QueueUnavailable
from sqsdelay.ports.queues import Failure, Outbox, Released

logger = logging.getLogger(__name__)

NOT_TRIED: Final = Failure(
    "NotTried",
    QueueUnavailable("its destination is out of reach; it is sent later"),
    transient=True,
    outage=True,
)
"""The outcome of a message that was not sent, since its destination failed just now or before."""

SENT_BEFORE: Final = Released(timer_seconds=0, batch=0)
"""The outcome of a message that was sent in a former claim, whose removal failed."""

Outcome = Failure | Released | None


def unreadable(message: StoredMessage) -> Failure | None:
    """The failure of a store's row that is no message; None for one that is."""
    if message.unreadable is None:
        return None
    return Failure("Unreadable", InvalidMessage(message.unreadable), transient=False)


class Destinations:
    """Which destinations of one dispatcher are out of reach, and until when. Thread-safe.

    Args:
        clock: times the pauses.
    """

    def __init__(self, clock: Clock) -> None:
        self._backoff = DestinationBackoff(clock)

    def out_of_reach(self) -> frozenset[str]:
        """Destinations that are not tried for now."""
        return self._backoff.closed()

    def outage(self) -> Exception | None:
        """The last error of a destination that is out of reach; None if there is none."""
        return self._backoff.last_error()

    def seconds_to_next(self) -> float | None:
        """Seconds until the next of them is tried again; None if there is none."""
        return self._backoff.seconds_to_next()

    def forget_but(self, destinations: Collection[str]) -> bool:
        """These are all that anything is due for: others need no further attempt.

        Returns:
            True if none is out of reach any more, and one was.
        """
        return self._backoff.forget_but(destinations)

    def try_now(self) -> bool:
        """End all pauses; False if there was none."""
        return self._backoff.end_pauses()

    def send(self, outbox: Outbox, messages: Sequence[StoredMessage]) -> list[Outcome]:
        """Send each message whose destination is not out of reach; an outcome per message.

        A destination that was out of reach gets a single message first; the rest follow once
        that one has arrived.
        """
        closed, probing = self._backoff.closed(), self._backoff.probing()
        if not closed and not probing:
            return self._send(outbox, messages)
        outcomes: list[Outcome] = [NOT_TRIED] * len(messages)
        probes: dict[str, int] = {}
        first: list[int] = []
        for place, message in enumerate(messages):
            name = message.destination
            if name in closed or name in probes:
                continue
            if name in probing:
                probes[name] = place
            first.append(place)
        self._send_some(outbox, messages, first, outcomes)
        passed = {name for name, place in probes.items() if _answered(outcomes[place])}
        then = [
            place
            for place, message in enumerate(messages)
            if message.destination in passed and place != probes[message.destination]
        ]
        self._send_some(outbox, messages, then, outcomes)
        return outcomes

    def _send_some(
        self,
        outbox: Outbox,
        messages: Sequence[StoredMessage],
        places: Sequence[int],
        outcomes: list[Outcome],
    ) -> None:
        sent = self._send(outbox, [messages[place] for place in places])
        for place, outcome in zip(places, sent, strict=True):
            outcomes[place] = outcome

    def _send(self, outbox: Outbox, messages: Sequence[StoredMessage]) -> list[Outcome]:
        if not messages:
            return []
        outcomes: list[Outcome] = list(outbox.send(messages))
        well: set[str] = set()
        failed: dict[str, Failure] = {}
        for message, outcome in zip(messages, outcomes, strict=True):
            if not isinstance(outcome, Failure) or _answered(outcome):
                well.add(message.destination)
            elif outcome.outage:
                failed[message.destination] = outcome
        for name in well:
            self._backoff.succeeded(name)
        for name, failure in failed.items():
            if name not in well:
                seconds = self._backoff.failed(name, failure.error)
                logger.warning(
                    "destination %s is out of reach, trying again in %d s: %s",
                    one_line(name),
                    seconds,
                    one_line(failure.error),
                )
        return outcomes


def _answered(outcome: Outcome) -> bool:
    """Whether the destination has taken the message, or refused just this one.

    A message that is refused before it is sent tells nothing of its destination.
    """
    if not isinstance(outcome, Failure):
        return True
    return not outcome.outage and not isinstance(outcome.error, ValueError)
