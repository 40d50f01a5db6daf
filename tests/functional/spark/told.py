"""A ledger with one of everything that can become of a message."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from sqsdelay.core.message import Route
from sqsdelay.ledger.events import Event, EventKind, Source, to_json

T0 = 1_790_000_000_000
HOUR = 3_600_000
HOSTILE = '<script>alert("x")</script>&amp;$\\frac{1}{2}$'


def sent(message_id: str, *, after: int = 0, delay: int = 1900, **more: Any) -> Event:
    """A message sent through the delay queue, unless ``more`` says otherwise."""
    at_ms = T0 + after * 1000
    known = {"endpoint": "orders", "route": Route.DELAY_QUEUE, "size": 381, "batch": 10}
    fields: dict[str, Any] = known | {"due_ms": at_ms + delay * 1000} | more
    fields |= {"kind": EventKind.SENT, "message_id": message_id, "source": Source.SENDER}
    return Event(at_ms=at_ms, **fields)


def _next(of: Event, kind: EventKind, source: Source, at_ms: int, **more: Any) -> Event:
    """Another event of the same message."""
    more |= {"endpoint": of.endpoint, "message_id": of.message_id}
    return Event(kind=kind, source=source, at_ms=at_ms, **more)


def hop(of: Event, *, after: int = 900) -> Event:
    return consumed(of, EventKind.HOP, after=after)


def handed_over(of: Event, *, after: int = 1800, late_ms: int = 40) -> Event:
    assert of.due_ms is not None
    timer = max(0, -(-(of.due_ms - of.at_ms - after * 1000) // 1000))
    return consumed(of, EventKind.HANDED_OVER, after=after, timer_seconds=timer, late_ms=late_ms)


def consumed(of: Event, kind: EventKind, *, after: int, **more: Any) -> Event:
    more |= {"due_ms": of.due_ms, "batch": 10, "receive_batch": 10}
    return _next(of, kind, Source.CONSUMER, of.at_ms + after * 1000, **more)


def received(of: Event, *, late_ms: int = 200, copy: str = "copy") -> Event:
    assert of.due_ms is not None
    more = {"due_ms": of.due_ms, "late_ms": late_ms, "batch": 1, "sqs_message_id": copy}
    return _next(of, EventKind.RECEIVED, Source.RECEIVER, of.due_ms + late_ms, **more)


def by_sender(of: Event, kind: EventKind, *, after: int, due_ms: int | None = None) -> Event:
    return _next(of, kind, Source.SENDER, of.at_ms + after * 1000, due_ms=due_ms)


def everything() -> dict[str, list[Event]]:
    """Events by the status their message ends with; the newest is ten hours after the first."""
    fine = sent("fine")
    twice = sent("twice", after=60)
    early = sent("early", after=120)
    lost = sent("lost")
    in_queue = sent("lost-in-queue", after=5)
    pending = sent("pending", delay=100_000)
    moved = sent("moved", delay=2000)
    stopped = sent("stopped", route=Route.STORE, batch=None)
    bad = sent(HOSTILE)
    again = sent("received-again", after=30)
    silent = sent("silent", endpoint="silent")
    direct = sent("direct", route=Route.DIRECT, delay=60, timer_seconds=60)
    newest = sent("newest", after=36_000, delay=50_000)
    return {
        "delivered": [
            fine, hop(fine), handed_over(fine), received(fine),
            twice, hop(twice), handed_over(twice), received(twice),
            received(twice, copy="other", late_ms=900),
            early, hop(early), handed_over(early, late_ms=-3000), received(early, late_ms=-3000),
            again, hop(again), handed_over(again), received(again), received(again),
            direct, received(direct),
        ],
        "lost": [lost, hop(lost), in_queue, hop(in_queue), handed_over(in_queue)],
        "pending": [
            pending, hop(pending), newest,
            moved, by_sender(moved, EventKind.RESCHEDULED, after=10, due_ms=T0 + 20 * HOUR),
        ],
        "cancelled": [stopped, by_sender(stopped, EventKind.CANCELLED, after=100)],
        "rejected": [bad, consumed(bad, EventKind.REJECTED, after=900, reason="no <b>due</b> time")],
        "handed-over": [silent, hop(silent), handed_over(silent)],
    }  # fmt: skip


def written(folder: Path, events: Iterable[Event]) -> str:
    """A ledger of these events."""
    (folder / "ledger.jsonl").write_text("".join(to_json(event) + "\n" for event in events))
    return str(folder / "ledger.jsonl")


def statuses() -> dict[str, str]:
    """What becomes of each message."""
    return {event.message_id: told for told, events in everything().items() for event in events}


_NAMED = '"v": 1, "endpoint": "e", "message_id": "m", "source": "sender"'
_WHOLE = f'{{{_NAMED}, "event": "sent", "at_ms": 1}}'
BAD = [
    "not json",
    "[1, 2]",
    '{"a": 1}',
    '{"v": 2, "event": "sent"}',
    '{"v": 1, "event": "sent", "at_ms": 1}',
    f'{{{_NAMED}, "event": "vanished", "at_ms": 1}}',
    f'{{{_NAMED}, "event": "sent", "at_ms": "x"}}',
    f'{{{_NAMED}, "event": "sent", "at_ms": 1, "batch": 0}}',
    f'{{{_NAMED}, "event": "sent", "at_ms": 1000000000000000}}',
    "[" * 5000,
    f"[{_WHOLE}, {_WHOLE}]",
    f"{_WHOLE}{_WHOLE}",
    f"{_WHOLE} and more",
]


def lines() -> list[str]:
    """All events as lines, then the lines that are none."""
    events = [event for group in everything().values() for event in group]
    return [to_json(event) for event in events] + BAD


def wrapped(line: str) -> list[str]:
    """The same event as Powertools' logger and an exported CloudWatch log have it."""
    fields = json.loads(line)
    logged = json.dumps({"level": "INFO", "message": "ledger", "ledger": fields})
    return [
        logged,
        f"2026-11-20T10:00:00.123Z {logged}",
        json.dumps({"level": "INFO", "message": line}),
        json.dumps({"level": "INFO", "message": fields}),
    ]


def tables(report: Path) -> Path:
    """The folder that a report's pointer names."""
    name: str = json.loads((report / "report.json").read_text())["tables"]
    return report / name
