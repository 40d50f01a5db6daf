"""What a ledger file tells: a message's history, what happened last, how late messages arrive."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO, Final, NamedTuple

from sqsdelay.errors import ConfigurationError, MalformedEvent
from sqsdelay.ledger.events import Event, EventKind, Source, from_json

TAIL_BYTES: Final = 2 * 1024 * 1024
"""What lateness and the last events are read from: some ten thousand events."""
MOST_SEARCHED_BYTES: Final = 512 * 1024 * 1024
"""What is searched for one message's history, from the end: about a second of reading."""
MOST_EVENTS: Final = 500
"""Events shown of one message: a year of hops has 35,000."""
ARRIVALS: Final = (EventKind.HANDED_OVER, EventKind.RELEASED, EventKind.RECEIVED)


class Lateness(NamedTuple):
    """How late the last messages of an endpoint arrived, milliseconds; ``messages`` says of how many, and
    ``last_ms`` when the last of them did, epoch milliseconds."""

    messages: int
    last_ms: int
    median_ms: int
    p99_ms: int
    worst_ms: int


class History(NamedTuple):
    """The events of one message, oldest first; ``left_out`` is how many there are besides.

    ``hops`` counts all of its hops. ``whole`` is False where the file was too long to be searched whole.
    """

    events: tuple[Event, ...] = ()
    hops: int = 0
    left_out: int = 0
    whole: bool = True

    def first(self, *kinds: str) -> Event | None:
        """The first event of these kinds."""
        return next((event for event in self.events if event.kind in kinds), None)


class LedgerFile:
    """Reads a `FileLedger`'s file while others append to it; none, or one that does not exist yet, is empty.

    Thread-safe. Each method raises `ConfigurationError` where the file cannot be read.
    """

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

    def recent(self, endpoints: Iterable[str], count: int) -> list[Event]:
        """The last events of these endpoints, the newest first."""
        names = set(endpoints)
        found = [event for event in reversed(self.tail()) if event.endpoint in names]
        return sorted(found[:count], key=lambda event: event.at_ms, reverse=True)

    def last_seen_ms(self, endpoint: str) -> dict[Source, int]:
        """When each who works for the endpoint recorded something last."""
        events = [event for event in self.tail() if event.endpoint == endpoint]
        return {e.source: e.at_ms for e in sorted(events, key=lambda event: event.at_ms)}

    def lateness(self, endpoint: str) -> Lateness | None:
        """Of the messages that arrived last; None where none did."""
        late: dict[str, int] = {}
        last_ms = 0
        for event in self.tail():
            if event.endpoint != endpoint or event.kind not in ARRIVALS or event.late_ms is None:
                continue
            last_ms = max(last_ms, event.at_ms)
            # Where the relay says when its destination showed it, the receiver's wait does not count.
            if event.kind is not EventKind.RECEIVED or event.message_id not in late:
                late[event.message_id] = event.late_ms
        ordered, last = sorted(late.values()), len(late) - 1
        if not ordered:
            return None
        p99_ms = ordered[min(last, -(-99 * len(ordered) // 100) - 1)]
        return Lateness(len(ordered), last_ms, ordered[last // 2], p99_ms, ordered[-1])

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
        nothing = Path(os.devnull)
        try:
            return (self.path or nothing).open("rb")
        except FileNotFoundError:
            return nothing.open("rb")
        except OSError as error:
            raise ConfigurationError(
                f"ledger {self.path} cannot be read: {error.strerror}; name a file of JSON lines"
            ) from error


def _events(lines: Iterable[bytes]) -> Iterator[Event]:
    for line in lines:
        # `pipeline report` tells of lines that are no events.
        with suppress(MalformedEvent):
            yield from_json(line)
