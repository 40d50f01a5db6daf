"""How an endpoint is: its numbers with their age, what they mean, and what to do."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import Any, Final, NamedTuple

from sqsdelay.console.ledger_file import Lateness
from sqsdelay.console.sampling import OLD_SECONDS, Sample, Sampled
from sqsdelay.console.services import Services
from sqsdelay.console.source import BrokerStatus, Source
from sqsdelay.core.delay import due_at_ms, utc
from sqsdelay.core.readable import age, instant, one_line
from sqsdelay.errors import SqsDelayError
from sqsdelay.ledger.events import Source as Recorder
from sqsdelay.limits import MAX_MESSAGE_TIMER_SECONDS, SCHEDULE_SECONDS
from sqsdelay.operating.status import (
    OVERDUE_MARGIN_SECONDS,
    EndpointStatus,
    Outlook,
    QueueStatus,
    Role,
    StoreStatus,
)

LATELY_SECONDS: Final = {Recorder.CONSUMER: 20, Recorder.DISPATCHER: SCHEDULE_SECONDS}
"""Within which a worker that records something is at work: a long poll, a run of the deployed one."""
UNSERVED_SECONDS: Final = 30
"""How long messages may be receivable while nobody receives: a Lambda poller takes up to 20 s."""

SPANS: Final = {"hours": 24, "days": 30, "months": 12}
"""How far ahead one can look."""


def edges_of(span: str, now_ms: int) -> list[int]:
    """1970, now, and the ends of the hours, days or months ahead in UTC: what is overdue comes first."""
    now = utc(now_ms).replace(minute=0, second=0, microsecond=0)
    ahead = range(1, SPANS[span] + 1)
    if span == "hours":
        ends = [now + timedelta(hours=n) for n in ahead]
    elif span == "days":
        ends = [now.replace(hour=0) + timedelta(days=n) for n in ahead]
    else:
        months = [now.year * 12 + now.month - 1 + n for n in ahead]
        ends = [now.replace(year=m // 12, month=m % 12 + 1, day=1, hour=0) for m in months]
    return [0, now_ms, *map(due_at_ms, ends)]


class Worker(NamedTuple):
    """Whether a worker seems to do its work, and what that is concluded from."""

    name: str
    sample: Sample[Any]
    seen_ms: int | None
    state: str
    text: str


class State(NamedTuple):
    """An endpoint, and what its numbers mean; ``late_copies`` are the alarms of queues with a copy that is
    too old."""

    source: Source
    outlook: Sample[Outlook]
    lateness: Lateness | None
    workers: list[Worker]
    late_copies: list[tuple[str, QueueStatus]]


def troubles(services: Services, *, ask: bool) -> list[str]:
    """What is down or does not answer, in its own words; without ``ask``, as far as it is known."""
    found = []
    now_ms = services.clock.now_ms()
    if ask:
        for source in services.sources.values():
            source.start()
    for source in services.sources.values():
        broker = "SQS" if source.on_sqs else "RabbitMQ"
        stored, queued = source.store_sample, source.queues_sample
        queues = queued.get() if ask else queued.known()
        asked: Sequence[tuple[str, Sample[Any]]] = (
            ("Store", stored.get() if ask else stored.known()),
            (broker, queues),
            ("Error queue", source.errors_sample.known()),
            ("Ages of the oldest messages", source.ages_sample.known()),
        )
        told = [(what, _dated(each, now_ms)) for what, each in asked if each.trouble]
        if isinstance(queues.value, BrokerStatus):
            told += [(broker, fault) for fault in queues.value.faults]
        found += [f"{what}, {source.name}: {trouble}" for what, trouble in told]
    try:
        services.ledger.tail()
    except SqsDelayError as error:
        found.append(f"Ledger: {one_line(error)}")
    return found


def _dated(sample: Sample[Any], now_ms: int) -> str:
    """What is wrong, and when that was found out if it was not just now."""
    seconds = 0 if sample.trouble_ms is None else (now_ms - sample.trouble_ms) // 1000
    return f"{sample.trouble}{f' ({age(seconds)} ago)' if seconds > OLD_SECONDS else ''}"


def states_of(services: Services, span: str) -> list[State]:
    """Every endpoint; all are asked at once."""
    asked = []
    for source in services.sources.values():
        source.start()
        due = source.outlook(span, partial(edges_of, span))
        due.start()
        asked.append((source, due))
    return [_state_of(services, source, due) for source, due in asked]


def _state_of(services: Services, source: Source, due: Sampled[Outlook]) -> State:
    queues, store, ledger = source.queues_sample.get(), source.store_sample.get(), services.ledger
    lateness, seen, workers = None, dict[Recorder, int](), []
    # `troubles` says why a ledger cannot be read.
    with suppress(SqsDelayError):
        lateness, seen = ledger.lateness(source.name), ledger.last_seen_ms(source.name)
    if source.on_sqs:
        seen_ms = seen.get(Recorder.CONSUMER)
        told = _consumer(source, queues, seen_ms)
        workers.append(Worker("delay consumer", queues, seen_ms, *told))
    # EventBridge Scheduler releases by itself.
    if source.store_url and not source.store_url.startswith("scheduler:"):
        seen_ms = seen.get(Recorder.DISPATCHER)
        told = _dispatcher(source, store, seen_ms)
        workers.append(Worker("dispatcher", store, seen_ms, *told))
    return State(source, due.get(), lateness, workers, _late_copies(source, queues.value))


def _lately(source: Source, recorder: Recorder, seen_ms: int | None) -> bool:
    if seen_ms is None:
        return False
    return source.clock.now_ms() - seen_ms <= LATELY_SECONDS[recorder] * 1000


def _consumer(source: Source, sample: Sample[Any], seen_ms: int | None) -> tuple[str, str]:
    """Its state, and what that is concluded from."""
    status: EndpointStatus | None = sample.value
    if status is None or not sample.tells(source.clock.now_ms()):
        source.unserved_since = None
        return sample.unknown, "its queues cannot be read"
    waiting = sum(q.visible for q in status.queues if q.role in (Role.DELAY, Role.DUE))
    now = source.clock.monotonic()
    if not waiting or status.in_flight:
        source.unserved_since = None
    elif source.unserved_since is None:
        source.unserved_since = now
    unserved = 0.0 if source.unserved_since is None else now - source.unserved_since
    if status.in_flight:
        return "working", f"has {status.in_flight:,} messages in hand"
    if _lately(source, Recorder.CONSUMER, seen_ms):
        return "working", "recorded something just now"
    received = f"{waiting:,} messages can be received"
    if unserved > UNSERVED_SECONDS:
        return "not seen", f"{received}, and none has been for {unserved:.0f} s"
    return "idle", received if waiting else "no message waits for it"


def _dispatcher(
    source: Source, sample: Sample[StoreStatus], seen_ms: int | None
) -> tuple[str, str]:
    """Its state, and what that is concluded from."""
    parked = sample.value
    if parked is None or not sample.tells(source.clock.now_ms()):
        return sample.unknown, "its store cannot be read"
    if parked.overdue:
        return "not seen", f"the earliest message is {age(parked.late_ms // 1000)} overdue"
    if _lately(source, Recorder.DISPATCHER, seen_ms):
        return "working", "recorded something just now"
    return "idle", "a message has just become due" if parked.late_ms else "nothing is due"


def _late_copies(
    source: Source, status: EndpointStatus | BrokerStatus | None
) -> list[tuple[str, QueueStatus]]:
    """What the deployed alarms ring for, as far as CloudWatch tells."""
    if not isinstance(status, EndpointStatus):
        return []
    limits = {
        Role.DELAY: ("OldestMessage", source.settings.hop_seconds),
        Role.DUE: ("OldestDueMessage", MAX_MESSAGE_TIMER_SECONDS),
    }
    return [
        (limits[queue.role][0], queue)
        for queue in status.queues
        if queue.role in limits
        and (queue.oldest_seconds or 0) > limits[queue.role][1] + OVERDUE_MARGIN_SECONDS
    ]


def top_of(counts: Sequence[int]) -> int:
    """The top of a scale for them: 1, 2 or 5 times a power of ten."""
    number = max(1, *counts)
    power: int = 10 ** (len(str(number)) - 1)
    return next(step * power for step in (1, 2, 5, 10) if step * power >= number)


def edge(epoch_ms: int, span: str) -> str:
    """Where a span begins, as short as it can be told from its neighbours."""
    shown = instant(epoch_ms).replace("T", " ")
    return {"hours": shown[5:16], "days": shown[5:10], "months": shown[:7]}[span]
