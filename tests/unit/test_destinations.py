"""One destination out of reach among healthy ones: a dispatcher under virtual time."""

from __future__ import annotations

import itertools
import threading
from collections import Counter
from typing import Any, cast

import pytest

from sqsdelay import errors
from sqsdelay.core.endpoint import Endpoint
from sqsdelay.core.message import OutgoingMessage
from sqsdelay.core.stored_message import StoredMessage
from sqsdelay.dispatching.dispatcher import Dispatcher, DispatchSettings
from sqsdelay.dispatching.settlement import SENT_BEFORE, Destination
from sqsdelay.errors import QueueUnavailable, SendFailed
from sqsdelay.ports.queues import Failure
from sqsdelay.ports.stores import Claim
from sqsdelay.sqs.outbox import SqsOutbox
from sqsdelay.testing import InMemoryOutbox, InMemoryStore, ManualClock
from tests import faulty
from tests.faulty import FaultyQueues
from tests.messages import a_message


def test_what_was_sent_is_remembered_up_to_a_number(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its removal failed. The oldest is forgotten, and sent once more: memory has an end."""
    monkeypatch.setattr("sqsdelay.dispatching.settlement._REMEMBERED", 2)
    bench.put("q", 3)
    messages, claim = bench.store.pending(3), cast(Claim, None)
    destination = Destination(bench.outbox, bench.clock)
    destination.remember(messages)
    outcomes = destination.deliver(claim, messages)
    assert [outcome is SENT_BEFORE for outcome in outcomes] == [False, True, True]
    assert [message.message_id for message in bench.outbox.sent] == ["q-0"]


class Bench:
    """A store with messages for several queues, of which some fail, and a dispatcher."""

    def __init__(self, **settings: Any) -> None:
        self.clock = ManualClock()
        self.store = InMemoryStore(self.clock)
        self.outbox = InMemoryOutbox(self.clock)
        self.outbox.fail = self.fail
        self.away: set[str] = set()
        self.tried: Counter[str] = Counter()
        self.settings = settings
        self.dispatcher = self.another()

    def another(self, **more: Any) -> Dispatcher:
        return Dispatcher(
            self.store,
            self.outbox,
            settings=DispatchSettings(**self.settings),
            clock=self.clock,
            **more,
        )

    def put(self, to: str, count: int = 1, in_seconds: float = 0) -> None:
        before = self.store.pending_count()
        due_ms = self.clock.now_ms() + round(in_seconds * 1000)
        self.store.store(
            [a_message(f"{to}-{n}", due_ms, to=to) for n in range(before, before + count)]
        )

    def fail(self, message: StoredMessage) -> Failure | None:
        self.tried[message.destination] += 1
        if message.destination not in self.away:
            return None
        error = QueueUnavailable(f"{message.destination} is full")
        return Failure("Full", error, transient=True, outage=True)

    def sent(self, to: str) -> int:
        return sum(message.destination == to for message in self.outbox.sent)

    def rounds(self, count: int) -> None:
        for _ in range(count):
            self.dispatcher.dispatch()

    def run(self, seconds: int, monkeypatch: pytest.MonkeyPatch) -> None:
        """`run` for so long; sleeping is what passes the time."""
        stop, until_ms = threading.Event(), self.clock.now_ms() + 1000 * seconds

        def wait_for(wake: threading.Event, stop: threading.Event, pause: float) -> None:
            self.clock.advance(max(pause, 0.001))
            if self.clock.now_ms() >= until_ms:
                stop.set()

        monkeypatch.setattr("sqsdelay.dispatching.dispatcher.wait_for", wait_for)
        self.dispatcher.run(stop)


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_a_full_destination_does_not_starve_the_others(bench: Bench) -> None:
    """500 messages for a full queue in front: the 50 for a healthy one leave at the second claim."""
    bench.put("full", 500, in_seconds=-60)
    bench.put("well", 50)
    bench.away = {"full"}
    bench.rounds(2)
    assert bench.sent("well") == 50
    assert bench.store.pending_count() == 500


@pytest.mark.parametrize(
    "error", [errors.InvalidMessage("no text"), SendFailed("no", code="No", transient=False)]
)
def test_a_queue_that_refuses_all_goes_behind_the_others(
    bench: Bench, error: errors.SqsDelayError, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In its pauses, while others have something due; they do not make what it takes late."""
    bench.put("picky", 5_000, in_seconds=-60)
    bench.outbox.fail = lambda m: (
        Failure("No", error, transient=False)
        if m.destination == "picky" and len(bench.outbox.rejected) < 5_000
        else None
    )
    bench.rounds(1)
    bench.put("well", 600)
    bench.rounds(2)
    assert (bench.sent("well"), len(bench.outbox.rejected)) == (600, 500)
    bench.rounds(9)
    bench.put("picky", in_seconds=0.5)
    bench.run(1, monkeypatch)
    assert (bench.sent("picky"), bench.store.pending_count()) == (1, 0)


def test_many_destinations_one_full_one_refusing_one_missing(bench: Bench) -> None:
    """Each of 20 queues gets its messages within one claim; the full one its own when it has room."""
    for name in ("full", *(f"q{n}" for n in range(20)), "missing"):
        bench.put(name, 40)
    bench.away = {"full"}
    missing = Failure("QueueMissing", SendFailed("no queue", code="x", transient=False), False)
    bench.outbox.fail = lambda m: missing if m.destination == "missing" else bench.fail(m)
    bench.rounds(3)
    assert all(bench.sent(f"q{n}") == 40 for n in range(20))
    assert len(bench.outbox.rejected) == 40
    assert bench.store.pending_count() == 40
    bench.away = set()
    bench.clock.advance(1)
    bench.rounds(1)
    assert bench.sent("full") == 40


def test_an_idle_dispatcher_tries_again_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Refused after an hour of long sleeps: tried after 1, 2 and 4 s, or less than twice as long."""
    bench = Bench(number_of_retries=3, poll_seconds=10)
    bench.put("q", in_seconds=3600)
    tried: list[int] = []

    def refused(_: StoredMessage) -> Failure:
        tried.append(bench.clock.now_ms())
        return Failure("Busy", SendFailed("busy", code="Busy", transient=True), transient=True)

    bench.outbox.fail = refused
    bench.run(3700, monkeypatch)
    waited = [later - earlier for earlier, later in itertools.pairwise(tried)]
    assert len(waited) == 3
    assert all(
        wanted <= ms / 1000 < 2 * wanted for ms, wanted in zip(waited, (1, 2, 4), strict=True)
    )


def test_a_missing_queue_that_is_made_gets_its_messages() -> None:
    """The next claim that nothing else is due for finds it, or the first after its pause."""
    bench = Bench(number_of_retries=5)
    bench.put("gone", 700)
    gone = Failure("QueueMissing", errors.QueueMissing("there is no queue gone"), transient=True)
    bench.outbox.fail = lambda message: (bench.fail(message), gone)[1]
    bench.rounds(1)
    assert len(bench.dispatcher.dispatch().failed) == 200
    assert bench.tried["gone"] == 501  # of the second claim one is tried, and tells of all
    bench.outbox.fail = lambda _: None
    bench.clock.advance(2)
    bench.rounds(3)
    assert (bench.sent("gone"), bench.store.pending_count()) == (700, 0)


def test_one_message_probes_a_destination_that_was_out_of_reach(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the first claim a full queue gets one message after 1, 2, 4 … 60 s, not 500."""
    bench.put("full", 500)
    bench.away = {"full"}
    bench.put("well")
    for n in range(1, 70):
        bench.put("well", in_seconds=10 * n)
    bench.run(600, monkeypatch)
    # 1 + 2 + 4 + 8 + 16 + 32 s are six pauses, then one a minute.
    assert bench.tried["full"] - 500 in range(13, 17)
    assert bench.sent("well") in range(60, 62)


def test_a_probe_that_passes_is_followed_by_all_others_at_once(bench: Bench) -> None:
    """In the same claim; and the next failure starts at one second again. A user's outbox may yield."""
    send: Any = bench.outbox.send
    bench.outbox.send = lambda messages: iter(send(messages))  # type: ignore[method-assign]
    bench.put("full", 300)
    bench.away = {"full"}
    for seconds in (1, 2, 4):
        bench.rounds(1)
        bench.clock.advance(seconds)
    bench.away = set()
    assert len(bench.dispatcher.dispatch().released) == 300
    bench.put("full", 2)
    bench.away = {"full"}
    bench.rounds(1)
    bench.clock.advance(1)
    bench.away = set()
    assert len(bench.dispatcher.dispatch().released) == 2


def test_a_probe_that_is_refused_for_itself_opens_nothing(bench: Bench) -> None:
    """A message that cannot be sent anywhere tells nothing of the queue: the next one is tried."""
    bench.put("full", 3)
    bench.away = {"full"}
    bench.rounds(1)
    bench.clock.advance(1)
    before = bench.tried["full"]
    invalid = Failure("InvalidMessage", errors.InvalidMessage("no text"), transient=False)
    fail = bench.fail
    bench.outbox.fail = lambda m: (fail(m), invalid)[1] if m.message_id == "full-0" else fail(m)
    assert len(bench.dispatcher.dispatch().rejected) == 1
    assert bench.tried["full"] == before + 1
    bench.away = set()
    assert len(bench.dispatcher.dispatch().released) == 2


def test_a_destination_that_takes_some_is_not_left_alone(bench: Bench) -> None:
    """Throttled in part: what passed passed, the rest is tried again after a second."""
    bench.put("slow", 10)
    turn = iter(range(1000))
    bench.outbox.fail = lambda m: (
        None
        if next(turn) % 2
        else Failure("Slow", QueueUnavailable("slow"), transient=True, outage=True)
    )
    done = bench.dispatcher.dispatch()
    assert (len(done.released), len(done.held)) == (5, 5)
    assert bench.dispatcher.dispatch().claimed == 0
    bench.clock.advance(1)
    assert len(bench.dispatcher.dispatch().released) > 1


@pytest.mark.parametrize("count", [30, pytest.param(180, marks=pytest.mark.nightly)])
def test_one_destination_down_is_no_critical_error_while_others_are_served(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    """Every 20 s something is released, so the dispatcher works."""
    bench.put("full", 3)
    bench.away = {"full"}
    for n in range(count):
        bench.put("well", in_seconds=20 * n)
    bench.run(20 * count, monkeypatch)
    assert bench.sent("well") == count


@pytest.mark.parametrize("seconds", [30, 45])
def test_nothing_released_while_something_is_due_is_critical(
    monkeypatch: pytest.MonkeyPatch, seconds: int
) -> None:
    """However many destinations and messages there are, and however long the pauses: at the breaker's time
    all are tried, and if behind them something for a healthy queue leaves, that is not critical."""
    for well in (2, 0):
        bench = Bench(batch_size=10, dispatch_breaker_seconds=seconds)
        bench.away = {"a", "b", "c"}
        for name in bench.away:
            bench.put(name, 50)
        start_ms = bench.clock.now_ms()
        if well:
            bench.put("well", in_seconds=seconds)
            bench.put("well", in_seconds=2 * seconds - 5)
            bench.run(2 * seconds, monkeypatch)
            assert bench.sent("well") == well
        else:
            told = f"circuit breaker: failing for {seconds} s"
            with pytest.raises(errors.CriticalError, match=told):
                bench.run(600, monkeypatch)
            assert seconds <= (bench.clock.now_ms() - start_ms) / 1000 <= seconds + 1


def test_nothing_due_any_more_is_not_critical(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The messages of the full queue were cancelled: there is nothing to fail with."""
    bench.put("full")
    bench.away = {"full"}
    bench.rounds(1)
    bench.store.cancel(["full-0"])
    bench.run(600, monkeypatch)
    bench.put("full")
    bench.rounds(1)
    assert bench.store.pending_count() == 1


def test_the_sqs_outbox_goes_on_to_healthy_queues(clock: ManualClock) -> None:
    """The same through the outbox to SQS: a full queue, a missing one, and one that is well."""
    queues = FaultyQueues(clock)
    queues.failing = {"full": faulty.AWAY}
    for name in ("full", "well", "orders", "orders-delay-error"):
        queues.create_queue(name)
    store = InMemoryStore(clock)
    store.store(
        [
            a_message(f"{to}{n}", clock.now_ms(), to=to)
            for to, count in (("full", 500), ("missing", 20), ("well", 50))
            for n in range(count)
        ]
    )
    dispatcher = Dispatcher(store, SqsOutbox(queues, Endpoint.parse("orders")), clock=clock)
    for _ in range(3):
        dispatcher.dispatch()
    assert len(queues._queues["well"].messages) == 50
    assert len(queues._queues["orders-delay-error"].messages) == 20
    queues.failing = {}
    clock.advance(1)
    dispatcher.dispatch()
    assert len(queues._queues["full"].messages) == 500
    assert isinstance(next(iter(queues._queues["full"].messages.values())).message, OutgoingMessage)


AWAY = Failure("Full", QueueUnavailable("q is full"), transient=True, outage=True)
GONE = Failure("QueueMissing", errors.QueueMissing("there is no queue q"), transient=True)


BUSY = Failure("Busy", SendFailed("busy", code="Busy", transient=True), True)


@pytest.mark.parametrize(
    ("outcome", "count", "log"),
    [
        (None, 1, None),
        (BUSY, 10, None),
        (BUSY, 11, None),
        (AWAY, 1, "destination q is out of reach, trying again in 2 s: q is full"),
        (GONE, 1, "destination q does not exist, trying again in 2 s: there is no queue q"),
    ],
    ids=["taken", "some refused", "many refused", "away", "gone"],
)
def test_what_a_send_tells_of_its_queue(
    bench: Bench,
    outcome: Failure | None,
    count: int,
    log: str | None,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It was out of reach. Whoever answers, be it with a refusal, is not any more."""
    bench.put("q", count)
    destination = Destination(bench.outbox, bench.clock)
    destination.failed("q", AWAY)
    bench.clock.advance(1)
    bench.outbox.fail = lambda _: outcome
    assert destination.send(bench.store.pending(count)) == [outcome] * count
    assert caplog.messages == ([] if log is None else [log])
    assert [*destination.away()] == (["q"] if outcome is AWAY else [])
    assert [*destination.last()] == (["q"] if count == 11 or outcome is GONE else [])


def test_pauses_double_to_a_minute_and_end_with_a_success(clock: ManualClock) -> None:
    """1, 2, 4 … 60, 60; other destinations have pauses of their own."""
    backoff = Destination(InMemoryOutbox(clock), clock)
    assert [backoff.failed("a", AWAY) for _ in range(8)] == [1, 2, 4, 8, 16, 32, 60, 60]
    assert [backoff.failed("alive", BUSY) for _ in range(5)] == [1, 2, 4, 8, 8]
    assert backoff.failed("b", AWAY) == 1
    assert backoff.away() == {"a", "b"}
    assert backoff.seconds_to_next() == 1
    clock.advance(1)
    assert [*backoff.away()] == ["a"]
    assert not backoff.forget_all()  # a pause lasts
    backoff.end_pauses()
    assert not backoff.away()
    assert backoff.unwell() == {"a", "alive", "b"}
    assert backoff.forget_all()
    assert (backoff.unwell(), backoff.seconds_to_next()) == (frozenset(), None)
    assert not backoff.forget_all()  # nothing was out of reach


def test_so_many_queues_are_remembered(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """The one that has been away for longest is forgotten, and tried as if it were in reach."""
    monkeypatch.setattr("sqsdelay.dispatching.settlement._REMEMBERED_DESTINATIONS", 2)
    destination = Destination(bench.outbox, bench.clock)
    for name, known in (("a", {"a"}), ("b", {"a", "b"}), ("c", {"b", "c"})):
        destination.failed(name, AWAY)
        assert destination.unwell() == known
