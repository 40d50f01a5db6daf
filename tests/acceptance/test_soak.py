"""A worker under a steady load stays as it is; `make soak` does this for an hour."""

from __future__ import annotations

import sys

import pytest

from benchmarks.soak import Sample, judged, soak

LEAKING = """
import time

from sqsdelay.cli import main
from sqsdelay.sqs.queues import SqsQueues

kept, times = [], [time.monotonic()]
receive = SqsQueues.receive_batch


def keeping(self, *arguments, **more):
    times.append(time.monotonic())
    kept.append(b"x" * round(4_000_000 * (times[-1] - times[-2])))
    return receive(self, *arguments, **more)


SqsQueues.receive_batch = keeping
main()
"""


def test_memory_and_sockets_stay_flat() -> None:
    """Thousands of messages later a worker uses what it used, has its sockets and still moves messages."""
    verdict = judged(soak(12))
    assert not verdict.problems, verdict.line()
    assert verdict.messages > 100, verdict.line()
    assert 0 < verdict.sockets <= 10, verdict.line()


def test_growth_and_a_standstill_are_noticed() -> None:
    """By the figures alone; those of a process that leaks are judged by night."""
    samples = [Sample(at=n, rss=n * 2**19, files=n, sockets=1, messages=7) for n in range(24)]
    told = [problem.partition(" by ")[0] for problem in judged(samples).problems]
    assert told == ["memory grew", "open files grew", "no message was moved in the last quarter"]


@pytest.mark.nightly
def test_a_leak_is_noticed() -> None:
    """A worker that keeps 4 MB a second fails the same judgement on its memory, and nothing else."""
    verdict = judged(soak(8, program=[sys.executable, "-c", LEAKING]))
    assert len(verdict.problems) == 1, verdict.line()
    assert "memory grew by" in verdict.problems[0]
