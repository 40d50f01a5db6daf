"""What the JSON API answers and takes; the pages show the same objects. Instants are ISO 8601, UTC."""

from __future__ import annotations

from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final, Literal

from pydantic import BaseModel, ConfigDict, Field

from sqsdelay.core.delay import due_at_ms, utc


class Span(StrEnum):
    """How far ahead to look."""

    HOURS = "hours"
    DAYS = "days"
    MONTHS = "months"


class When(StrEnum):
    """Which parked messages to list."""

    OVERDUE = "overdue"
    DAY = "day"


HOURS: Final = 24
DAYS: Final = 30
MONTHS: Final = 12


def edges_of(span: Span, now_ms: int) -> list[int]:
    """1970, now, and the ends of the hours, days or months ahead in UTC: what is overdue comes first."""
    now = utc(now_ms)
    if span is Span.HOURS:
        hour = now.replace(minute=0, second=0, microsecond=0)
        ends = [hour + timedelta(hours=n + 1) for n in range(HOURS)]
    elif span is Span.DAYS:
        day = now.replace(hour=0, minute=0, second=0, microsecond=0)
        ends = [day + timedelta(days=n + 1) for n in range(DAYS)]
    else:
        ends = [_month(now, n + 1) for n in range(MONTHS)]
    return [0, now_ms, *(due_at_ms(end) for end in ends)]


def bounds_of(when: When, now_ms: int) -> tuple[int, int]:
    """From which due time on, and before which: what the outlook counts as that."""
    edges = edges_of(Span.HOURS, now_ms)
    return (edges[0], edges[1]) if when is When.OVERDUE else (edges[1], edges[-1])


def _month(now: datetime, ahead: int) -> datetime:
    """The first of the month so many months ahead."""
    months = now.year * 12 + now.month - 1 + ahead
    return now.replace(
        year=months // 12, month=months % 12 + 1, day=1, hour=0, minute=0, second=0, microsecond=0
    )


class Model(BaseModel):
    """Every object of the API: unknown fields of a request are refused."""

    model_config = ConfigDict(extra="forbid")


class QueueView(Model):
    """One queue's messages, as its broker counts them."""

    name: str
    role: str
    visible: int
    in_flight: int | None = None
    delayed: int | None = None
    oldest_seconds: int | None = None


class WorkerView(Model):
    """Whether a worker seems to do its work, and what that is concluded from."""

    name: Literal["delay consumer", "dispatcher"]
    state: Literal["working", "idle", "not seen", "unknown"]
    text: str
    last_seen: str | None = None


class ConditionView(Model):
    """Something an alarm would ring for, in words, and what to do."""

    alarm: str
    text: str
    remedy: str
    page: str | None = None


class LatenessView(Model):
    """How late the last messages arrived, milliseconds, by the ledger."""

    messages: int
    median_ms: int
    p99_ms: int
    worst_ms: int


class EndpointView(Model):
    """An endpoint's state. A number that is null is not known, and ``trouble`` says why."""

    endpoint: str
    broker: Literal["sqs", "rabbitmq"]
    store: str | None = Field(description="The kind of its store, e.g. postgresql; never its URL.")
    pending: int | None = None
    in_flight: int | None = None
    errors: int | None = None
    oldest_seconds: int | None = None
    parked: int | None = None
    next_due: str | None = None
    overdue_seconds: int | None = None
    lateness: LatenessView | None = None
    workers: list[WorkerView] = []
    conditions: list[ConditionView] = []
    queues: list[QueueView] = []
    trouble: list[str] = []
    as_of: str | None = Field(
        default=None, description="When the oldest of these numbers was read."
    )


class EventView(Model):
    """An event of the ledger."""

    at: str
    event: str
    endpoint: str
    message_id: str
    source: str
    due: str | None = None
    late_ms: int | None = None
    route: str | None = None
    reason: str | None = None


class OverviewView(Model):
    """All endpoints, and what happened last."""

    endpoints: list[EndpointView]
    recent: list[EventView]
    trouble: list[str] = []


class BarView(Model):
    """Messages due within a span."""

    start: str
    end: str
    count: int
    overdue: bool = False


class OutlookView(Model):
    """What becomes due, span by span; the first is what is overdue."""

    endpoint: str
    span: Span
    bars: list[BarView]
    complete_until: str | None = Field(
        default=None,
        description="Up to when the counts are complete, for a store that does not count.",
    )
    trouble: str | None = None


class AttributeView(Model):
    """A message attribute; binary values are base64."""

    name: str
    type: str
    value: str


class ParkedView(Model):
    """A parked message, as a list shows it."""

    id: str
    due: str
    due_ms: int
    bytes: int
    failures: int
    unreadable: str | None = None


class ParkedPage(Model):
    """Parked messages by due time. ``next`` is given as ``after`` for the next page."""

    endpoint: str
    messages: list[ParkedView]
    total: int | None
    next: str | None


class MessageView(Model):
    """All that is known of a message, from the store, the error queue and the ledger."""

    endpoint: str
    id: str
    state: str = Field(description="Where it is now, in words.")
    where: Literal["store", "error queue", "elsewhere", "arrived", "cancelled", "unknown"]
    due: str | None = None
    due_ms: int | None = None
    destination: str | None = None
    body: str | None = None
    body_bytes: int | None = None
    body_cut: bool = False
    attributes: list[AttributeView] = []
    group_id: str | None = None
    failures: int | None = None
    unreadable: str | None = None
    reason: str | None = None
    sent: str | None = None
    route: str | None = None
    hops: int | None = None
    parked: str | None = None
    released: str | None = None
    delivered: str | None = None
    late_ms: int | None = None
    history: list[EventView] = []
    history_left_out: int = 0
    trouble: list[str] = []


class ErrorView(Model):
    """A message of an error queue. ``key`` names this copy; two may have one message id."""

    key: str
    id: str
    reason: str | None
    due: str | None
    rejected: str | None
    receives: int | None
    bytes: int
    body: str


class ErrorGroup(Model):
    """Messages that were rejected for the same reason but for names and numbers in it."""

    reason: str
    messages: list[ErrorView]


class ErrorsView(Model):
    """What was found in an error queue; ``about`` is how many SQS counts there."""

    endpoint: str
    groups: list[ErrorGroup]
    shown: int
    about: int | None
    looked: str | None
    trouble: str | None = None


class ChosenMessage(Model):
    """A message to change. With ``due_ms``, as it was seen: if it was moved since, nothing is done."""

    id: str
    due_ms: int | None = None


class ChangeRequest(Model):
    """Which parked messages to cancel or to release now."""

    messages: list[ChosenMessage] = Field(min_length=1, max_length=1000)
    key: str | None = Field(
        default=None, max_length=64, description="Given twice, the change happens once."
    )


class MoveRequest(ChangeRequest):
    """The same, and when they are to be due: either of ``delay`` (90, 1d12h, PT5M) and ``due_at``."""

    delay: str | None = None
    due_at: str | None = None


class ErrorsRequest(Model):
    """Which messages of an error queue: by ``keys``, all of a ``reason``, or all of them."""

    keys: list[str] | None = Field(default=None, min_length=1, max_length=1000)
    reason: str | None = None
    all: bool = False
    key: str | None = Field(
        default=None, max_length=64, description="Given twice, the change happens once."
    )


class RetryRequest(ErrorsRequest):
    """The same; ``undated_now`` delivers at once what does not say when it is due."""

    undated_now: bool = False


class OutcomeView(Model):
    """What became of one message."""

    id: str
    result: Literal["done", "requested", "not-done"]
    text: str


class JobView(Model):
    """A change, under way or ended."""

    key: str
    what: str
    endpoint: str
    who: str
    total: int | None
    done: int
    counts: dict[str, int]
    outcomes: list[OutcomeView]
    outcomes_left_out: int
    finished: bool
    error: str | None


class SendRequest(Model):
    """A message to send; either of ``delay`` and ``due_at``, or none."""

    body: str = Field(min_length=1)
    delay: str | None = None
    due_at: str | None = None
    id: str | None = None
    group: str | None = None
    attributes: list[str] = Field(default=[], description="NAME=VALUE or NAME:TYPE=VALUE.")
    key: str | None = Field(
        default=None, max_length=64, description="Given twice, it is sent once."
    )


class SendPreview(Model):
    """Where a message would go, when it would arrive, and what that costs."""

    endpoint: str
    route: str
    way: str
    due: str
    seconds: int
    hops: int
    bytes: int
    cost: str | None = Field(description="US dollars for this message, without fixed costs.")
    cost_of: str
    id: str | None


class CostLine(Model):
    """A position of a bill; amounts are US dollars."""

    what: str
    quantity: str
    unit_price: str
    amount: str
    fixed: bool


class CostBill(Model):
    """What one way of delaying costs."""

    strategy: str
    impossible: str | None = None
    for_messages: str | None = None
    fixed: str | None = None
    total: str | None = None
    a_message: str | None = None
    lines: list[CostLine] = []


class CostView(Model):
    """The bill of every strategy for a workload."""

    delay_seconds: int
    messages: int
    message_bytes: int
    batch: int
    currency: str
    region: str
    prices_read_on: str
    recommended: str
    bills: list[CostBill]


class ErrorBody(Model):
    """What an unsuccessful call answers."""

    error: str
    message: str
