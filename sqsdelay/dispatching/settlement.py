"""What becomes of a claim: delivered, tried later, held or rejected; which destinations are away."""

from __future__ import annotations

import logging
import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from itertools import chain
from math import inf
from typing import Any, Final

from sqsdelay import errors
from sqsdelay.core.delay import Clock
from sqsdelay.core.readable import one_line
from sqsdelay.core.stored_message import StoredMessage
from sqsdelay.ledger import events
from sqsdelay.ledger.events import Event, Ledger, record_safely
from sqsdelay.ports.queues import ExactlyOnce, Failure, Outbox, Released
from sqsdelay.ports.stores import Claim, DelayedMessageStore, TransactionMode

logger = logging.getLogger(__name__)

_AWAY: Final = errors.QueueUnavailable("its destination is out of reach; it is sent later")
NOT_TRIED: Final = Failure("NotTried", _AWAY, transient=True, outage=True)
"""The outcome of a message that was not sent, since its destination failed just now or before."""

SENT_BEFORE: Final = Released(timer_seconds=0, batch=0)
"""The outcome of a message that was sent in a former claim, whose removal failed."""

OUTAGE_PAUSE_SECONDS: Final = 1.0
BUSY_PAUSE_SECONDS: Final = 0.1

_MANY: Final = 10
"""Refused at once, and nothing taken, they say something of their queue."""

_REMEMBERED: Final = 100_000
_REMEMBERED_DESTINATIONS: Final = 10_000

Outcome = Failure | Released | None
Reasons = Sequence[tuple[StoredMessage, str]]
"""Messages to put aside, and why."""
Refusals = Sequence[tuple[StoredMessage, Failure]]


@dataclass(slots=True)
class Round:
    """The result of one claim. ``held`` wait for an outage to pass, ``failed`` for a retry.

    What was claimed and is in none of the lists was not tried: its destination is out of reach.
    ``outage`` is why a destination or the error queue could not be used, where that was so."""

    claimed: int = 0
    released: list[StoredMessage] = field(default_factory=list)
    rejected: list[StoredMessage] = field(default_factory=list)
    failed: list[StoredMessage] = field(default_factory=list)
    held: list[StoredMessage] = field(default_factory=list)
    now_ms: int = 0
    outage: Exception | None = None

    @property
    def settled(self) -> bool:
        """True if the store has become emptier, so that it is worth going on at once."""
        return bool(self.released or self.rejected)

    def late_ms(self) -> list[int]:
        """For each released message, how long after its due time it was sent; 0 if ahead of it."""
        return [max(0, self.now_ms - message.due_ms) for message in self.released]


def _reached(outcome: Outcome) -> bool | None:
    """Whether a message reached its queue; None where it was refused unsent, which tells nothing of that."""
    if not isinstance(outcome, Failure):
        return True
    if outcome.outage or _is_missing(outcome):
        return False
    return None if isinstance(outcome.error, ValueError) else True


def _is_missing(outcome: Outcome) -> bool:
    return isinstance(outcome, Failure) and isinstance(outcome.error, errors.QueueMissing)


def retry_seconds(failures: int) -> int:
    """Seconds until the next attempt after so many failures: 1 s, doubling up to 60 s."""
    return min(60, 1 << min(failures, 10))


@dataclass(slots=True)
class _Down:
    until: float
    failure: Failure
    failures: int


class Destination:
    """Where a dispatcher delivers what it has claimed, to an outbox or inside the store's database, and which
    queues there take nothing. Thread-safe.

    A queue of which nothing was taken pauses: after each failure twice as long, until a message reaches it.
    One out of reach is tried with one message after its pause. Of one that does not exist, or refuses all of
    ten or more, messages are worked off, in its pause when nothing else is due; of one that does not exist
    at a single send for all of a claim. Beyond 10,000 queues, one is forgotten and tried like others."""

    def __init__(self, to: Outbox | ExactlyOnce, clock: Clock) -> None:
        self._to, self._clock = to, clock
        if isinstance(to, ExactlyOnce):
            self.mode, self.max_ahead_seconds = TransactionMode.EXACTLY_ONCE, 0
        else:
            self.mode, self.max_ahead_seconds = TransactionMode.AT_LEAST_ONCE, to.max_ahead_seconds
        self._down: dict[str, _Down] = {}
        self._sent: OrderedDict[tuple[str, int, int], None] = OrderedDict()
        self._lock = threading.Lock()

    def check(self) -> None:
        """Raise if nothing can be delivered there."""
        if not isinstance(self._to, ExactlyOnce):
            self._to.check()

    def now_ms(self) -> int:
        """The time by which messages are due."""
        return (self._clock if isinstance(self._to, ExactlyOnce) else self._to).now_ms()

    def deliver(self, claim: Claim, messages: Sequence[StoredMessage]) -> list[Outcome]:
        """Deliver messages of the claim; an outcome for each. Raises StoreError: the store's transaction is
        broken, and nothing has happened."""
        known = list(map(self._known, messages))
        new = [message for message, outcome in zip(messages, known, strict=True) if outcome is None]
        sent = iter(self.send(new, claim))
        return [next(sent) if outcome is None else outcome for outcome in known]

    def _known(self, message: StoredMessage) -> Outcome:
        """What becomes of a message that need not be sent. Of what was sent before only the removal had
        failed: sending again would duplicate it."""
        if message.unreadable is not None:
            error = errors.InvalidMessage(message.unreadable)
            return Failure("Unreadable", error, transient=False)
        return SENT_BEFORE if self._sent and _key(message) in self._sent else None

    def reject(self, claim: Claim, messages: Reasons) -> list[Failure | None]:
        """Put messages aside; None for each that was."""
        if isinstance(self._to, ExactlyOnce):
            return [_attempted(claim, self._to.reject, *each) for each in messages]
        return self._to.reject(messages)

    def send(self, messages: Sequence[StoredMessage], claim: Any = None) -> list[Outcome]:
        """Send each message whose queue is not out of reach; an outcome per message. A queue that was gets
        one message first. The rest follow once it has arrived, or are refused with it if there is no such
        queue. ``claim``: in whose transaction."""
        away = self.away()
        probing = self._those(lambda down, _: down.failure.outage or _is_missing(down.failure))
        outcomes: list[Outcome] = [NOT_TRIED] * len(messages)

        def send(places: Sequence[int]) -> None:
            some = [messages[place] for place in places]
            sent = self._answers(some, claim) if some else []
            self._learn(some, sent)
            for place, outcome in zip(places, sent, strict=True):
                outcomes[place] = outcome

        probes, first, behind = dict[str, int](), list[int](), list[tuple[int, int]]()
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
        send([place for place, probe in behind if _reached(outcomes[probe])])
        return outcomes

    def _answers(self, messages: Sequence[StoredMessage], claim: Any) -> Sequence[Outcome]:
        if not isinstance(self._to, ExactlyOnce):
            return list(self._to.send(messages))
        effect = self._to.deliver
        together = _attempted(claim, effect, [*messages])  # which it may change
        if together is None or len(messages) == 1:
            return [together] * len(messages)
        return [_attempted(claim, effect, [each]) for each in messages]

    def remember(self, messages: Iterable[StoredMessage]) -> None:
        """They were sent, but the store failed before they were known to be gone."""
        for message in messages if self.mode is TransactionMode.AT_LEAST_ONCE else ():
            self._sent[_key(message)] = None
            if len(self._sent) > _REMEMBERED:
                self._sent.popitem(last=False)

    def forget(self, messages: Iterable[StoredMessage]) -> None:
        """They were delivered, and have left the store for good."""
        for message in messages if self._sent else ():
            self._sent.pop(_key(message), None)

    def _learn(self, messages: Sequence[StoredMessage], outcomes: Sequence[Outcome]) -> None:
        """Which queues pause, and which no longer, now that these messages were sent."""
        told = [(m.destination, outcome) for m, outcome in zip(messages, outcomes, strict=True)]
        well = {name for name, outcome in told if not isinstance(outcome, Failure)}
        failed = [(name, outcome) for name, outcome in told if isinstance(outcome, Failure)]
        count = Counter(name for name, _ in failed)
        unknown = self._those(lambda down, _: down.failure.outage)
        tells = [None, False, True]
        # Of each queue the outcome that tells most of it.
        failed.sort(key=lambda each: tells.index(_reached(each[1])))
        for name, failure in dict(failed).items():
            reached = _reached(failure)
            if name in well or (reached is None and name in unknown):
                continue
            if reached is False:
                why = "does not exist" if _is_missing(failure) else "is out of reach"
                seconds = self.failed(name, failure)
                line = "destination %s %s, trying again in %d s: %s"
                logger.warning(line, one_line(name), why, seconds, one_line(failure.error))
            elif count[name] < _MANY:
                well.add(name)
            else:
                self.failed(name, failure)
        with self._lock:
            for name in well:
                self._down.pop(name, None)

    def failed(self, name: str, failure: Failure) -> int:
        """Let a queue pause; returns for how many seconds."""
        with self._lock:
            failures = self._down[name].failures if name in self._down else 0
            # One in reach takes others: it gets a claim every 8 s at least, however much else is due.
            most = failures if _reached(failure) is False else 3
            seconds = retry_seconds(min(failures, most))
            self._down[name] = _Down(self._clock.monotonic() + seconds, failure, failures + 1)
            if len(self._down) > _REMEMBERED_DESTINATIONS:
                del self._down[next(iter(self._down))]
            return seconds

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
        if not self._down or self.seconds_to_next() is not None:
            return False
        with self._lock:
            self._down.clear()
        return True

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


def _key(message: StoredMessage) -> tuple[str, int, int]:
    # In a store for which an id is no key, another message may have the same id and due time.
    return message.message_id, message.due_ms, hash(message.body)


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
        failed = errors.DeliveryFailed(f"{type(error).__name__}: {error}")
        failed.__cause__ = error
        return Failure(type(error).__name__, failed, transient=True)
    return None


@dataclass(eq=False, kw_only=True)
class Settlement:
    """Claims messages and settles them: delivered, tried later, held or rejected. ``on_lost_count``: called
    with the store's error when a failed attempt cannot be counted. ``ledger``: events of effects in the
    store's transaction, which may undo what they tell, wait for its end. Others are recorded before the
    messages leave the store: a dispatcher that dies in between releases, and records, again."""

    store: DelayedMessageStore
    destination: Destination
    batch_size: int
    number_of_retries: int
    on_lost_count: Callable[[errors.StoreError], None] = lambda _: None
    ledger: Ledger | None = None
    _waiting: list[Iterable[Event]] = field(default_factory=list)

    def claim_due(self, act: Callable[[Claim, Round], None], *, ahead_ms: int = 0) -> Round:
        """Claim a batch of due messages, and ``act`` on it. Those for destinations out of reach are passed
        over; those for queues that take nothing are claimed when nothing else is due."""
        away, last = self.destination.away(), self.destination.last()
        for passed_over in (away | last, away):
            done = Round(now_ms=self.destination.now_ms())
            due_by_ms = done.now_ms + ahead_ms
            claiming = self.store.claim(
                self.batch_size, due_by_ms=due_by_ms, except_destinations=passed_over
            )
            with self.claimed(claiming, done) as claim:
                done.claimed = len(claim.messages)
                act(claim, done)
            if done.claimed or not last:
                break
        return done

    @contextmanager
    def claimed(self, claiming: AbstractContextManager[Claim], done: Round) -> Iterator[Claim]:
        """A claim; when it has ended, what was released is known to be gone, or remembered as sent."""
        self._waiting.clear()
        try:
            with claiming as claim:
                yield claim
        except BaseException:
            self.destination.remember(done.released)
            raise
        self.destination.forget(done.released)
        if self.ledger is not None:
            record_safely(self.ledger, chain.from_iterable(self._waiting))

    def seconds_to_next(self, at_most: float, *, ahead_ms: int = 0) -> float:
        """How long whoever found nothing may sleep: until a message is due, or a pause ends."""
        next_due_ms = self.store.next_due_ms(except_destinations=self.destination.away())
        at_most = min(at_most, self.destination.seconds_to_next() or inf)
        if next_due_ms is None:
            return at_most
        seconds = (next_due_ms - ahead_ms - self.destination.now_ms()) / 1000
        # What is due already another dispatcher has: look again shortly.
        return min(at_most, seconds if seconds > 0 else BUSY_PAUSE_SECONDS)

    def release(self, claim: Claim, messages: Sequence[StoredMessage], done: Round) -> None:
        """Deliver messages of the claim and remove those that were released; count, hold or reject the rest.
        Where the store fails, what was not removed is claimed again."""
        if not messages:
            return
        refused, sent = list[tuple[StoredMessage, Failure]](), list[tuple[StoredMessage, Any]]()
        outcomes = self.destination.deliver(claim, messages)
        for message, outcome in zip(messages, outcomes, strict=True):
            if not isinstance(outcome, Failure):
                done.released.append(message)
                sent += [] if outcome is SENT_BEFORE else [(message, outcome)]
            elif not outcome.outage:
                refused.append((message, outcome))
            elif outcome is not NOT_TRIED:
                done.held.append(message)
                done.outage = outcome.error
        done.now_ms = self.destination.now_ms()
        self._record(events.released, sent, done.now_ms)
        if done.released:
            removed = claim.remove(ids_of(done.released))
            if not all(removed):
                # A lease was lost: the process was frozen, or the store away, for longer than it.
                logger.warning("%d messages may be sent twice", removed.count(False))
        away = self.destination.away()
        passing = [message for message in done.held if message.destination not in away]
        if passing:
            # Others to the same destination were sent: these alone wait for a moment.
            claim.hold(ids_of(passing), seconds=OUTAGE_PAUSE_SECONDS)
        self._settle_refused(claim, refused, done)

    def _settle_refused(self, claim: Claim, refused: Refusals, done: Round) -> None:
        again, hopeless = list[StoredMessage](), list[tuple[StoredMessage, str]]()
        for message, failure in refused:
            if failure.transient and message.failures < self.number_of_retries:
                again.append(message)
            else:
                hopeless.append((message, f"{failure.code}: {failure.error}"))
        _tell(logger.warning, "not released", refused)
        self._count_failures(claim, again, done)
        if not hopeless:
            return
        outcomes = list(zip(hopeless, self.destination.reject(claim, hopeless), strict=True))
        gone = [entry for entry, failure in outcomes if failure is None]
        stay = [(message, failure) for (message, _), failure in outcomes if failure is not None]
        # The error queue is away or missing; a message it refuses is no outage of it.
        done.outage = next((f.error for _, f in stay if f.transient), done.outage)
        _tell(logger.error, "not rejected", stay)
        done.rejected = [message for message, _ in gone]
        self._record(events.rejected, gone, self.destination.now_ms())
        self._count_failures(claim, [message for message, _ in stay], done)
        claim.remove(ids_of(done.rejected))

    def _record(self, made: Callable[..., Iterable[Event]], messages: Any, at_ms: int) -> None:
        if self.ledger is None:
            return
        told = made(messages, at_ms=at_ms)
        if self.destination.mode is TransactionMode.EXACTLY_ONCE:
            self._waiting.append(told)
        else:
            record_safely(self.ledger, told)

    def _count_failures(self, claim: Claim, messages: Sequence[StoredMessage], done: Round) -> None:
        """In one call for all that are tried again at the same time: one a message took seconds."""
        done.failed += messages
        try:
            for seconds in sorted({retry_seconds(message.failures) for message in messages}):
                group = [m for m in messages if retry_seconds(m.failures) == seconds]
                claim.count_failures(ids_of(group), retry_after_seconds=seconds)
        except errors.StoreError as error:
            self.on_lost_count(error)
            raise


def _tell(log: Callable[..., None], what: str, failed: Refusals) -> None:
    """One line for all that failed with the same error: thousands may, at every attempt."""
    together: dict[str, list[str]] = {}
    for message, failure in failed:
        together.setdefault(one_line(failure.error), []).append(message.message_id)
    for error, ids in together.items():
        more = f" and {len(ids) - 1} more" if len(ids) > 1 else ""
        log("message %s%s %s: %s", one_line(ids[0]), more, what, error)


def ids_of(messages: Iterable[StoredMessage]) -> list[str]:
    """Their message ids."""
    return [message.message_id for message in messages]
