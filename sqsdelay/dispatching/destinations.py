"""Where a dispatcher delivers: to an outbox, whose destinations may be away, or in the store itself."""

from __future__ import annotations

import logging
import threading
from abc import abstractmethod
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from sqsdelay.core.delay import Clock
from sqsdelay.core.readable import one_line
from sqsdelay.core.stored_message import StoredMessage
from sqsdelay.errors import DeliveryFailed, QueueMissing, QueueUnavailable
from sqsdelay.ports.queues import Failure, Outbox, Released
from sqsdelay.ports.stores import Claim, TransactionMode

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
Reasons = Sequence[tuple[StoredMessage, str]]
"""Messages to put aside, and why."""

_MANY: Final = 10
"""Refused at once, and nothing taken, they say something of their queue."""

_REMEMBERED: Final = 100_000
_REMEMBERED_DESTINATIONS: Final = 10_000


def retry_seconds(failures: int) -> int:
    """Seconds until the next attempt after so many failures: 1 s, doubling up to 60 s."""
    return min(60, 1 << min(failures, 10))


@dataclass(slots=True)
class _Down:
    until: float
    failure: Failure
    failures: int


class Destination:
    """Where a dispatcher delivers what it has claimed, and which queues there take nothing. Thread-safe.

    A queue of which nothing was taken pauses: after each failure twice as long, until a message reaches it.
    One out of reach is tried with one message after its pause. Of one that does not exist, or refuses all of
    ten or more, messages are worked off, in its pause when nothing else is due; of one that does not exist
    at a single send for all of a claim. Beyond 10,000 queues, one is forgotten and tried like others.
    """

    mode: TransactionMode
    max_ahead_seconds: int

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._down: dict[str, _Down] = {}
        self._lock = threading.Lock()

    def failed(self, name: str, failure: Failure) -> int:
        """Let a queue pause; returns for how many seconds."""
        with self._lock:
            failures = self._down[name].failures if name in self._down else 0
            # One in reach takes others: it gets a claim every 8 s at least, however much else is due.
            most = failures if _tells(failure) == _NOT_REACHED else 3
            seconds = retry_seconds(min(failures, most))
            self._down[name] = _Down(self._clock.monotonic() + seconds, failure, failures + 1)
            if len(self._down) > _REMEMBERED_DESTINATIONS:
                del self._down[next(iter(self._down))]
            return seconds

    def _learn(self, messages: Sequence[StoredMessage], outcomes: Sequence[Outcome]) -> None:
        """Which queues pause, and which no longer, now that these messages were sent."""
        told = [(m.destination, outcome) for m, outcome in zip(messages, outcomes, strict=True)]
        well = {name for name, outcome in told if not isinstance(outcome, Failure)}
        failed = [(name, outcome) for name, outcome in told if isinstance(outcome, Failure)]
        count = Counter(name for name, _ in failed)
        unknown = self._those(lambda down, _: down.failure.outage)
        # Of each queue the outcome that tells most of it.
        for name, failure in dict(sorted(failed, key=lambda each: _tells(each[1]))).items():
            if name in well or (_tells(failure) == _REFUSED_UNSENT and name in unknown):
                continue
            reached = _tells(failure) != _NOT_REACHED
            if reached and count[name] < _MANY:
                well.add(name)
                continue
            seconds = self.failed(name, failure)
            if not reached:
                logger.warning(
                    "destination %s %s, trying again in %d s: %s",
                    one_line(name),
                    "does not exist" if _is_missing(failure) else "is out of reach",
                    seconds,
                    one_line(failure.error),
                )
        with self._lock:
            for name in well:
                self._down.pop(name, None)

    def _those(self, is_so: Callable[[_Down, float], bool]) -> frozenset[str]:
        now = self._clock.monotonic()
        with self._lock:
            return frozenset(name for name, down in self._down.items() if is_so(down, now))

    def unwell(self) -> frozenset[str]:
        """Queues of which nothing was taken last."""
        return self._those(lambda *_: True)

    def away(self) -> frozenset[str]:
        """Queues out of reach, not to be tried now."""
        return self._those(lambda down, now: down.failure.outage and down.until > now)

    def last(self) -> frozenset[str]:
        """Queues to be tried now when nothing else is due."""
        return self._those(lambda down, now: not down.failure.outage and down.until > now)

    def forget_all(self) -> bool:
        """Nothing is due: forget the queues that were down. False if none was, or a pause lasts."""
        forgotten = bool(self._down) and self.seconds_to_next() is None
        if forgotten:
            with self._lock:
                self._down.clear()
        return forgotten

    def end_pauses(self) -> None:
        """Let every queue be tried now."""
        now = self._clock.monotonic()
        with self._lock:
            for down in self._down.values():
                down.until = min(down.until, now)

    def seconds_to_next(self) -> float | None:
        """Seconds until the next pause ends; None if none lasts."""
        now = self._clock.monotonic()
        with self._lock:
            left = [down.until - now for down in self._down.values() if down.until > now]
        return min(left, default=None)

    def check(self) -> None:
        """Raise if nothing can be delivered there."""

    @abstractmethod
    def now_ms(self) -> int:
        """The time by which messages are due."""

    @abstractmethod
    def deliver(self, claim: Claim, messages: Sequence[StoredMessage]) -> list[Outcome]:
        """Deliver messages of the claim; an outcome for each."""

    @abstractmethod
    def reject(self, claim: Claim, messages: Reasons) -> list[Failure | None]:
        """Put messages aside; None for each that was."""

    def remember(self, messages: Iterable[StoredMessage]) -> None:
        """They were delivered, but the store failed before they were known to be gone."""

    def forget(self, messages: Iterable[StoredMessage]) -> None:
        """They were delivered, and have left the store for good."""


class AtLeastOnce(Destination):
    """The destination of a dispatcher that sends to an outbox."""

    mode = TransactionMode.AT_LEAST_ONCE

    def __init__(self, outbox: Outbox, clock: Clock) -> None:
        super().__init__(clock)
        self._outbox = outbox
        self._sent: OrderedDict[tuple[str, int, int], None] = OrderedDict()
        self.max_ahead_seconds = outbox.max_ahead_seconds

    def check(self) -> None:
        self._outbox.check()

    def now_ms(self) -> int:
        return self._outbox.now_ms()

    def reject(self, _: Claim, messages: Reasons) -> list[Failure | None]:
        return self._outbox.reject(messages)

    def deliver(self, _: Claim, messages: Sequence[StoredMessage]) -> list[Outcome]:
        if not self._sent:
            return self.send(messages)
        # Of what was sent before only the removal had failed: sending again would duplicate it.
        before = [_key(message) in self._sent for message in messages]
        sent = iter(self.send([m for m, was in zip(messages, before, strict=True) if not was]))
        return [SENT_BEFORE if was else next(sent) for was in before]

    def send(self, messages: Sequence[StoredMessage]) -> list[Outcome]:
        """Send each message whose queue is not out of reach; an outcome per message. A queue that was gets
        one message first. The rest follow once it has arrived, or are refused with it if there is no such
        queue."""
        away = self.away()
        probing = self._those(lambda down, _: down.failure.outage or _is_missing(down.failure))
        outcomes: list[Outcome] = [NOT_TRIED] * len(messages)

        def send(places: Sequence[int]) -> None:
            sent = self._send([messages[place] for place in places])
            for place, outcome in zip(places, sent, strict=True):
                outcomes[place] = outcome

        probes: dict[str, int] = {}
        first: list[int] = []
        behind: list[tuple[int, int]] = []
        for place, name in enumerate(message.destination for message in messages):
            if name in probes:
                behind.append((place, probes[name]))
            elif name not in away:
                first.append(place)
                if name in probing:
                    probes[name] = place
        send(first)
        for place, probe in behind:
            if _is_missing(outcomes[probe]):
                outcomes[place] = outcomes[probe]
        send([place for place, probe in behind if _tells(outcomes[probe]) == _ANSWERED])
        return outcomes

    def _send(self, messages: Sequence[StoredMessage]) -> list[Outcome]:
        outcomes: list[Outcome] = list(self._outbox.send(messages)) if messages else []
        self._learn(messages, outcomes)
        return outcomes

    def remember(self, messages: Iterable[StoredMessage]) -> None:
        for message in messages:
            self._sent[_key(message)] = None
            if len(self._sent) > _REMEMBERED:
                self._sent.popitem(last=False)

    def forget(self, messages: Iterable[StoredMessage]) -> None:
        if self._sent:
            for message in messages:
                self._sent.pop(_key(message), None)


_REFUSED_UNSENT, _NOT_REACHED, _ANSWERED = range(3)


def _tells(outcome: Outcome) -> int:
    """What an outcome tells of the message's queue: nothing where the message was refused unsent."""
    if not isinstance(outcome, Failure):
        return _ANSWERED
    if outcome.outage or _is_missing(outcome):
        return _NOT_REACHED
    return _REFUSED_UNSENT if isinstance(outcome.error, ValueError) else _ANSWERED


def _is_missing(outcome: Outcome) -> bool:
    return isinstance(outcome, Failure) and isinstance(outcome.error, QueueMissing)


def _key(message: StoredMessage) -> tuple[str, int, int]:
    # In a store for which an id is no key, another message may have the same id and due time.
    return message.message_id, message.due_ms, hash(message.body)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExactlyOnce:
    """A destination inside the store's own database: what it writes commits with the removal.

    Args:
        deliver: given the open transaction (the driver's connection) and due messages, the earliest
            first. It writes their effect there and does not commit. If it raises, what it wrote is
            undone, the messages are tried one by one, and those that raise have failed.
        reject: given the transaction, a message that is out of retries, and the reason; it writes
            the message where a person will find it.
    """

    deliver: Callable[[Any, Sequence[StoredMessage]], None]
    reject: Callable[[Any, StoredMessage, str], None]


class InTransaction(Destination):
    """The destination of a dispatcher whose effects are inside the store's database. Its methods raise
    StoreError when the transaction itself is broken; then nothing has happened."""

    mode = TransactionMode.EXACTLY_ONCE
    max_ahead_seconds = 0

    def __init__(self, effects: ExactlyOnce, clock: Clock) -> None:
        super().__init__(clock)
        self._effects = effects

    def now_ms(self) -> int:
        return self._clock.now_ms()

    def deliver(self, claim: Claim, messages: Sequence[StoredMessage]) -> list[Outcome]:
        together = _attempted(claim, self._effects.deliver, [*messages])  # which it may change
        outcomes: list[Outcome] = [together] * len(messages)
        if together is not None and len(messages) > 1:
            outcomes = [_attempted(claim, self._effects.deliver, [each]) for each in messages]
        self._learn(messages, outcomes)
        return outcomes

    def reject(self, claim: Claim, messages: Reasons) -> list[Failure | None]:
        return [_attempted(claim, self._effects.reject, *each) for each in messages]


def _attempted(claim: Claim, effect: Callable[..., None], *arguments: Any) -> Failure | None:
    """Run a callback in the claim's transaction; undone, and the failure returned, if it raises."""
    raised: Exception | None = None
    try:
        with claim.attempt():
            try:
                effect(claim.transaction, *arguments)
            except Exception as error:
                raised = error
                raise
    except Exception as error:
        if error is not raised:
            # Not the callback: the transaction itself is broken.
            raise
        failed = DeliveryFailed(f"{type(error).__name__}: {error}")
        failed.__cause__ = error
        return Failure(type(error).__name__, failed, transient=True)
    return None
