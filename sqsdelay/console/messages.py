"""Messages: filtered, listed and found, where they wait or failed; and what the ledger tells of them."""

from __future__ import annotations

import json
import os
import threading
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import IO, Any, Final, NamedTuple, Self
from urllib.parse import urlencode

from sqsdelay.console.source import Body, Failed, Source, text_of
from sqsdelay.core.delay import due_at_ms
from sqsdelay.core.message import Attribute
from sqsdelay.core.readable import parse_delay, parse_due_at
from sqsdelay.core.stored_message import StoredMessage
from sqsdelay.errors import ConfigurationError, MalformedEvent, NoStore, SqsDelayError
from sqsdelay.ledger.events import Event, EventKind, from_json
from sqsdelay.ledger.events import Source as Recorder
from sqsdelay.operating import status
from sqsdelay.parking import parking
from sqsdelay.ports.stores import ParkingPlace

PAGE: Final = 50
MOST_SEARCHED: Final = 5000
"""Messages read for one page of those that match; the next page goes on behind them."""
SEARCH_SECONDS: Final = 2.0
"""How long that may take: half of a page's patience."""


def utc_input(text: str) -> str:
    """What a browser's field for date and time gives, which has no time zone: here it is UTC."""
    text = text.strip()
    return f"{text}Z" if len(text) <= 19 and "T" in text and not text.endswith("Z") else text


def typed_due(delay: str, due_at: str) -> tuple[timedelta | None, datetime | None]:
    """When a message is due, as a form has it: its delay or its due time, or neither."""
    delay, due_at = delay.strip(), utc_input(due_at)
    return parse_delay(delay) if delay else None, parse_due_at(due_at) if due_at else None


@dataclass(frozen=True, slots=True)
class Filter:
    """Which messages a list shows, as its form has it."""

    text: str = ""  # in the id or the body, whatever its case
    attribute: str = ""  # `NAME` or `NAME=VALUE`
    reason: str = ""
    due_from: str = ""
    due_before: str = ""
    tab: str = ""
    """``overdue`` or ``day``, the next 24 hours, whenever it is asked; due times win over it."""

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Self:
        return cls(**{name: str(given.get(name, "")).strip() for name in cls.__slots__})

    def query(self) -> str:
        """The same, for an address: each with an ``&`` before it."""
        given = {name: value for name, value in asdict(self).items() if value}
        return "&" + urlencode(given, errors="surrogatepass") if given else ""

    def bounds_ms(self, now_ms: int) -> tuple[int | None, int | None]:
        """From which due time on, and before which, epoch milliseconds."""
        given = (utc_input(self.due_from), utc_input(self.due_before))
        start, end = (due_at_ms(parse_due_at(each)) if each else None for each in given)
        if self.tab and start is end is None:
            return (None, now_ms) if self.tab == "overdue" else (now_ms, now_ms + 86_400_000)
        return start, end

    def matches(self, message_id: str, body: str, attributes: Mapping[str, Attribute]) -> bool:
        """Whether a message is meant, as far as its text and attributes say."""
        wanted = self.text.casefold()
        if wanted not in message_id.casefold() and wanted not in body.casefold():
            return False
        name, equals, value = self.attribute.partition("=")
        found = attributes.get(name)
        alike = found is not None and (not equals or found.get("StringValue") == value)
        return alike or not name


class Listed(NamedTuple):
    """A page of a list; ``next`` is where the next one begins, ``searched`` how many were read for it."""

    rows: list[StoredMessage]
    next: str | None
    searched: int


def listed(
    source: Source, which: Filter, *, after: str | None, limit: int = PAGE, bodies: bool = True
) -> Listed:
    """A page of parked messages, the earliest due first; raises what is wrong with filter or store.
    ``bodies`` are left out of a page that may be of a thousand messages of 1 MiB."""
    start_ms, end_ms = which.bounds_ms(source.clock.now_ms())
    cursor = status.parse_cursor(after) if after else None
    listing = parking.Listing(after=cursor, due_from_ms=start_ms, due_before_ms=end_ms)

    def read(place: ParkingPlace) -> Listed:
        rows: list[StoredMessage] = []
        most = MOST_SEARCHED if which.text or which.attribute else limit
        until, cut = source.clock.monotonic() + SEARCH_SECONDS, False
        for message in listing.read(place, most):
            body = text_of(message.body)
            if which.matches(text_of(message.message_id), body, message.attributes):
                rows.append(message if bodies else replace(message, body=b""))
            # Whatever the store gave at once is looked at.
            late = listing.listed % parking.PAGE == 0 and source.clock.monotonic() > until
            if cut := len(rows) == limit or late:
                break
        more = (cut or listing.listed == most) and listing.has_more(place)
        return Listed(rows, text_of(listing.cursor) if more else None, listing.listed)

    return source.of_store(read)


def failed(source: Source, which: Filter, group: str = "") -> list[Failed]:
    """Of the messages that were last looked at, those a filter means; of one kind of reason, if it is given.
    No message is received."""
    start_ms, end_ms = which.bounds_ms(source.clock.now_ms())
    wanted = which.reason.casefold()

    def means(each: Failed) -> bool:
        if each.due_ms is None:
            in_time = not (start_ms or end_ms)
        else:
            in_time = (start_ms or 0) <= each.due_ms < (end_ms or each.due_ms + 1)
        return (
            in_time
            and group in ("", each.kind)
            and wanted in f"{each.reason or ''}\n{each.kind}".casefold()
            and which.matches(text_of(each.message_id), each.body.text, each.attributes)
        )

    return [each for each in source.errors_sample.known().value or () if means(each)]


def grouped(rejections: Collection[Failed]) -> list[tuple[str, list[Failed]]]:
    """By reason, the largest group first."""
    groups = defaultdict[str, list[Failed]](list)
    for each in rejections:
        groups[each.kind].append(each)
    return sorted(groups.items(), key=lambda item: (-len(item[1]), item[0]))


TAIL_BYTES: Final = 2 * 1024 * 1024
"""What lateness and the last events are read from: some ten thousand events."""
MOST_SEARCHED_BYTES: Final = 512 * 1024 * 1024
"""What is searched for one message's history, from the end: about a second of reading."""
MOST_EVENTS: Final = 500
"""Events shown of one message: a year of hops has 35,000."""
ARRIVALS: Final = (EventKind.HANDED_OVER, EventKind.RELEASED, EventKind.RECEIVED)


class History(NamedTuple):
    """The events of one message, oldest first; ``left_out`` is how many there are besides. ``hops`` counts
    all of its hops. ``whole`` is False where the file was too long to be searched whole."""

    events: tuple[Event, ...] = ()
    hops: int = 0
    left_out: int = 0
    whole: bool = True

    def first(self, *kinds: str) -> Event | None:
        """The first event of these kinds."""
        return next((event for event in self.events if event.kind in kinds), None)


class LedgerFile:
    """Reads a `FileLedger`'s file while others append to it; none, or one that does not exist yet, is empty.
    Thread-safe. Each method raises `ConfigurationError` where the file cannot be read."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._read: tuple[object, tuple[Event, ...]] = (None, ())

    def tail(self) -> tuple[Event, ...]:
        """The last events, oldest first; lines that are no events are passed over."""
        with self._lock, self._opened() as file:
            found = os.fstat(file.fileno())
            stamp, start = (found.st_size, found.st_mtime_ns), max(0, found.st_size - TAIL_BYTES)
            if self._read[0] != stamp:
                file.seek(start)
                if start:
                    file.readline()
                self._read = (stamp, tuple(_events(file)))
            return self._read[1]

    def recent(self, endpoints: Collection[str], count: int) -> list[Event]:
        """The last events of these endpoints, the newest first."""
        found = [event for event in reversed(self.tail()) if event.endpoint in endpoints]
        return sorted(found[:count], key=lambda event: event.at_ms, reverse=True)

    def last_seen_ms(self, endpoint: str) -> dict[Recorder, int]:
        """When each who works for the endpoint recorded something last."""
        events = [event for event in self.tail() if event.endpoint == endpoint]
        return {e.source: e.at_ms for e in sorted(events, key=lambda event: event.at_ms)}

    def lateness(self, endpoint: str) -> dict[str, int]:
        """How late the last messages arrived, and when the last of them did; empty where none did."""
        late: dict[str, int] = {}
        last_ms = 0
        for event in self.tail():
            if event.endpoint != endpoint or event.kind not in ARRIVALS or event.late_ms is None:
                continue
            last_ms = max(last_ms, event.at_ms)
            # Where the relay says when its destination showed it, the receiver's wait does not count.
            if event.kind is not EventKind.RECEIVED or event.message_id not in late:
                late[event.message_id] = event.late_ms
        count, ordered = len(late), sorted(late.values())
        if not ordered:
            return {}
        median_ms, p99_ms = ordered[(count - 1) // 2], ordered[(99 * count - 1) // 100]
        found = {"messages": count, "last_ms": last_ms}
        return found | {"median_ms": median_ms, "p99_ms": p99_ms, "worst_ms": ordered[-1]}

    def history(self, endpoint: str, message_id: str) -> History:
        """All that befell a message, found by its own id or by SQS's."""
        needles = {
            json.dumps(message_id)[1:-1].encode("ascii"),
            json.dumps(message_id, ensure_ascii=False)[1:-1].encode("utf-8", "surrogatepass"),
        }
        with self._opened() as file:
            start = max(0, file.seek(0, 2) - MOST_SEARCHED_BYTES)
            file.seek(start)
            lines = (line for line in file if any(needle in line for needle in needles))
            found = [
                event
                for event in _events(lines)
                if event.endpoint == endpoint
                and message_id in (event.message_id, event.sqs_message_id)
            ]
        found.sort(key=lambda event: event.at_ms)
        half = MOST_EVENTS // 2
        shown = found if len(found) <= MOST_EVENTS else [*found[:half], *found[-half:]]
        hops = sum(event.kind is EventKind.HOP for event in found)
        return History(tuple(shown), hops, len(found) - len(shown), whole=start == 0)

    def _opened(self) -> IO[bytes]:
        try:
            return open(self.path or os.devnull, "rb")
        except FileNotFoundError:
            return open(os.devnull, "rb")
        except OSError as error:
            raise ConfigurationError(
                f"ledger {self.path} cannot be read: {error.strerror}; name a file of JSON lines"
            ) from error


def _events(lines: Iterable[bytes]) -> Iterator[Event]:
    for line in lines:
        # `pipeline report` tells of lines that are no events.
        with suppress(MalformedEvent):
            yield from_json(line)


@dataclass(slots=True)
class Found:
    """All that is known of a message; what could not be asked is in ``trouble``. ``where`` it is now: store,
    error queue (seen there ``looked_seconds`` ago), elsewhere, arrived, cancelled or unknown."""

    id: str
    where: str = "unknown"
    due_ms: int | None = None
    problem: str | None = None
    body: Body | None = None
    attributes: Mapping[str, Attribute] = field(default_factory=dict)
    stored: StoredMessage | None = None
    looked_seconds: int = 0
    history: History = field(default_factory=History)
    trouble: list[str] = field(default_factory=list)


def found(source: Source, message_id: str, ledger: LedgerFile) -> Found:
    """Look for a message in the store, the ledger and the error queue as it was last looked at."""
    view = Found(text_of(message_id))
    try:
        with suppress(NoStore):
            view.stored = source.of_store(lambda place: place.find(message_id))
    except SqsDelayError as error:
        view.trouble.append(f"Store: {error}")
    try:
        view.history = history = ledger.history(source.name, message_id)
        if not history.whole:
            view.trouble.append("Ledger: only its last part was searched")
        if history.events:
            arrived, cancelled = history.first(*ARRIVALS), history.first(EventKind.CANCELLED)
            view.where = "arrived" if arrived else "cancelled" if cancelled else "elsewhere"
        dated = (event.due_ms for event in reversed(history.events))
        view.due_ms = next((due_ms for due_ms in dated if due_ms is not None), None)
    except SqsDelayError as error:
        view.trouble.append(f"Ledger: {error}")
    rejections = source.errors_sample.known()
    for each in rejections.value or ():
        if each.message_id == message_id:
            view.where, view.problem = "error queue", each.reason
            view.looked_seconds = rejections.age_seconds(source.clock.now_ms())
            view.due_ms = view.due_ms if each.due_ms is None else each.due_ms
            view.body, view.attributes = each.body, each.attributes
    if source.on_sqs and rejections.at_ms is None:
        counted = source.queues_sample.get().value
        if counted is not None and counted.errors:
            view.trouble.append("Error queue: nobody has looked at its messages yet; see Errors")
    if (stored := view.stored) is not None:
        view.where, view.due_ms, view.problem = "store", stored.due_ms, stored.unreadable
        view.body, view.attributes = Body.of(stored.body), stored.attributes
    return view
