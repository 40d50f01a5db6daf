"""How the endpoints are: numbers, what they mean, and what to do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from sqsdelay.console.ledger_file import LedgerFile
from sqsdelay.console.rendering import event_of
from sqsdelay.console.sampling import Sampled
from sqsdelay.console.schemas import (
    BarView,
    ConditionView,
    EndpointView,
    EventView,
    LatenessView,
    OutlookView,
    OverviewView,
    QueueView,
    Span,
    WorkerView,
)
from sqsdelay.console.source import Source, told
from sqsdelay.core.clock import Clock, SystemClock
from sqsdelay.core.delay import Delay
from sqsdelay.core.readable import age, instant
from sqsdelay.ledger.events import Source as Recorder
from sqsdelay.limits import ERROR_QUEUE_SUFFIX, MAX_MESSAGE_TIMER_SECONDS
from sqsdelay.operating.status import (
    NOBODY,
    OVERDUE_MARGIN_SECONDS,
    EndpointStatus,
    Role,
    StoreStatus,
    overdue_remedy,
)
from sqsdelay.ports.stores import DelayedMessageStore

if TYPE_CHECKING:
    from datetime import datetime

    from sqsdelay.rabbitmq import RabbitMqSendResult


FRESH_SECONDS: Final = 3.0
CONNECT_SECONDS: Final = 5.0


class Broker:
    """Counts the queues of the delay infrastructure and of endpoints, and sends through it.

    Args:
        url: of the broker.
        prefix: of the infrastructure; None is sqsdelay's own.
        endpoints: the queues to count.

    Raises:
        MissingExtra: pika is not installed.
        ConfigurationError: no URL of a broker.
    """

    def __init__(self, url: str, prefix: str | None, endpoints: Sequence[str]) -> None:
        from sqsdelay.rabbitmq.connection import parameters
        from sqsdelay.rabbitmq.topology import Topology

        self._url = url
        self._given = parameters(url)
        self._topology = Topology() if prefix is None else Topology(prefix)
        self._endpoints = endpoints
        self._sample = Sampled(self._ask, fresh_seconds=FRESH_SECONDS)

    def start(self) -> None:
        """Ask, and do not wait."""
        self._sample.start()

    def put_queues(self, view: EndpointView) -> int | None:
        """Add what is known of an endpoint's queues; returns when it was asked for."""
        sample = self._sample.get()
        if sample.trouble:
            view.trouble.append(f"RabbitMQ: {sample.trouble}")
        counts = sample.value
        if counts is None:
            return None
        levels = [queue.name for queue in self._topology.queues()]
        undeliverable = self._topology.undeliverable
        view.pending = sum(counts.get(name, 0) for name in levels if name != undeliverable)
        view.errors = counts.get(view.endpoint + ERROR_QUEUE_SUFFIX)
        shown = (
            ("delay levels, of all endpoints", f"{self._topology.prefix} levels", view.pending),
            ("undeliverable, of all endpoints", undeliverable, counts.get(undeliverable)),
            ("destination", view.endpoint, counts.get(view.endpoint)),
            ("error queue", view.endpoint + ERROR_QUEUE_SUFFIX, view.errors),
        )
        view.queues = [
            QueueView(name=name, role=role, visible=count)
            for role, name, count in shown
            if count is not None
        ]
        if view.endpoint not in counts:
            view.trouble.append(f"RabbitMQ: queue {view.endpoint} does not exist")
        if counts.get(undeliverable):
            view.trouble.append(
                f"RabbitMQ: {counts[undeliverable]:,} messages were due while no queue was bound for "
                "them; sqsdelay rabbitmq bind ENDPOINT sends them on"
            )
        return sample.at_ms

    def send(
        self,
        endpoint: str,
        body: str,
        *,
        delay: Delay | None,
        due_at: datetime | None,
        headers: Mapping[str, str],
        message_id: str | None,
    ) -> RabbitMqSendResult:
        """Send a message through the delay levels.

        Raises:
            SqsDelayError: as `RabbitMqSender.send`.
        """
        from sqsdelay.rabbitmq import RabbitMqSender

        with RabbitMqSender(
            self._url, prefix=self._topology.prefix, connect_seconds=CONNECT_SECONDS
        ) as sender:
            return sender.send(
                endpoint,
                body,
                delay=delay,
                due_at=due_at,
                headers=dict(headers),
                message_id=message_id,
            )

    def _ask(self) -> dict[str, int]:
        from sqsdelay.rabbitmq.connection import Session
        from sqsdelay.rabbitmq.management import ready

        own = [name for each in self._endpoints for name in (each, each + ERROR_QUEUE_SUFFIX)]
        with Session(self._given) as session:
            counts = ready(session, self._topology) | {name: session.count(name) for name in own}
        return {name: count for name, count in counts.items() if count is not None}


RECENT: Final = 12
LATELY_SECONDS: Final = 120
"""Within which a worker that records something counts as seen."""
UNSERVED_SECONDS: Final = 30
"""How long messages may be receivable while nobody receives: a Lambda poller takes up to 20 s."""


class Overview:
    """Looks at all endpoints.

    Args:
        sources: the endpoints.
        ledger: what was recorded; None where nothing is.
        broker: their RabbitMQ; None where they are on SQS.
        clock: tells what is late.
    """

    def __init__(
        self,
        sources: Sequence[Source],
        *,
        ledger: LedgerFile | None,
        broker: Broker | None,
        clock: Clock | None = None,
    ) -> None:
        self._sources = sources
        self._ledger = ledger
        self._broker = broker
        self._clock = clock or SystemClock()
        self._unserved_since: dict[str, float] = {}

    def all(self) -> OverviewView:
        """Every endpoint."""
        for source in self._sources:
            source.store_sample.start()
            if source.on_sqs:
                source.queues_sample.start()
        if self._broker is not None:
            self._broker.start()
        endpoints = [self.of(source) for source in self._sources]
        recent, trouble = told(self._recent)
        return OverviewView(
            endpoints=endpoints, recent=recent or [], trouble=[trouble] if trouble else []
        )

    def of(self, source: Source) -> EndpointView:
        """One endpoint."""
        view = EndpointView(
            endpoint=source.name, broker="sqs" if source.on_sqs else "rabbitmq", store=None
        )
        asked: list[int | None] = []
        status = None
        if source.on_sqs:
            sample = source.queues_sample.get()
            status = sample.value
            asked.append(sample.at_ms)
            if sample.trouble:
                view.trouble.append(f"SQS: {sample.trouble}")
            if source.ages_trouble:
                view.trouble.append(f"Ages of the oldest messages: {source.ages_trouble}")
            self._put_queues(view, status)
        elif self._broker is not None:
            asked.append(self._broker.put_queues(view))
        stored = source.store_sample.get()
        asked.append(stored.at_ms)
        if stored.trouble:
            view.trouble.append(f"Store: {stored.trouble}")
        url = source.store_url
        view.store = None if url is None else url.partition(":")[0]
        parked = stored.value
        if parked is not None:
            view.parked = parked.parked
            view.next_due = None if parked.next_due_ms is None else instant(parked.next_due_ms)
            view.overdue_seconds = parked.late_ms // 1000
        late, trouble = told(lambda: self._lateness(source))
        view.lateness = late
        if trouble:
            view.trouble.append(f"Ledger: {trouble}")
        view.workers = self._workers(source, status, parked)
        view.conditions = _conditions(source, view, status, parked)
        known = [each for each in asked if each is not None]
        view.as_of = instant(min(known)) if known else None
        return view

    def outlook(self, source: Source, span: Span) -> OutlookView:
        """What becomes due of one endpoint."""
        sample = source.outlooks[span].get()
        view = OutlookView(endpoint=source.name, span=span, bars=[], trouble=sample.trouble)
        found = sample.value
        if found is None:
            return view
        edges = found.edges_ms
        view.bars = [
            BarView(start=instant(start), end=instant(end), count=count, overdue=start == 0)
            for start, end, count in zip(edges, edges[1:], found.counts, strict=False)
        ]
        if found.complete_until_ms is not None:
            view.complete_until = instant(found.complete_until_ms)
        return view

    def _recent(self) -> list[EventView]:
        if self._ledger is None:
            return []
        return [event_of(e) for e in self._ledger.recent([s.name for s in self._sources], RECENT)]

    def _lateness(self, source: Source) -> LatenessView | None:
        found = None if self._ledger is None else self._ledger.lateness(source.name)
        if found is None:
            return None
        return LatenessView(
            messages=found.messages,
            median_ms=found.median_ms,
            p99_ms=found.p99_ms,
            worst_ms=found.worst_ms,
        )

    @staticmethod
    def _put_queues(view: EndpointView, status: EndpointStatus | None) -> None:
        if status is None:
            return
        view.pending, view.in_flight = status.pending, status.in_flight
        view.errors, view.oldest_seconds = status.errors, status.oldest_seconds
        view.queues = [
            QueueView(
                name=queue.name,
                role=queue.role,
                visible=queue.visible,
                in_flight=queue.in_flight,
                delayed=queue.delayed,
                oldest_seconds=queue.oldest_seconds,
            )
            for queue in status.queues
        ]

    def _workers(
        self, source: Source, status: EndpointStatus | None, parked: StoreStatus | None
    ) -> list[WorkerView]:
        workers = []
        if source.on_sqs:
            workers.append(self._consumer(source, status))
        released = told(source.place)[0] if parked is not None else None
        if isinstance(released, DelayedMessageStore):
            workers.append(self._dispatcher(source, parked))
        return workers

    def _consumer(self, source: Source, status: EndpointStatus | None) -> WorkerView:
        seen = self._seen(source, Recorder.CONSUMER)
        view = WorkerView(name="delay consumer", state="unknown", text="", last_seen=_at(seen))
        if status is None:
            view.text = "its queues cannot be read"
            return view
        waiting = sum(q.visible for q in status.queues if q.role in (Role.DELAY, Role.DUE))
        if not waiting or status.in_flight:
            self._unserved_since.pop(source.name, None)
        now = self._clock.monotonic()
        unserved = now - self._unserved_since.setdefault(source.name, now) if waiting else 0.0
        if status.in_flight:
            view.state, view.text = "working", f"has {status.in_flight:,} messages in hand"
        elif self._lately(seen):
            view.state, view.text = "working", "recorded something just now"
        elif unserved > UNSERVED_SECONDS:
            view.state = "not seen"
            view.text = (
                f"{waiting:,} messages can be received, and none has been for {unserved:.0f} s"
            )
        else:
            view.state, view.text = "idle", "no message waits for it"
            if waiting:
                view.text = f"{waiting:,} messages can be received"
        return view

    def _dispatcher(self, source: Source, parked: StoreStatus | None) -> WorkerView:
        seen = self._seen(source, Recorder.DISPATCHER)
        view = WorkerView(
            name="dispatcher", state="idle", text="nothing is due", last_seen=_at(seen)
        )
        if parked is None:
            view.state, view.text = "unknown", "its store cannot be read"
        elif parked.overdue:
            view.state = "not seen"
            view.text = f"the earliest message is {age(parked.late_ms // 1000)} overdue"
        elif self._lately(seen):
            view.state, view.text = "working", "recorded something just now"
        elif parked.late_ms:
            view.text = "a message has just become due"
        return view

    def _seen(self, source: Source, recorder: Recorder) -> int | None:
        ledger = self._ledger
        if ledger is None:
            return None
        return told(lambda: ledger.last_seen_ms(source.name, recorder))[0]

    def _lately(self, seen_ms: int | None) -> bool:
        return seen_ms is not None and self._clock.now_ms() - seen_ms < LATELY_SECONDS * 1000


def _at(epoch_ms: int | None) -> str | None:
    return None if epoch_ms is None else instant(epoch_ms)


def _conditions(
    source: Source, view: EndpointView, status: EndpointStatus | None, parked: StoreStatus | None
) -> list[ConditionView]:
    """What the deployed alarms ring for, as far as it shows from here."""
    found = []
    if view.errors:
        found.append(
            ConditionView(
                alarm="ErrorQueueNotEmpty",
                text=f"{view.errors:,} messages could not be delivered",
                remedy="see why, then retry or discard them",
                page="errors" if source.on_sqs else None,
            )
        )
    limits = (
        ("OldestMessage", Role.DELAY, source.settings.hop_seconds),
        ("OldestDueMessage", Role.DUE, MAX_MESSAGE_TIMER_SECONDS),
    )
    for alarm, role, seconds in limits:
        for queue in status.queues if status is not None else ():
            oldest = queue.oldest_seconds or 0
            if queue.role is role and oldest > seconds + OVERDUE_MARGIN_SECONDS:
                found.append(
                    ConditionView(
                        alarm=alarm,
                        text=f"a message has been in {queue.name} for {age(oldest)}: the relay is late, "
                        "or fails on it",
                        remedy="see the delay consumer's log; as a worker: sqsdelay consume "
                        f"{source.name}",
                    )
                )
    if parked is not None and parked.overdue:
        found.append(
            ConditionView(
                alarm="Overdue",
                text=f"the earliest parked message is {age(parked.late_ms // 1000)} overdue: {NOBODY}",
                remedy=overdue_remedy(source.endpoint, source.store_url or ""),
            )
        )
    return found
