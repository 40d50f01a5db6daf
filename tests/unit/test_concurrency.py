"""How many receivers a queue has, in virtual time."""

from __future__ import annotations

from sqsdelay.sqs.receivers import (
    LEAST_RECEIVERS,
    MOST_RECEIVERS,
    PLENTY,
    STEP_SECONDS,
    Concurrency,
)


class Worker:
    """Receives every millisecond, and uses a share of a processor."""

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


def test_a_busy_processor_gets_no_more() -> None:
    """They would only wait for it."""
    assert Worker().receive(10, seconds=2, share=0.9) == LEAST_RECEIVERS


def test_an_overloaded_processor_gets_fewer() -> None:
    """A quarter less at a time, down to the least."""
    worker = Worker()
    worker.receive(10, seconds=1, share=0.1)
    wanted = {worker.receive(10, seconds=0.001, share=1.0) for _ in range(400)}
    assert {MOST_RECEIVERS, 24, 18, 13} <= wanted
    assert worker.receive(10, seconds=5, share=1.0) == LEAST_RECEIVERS


def test_few_copies_are_no_reason_for_more() -> None:
    """A trickle is served by the least."""
    assert Worker().receive(PLENTY - 1, seconds=2, share=0.1) == LEAST_RECEIVERS
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
