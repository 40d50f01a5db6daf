"""A worker's receivers: as many as there is work for, sharing full batches, none lost when it stops."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any
from unittest.mock import Mock

import pytest

from sqsdelay import DelayConsumer
from sqsdelay.core.endpoint import Endpoint
from sqsdelay.core.message import OutgoingMessage, string
from sqsdelay.core.received_message import ReceivedMessage
from sqsdelay.errors import QueueUnavailable
from sqsdelay.parking.parking import ParkingSettings
from sqsdelay.ports.queues import Failure
from sqsdelay.relaying.gathering import Intake
from sqsdelay.relaying.outcomes import Outcome, RelaySettings, Status
from sqsdelay.relaying.relay import DueRelay, Relay
from sqsdelay.sqs.receivers import (
    LEAST_RECEIVERS,
    MOST_RECEIVERS,
    PLENTY,
    STEP_SECONDS,
    Concurrency,
    Receivers,
    SharedBatches,
)
from sqsdelay.testing import InMemoryStore, ManualClock
from tests.faulty import GatedQueues
from tests.patience import PATIENCE_SECONDS

DELAY = "orders-delay.fifo"


class PolledQueues(GatedQueues):
    """Long polls wait until something is there, or the worker is stopped. ``polling`` is how many wait,
    ``most_polling`` the most there were; ``empty`` counts receives that brought nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.stop = threading.Event()
        self.changed = threading.Condition()
        self.polling = self.most_polling = self.empty = 0
        self.deletes: list[int] = []

    def receive_batch(self, queue_url: str, **given: Any) -> list[ReceivedMessage]:
        with self.changed:
            self.polling += 1
            self.most_polling = max(self.most_polling, self.polling)
            self.changed.notify_all()
            copies = super().receive_batch(queue_url, **given)
            # An extra receiver's second is over at once: no test waits for it.
            while not copies and given["wait_seconds"] > 1 and not self.stop.is_set():
                self.changed.wait()
                copies = super().receive_batch(queue_url, **given)
            self.polling -= 1
            self.empty += not copies
            return copies

    def delete_batch(
        self, queue_url: str, copies: Sequence[ReceivedMessage]
    ) -> list[Failure | None]:
        self.deletes.append(len(copies))
        return super().delete_batch(queue_url, copies)

    def put(self, count: int, *, seconds: int = 1000) -> None:
        """Let so many delayed messages be visible, with so much still to wait."""
        with self.changed:
            for n in range(count):
                name = f"m{seconds}-{n}"
                due = {"NServiceBus.AmazonSQS.DelaySeconds": string(str(seconds + 900))}
                entry = OutgoingMessage("x", due, 9, group_id=name, deduplication_id=name)
                super().send_batch(DELAY, [entry])
            self.requests.clear()
            self.clock.advance(900)
            self.changed.notify_all()

    def await_polling(self, count: int) -> None:
        """Until so many receivers wait for messages."""
        with self.changed:
            assert self.changed.wait_for(lambda: self.polling == count, PATIENCE_SECONDS)


@pytest.fixture
def queues() -> PolledQueues:
    queues = PolledQueues()
    queues.create_endpoint("orders")
    return queues


@contextmanager
def working(
    queues: PolledQueues, relay: Relay, *, number: int | None = None
) -> Iterator[list[Outcome]]:
    """A worker, stopped with the block; its outcomes."""
    outcomes: list[Outcome] = []

    def told(some: list[Outcome]) -> None:
        with queues.changed:
            outcomes.extend(some)
            queues.changed.notify_all()

    intake = Intake(queues, relay, queues.clock)
    receivers = Receivers(intake=intake, wait_seconds=20, number=number, most=32, told=told)
    worker = threading.Thread(target=receivers.run, args=(queues.stop,))
    worker.start()
    try:
        yield outcomes
    finally:
        with queues.changed:
            queues.stop.set()
            queues.changed.notify_all()
        worker.join(PATIENCE_SECONDS)
        assert not worker.is_alive()


def relay(queues: PolledQueues, *, lanes: int = 8, **settings: Any) -> Relay:
    shared = SharedBatches(queues, lanes=lanes)
    return Relay(shared, Endpoint.parse("orders"), RelaySettings(**settings))


def patient(queues: PolledQueues) -> SharedBatches:
    """Whose entries never have lingered long enough."""
    shared = SharedBatches(queues, lanes=8)
    shared._sends._clock = ManualClock()
    return shared


def await_outcomes(queues: PolledQueues, outcomes: list[Outcome], count: int) -> None:
    with queues.changed:
        assert queues.changed.wait_for(lambda: len(outcomes) >= count, PATIENCE_SECONDS)


def test_an_idle_queue_has_two_long_polls(queues: PolledQueues) -> None:
    """As many as ever: each costs a request every 20 s."""
    with working(queues, relay(queues)):
        queues.await_polling(2)
    assert queues.most_polling == 2


@pytest.mark.parametrize("count", [200, pytest.param(600, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("trouble", [False, True])
def test_a_backlog_gets_more_receivers_and_they_go_with_it(
    queues: PolledQueues, caplog: pytest.LogCaptureFixture, trouble: bool, count: int
) -> None:
    """All is relayed once, even if those above the least fail; then two long polls are left."""
    receive, extra = queues.receive_batch, list[str]()

    def timed(queue_url: str, **given: Any) -> list[ReceivedMessage]:
        queues.clock.advance(STEP_SECONDS)
        if given["wait_seconds"] == 1:
            extra.append(queue_url)
            if trouble:
                raise QueueUnavailable("away")
        return receive(queue_url, **given)

    queues.receive_batch = timed  # type: ignore[method-assign]
    queues.put(count, seconds=86_400)  # however many receives pass the time
    with working(queues, relay(queues)) as outcomes:
        await_outcomes(queues, outcomes, count)
        queues.await_polling(2)
    assert [outcome.status for outcome in outcomes] == [Status.REQUEUED] * count
    assert len({outcome.copy.message_id for outcome in outcomes}) == count
    assert extra
    told = {"one receiver less: QueueUnavailable('away')"} if trouble else set()
    assert set(caplog.messages) == told


def test_a_given_number_of_receivers_stays(queues: PolledQueues) -> None:
    """Five poll, whatever there is to do."""
    with working(queues, relay(queues), number=5) as outcomes:
        queues.await_polling(5)
        queues.put(100)
        await_outcomes(queues, outcomes, 100)
        queues.await_polling(5)


def test_receivers_share_full_requests(queues: PolledQueues) -> None:
    """Two receives of which half goes on and half is handed over take two full sends, not four."""
    shared = patient(queues)
    batches = [[OutgoingMessage(f"{name}{n}", {}, 1) for n in range(5)] for name in "ab"]
    with ThreadPoolExecutor(2) as pool:
        answers = list(pool.map(lambda batch: shared.send_batch("orders", batch), batches))
    assert [len(request) for request in queues.requests] == [10]
    assert [len(answer) for answer in answers] == [5, 5]


def test_each_receiver_gets_the_answers_to_its_own_entries(queues: PolledQueues) -> None:
    """Also where a batch is split over two requests, and where one entry fails."""
    queues.refuse("b3")
    shared = patient(queues)
    batches = [
        [OutgoingMessage(f"{name}{n}", {}, 1) for n in range(count)]
        for name, count in (("a", 7), ("b", 7), ("c", 6))
    ]
    with ThreadPoolExecutor(3) as pool:
        answers = list(pool.map(lambda batch: shared.send_batch("orders", batch), batches))
    failed = [[isinstance(each, Failure) for each in answer] for answer in answers]
    assert failed == [[False] * 7, [n == 3 for n in range(7)], [False] * 6]
    assert [len(request) for request in queues.requests] == [10, 10]


def test_what_goes_to_a_fifo_queue_keeps_its_batches(queues: PolledQueues) -> None:
    """Split and mixed, it could change places."""
    shared, sent = SharedBatches(queues, lanes=8), []
    queues.send_batch = lambda url, entries: sent.append((url, len(entries))) or []  # type: ignore
    shared.send_batch("orders.fifo", [OutgoingMessage("x", {}, 1, group_id="g")] * 3)
    assert sent == [("orders.fifo", 3)]


def test_a_copy_is_deleted_only_after_its_send_is_confirmed(queues: PolledQueues) -> None:
    """Shared or not: what is not sent stays."""
    queues.put(6, seconds=60)
    queues.refuse("x")
    with working(queues, relay(queues)) as outcomes:
        await_outcomes(queues, outcomes, 6)
    assert [outcome.status for outcome in outcomes] == [Status.FAILED] * 6
    assert queues.deletes == []


def test_all_receivers_gather_for_one_group(queues: PolledQueues) -> None:
    """A store that takes groups gets one call for what many receivers brought."""
    calls: list[int] = []

    class Groups(InMemoryStore):
        stored_at_once = 200

        def store(self, messages: Any, **given: Any) -> list[bool]:
            calls.append(len(messages))
            return super().store(messages, **given)

    parking = ParkingSettings(Groups(queues.clock))
    queues.put(200, seconds=90 * 86_400)
    with working(queues, relay(queues, parking=parking)) as outcomes:
        await_outcomes(queues, outcomes, 200)
    assert calls == [200]


def test_a_due_queue_keeps_the_least(queues: PolledQueues) -> None:
    """More receivers would bring more of a group's messages out of order."""
    served = Endpoint.parse("orders.fifo")
    intake = Intake(queues, DueRelay(queues, served), queues.clock)
    due = Receivers(intake=intake, wait_seconds=20, number=None, most=32, told=bool).concurrency
    for n in range(100):
        due.received(10, now=float(n), cpu_seconds=0)
    assert due.wanted == 2


def test_a_queue_that_nobody_serves_ends_the_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """At once: a supervisor starts it anew. The other queue's receivers would go on until the stop."""
    consumer, stop, waited = DelayConsumer("orders.fifo"), threading.Event(), list[bool]()
    serving = Mock(run=lambda stop: waited.append(stop.wait(PATIENCE_SECONDS)))
    consumer._serving = [serving, Mock(run=Mock(side_effect=RuntimeError("no thread")))]
    monkeypatch.setattr(consumer, "start", bool)
    with pytest.raises(RuntimeError, match="no thread"):
        consumer.run(stop)
    assert waited == []
    stop.set()


class Worker:
    """Receives every millisecond of virtual time, and uses a share of a processor."""

    def __init__(self, **limits: int) -> None:
        self.concurrency = Concurrency(**limits)
        self.now = self.cpu = 0.0

    def receive(self, copies: int, *, seconds: float, share: float) -> int:
        """For so long; the number of receivers it then wants."""
        for _ in range(round(seconds * 1000)):
            self.now += 0.001
            self.cpu += 0.001 * share
            self.concurrency.received(copies, now=self.now, cpu_seconds=self.cpu)
        return self.concurrency.wanted


def test_full_receives_and_processor_time_to_spare_double_the_number() -> None:
    """Step by step, up to the most."""
    worker = Worker()
    wanted = [worker.receive(10, seconds=STEP_SECONDS + 0.002, share=0.3) for _ in range(6)]
    assert wanted == [4, 8, 16, MOST_RECEIVERS, MOST_RECEIVERS, MOST_RECEIVERS]


def test_an_overloaded_processor_gets_fewer() -> None:
    """A quarter less at a time, down to the least."""
    worker = Worker()
    worker.receive(10, seconds=1, share=0.1)
    wanted = {worker.receive(10, seconds=0.001, share=1.0) for _ in range(400)}
    assert {MOST_RECEIVERS, 24, 18, 13} <= wanted
    assert worker.receive(10, seconds=5, share=1.0) == LEAST_RECEIVERS


def test_few_copies_or_a_busy_processor_are_no_reason_for_more() -> None:
    """A trickle is served by the least; they would only wait for the processor."""
    assert Worker().receive(PLENTY - 1, seconds=2, share=0.1) == LEAST_RECEIVERS
    assert Worker().receive(PLENTY, seconds=2, share=0.9) == LEAST_RECEIVERS
    assert Worker().receive(PLENTY, seconds=2, share=0.1) == MOST_RECEIVERS


def test_empty_receives_end_all_but_the_least() -> None:
    """One each."""
    worker = Worker()
    worker.receive(10, seconds=1, share=0.1)
    assert worker.receive(0, seconds=0.005, share=0.1) == MOST_RECEIVERS - 5
    assert worker.receive(0, seconds=1, share=0.1) == LEAST_RECEIVERS


def test_a_burst_after_a_quiet_hour_is_seen_at_once() -> None:
    """What was measured before it says that the processor is free."""
    worker = Worker()
    worker.receive(10, seconds=0.05, share=1.0)
    worker.now += 3600
    assert worker.receive(10, seconds=0.001, share=1.0) == 2 * LEAST_RECEIVERS


def test_the_most_may_be_less_than_the_least() -> None:
    """A client with one connection has one receiver. A given number stays, whatever there is to do."""
    assert Worker(most=1).receive(10, seconds=1, share=0.1) == 1
    for copies, share in ((10, 0.1), (10, 1.0), (0, 0.1)):
        assert Worker(least=7, most=7).receive(copies, seconds=1, share=share) == 7
