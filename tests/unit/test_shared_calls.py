"""Threads that share requests: by turns one of them sends for all."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import boto3
import pytest

from sqsdelay import DelaySender
from sqsdelay.core.coalescing import SharedCalls
from sqsdelay.errors import InvalidDelay, QueueUnavailable, SendFailed, Unconfirmed
from sqsdelay.sending.router import Router, SenderSettings
from sqsdelay.sending.sender import QueueSender, SendResult
from sqsdelay.testing import ManualClock
from tests.faulty import GatedQueues
from tests.patience import PATIENCE_SECONDS

ENDLESS = 1000.0
"""A linger in ms whose clock stands still."""


@pytest.fixture
def queues() -> GatedQueues:
    queues = GatedQueues()
    queues.create_endpoint("orders")
    queues.create_endpoint("deaf")
    return queues


def sender(queues: GatedQueues, *, linger_ms: float = ENDLESS, lanes: int = 8) -> QueueSender:
    sends = QueueSender(queues, SenderSettings(concurrency=lanes, linger_ms=linger_ms))
    if linger_ms == ENDLESS:
        stop_clock(sends)
    return sends


def stop_clock(sends: QueueSender) -> ManualClock:
    """Nothing has lingered from now on, however long threads take to start."""
    assert sends._shared is not None
    sends._shared._clock = clock = ManualClock()
    return clock


def at_once(*calls: Callable[[], object]) -> list[Any]:
    """The results or errors of calls, a thread each."""
    with ThreadPoolExecutor(len(calls)) as pool:
        futures = [pool.submit(call) for call in calls]
    return [future.exception() or future.result() for future in futures]


def test_ten_threads_share_a_request(queues: GatedQueues) -> None:
    """Each has its own result; none waits for the linger."""
    sends = sender(queues)
    results = at_once(
        *(
            lambda n=n: sends.send("orders", f"m{n}", delay=9, message_id=f"id-{n}")
            for n in range(20)
        )
    )
    assert [result.message_id for result in results] == [f"id-{n}" for n in range(20)]
    assert [len(request) for request in queues.requests] == [10, 10]


def test_one_entrys_error_is_its_own(queues: GatedQueues) -> None:
    """The others are sent. A thread alone sends after the linger."""
    sender(queues, linger_ms=1).send("orders", "alone")
    assert queues.requests == [["alone"]]
    queues.refuse("bad")
    sends = sender(queues)
    bodies = ["bad", *["good"] * 9]
    outcomes = at_once(*(lambda body=body: sends.send("orders", body) for body in bodies))
    assert [type(outcome) for outcome in outcomes] == [SendFailed, *[SendResult] * 9]
    with pytest.raises(InvalidDelay):
        sends.send("orders", "x", delay=-1)


def test_a_full_lane_fills_the_next_request(queues: GatedQueues) -> None:
    """While the only request is in flight nine threads wait, however little they linger."""
    sends = sender(queues, linger_ms=0.001, lanes=1)
    queues.hold("orders")
    with ThreadPoolExecutor(10) as pool:
        first = pool.submit(sends.send, "orders", "first")
        queues.await_arrival()
        others = [pool.submit(sends.send, "orders", "other") for _ in range(9)]
        await_waiting(sends, 9)
        queues.let_go("orders")
        for future in (first, *others):
            assert future.result(PATIENCE_SECONDS).sqs_message_id
    assert queues.requests == [["first"], ["other"] * 9]


def await_waiting(sends: QueueSender, number: int) -> None:
    """Until so many messages wait to leave."""
    assert sends._shared is not None
    coalescer, enough = sends._shared._coalescer, threading.Event()
    for _ in range(PATIENCE_SECONDS * 100):
        with sends._shared._lock:
            if sum(len(line.waiting) for line in coalescer._lines.values()) == number:
                return
        enough.wait(0.01)
    raise AssertionError(f"{number} messages never waited")


def test_each_thread_has_its_own_deadline(queues: GatedQueues) -> None:
    """Who waits for a turn fails alone. Of two that share a request the younger makes it, in its own time,
    and the older does not wait for that."""
    sends = QueueSender(queues, SenderSettings(concurrency=1, linger_ms=1, deadline_seconds=0.05))
    clock = stop_clock(sends)
    queues.hold("orders")
    first = queues._held["orders"]
    with ThreadPoolExecutor(4) as pool:
        alone = pool.submit(sends.send, "orders", "alone")
        await_waiting(sends, 1)
        clock.advance(0.01)
        queues.await_arrival()
        oldest = pool.submit(sends.send, "orders", "oldest")
        await_waiting(sends, 1)
        clock.advance(0.03)
        older = pool.submit(sends.send, "orders", "older")
        await_waiting(sends, 2)
        clock.advance(0.03)
        with pytest.raises(QueueUnavailable, match="deadline_seconds"):
            oldest.result(PATIENCE_SECONDS)
        younger = pool.submit(sends.send, "orders", "younger")
        await_waiting(sends, 2)
        queues.hold("orders")
        first.set()
        queues.await_arrival()
        clock.advance(0.03)
        with pytest.raises(Unconfirmed, match="no answer in time"):
            older.result(PATIENCE_SECONDS)
        queues.let_go("orders")
        for each in (alone, younger):
            assert each.result(PATIENCE_SECONDS).sqs_message_id
    assert queues.requests == [["alone"], ["older", "younger"]]


def test_a_thread_makes_only_calls_that_have_its_own_item() -> None:
    """Busy with another's it could not make its own, nor could those that leave theirs to it."""
    shared = SharedCalls[int, int](
        lambda _, items: [threading.get_ident()] * len(items), linger_ms=1, lanes=4
    )

    def call() -> bool:
        """Two fill a request, and leave in one each."""
        return shared.call("q", [0], sizes=[600_000], most=10) == [threading.get_ident()]

    for _ in range(5):
        assert at_once(*[call] * 6) == [True] * 6


def test_a_queue_that_does_not_answer_does_not_hold_up_another(queues: GatedQueues) -> None:
    """No thread sends for a queue that is not its own."""
    sends = sender(queues, linger_ms=1, lanes=2)
    queues.hold("deaf")
    with ThreadPoolExecutor(20) as pool:
        stuck = [pool.submit(sends.send, "deaf", "x") for _ in range(10)]
        queues.await_arrival()
        for future in [pool.submit(sends.send, "orders", "y") for _ in range(10)]:
            assert future.result(PATIENCE_SECONDS).sqs_message_id
        queues.let_go("deaf")
        for future in stuck:
            assert future.result(PATIENCE_SECONDS).sqs_message_id


@pytest.mark.parametrize("interruption", [KeyboardInterrupt(), TimeoutError("an alarm of its own")])
def test_when_the_sending_thread_is_interrupted_the_others_are_told(
    queues: GatedQueues, interruption: BaseException
) -> None:
    """Theirs may or may not be sent: they must not wait for ever, and not believe either."""
    queues.bug = interruption
    sends = sender(queues)
    outcomes = at_once(*(lambda: sends.send("orders", "x") for _ in range(10)))
    assert outcomes.count(interruption) == 1
    assert [type(outcome) for outcome in outcomes].count(Unconfirmed) == 9
    queues.bug = None
    at_once(*(lambda: sends.send("orders", "y") for _ in range(10)))
    assert len(queues.requests) == 2


def test_a_forked_process_does_not_send_its_parents_messages(queues: GatedQueues) -> None:
    """What waits when a process forks belongs to threads that the child does not have."""
    client = boto3.client("sqs", region_name="eu-west-1")
    sends = DelaySender(client, linger_ms=ENDLESS)
    sends._queues, sends.router = queues, Router(queues, SenderSettings())
    clock = stop_clock(sends)
    done: Future[SendResult] = Future()
    thread = threading.Thread(target=lambda: done.set_result(sends.send("orders", "parent's")))
    thread.start()
    await_waiting(sends, 1)
    child = os.fork()
    if child == 0:
        threads = [threading.Thread(target=sends.send, args=("orders", "c")) for _ in range(10)]
        for each in threads:
            each.start()
        for each in threads:
            each.join(PATIENCE_SECONDS)
        sent = [body for request in queues.requests for body in request]
        os._exit(0 if sent == ["c"] * 10 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    clock.advance(ENDLESS / 1000)
    thread.join(PATIENCE_SECONDS)
    assert done.result(0).sqs_message_id
    assert queues.requests == [["parent's"]]
