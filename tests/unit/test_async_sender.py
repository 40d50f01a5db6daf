"""Sending from asyncio: what shares requests, and what becomes of a task that is cancelled or fails."""

from __future__ import annotations

import asyncio
import os
import threading
import traceback
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import wraps
from typing import Any
from unittest.mock import Mock

import pytest

from sqsdelay import AsyncDelaySender, Change, Message, SendResult
from sqsdelay.core.delay import utc
from sqsdelay.errors import (
    ConfigurationError,
    InvalidDelay,
    InvalidEndpoint,
    InvalidMessage,
    MessageConflict,
    NoStore,
    QueueUnavailable,
    SendFailed,
)
from sqsdelay.parking.parking import ParkingSettings
from sqsdelay.ports.queues import Failure
from sqsdelay.sending.router import SenderSettings
from sqsdelay.sending.sender import QueueSender, Route
from sqsdelay.testing import InMemoryLedger, InMemoryStore, VirtualSqs
from tests.faulty import GatedQueues

LONG = 1000.0
"""A linger in ms that no test waits for."""

DAY = timedelta(days=1)


@pytest.fixture
def queues() -> GatedQueues:
    queues = GatedQueues()
    queues.create_endpoint("orders")
    queues.create_endpoint("deaf")
    return queues


def sender(
    queues: GatedQueues, *, lanes: int = 8, deadline: float = 60, **arguments: Any
) -> AsyncDelaySender:
    settings = SenderSettings(concurrency=lanes, deadline_seconds=deadline)
    return AsyncDelaySender(QueueSender(queues, settings), **{"linger_ms": LONG} | arguments)


def in_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """The test as one that runs in an event loop of its own, for a minute at most."""

    @wraps(test)
    def run(*given: Any, **named: Any) -> None:
        asyncio.run(asyncio.wait_for(test(*given, **named), 60))

    return run


@in_loop
async def test_ten_tasks_share_a_request_and_each_has_its_result(queues: GatedQueues) -> None:
    """Twenty tasks, two requests; nobody waits for the linger."""
    async with sender(queues) as sends:
        results = await asyncio.gather(
            *(sends.send("orders", f"m{n}", delay=DAY, message_id=f"id-{n}") for n in range(20))
        )
    assert [result.message_id for result in results] == [f"id-{n}" for n in range(20)]
    assert {result.route for result in results} == {Route.DELAY_QUEUE}
    # Two threads make them: either may be first.
    first, second = sorted(queues.requests, key=lambda bodies: int(bodies[0][1:]))
    assert first == [f"m{n}" for n in range(10)]
    assert second == [f"m{n}" for n in range(10, 20)]


@in_loop
async def test_one_await_waits_no_longer_than_the_linger(queues: GatedQueues) -> None:
    """It is sent by itself when its time is up."""
    async with sender(queues, linger_ms=1) as sends:
        await sends.send("orders", "alone")
        await sends.send("orders", "alone again")
    assert queues.requests == [["alone"], ["alone again"]]


@in_loop
async def test_routes_do_not_thin_each_other_out(queues: GatedQueues) -> None:
    """Direct and delayed messages, alternating, still fill their requests."""
    async with sender(queues) as sends:
        await asyncio.gather(
            *(sends.send("orders", "x", delay=DAY if n % 2 else 5) for n in range(20))
        )
    assert [len(request) for request in queues.requests] == [10, 10]


@in_loop
async def test_one_entrys_error_is_its_own(queues: GatedQueues) -> None:
    """What SQS refuses, and what is no message at all, fails alone."""
    queues.refuse("bad")
    async with sender(queues) as sends:
        bodies = ["good", "bad", *["good"] * 8]
        outcomes = await asyncio.gather(
            *(sends.send("orders", body, delay=DAY) for body in bodies),
            sends.send("orders", "never", delay=-1),
            sends.send("no such endpoint!", "never"),
            return_exceptions=True,
        )
    kinds = [type(outcome) for outcome in outcomes]
    assert kinds == [SendResult, SendFailed, *[SendResult] * 8, InvalidDelay, InvalidEndpoint]
    assert len(queues.requests) == 1


@in_loop
async def test_an_unexpected_error_reaches_every_caller(queues: GatedQueues) -> None:
    """A bug of a store's or a client's hangs nobody, and the sender works on."""
    queues.bug = ZeroDivisionError("a bug")
    async with sender(queues) as sends:
        outcomes = await asyncio.gather(
            *(sends.send("orders", "x") for _ in range(10)), return_exceptions=True
        )
        assert [type(outcome) for outcome in outcomes] == [ZeroDivisionError] * 10
        queues.bug = None
        await asyncio.gather(*(sends.send("orders", "y") for _ in range(10)))


@pytest.mark.parametrize("refused", [True, False])
@in_loop
async def test_each_task_has_an_error_of_its_own(queues: GatedQueues, refused: bool) -> None:
    """A call that is refused for twenty: no task shows the frames and notes of another."""
    text, cause = "throttled", OSError("reset")
    throttled, bug = SendFailed(text, code="Throttled", transient=True), ZeroDivisionError(text)
    throttled.__cause__ = bug.__cause__ = cause
    if refused:
        queues.failing["orders"] = Failure("Throttled", throttled, transient=True)
    else:
        queues.bug = bug

    async def send(sends: AsyncDelaySender, n: int) -> Exception | None:
        try:
            await sends.send("orders", "x")
        except Exception as error:
            error.add_note(f"task {n}")
            return error
        return None

    async with sender(queues) as sends:
        errors = await asyncio.gather(*(send(sends, n) for n in range(20)))
    assert len({id(error) for error in errors}) == 20
    for n, error in enumerate(errors):
        assert error is not None
        assert (type(error), str(error), error.__cause__) == (
            SendFailed if refused else ZeroDivisionError,
            text,
            cause,
        )
        assert error.__notes__ == [f"task {n}"]
        assert getattr(error, "code", None) == ("Throttled" if refused else None)
        frames = [frame.name for frame in traceback.extract_tb(error.__traceback__)]
        assert frames.count("send") == 2, "the test's and the sender's, once each"


@in_loop
async def test_a_task_cancelled_while_its_message_waits_sends_nothing(queues: GatedQueues) -> None:
    """The others' request is as if it had never come."""
    async with sender(queues) as sends:
        tasks = [asyncio.create_task(sends.send("orders", f"m{n}")) for n in range(3)]
        await asyncio.sleep(0)
        tasks[1].cancel()
        outcomes = asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.sleep(0)
    assert [type(each) for each in await outcomes] == [
        SendResult,
        asyncio.CancelledError,
        SendResult,
    ]
    assert queues.requests == [["m0", "m2"]]


@in_loop
async def test_a_task_cancelled_in_flight_leaves_the_others_their_results(
    queues: GatedQueues,
) -> None:
    """Its message may be sent; the task ends at once, and the others' wait goes on."""
    queues.hold("orders")
    async with sender(queues) as sends:
        tasks = [asyncio.create_task(sends.send("orders", f"m{n}")) for n in range(10)]
        await asyncio.to_thread(queues.await_arrival)
        tasks[0].cancel()
        with pytest.raises(asyncio.CancelledError):
            await tasks[0]
        assert not any(task.done() for task in tasks[1:])
        queues.let_go("orders")
        assert all(result.sqs_message_id for result in await asyncio.gather(*tasks[1:]))


@in_loop
async def test_closing_sends_what_waits_and_refuses_what_comes(queues: GatedQueues) -> None:
    """It waits for no linger, and for every result, calls that wait for room included."""
    sends = sender(queues, max_waiting=2)
    tasks = [asyncio.create_task(sends.send("orders", f"m{n}")) for n in range(5)]
    await asyncio.sleep(0)
    await sends.aclose()
    assert all(task.done() for task in tasks)
    assert all(task.result().sqs_message_id for task in tasks)
    with pytest.raises(ConfigurationError, match="this sender is closed; make another one"):
        await sends.send("orders", "late")
    with pytest.raises(ConfigurationError, match="closed"):
        await sends.send_many("orders", [Message("late")])
    await sends.aclose()
    assert sum(map(len, queues.requests)) == 5


@in_loop
async def test_every_close_waits_for_the_results(queues: GatedQueues) -> None:
    """The second one, too, and one that follows a close that was given up."""
    sends = sender(queues)
    queues.hold("orders")
    task = asyncio.create_task(sends.send("orders", "m"))
    await asyncio.sleep(0)
    given_up, second = (asyncio.create_task(sends.aclose()) for _ in range(2))
    await asyncio.to_thread(queues.await_arrival)
    given_up.cancel()
    third = asyncio.create_task(sends.aclose())
    with pytest.raises(asyncio.CancelledError):
        await given_up
    for _ in range(3):
        await asyncio.sleep(0)
    assert [closing.done() for closing in (second, third)] == [False, False]
    queues.let_go("orders")
    await asyncio.gather(second, third)
    assert task.done()


@in_loop
async def test_a_full_buffer_waits(queues: GatedQueues) -> None:
    """What has no room is not taken; it goes when there is some."""
    queues.hold("orders")
    async with sender(queues, max_waiting=10) as sends:
        first = [asyncio.create_task(sends.send("orders", "first")) for _ in range(10)]
        await asyncio.to_thread(queues.await_arrival)
        more = [asyncio.create_task(sends.send("orders", "more")) for _ in range(10)]
        gives_up = asyncio.create_task(sends.send("orders", "gives up"))
        for _ in range(5):
            await asyncio.sleep(0)
        assert len(queues.requests) == 1
        gives_up.cancel()
        queues.let_go("orders")
        await asyncio.gather(*first, *more)
    assert queues.requests == [["first"] * 10, ["more"] * 10]


@pytest.mark.parametrize("room", [1, 10])
@in_loop
async def test_who_gets_no_turn_in_time_is_told_and_not_sent(
    queues: GatedQueues, room: int
) -> None:
    """An outage with more tasks than its requests, or its buffer, hold: they would wait for each other's."""
    queues.hold("orders")
    async with sender(queues, lanes=1, deadline=0.05, linger_ms=0, max_waiting=room) as sends:
        first = asyncio.create_task(sends.send("orders", "first"))
        await asyncio.to_thread(queues.await_arrival)
        with pytest.raises(QueueUnavailable, match=r"queue orders .*deadline_seconds"):
            await sends.send("orders", "no turn")
        queues.let_go("orders")
        assert (await first).sqs_message_id
    assert queues.requests == [["first"]]


@in_loop
async def test_where_no_thread_can_be_started_each_task_is_told(
    queues: GatedQueues, monkeypatch: pytest.MonkeyPatch
) -> None:
    """None waits for ever, nor does closing; and no thread that runs sends what was told to have failed."""
    queues.hold("deaf")
    async with sender(queues, linger_ms=0) as sends:
        first = asyncio.create_task(sends.send("deaf", "first"))
        while not queues.requests:
            await asyncio.sleep(0)
        no_more = Mock(side_effect=RuntimeError("can't start new thread"))
        monkeypatch.setattr(threading.Thread, "start", no_more)
        sending = [sends.send("orders", "x") for _ in range(20)]
        told = await asyncio.gather(*sending, return_exceptions=True)
        queues.let_go("deaf")
        assert (await first).sqs_message_id
    assert [str(error) for error in told] == ["can't start new thread"] * 20
    sends._calls._here.threads.shutdown()  # type: ignore[union-attr]
    assert queues.requests == [["first"]]


@in_loop
async def test_a_queue_that_does_not_answer_does_not_hold_up_another(queues: GatedQueues) -> None:
    """However much waits for it."""
    queues.hold("deaf")
    async with sender(queues, lanes=2) as sends:
        stuck = [asyncio.create_task(sends.send("deaf", "x")) for _ in range(50)]
        await asyncio.to_thread(queues.await_arrival)
        await asyncio.gather(*(sends.send("orders", "y") for _ in range(30)))
        assert not any(task.done() for task in stuck)
        queues.let_go("deaf")
        await asyncio.gather(*stuck)


@in_loop
async def test_a_store_takes_many_in_one_call(queues: GatedQueues) -> None:
    """Parked messages share calls to the store; they can be listed, moved and cancelled."""
    store, ledger = InMemoryStore(queues.clock), InMemoryLedger()
    settings = SenderSettings(parking=ParkingSettings(store), ledger=ledger)
    calls = []
    keep = store.store

    def counted(messages: Any, **given: Any) -> Any:
        calls.append(len(messages))
        return keep(messages, **given)

    store.store = counted  # type: ignore[method-assign]
    parking = QueueSender(queues, settings)
    async with AsyncDelaySender(parking, linger_ms=LONG) as sends:
        sent = asyncio.gather(
            *(sends.send("orders", "x", delay=DAY, message_id=f"m{n:03}") for n in range(250))
        )
        await asyncio.sleep(0)
    assert {result.route for result in await sent} == {Route.STORE}
    async with AsyncDelaySender(parking) as sends:
        assert await sends.cancel("orders", "m000") is Change.DONE
        assert await sends.reschedule("orders", "m001", delay=2 * DAY) is Change.DONE
        waiting = [message.message_id async for message in sends.pending("orders")]
        assert waiting == [f"m{n:03}" for n in (*range(2, 250), 1)]
        async for message in sends.pending("orders"):
            assert message.message_id == "m002"
            break
    assert calls == [250]
    assert len(ledger.events) == 252


@in_loop
async def test_every_argument_counts(queues: GatedQueues) -> None:
    """As with a `QueueSender`."""
    queues.create_endpoint("bills.fifo")
    given: dict[str, Any] = {
        "due_at": utc(queues.clock.true_ms + 60_000),
        "attributes": {"kind": "reminder"},
        "message_group_id": "g",
        "message_deduplication_id": "d",
        "trace_header": "Root=1-5759e988-bd862e3fe1be46a994272793",
    }
    async with sender(queues, linger_ms=0) as sends:
        assert (await sends.send("bills.fifo", "x", message_id="m", **given)).error is None
    QueueSender(queues).send("bills.fifo", "x", message_id="m", **given)
    queues.clock.advance(60)
    one, other = queues.receive_batch("bills-due", wait_seconds=0)
    assert (one.attributes, one.trace_header) == (other.attributes, other.trace_header)
    assert one.attributes["kind"] == {"DataType": "String", "StringValue": "reminder"}


@in_loop
async def test_what_waits_is_listed_in_part_and_moved_to_an_instant(queues: GatedQueues) -> None:
    """A page of a hundred is read before the first is seen, and no more."""
    store = InMemoryStore(queues.clock)
    parking = QueueSender(queues, SenderSettings(parking=ParkingSettings(store)))
    parking.send_many(
        "orders",
        [Message("x", delay=DAY + timedelta(hours=n), message_id=f"m{n}") for n in range(300)],
    )
    pages: list[int] = []
    page = store.pending

    def counted(limit: int, **given: Any) -> Any:
        pages.append(limit)
        return page(limit, **given)

    store.pending = counted  # type: ignore[method-assign]
    start = utc(queues.clock.true_ms)
    async with AsyncDelaySender(parking) as sends:
        async for _ in sends.pending("orders"):
            break
        assert pages == [100]
        moved = start + 20 * DAY
        assert await sends.reschedule("orders", "m1", due_at=moved) is Change.DONE
        for since, until, expected in (
            (2 * DAY, 2 * DAY + timedelta(hours=3), ["m24", "m25", "m26"]),
            (19 * DAY, 21 * DAY, ["m1"]),
        ):
            some = sends.pending("orders", due_from=start + since, due_before=start + until)
            assert [message.message_id async for message in some] == expected


@in_loop
async def test_two_messages_with_one_id(queues: GatedQueues) -> None:
    """Equal ones are one message, and of two different ones one is told of the conflict."""
    settings = SenderSettings(parking=ParkingSettings(InMemoryStore(queues.clock)))
    async with AsyncDelaySender(QueueSender(queues, settings), linger_ms=1) as sends:
        outcomes = await asyncio.gather(
            *(sends.send("orders", body, delay=DAY, message_id="m") for body in "aab"),
            return_exceptions=True,
        )
        assert [type(outcome) for outcome in outcomes] == [SendResult, SendResult, MessageConflict]


@in_loop
async def test_without_a_store_there_is_nothing_to_list(queues: GatedQueues) -> None:
    """As with `DelaySender`, with the same words."""
    async with sender(queues) as sends:
        with pytest.raises(NoStore, match="give DelaySender"):
            _ = [message async for message in sends.pending("orders")]


@in_loop
async def test_each_task_has_its_own_trace(queues: GatedQueues) -> None:
    """Though they share a request: a span a send, and its header on its message."""

    class Traces:
        """Numbers the sends."""

        def __init__(self) -> None:
            self.sent = 0

        @contextmanager
        def sending(self, endpoint: str) -> Iterator[str]:
            self.sent += 1
            yield f"Root=1-00000000-{self.sent:024d}"

        def delivering(self, *given: Any, **named: Any) -> Any:
            raise AssertionError("nothing is delivered here")

    settings = SenderSettings(tracing=Traces())
    async with AsyncDelaySender(QueueSender(queues, settings), linger_ms=LONG) as sends:
        await asyncio.gather(*(sends.send("orders", "x") for _ in range(10)))
    assert len(queues.requests) == 1
    copies = queues.receive_batch("orders", wait_seconds=0)
    assert len({copy.trace_header for copy in copies}) == 10


@in_loop
async def test_send_many_from_asyncio() -> None:
    """In virtual time, as users test their own code."""
    sqs = VirtualSqs()
    sqs.create("orders")
    async with AsyncDelaySender(sqs.sender) as sends:
        results = await sends.send_many("orders", (Message(f"m{n}", delay=DAY) for n in range(12)))
        assert not any(result.error for result in results)
        no_message: Any = ["text"]
        (refused,) = await sends.send_many("orders", no_message)
        assert isinstance(refused.error, InvalidMessage)
    assert len(sqs.drain()) == 12


def test_a_loop_after_another(queues: GatedQueues) -> None:
    """A sender serves one loop after the other, but not two at a time. A linger of 0 turns sharing off."""
    sends = sender(queues, linger_ms=0)

    async def work() -> None:
        await asyncio.gather(*(sends.send("orders", "x") for _ in range(7)))
        with pytest.raises(ConfigurationError, match="make one for each loop"):
            await asyncio.to_thread(asyncio.run, sends.send("orders", "y"))

    in_loop(work)()
    in_loop(work)()
    assert queues.requests == [["x"]] * 14


def test_a_forked_process_does_not_send_its_parents_messages(queues: GatedQueues) -> None:
    """What waits when a process forks belongs to tasks that the child does not run. The child sends its
    own, by threads of its own; what its parent has closed stays closed."""

    async def of_child(sends: AsyncDelaySender, closed: AsyncDelaySender) -> None:
        with pytest.raises(ConfigurationError, match="closed"):
            await closed.send("orders", "never")
        async with asyncio.timeout(30), sends:
            await asyncio.gather(*(sends.send("orders", "child's") for _ in range(10)))

    async def work() -> None:
        closed = sender(queues)
        await closed.aclose()
        async with sender(queues) as sends:
            # A thread has sent before: the child does not have it.
            await asyncio.gather(*(sends.send("orders", "before", delay=DAY) for _ in range(10)))
            waiting = asyncio.create_task(sends.send("orders", "parent's"))
            await asyncio.sleep(0)
            queues.requests.clear()
            child = os.fork()
            if child == 0:
                try:
                    asyncio.run(of_child(sends, closed))
                finally:
                    os._exit(0 if queues.requests == [["child's"] * 10] else 1)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert (await waiting).sqs_message_id

    in_loop(work)()
    assert queues.requests == [["parent's"]]
