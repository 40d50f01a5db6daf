"""What the pages stand on: the endpoints, the ledger, and the changes that are made to messages."""

from __future__ import annotations

import logging
import threading
from collections import Counter, OrderedDict
from collections.abc import Collection, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, NamedTuple, Self
from urllib.parse import unquote

from sqsdelay.console.guard import Access
from sqsdelay.console.ledger_file import LedgerFile
from sqsdelay.console.shown import text_of
from sqsdelay.console.source import ConsoleSettings, Source
from sqsdelay.core.clock import Clock, SystemClock
from sqsdelay.core.delay import too_far
from sqsdelay.core.endpoint import Endpoint
from sqsdelay.core.readable import instant, one_line
from sqsdelay.core.rejection import Rejection
from sqsdelay.errors import (
    ConfigurationError,
    InvalidDelay,
    InvalidEndpoint,
    SchemaMismatch,
    SqsDelayError,
    StoreUnavailable,
)
from sqsdelay.operating.error_queue import Discard, Retry, RetryStatus
from sqsdelay.operating.status import CHANGED
from sqsdelay.parking.parking import Change as Changed
from sqsdelay.parking.parking import Schedule, check
from sqsdelay.ports.stores import ParkingPlace

logger = logging.getLogger("sqsdelay.console")

KEPT: Final = 200
"""Changes whose result can still be looked at."""

MOST_CHANGED: Final = 1000
"""Messages that one change is for."""

DONE_SHOWN: Final = 20
"""Messages of a change that are named although it was done to them; the others are counted."""

STOP_SECONDS: Final = 3.0
"""How long a console that is stopped waits for changes to let go of what they hold."""


class Result(StrEnum):
    """What became of one message."""

    DONE = "done"
    REQUESTED = "requested"
    """Left to the delay consumer."""
    NOT_DONE = "not-done"


class Outcome(NamedTuple):
    """What became of one message, in words."""

    message_id: str
    result: Result
    text: str


Work = Generator[Outcome]
"""Does a change as it is read: what became of each message."""


@dataclass(slots=True)
class Change:
    """A change of one or many messages; equal to another if the same is asked for.

    Args:
        what: what it does, e.g. ``cancel``.
        endpoint: on whose messages.
        request: all else that was asked for.
        who: for whom.
        outcomes: what could not be done, and the first `DONE_SHOWN` that were.
    """

    what: str
    endpoint: str
    request: object
    who: str = field(compare=False)
    counts: Counter[Result] = field(default_factory=Counter, compare=False)
    outcomes: list[Outcome] = field(default_factory=list, compare=False)
    error: str | None = field(default=None, compare=False)
    ended: threading.Event = field(default_factory=threading.Event, compare=False)

    @property
    def left_out(self) -> int:
        """How many outcomes are counted only."""
        return sum(self.counts.values()) - len(self.outcomes)


class Services:
    """Everything a console does, without the web."""

    def __init__(
        self, settings: ConsoleSettings, access: Access, clock: Clock | None = None
    ) -> None:
        self.settings = settings
        self.access = access
        self.clock = clock or SystemClock()
        endpoints = [Endpoint.parse(each) for each in settings.endpoints]
        self.sources = {each.name: Source(each, settings, self.clock) for each in endpoints}
        self.ledger = LedgerFile(settings.ledger)
        self._changes: OrderedDict[str, Change] = OrderedDict()
        self._lock = threading.Lock()
        self._stop = threading.Event()

    def check_stores(self) -> None:
        """Raise SchemaMismatch for a store of another version. What else may be wrong with one its page
        tells, and goes on."""
        with ThreadPoolExecutor(len(self.sources)) as pool:
            asked = [pool.submit(each.of_store, check) for each in self.sources.values()]
        for each in asked:
            if isinstance(error := each.exception(), SchemaMismatch):
                raise error

    def source(self, endpoint: str | None) -> Source:
        """The endpoint of that name; the first one where none is named."""
        if not endpoint:
            return next(iter(self.sources.values()))
        if endpoint not in self.sources:
            known = ", ".join(self.sources)
            raise InvalidEndpoint(
                f"endpoint {endpoint!r} is not shown here; those shown are {known}"
            )
        return self.sources[endpoint]

    def change(self, key: str) -> Change | None:
        """The change that was given that key, if it is still known."""
        with self._lock:
            return self._changes.get(key)

    def make(self, key: str, change: Change, work: Work) -> Change:
        """Make a change, unless the same was asked for with that key before: its result is returned then.

        Args:
            key: of the form that asks for it, so that a second click changes nothing.
        """
        with self._lock:
            known = self._changes.setdefault(key, change)
            ended = [k for k, each in self._changes.items() if each.ended.is_set()]
            for old in ended[: max(0, len(self._changes) - KEPT)]:
                del self._changes[old]
        if known is change:
            self._run(change, work)
        elif known != change:
            raise ConfigurationError(
                f"this form was used for another change ({known.what} on {known.endpoint}); load the "
                "page again"
            )
        known.ended.wait()
        return known

    def close(self) -> None:
        """End changes after what they are at, and let go of connections."""
        self._stop.set()
        with self._lock:
            running = [each for each in self._changes.values() if not each.ended.is_set()]
        for change in running:
            change.ended.wait(STOP_SECONDS / len(running))
        for source in self.sources.values():
            source.close()

    def _run(self, change: Change, work: Work) -> None:
        label = one_line(f"{change.what} {change.endpoint} by {change.who}")
        counts = change.counts
        logger.info("%s: begun", label)
        try:
            with closing(work):
                for each in work:
                    counts[each.result] += 1
                    told = one_line(f"{each.message_id}: {each.result}, {each.text}")
                    logger.info("%s: %s", label, told)
                    if each.result is not Result.DONE or counts[Result.DONE] <= DONE_SHOWN:
                        change.outcomes.append(each)
                    if self._stop.is_set():
                        change.error = (
                            "the console was stopped; messages without an outcome were not touched"
                        )
                        break
        except SqsDelayError as error:
            change.error = one_line(error)
        except Exception as error:
            # Whoever waits for it must be told, and the log has to say why.
            logger.exception("%s: failed", label)
            change.error = one_line(f"{type(error).__name__}: {error}")
        finally:
            ended = f"failed: {change.error}" if change.error else "ended"
            some = ", ".join(f"{count} {result}" for result, count in counts.items())
            logger.info("%s: %s, %s", label, ended, some or "no messages")
            self.sources[change.endpoint].changed()
            # What could not be done comes first.
            change.outcomes.sort(key=lambda each: each.result is Result.DONE)
            change.ended.set()


ON_PARKED: Final = ("cancel", "release", "reschedule")
ON_FAILED: Final = ("retry", "discard")

AT_ONCE: Final = 4
"""Messages changed at a time. Where a store answers for none of so many, the others are left alone."""


class Chosen(NamedTuple):
    """A parked message to change. With ``due_ms``, as it was seen: if it was moved since, nothing is done."""

    id: str
    due_ms: int | None

    @classmethod
    def of(cls, mark: str) -> Self:
        """What a list's box says: ``due_ms:id``, the id percent-encoded."""
        due, colon, message_id = mark.partition(":")
        if not colon or (due and not (due.isascii() and due.isdigit() and len(due) <= 15)):
            raise ConfigurationError("the form names no message; load the page again")
        return cls(unquote(message_id), int(due) if due else None)


def of_parked(source: Source, action: str, chosen: Sequence[Chosen], due_ms: int | None) -> Work:
    """Cancel, release or reschedule messages, to ``due_ms`` (epoch milliseconds).

    Raises `InvalidDelay` where that is beyond what the endpoint takes.
    """
    now_ms = source.latest_ms()
    problem = too_far(due_ms or 0, now_ms, source.settings.max_delay_seconds)
    if problem is not None:
        raise InvalidDelay(problem)
    moved_ms = now_ms if due_ms is None else due_ms
    done = {
        "cancel": "cancelled",
        "release": "due now: the dispatcher sends it next",
        "reschedule": f"moved to {instant(moved_ms)}",
    }[action]
    results = {Changed.DONE: Result.DONE, Changed.REQUESTED: Result.REQUESTED}

    def change(place: ParkingPlace, message: Chosen) -> tuple[Result, str]:
        kept = place.find(message.id)
        if kept is None and action == "release":
            text = "not done: it is not in the store; it was released or cancelled meanwhile"
            return Result.NOT_DONE, text
        if kept is not None and message.due_ms not in (None, kept.due_ms):
            text = f"not done: it was moved meanwhile, and is due at {instant(kept.due_ms)}; look again"
            return Result.NOT_DONE, text
        schedule = Schedule(place, endpoint=source.name, ledger=source.ledger)
        if action == "cancel":
            answer = schedule.cancel(message.id, now_ms=now_ms)
        else:
            answer = schedule.reschedule(message.id, moved_ms, now_ms=now_ms)
        return results.get(answer, Result.NOT_DONE), CHANGED[answer].format(done=done)

    def attempt(message: Chosen) -> tuple[Outcome, StoreUnavailable | None]:
        try:
            told = source.of_store(lambda place: change(place, message))
            return Outcome(message.id, *told), None
        except StoreUnavailable as error:
            text = f"perhaps not done, look again: {error}"
            return Outcome(message.id, Result.NOT_DONE, text), error
        except SqsDelayError as error:
            return Outcome(message.id, Result.NOT_DONE, f"not done: {error}"), None

    def run() -> Work:
        with ThreadPoolExecutor(AT_ONCE) as pool:
            for start in range(0, len(chosen), AT_ONCE):
                lost = []
                for outcome, error in pool.map(attempt, chosen[start : start + AT_ONCE]):
                    lost += [error] if error else []
                    yield outcome
                if len(lost) == AT_ONCE:
                    # One that hangs would take many seconds for each of the others.
                    raise lost[0]

    return run()


def of_failed(source: Source, action: str, keys: Collection[str], *, undated_now: bool) -> Work:
    """Send messages on to where they are due, or discard them for good.

    Args:
        keys: SQS's ids of the copies; two may have one message id.
        undated_now: those that do not say when they are due are due now.
    """
    queue, chosen = source.errors(), frozenset(keys)

    def wanted(rejection: Rejection) -> bool:
        return rejection.copy.sqs_message_id in chosen

    def run() -> Work:
        known = source.errors_sample.known().value or ()
        missing = dict.fromkeys(keys, "") | {
            each.key: text_of(each.message_id) for each in known if each.key in chosen
        }
        answers: Any
        if action == "retry":
            due_ms = source.latest_ms() if undated_now else None
            answers = queue.retry(where=wanted, due_ms=due_ms)
        else:
            answers = queue.discard(where=wanted)
        with closing(answers):
            for answer in answers:
                missing.pop(answer.rejection.copy.sqs_message_id, None)
                yield _answered(answer)
                if not missing:
                    return
        for key, message_id in missing.items():
            text = (
                "not found: somebody else has received it; unless they delete it, it is back within "
                "two minutes"
            )
            yield Outcome(message_id or key, Result.NOT_DONE, text)

    return run()


def _answered(answer: Retry | Discard) -> Outcome:
    message_id = text_of(answer.rejection.message_id)
    text = f"not done, still in the error queue: {answer.error}"
    if isinstance(answer, Discard):
        if answer.error is None:
            return Outcome(message_id, Result.DONE, "discarded")
    elif answer.status is RetryStatus.SENT:
        due = "" if answer.due_ms is None else f", due {instant(answer.due_ms)}"
        return Outcome(message_id, Result.DONE, f"sent to {answer.queue}{due}")
    elif answer.status is RetryStatus.NOT_DELETED:
        text = f"sent to {answer.queue}, but still in the error queue: {answer.error}; discard it there"
    return Outcome(message_id, Result.NOT_DONE, text_of(text))
