"""A worker consuming under a steady load: its memory and its open files and sockets stay as they are.

Runs ``sqsdelay consume`` against the stub of SQS, which always has messages, and looks at the process
now and then. Exit code 1 if it grows, stops moving messages or does not end when told to.
"""

from __future__ import annotations

import argparse
import signal
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import psutil

from benchmarks.support.sqs_stub import Stub, running_stub
from sqsdelay.core.limits import MAX_BATCH_ENTRIES
from tests.services.processes import SQSDELAY, running

ENDPOINT: Final = "orders"
LATENCY_MS: Final = 10
"""With two receivers some hundred messages a second: a steady load, not the most there is."""

REMAINING_SECONDS: Final = (24 * 3600, 60)
"""Half of the messages are requeued, half handed over."""

WARM_UP_SHARE: Final = 1 / 3
MAX_GROWN_BYTES: Final = 4 * 2**20
"""After the warm-up, however long the rest is: what an interpreter's memory wavers by."""

MAX_GROWN_FILES: Final = 2
_MIN_SAMPLES: Final = 12


@dataclass(frozen=True, kw_only=True)
class Sample:
    """The worker at one moment. ``files`` are open files and sockets, ``messages`` moved since the start."""

    at: float
    rss: int
    files: int
    sockets: int
    messages: int


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What a worker did after its warm-up, and what is wrong with it."""

    seconds: float
    messages: int
    rss: int
    grown_bytes: int
    files: int
    sockets: int
    grown_files: int
    problems: tuple[str, ...]

    def line(self) -> str:
        """For people."""
        return (
            f"{self.messages:,} messages in {self.seconds:,.0f} s after the warm-up: "
            f"{self.rss / 2**20:.1f} MiB, grown by {self.grown_bytes / 2**20:+.2f} MiB; "
            f"{self.files} open files, {self.sockets} of them sockets, grown by {self.grown_files:+d}"
        )


def judged(samples: Sequence[Sample]) -> Verdict:
    """Compare the first with the last quarter of what follows the warm-up.

    Medians, so that one sample in the middle of a batch says nothing. A steady growth is found in full:
    the quarters' middles are three quarters of the time apart.

    Raises:
        ValueError: fewer than 12 samples.
    """
    if len(samples) < _MIN_SAMPLES:
        raise ValueError(f"{len(samples)} samples; take at least {_MIN_SAMPLES}")
    warm = samples[int(len(samples) * WARM_UP_SHARE) :]
    quarter = len(warm) // 4
    first, last = warm[:quarter], warm[-quarter:]
    rss, rss_first = (statistics.median(s.rss for s in each) for each in (last, first))
    grown_bytes = round((rss - rss_first) * 4 / 3)
    files = statistics.median_low(s.files for s in last)
    grown_files = files - statistics.median_low(s.files for s in first)
    problems = []
    if grown_bytes > MAX_GROWN_BYTES:
        problems.append(f"memory grew by {grown_bytes:,} bytes; at most {MAX_GROWN_BYTES:,}")
    if grown_files > MAX_GROWN_FILES:
        problems.append(f"open files grew by {grown_files}; at most {MAX_GROWN_FILES}")
    if last[-1].messages <= last[0].messages:
        problems.append("no message was moved in the last quarter")
    return Verdict(
        seconds=warm[-1].at - warm[0].at,
        messages=warm[-1].messages - warm[0].messages,
        rss=round(rss),
        grown_bytes=grown_bytes,
        files=files,
        sockets=statistics.median_low(s.sockets for s in last),
        grown_files=grown_files,
        problems=tuple(problems),
    )


def soak(seconds: float, *, program: Sequence[str] = SQSDELAY) -> list[Sample]:
    """Run a worker for so long, and look at it some hundred times.

    Args:
        program: what ``consume orders`` are the arguments of.

    Raises:
        AssertionError: it did not start, or did not end well on SIGTERM.
    """
    samples: list[Sample] = []
    with running_stub(latency_ms=LATENCY_MS) as stub:
        stub.supply(10**12, remaining_seconds=REMAINING_SECONDS)
        with running(
            "consume", ENDPOINT, "--receivers", "2", env=stub.environment(), program=program
        ) as worker:
            worker.wait_for("consuming")
            process = psutil.Process(worker.process.pid)
            started = time.monotonic()
            pause = max(0.2, seconds / 600)
            while time.monotonic() - started < seconds or len(samples) < _MIN_SAMPLES:
                time.sleep(pause)
                samples.append(_sample(process, stub, time.monotonic() - started))
            worker.process.send_signal(signal.SIGTERM)
            code = worker.end()
            assert code == 0, f"the worker ended with {code}:\n{worker.text}"
    return samples


def _sample(process: psutil.Process, stub: Stub, at: float) -> Sample:
    with process.oneshot():
        return Sample(
            at=at,
            rss=process.memory_info().rss,
            files=process.num_fds(),
            sockets=len(process.net_connections("inet")),
            messages=stub.requests()["DeleteMessageBatch"] * MAX_BATCH_ENTRIES,
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=60, help="how long, warm-up included")
    options = parser.parse_args()
    if options.minutes < 0.1:
        parser.error("--minutes must be 0.1 or more")
    verdict = judged(soak(options.minutes * 60))
    print(verdict.line())
    for problem in verdict.problems:
        print(f"FAILED: {problem}")
    return 1 if verdict.problems else 0


if __name__ == "__main__":
    sys.exit(main())
