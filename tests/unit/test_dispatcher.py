"""The dispatcher's decisions, on a store in memory under virtual time."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from sqsdelay import errors
from sqsdelay.core.stored_message import StoredMessage
from sqsdelay.dispatching import ExactlyOnce, Round
from sqsdelay.dispatching.dispatcher import DelayedDelivery, Dispatcher, DispatchSettings, wait_for
from sqsdelay.dispatching.settlement import retry_seconds
from sqsdelay.ports.queues import Failure
from sqsdelay.stores.s3.s3_store import S3Store
from sqsdelay.testing import InMemoryLedger, InMemoryOutbox, InMemoryStore, ManualClock
from tests.faulty import FaultyStore
from tests.messages import a_message
from tests.patience import PATIENCE_SECONDS
from tests.patience import wait_for as wait_until
from tests.services.in_memory_s3 import InMemoryS3


class Bench:
    """A store, an outbox, and dispatchers between them."""

    def __init__(self, *, max_ahead_seconds: int = 0) -> None:
        self.clock = ManualClock()
        self.store = InMemoryStore(self.clock)
        self.outbox = InMemoryOutbox(self.clock, max_ahead_seconds=max_ahead_seconds)

    def put(self, message_id: str, in_seconds: float = 0, *, to: str = "orders") -> None:
        due_ms = self.clock.now_ms() + round(in_seconds * 1000)
        self.store.store([a_message(message_id, due_ms, to=to)])

    def dispatcher(self, **given: Any) -> Dispatcher:
        told = {name: given.pop(name, None) for name in ("on_critical", "on_round")}
        settings = DispatchSettings(**given)
        return Dispatcher(self.store, self.outbox, settings=settings, clock=self.clock, **told)

    @property
    def sent(self) -> list[str]:
        return ids(self.outbox.sent)


@pytest.fixture
def bench() -> Bench:
    return Bench()


@pytest.fixture
def virtual(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sleeps pass at once."""
    monkeypatch.setattr(
        "sqsdelay.dispatching.dispatcher.wait_for",
        lambda wake, stop, seconds: bench.clock.advance(seconds),
    )


def ids(messages: Sequence[StoredMessage]) -> list[str]:
    return [message.message_id for message in messages]


def refused(*message_ids: str, transient: bool = True) -> Callable[[StoredMessage], Failure | None]:
    """Fails these messages as their destination would."""
    error = errors.SendFailed("too odd", code="Odd", transient=transient)
    failure = Failure("Odd", error, transient=transient)
    return lambda message: failure if message.message_id in message_ids else None


def outage(message: StoredMessage) -> Failure:
    return Failure("Down", errors.QueueUnavailable("SQS is away"), transient=True, outage=True)


def test_sends_what_is_due_and_removes_it(bench: Bench) -> None:
    """The earliest first, what is not due stays."""
    bench.put("later", 0.001)
    bench.put("b")
    bench.put("a", -1)
    done = bench.dispatcher().dispatch()
    assert bench.sent == ids(done.released) == ["a", "b"]
    assert done.late_ms() == [1000, 0]
    assert ids(bench.store.pending(10)) == ["later"]


def test_works_in_batches(bench: Bench) -> None:
    """One claim takes a batch, not one row."""
    for number in range(5):
        bench.put(f"m{number}")
    dispatcher = bench.dispatcher(batch_size=3)
    assert [dispatcher.dispatch().claimed for _ in range(3)] == [3, 2, 0]


@pytest.mark.parametrize(("ahead", "released"), [(None, 2), (900, 2), (60, 1), (0, 0)])
def test_releases_ahead_where_the_transport_has_timers(ahead: int | None, released: int) -> None:
    """Up to 900 s before it is due, by default as far as the transport allows."""
    bench = Bench(max_ahead_seconds=900)
    for seconds in (60, 900, 900.001):
        bench.put(f"in {seconds}", seconds)
    assert len(bench.dispatcher(release_ahead_seconds=ahead).dispatch().released) == released


@pytest.mark.parametrize("ahead", [-1, 901])
def test_a_release_further_ahead_than_timers_hold_is_refused(ahead: int) -> None:
    """It would arrive early."""
    with pytest.raises(errors.ConfigurationError, match="timers allow 0 to 900"):
        Bench(max_ahead_seconds=900).dispatcher(release_ahead_seconds=ahead)


@pytest.mark.parametrize(("transient", "retries"), [(True, 0), (False, 7)])
def test_without_retries_the_first_refusal_is_the_last(
    bench: Bench, transient: bool, retries: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Without retries, and what will never work whatever the retries: both go to the error queue, with the
    reason. The seed's NumberOfRetries is 0."""
    assert DispatchSettings().number_of_retries == 0
    bench.put("bad")
    bench.put("worse")
    bench.outbox.fail = refused("bad", "worse", transient=transient)
    assert ids(bench.dispatcher(number_of_retries=retries).dispatch().rejected) == ["bad", "worse"]
    told = [(m.message_id, why) for m, why in bench.outbox.rejected]
    assert told == [("bad", "Odd: too odd"), ("worse", "Odd: too odd")]
    assert bench.store.pending_count() == 0
    assert caplog.messages == ["message bad and 1 more not released: too odd"]


def test_retries_are_counted_in_the_store(bench: Bench) -> None:
    """Two retries are three attempts, whichever dispatcher makes them."""
    bench.put("bad")
    bench.outbox.fail = refused("bad")
    for failures in (1, 2):
        done = bench.dispatcher(number_of_retries=2).dispatch()
        assert (ids(done.failed), ids(done.rejected)) == (["bad"], [])
        assert [m.failures for m in bench.store.pending(1)] == [failures]
        bench.clock.advance(retry_seconds(failures - 1))
    assert ids(bench.dispatcher(number_of_retries=2).dispatch().rejected) == ["bad"]


def test_a_failing_message_holds_up_nobody(bench: Bench) -> None:
    """Poison at the head of the queue, one message a claim: those behind it leave at once."""
    bench.put("poison", -60)
    bench.put("good", -1)
    bench.outbox.fail = refused("poison")
    dispatcher = bench.dispatcher(number_of_retries=7, batch_size=1)
    assert ids(dispatcher.dispatch().failed) == ["poison"]
    assert ids(dispatcher.dispatch().released) == ["good"]


def test_an_outage_is_not_the_messages_failure(bench: Bench) -> None:
    """While the destination is away nothing is counted and nothing goes to the error queue."""
    bench.put("a")
    bench.outbox.fail = outage
    dispatcher = bench.dispatcher()
    assert str(dispatcher.dispatch().outage) == "SQS is away"
    for _ in range(20):
        assert not dispatcher.dispatch().settled
        bench.clock.advance(1)
    bench.outbox.fail = lambda _: None
    bench.clock.advance(11)
    assert ids(dispatcher.dispatch().released) == ["a"]
    assert bench.outbox.sent[0].failures == 0
    assert bench.outbox.rejected == []


def test_the_dispatch_breaker_triggers_after_30_seconds_of_outage(bench: Bench) -> None:
    """A critical error ends the dispatcher; the message is still in the store."""
    bench.put("a")
    bench.outbox.fail = outage
    dispatcher = bench.dispatcher()
    for _ in range(30):
        dispatcher.dispatch()
        bench.clock.advance(1)
    # It is in a pause, which ends now.
    with pytest.raises(errors.CriticalError, match=r"dispatch circuit breaker.*SQS is away"):
        dispatcher.dispatch()
    assert bench.store.pending_count() == 1


def test_a_host_may_handle_the_critical_error(bench: Bench) -> None:
    """With a handler that returns, the dispatcher goes on."""
    bench.put("a")
    bench.outbox.fail = outage
    told: list[errors.CriticalError] = []
    dispatcher = bench.dispatcher(on_critical=told.append, dispatch_breaker_seconds=5)
    for _ in range(8):
        dispatcher.dispatch()
        bench.clock.advance(1)
    assert len(told) == 1
    bench.outbox.fail = lambda _: None
    bench.clock.advance(60)
    assert ids(dispatcher.dispatch().released) == ["a"]


def test_what_was_sent_is_removed_before_a_critical_error(bench: Bench) -> None:
    """One destination away, another well: the sent ones are settled, and success disarms."""
    bench.put("a")
    bench.outbox.fail = outage
    dispatcher = bench.dispatcher(dispatch_breaker_seconds=1)
    dispatcher.dispatch()
    bench.clock.advance(1)
    bench.put("b", to="billing")
    bench.outbox.fail = lambda message: outage(message) if message.message_id == "a" else None
    assert ids(dispatcher.dispatch().released) == ["b"]
    assert ids(bench.store.pending(10)) == ["a"]


def test_an_error_queue_that_is_away_loses_nothing(bench: Bench) -> None:
    """What cannot be rejected stays in the store, counted, and is tried again, as what was only refused."""
    bench.put("again")
    bench.put("bad")
    odd, never = refused("again"), refused("bad", transient=False)
    bench.outbox.fail = lambda message: odd(message) or never(message)
    bench.outbox.fail_reject = outage
    dispatcher = bench.dispatcher(number_of_retries=9)
    done = dispatcher.dispatch()
    assert (ids(done.failed), str(done.outage)) == (["again", "bad"], "SQS is away")
    assert [m.failures for m in bench.store.pending(2)] == [1, 1]
    bench.outbox.fail_reject = lambda _: None
    bench.clock.advance(1)
    assert ids(dispatcher.dispatch().rejected) == ["bad"]


def test_what_cannot_even_be_rejected_is_no_outage(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    """One such message must not take the dispatcher down every half minute; it is tried again."""
    bench.put("bad")
    bench.outbox.fail = refused("bad", transient=False)
    bench.outbox.fail_reject = refused("bad", transient=False)
    dispatcher = bench.dispatcher()
    for _ in range(120):
        dispatcher.dispatch()
        bench.clock.advance(1)
    assert caplog.messages[1] == "message bad not rejected: too odd"
    assert bench.store.pending_count() == 1


def test_a_lost_removal_does_not_send_twice(bench: Bench) -> None:
    """The dispatcher remembers what it sent, and only removes it when the store is back."""
    bench.store = FaultyStore(bench.clock, {"remove"})
    bench.put("a")
    dispatcher = bench.dispatcher()
    for _ in range(3):
        with pytest.raises(errors.StoreUnavailable):
            dispatcher.dispatch()
    bench.store.down = set()
    assert ids(dispatcher.dispatch().released) == ["a"]
    assert bench.sent == ["a"]
    assert bench.store.pending_count() == 0


@pytest.mark.usefixtures("virtual")
def test_a_minute_without_the_store(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    """The host is told after 30 s; when the store returns, the dispatcher goes on by itself."""
    bench.store = store = FaultyStore(bench.clock, {"claim"})
    bench.put("a")
    store.until_ms = bench.clock.now_ms() + 60_000
    stop = threading.Event()
    told: list[errors.CriticalError] = []
    bench.dispatcher(on_critical=told.append, on_round=lambda _: stop.set()).run(stop)
    assert [str(critical)[:42] for critical in told] == [
        "fetch circuit breaker: failing for 30 s (l"
    ]
    line = "the store failed, trying again: claim: the store is down"
    assert caplog.messages == [line] * 60  # a second apart
    assert bench.sent == ["a"]
    assert bench.clock.now_ms() == store.until_ms


def test_outages_with_a_success_between_them_are_not_critical(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twice 20 s without the store, and without SQS, a minute apart: both breakers are disarmed."""
    start_ms = bench.clock.now_ms()
    bench.store = store = FaultyStore(bench.clock, {"claim"})
    stop = threading.Event()

    def passing(wake: threading.Event, _: threading.Event, seconds: float) -> None:
        bench.clock.advance(seconds)
        passed = (bench.clock.now_ms() - start_ms) // 1000
        store.until_ms = bench.clock.now_ms() + 1 if passed % 60 in range(1, 21) else 0
        bench.outbox.fail = outage if passed % 60 in range(30, 50) else lambda _: None
        bench.put(f"{passed}")
        if passed >= 120:
            stop.set()

    monkeypatch.setattr("sqsdelay.dispatching.dispatcher.wait_for", passing)
    bench.dispatcher().run(stop)
    assert len(bench.sent) > 60


@pytest.mark.usefixtures("virtual")
def test_without_a_handler_a_lost_store_ends_the_run(bench: Bench) -> None:
    """The default: stop with a clear message, for a supervisor to restart."""
    bench.store = store = FaultyStore(bench.clock, {"claim"})
    store.until_ms = bench.clock.now_ms() + 60_000
    with pytest.raises(errors.CriticalError, match="claim: the store is down"):
        bench.dispatcher().run(threading.Event())


def test_a_lost_lease_is_told(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    """A dispatcher frozen for longer than its lease says that duplicates are possible."""
    bench.put("a")

    def frozen(message: StoredMessage) -> None:
        bench.clock.advance(61)
        bench.store.cancel([message.message_id])

    bench.outbox.fail = frozen
    done = bench.dispatcher().dispatch()
    assert ids(done.released) == ["a"]
    assert caplog.messages == ["1 messages may be sent twice"]


def test_the_recovery_breaker_triggers_above_its_rate(bench: Bench) -> None:
    """MaximumRecoveryFailuresPerSecond: more lost counts in a second than that are critical."""
    bench.store = FaultyStore(bench.clock, {"count_failures"})
    bench.put("bad")
    bench.outbox.fail = refused("bad")
    dispatcher = bench.dispatcher(number_of_retries=9, maximum_recovery_failures_per_second=2)
    for _ in range(2):
        with pytest.raises(errors.StoreUnavailable):
            dispatcher.dispatch()
    told = "recovery circuit breaker: 3 failures in a second"
    with pytest.raises(errors.CriticalError, match=told):
        dispatcher.dispatch()


@pytest.mark.usefixtures("virtual")
def test_the_recovery_breaker_triggers_in_a_run(bench: Bench) -> None:
    """With the seed's default of 1 a second: a message is refused, and the store cannot count it."""
    bench.store = FaultyStore(bench.clock, {"count_failures"})
    bench.put("bad")
    bench.outbox.fail = refused("bad")
    start_ms = bench.clock.now_ms()
    told = r"recovery circuit breaker: 2 failures in a second"
    with pytest.raises(errors.CriticalError, match=told):
        bench.dispatcher(number_of_retries=9).run(threading.Event())
    assert bench.clock.now_ms() - start_ms < 1000
    assert bench.store.pending_count() == 1


@pytest.mark.usefixtures("virtual")
def test_a_single_lost_count_is_passed_over(bench: Bench) -> None:
    """The next attempt counts; one loss a second is what the default allows."""
    stop = threading.Event()
    bench.store = store = FaultyStore(bench.clock, {"count_failures"})
    store.failures = 1
    bench.put("bad")
    bench.outbox.fail = refused("bad")
    bench.dispatcher(
        number_of_retries=1, on_round=lambda done: stop.set() if done.rejected else None
    ).run(stop)
    assert ids([message for message, _ in bench.outbox.rejected]) == ["bad"]


def test_exactly_once_needs_a_store_that_can(bench: Bench) -> None:
    """Asking a store for a mode it cannot give fails at the start."""
    destination = ExactlyOnce(deliver=lambda _, __: None, reject=lambda _, __, ___: None)
    store = S3Store("messages", endpoint="orders", client=cast(Any, InMemoryS3()))
    with pytest.raises(errors.ConfigurationError, match="cannot give exactly-once"):
        Dispatcher(store, destination, clock=bench.clock).start()


@pytest.mark.parametrize(
    ("next_in_ms", "ahead_ms", "seconds"),
    [
        (None, 0, 10),
        (4_000, 0, 4),
        (20, 0, 0.02),
        (60_000, 0, 10),
        (904_000, 900_000, 4),
        (0, 0, 0.1),
        (-3_600_000, 0, 0.1),
        (899_000, 900_000, 0.1),
    ],
)
def test_sleeps_until_the_next_is_due_and_never_a_negative_time(
    bench: Bench, next_in_ms: int | None, ahead_ms: int, seconds: float
) -> None:
    """Overdue means that another dispatcher has it: look again shortly, do not spin."""
    if next_in_ms is not None:
        bench.put("a", next_in_ms / 1000)
    settlement = bench.dispatcher()._settlement
    assert settlement.seconds_to_next(10, ahead_ms=ahead_ms) == seconds


def test_a_clock_set_back_releases_nothing_early(bench: Bench) -> None:
    """The due time counts by the clock as it is now; the sleep stays below the poll interval."""
    bench.put("a", 5)
    bench.clock.error_ms = -3_600_000
    bench.clock.advance(5)
    dispatcher = bench.dispatcher()
    assert dispatcher.dispatch().claimed == 0
    assert dispatcher._settlement.seconds_to_next(0.5) == 0.5
    bench.clock.error_ms = 0
    assert ids(dispatcher.dispatch().released) == ["a"]


def test_retries_wait_longer_each_time() -> None:
    """Doubling from a second to a minute, however often it failed."""
    assert [retry_seconds(failures) for failures in (0, 1, 5, 6, 7, 5000)] == [1, 2, 32, 60, 60, 60]


def test_a_delivery_tells_its_rounds_from_a_thread_with_a_name() -> None:
    """Store and dispatcher in one object."""
    clock, released = ManualClock(), threading.Event()

    def told(done: Round) -> None:
        if done.released and threading.current_thread().name == "dispatcher":
            released.set()

    store, ledger = InMemoryStore(clock), InMemoryLedger()
    outbox = InMemoryOutbox(clock)
    delivery = DelayedDelivery(store, outbox, on_round=told, ledger=ledger, clock=clock)
    delivery.start()
    first = delivery._thread
    with delivery:
        assert first is not None
        assert not first.is_alive()  # It would be left alone: there is one stop for both.
        due_ms = clock.now_ms()
        stored = [a_message("m", due_ms, to="q")]
        with pytest.raises(errors.ConfigurationError, match="transaction"):
            delivery.store(stored, transaction="not the store's")
        delivery.store(stored)
        assert released.wait(PATIENCE_SECONDS)
    assert [event.message_id for event in ledger.events] == ["m"]
    delivery.stop()  # once more is once too many, and harmless


def test_a_callback_that_raises_stops_delivery_loudly(caplog: pytest.LogCaptureFixture) -> None:
    """A thread that died unnoticed would keep taking messages and never send one."""

    def broken(_: Round) -> None:
        raise RuntimeError("the user's own")

    bench = Bench()
    bench.put("a")
    delivery = DelayedDelivery(bench.store, bench.outbox, on_round=broken, clock=bench.clock)
    delivery.start()
    wait_until(lambda: delivery._error is not None)
    for call in (lambda: delivery.store([]), delivery.stop):
        told = r"^dispatching has stopped: the user's own$"
        with pytest.raises(errors.CriticalError, match=told):
            call()
    assert caplog.messages == ['dispatching stops: RuntimeError("the user\'s own")']


@pytest.mark.parametrize("stopped", [False, True])
def test_a_pause_looks_for_the_stop(stopped: bool) -> None:
    """However long it is, in parts; once it is stopped it does not wait at all."""
    waits: list[float] = []
    stop = threading.Event()
    wake = SimpleNamespace(wait=waits.append)
    if stopped:
        stop.set()
    wait_for(cast(threading.Event, wake), stop, 1.0)
    assert sum(waits) == pytest.approx(0 if stopped else 1.0)
    assert all(part > 0 for part in waits)
