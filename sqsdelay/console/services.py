"""All that the pages stand on: the endpoints, the ledger, and the changes that were made."""

from __future__ import annotations

import logging
import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Generator
from contextlib import closing
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from sqsdelay.console.guard import Access
from sqsdelay.console.ledger_file import LedgerFile
from sqsdelay.console.source import ConsoleSettings, Source
from sqsdelay.core.clock import Clock, SystemClock
from sqsdelay.core.endpoint import Endpoint
from sqsdelay.core.readable import one_line
from sqsdelay.errors import ConfigurationError, InvalidEndpoint, SqsDelayError

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


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one message, in words."""

    message_id: str
    result: Result
    text: str


Work = Callable[[], Generator[Outcome]]
"""A change: does it, and yields what became of each message."""


@dataclass(slots=True)
class Change:
    """A change of one or many messages.

    Args:
        what: what it does, e.g. ``cancel``.
        endpoint: on whose messages.
        who: for whom.
        request: what was asked for, to tell a repeated request from another one.
        outcomes: what could not be done, and the first `DONE_SHOWN` that were.
    """

    what: str
    endpoint: str
    who: str
    request: object
    counts: Counter[Result] = field(default_factory=Counter)
    outcomes: list[Outcome] = field(default_factory=list)
    error: str | None = None
    ended: threading.Event = field(default_factory=threading.Event)

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
        self.ledger = None if settings.ledger is None else LedgerFile(settings.ledger)
        self._changes: OrderedDict[str, Change] = OrderedDict()
        self._lock = threading.Lock()
        self._stop = threading.Event()

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

    def make(
        self, key: str, what: str, source: Source, who: str, work: Work, request: object
    ) -> Change:
        """Make a change, unless the same was asked for with that key before: its result is returned then.

        Args:
            key: of the form that asks for it, so that a second click changes nothing.
            request: all that was asked for, compared by ``==``.
        """
        change = Change(what, source.name, who, request)
        with self._lock:
            known = self._changes.setdefault(key, change)
            ended = [k for k, each in self._changes.items() if each.ended.is_set()]
            for old in ended[: max(0, len(self._changes) - KEPT)]:
                del self._changes[old]
        if known is change:
            self._run(change, work, source)
        elif (known.what, known.endpoint, known.request) != (what, source.name, request):
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

    def _run(self, change: Change, work: Work, source: Source) -> None:
        label = one_line(f"{change.what} {change.endpoint} by {change.who}")
        counts = change.counts
        logger.info("%s: begun", label)
        try:
            with closing(work()) as outcomes:
                for each in outcomes:
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
            source.changed()
            # What could not be done comes first.
            change.outcomes.sort(key=lambda each: each.result is Result.DONE)
            change.ended.set()
