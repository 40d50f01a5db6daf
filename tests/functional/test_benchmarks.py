"""The benchmarks run, and fail where they should. Speed is never asserted."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable

import pika
import pytest
from pika.exceptions import ChannelClosedByBroker

from benchmarks import accuracy
from benchmarks.soak import MAX_GROWN_BYTES, MAX_GROWN_FILES, Sample, Verdict, judged, soak
from benchmarks.support.sqs_stub import running_stub
from tests.acceptance.rabbitmq.broker import Broker
from tests.patience import ended
from tests.services.postgres import VARIABLE
from tests.services.processes import ROOT


def run(name: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return ended(
        [sys.executable, "-m", f"benchmarks.{name}", *arguments],
        cwd=ROOT,
        env=os.environ | environment,
    )


def test_accuracy_shows_the_drift_and_that_a_due_time_has_none() -> None:
    """Three days at 9 s a day: the remaining delay is late by about 27 s, the due time by under 1 s."""
    done = run("accuracy", "--days", "3", "--seed", "7")
    assert done.returncode == 0, done.stdout + done.stderr
    lines = re.findall(r"^(absolute|remaining).*?(\d+) +(-?[\d.]+) +([\d.]+)$", done.stdout, re.M)
    assert [line[0] for line in lines] == ["absolute", "remaining"]
    (_, our_hops, ours, last_hop), (_, their_hops, theirs, _) = lines
    assert our_hops == their_hops == "287"
    assert 0 <= float(ours) < 1 + float(last_hop)
    assert 20 < float(theirs) < 35


def test_accuracy_fails_a_relay_that_drifts(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A relay that is seconds late ends with exit code 1 and says by how much."""
    monkeypatch.setattr(accuracy, "Relay", accuracy.RemainingDelayRelay)
    monkeypatch.setattr(sys, "argv", ["accuracy.py", "--days", "1"])
    assert accuracy.main() == 1
    assert re.search(r"FAILED: \d{4,5} ms late", capsys.readouterr().out)


def test_throughput_runs_and_the_consumer_needs_three_requests() -> None:
    """Receive, send, delete: three requests for 10 messages and hop, counted by the server."""
    done = run("throughput", "--messages", "200", "--rounds", "1", "--latency-ms", "0", "1")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "consumer: 3.00 requests per 10 messages and hop" in done.stdout
    assert done.stdout.count("boto3, 16 threads ") == 6
    assert done.stdout.count("DelayConsumer.run, http=curl ") == 4


def test_the_stub_refuses_a_control_that_it_does_not_know() -> None:
    """A misspelt one would leave a benchmark without what it asked for."""
    with running_stub() as stub:
        stub.set_latency(0)
        with pytest.raises(RuntimeError, match=r"no 'Stub\.latencies'"):
            stub._control("latencies", {})


@pytest.mark.nightly
def test_coalesced_sends_take_a_tenth_of_the_requests() -> None:
    """Counted by the server."""
    done = run("async_send", "--messages", "100", "--rounds", "1", "--latency-ms", "1")
    assert done.returncode == 0, done.stdout + done.stderr
    (ours,) = re.findall(r"AsyncDelaySender\.send .* (\d+) requests$", done.stdout, re.M)
    assert 10 <= int(ours) <= 15


def test_it_runs_and_judges_every_aim(postgres: str) -> None:
    """Each comparison is made, and each aim is called met or missed; the exit code agrees."""
    small = "--rounds 1 --rows 1000 --pending 10100"
    done = run("store", *small.split(), **{VARIABLE: postgres})
    assert done.returncode in (0, 1), done.stderr
    assert done.stderr == ""
    verdicts = [line.split()[0] for line in done.stdout.splitlines() if "(aim" in line]
    assert len(verdicts) == 5
    assert set(verdicts) <= {"ok", "FAILED"}
    assert (done.returncode == 1) == ("FAILED" in verdicts)


@pytest.mark.nightly
def test_the_benchmark_prints_both_and_leaves_nothing(broker: Broker) -> None:
    """A small run: rates, ratios and lateness of both, nobody early, and the verdict as exit code."""
    sizes = ["--messages", "500", "--peer-messages", "100", "--rounds", "1"]
    sizes += ["--longest", "2", "--endpoints", "1,3"]
    program = [sys.executable, "-m", "benchmarks.rabbitmq", "--url", broker.url, *sizes]
    done = ended(program, cwd=ROOT)
    assert done.returncode == int("aims missed" in done.stdout), done.stderr
    assert re.search(r"ratio \d+\.\d \(aim: 8\); of the entry level alone \d+\.\d", done.stdout)
    told = re.findall(r"to \d queues: .*ratio [\d.]+, of processor time [\d.]+", done.stdout)
    assert len(told) == 2
    figures = re.findall(
        r"^  (?:sqsdelay|kombu) +([\d.]+) +([\d.]+) +([\d.]+) +([\d.]+)$", done.stdout, re.M
    )
    assert len(figures) == 2
    with pika.BlockingConnection(pika.URLParameters(broker.url)) as connection:
        for name in (
            "ours",
            "ours-2",
            "sqsdelay-bench.delay-hand-over.ours-2",
            "kombu",
            "bench_celery_delayed_27",
            "sqsdelay-bench.delay-level-27",
        ):
            with pytest.raises(ChannelClosedByBroker, match="no queue"):
                connection.channel().queue_declare(name, passive=True)


# The judgement of a soak run: what counts as growth, and what does not.

MIB = 2**20


def verdict(
    rss: Callable[[int], float] = lambda n: 50 * MIB,
    files: Callable[[int], int] = lambda n: 8,
    messages: Callable[[int], int] = lambda n: 100 * n,
) -> Verdict:
    """Of 120 samples, one a second."""
    return judged(
        [
            Sample(at=n, rss=round(rss(n)), files=files(n), sockets=2, messages=messages(n))
            for n in range(120)
        ]
    )


def test_a_flat_worker_is_well() -> None:
    """Nothing grows, messages move: no problem, and the figures are those after the warm-up."""
    seen = verdict()
    assert seen.problems == ()
    assert (seen.grown_bytes, seen.grown_files) == (0, 0)
    assert (seen.seconds, seen.messages) == (79, 7900)


def test_growth_in_the_warm_up_and_single_peaks_do_not_count() -> None:
    """Imports and first connections take memory once; a large batch takes some for a moment."""
    assert verdict(rss=lambda n: 50 * MIB + min(n, 30) * MIB).problems == ()
    assert verdict(rss=lambda n: (90 if n % 7 == 0 else 50) * MIB).problems == ()


@pytest.mark.parametrize(("share", "well"), [(0.9, True), (1.1, False)])
def test_steady_growth_is_found_in_full(share: float, well: bool) -> None:
    """A tenth above what is allowed after the warm-up is a problem, a tenth below is not."""
    seen = verdict(rss=lambda n: 50 * MIB + share * MAX_GROWN_BYTES * n / 80)
    assert seen.grown_bytes == pytest.approx(share * MAX_GROWN_BYTES, rel=0.05)
    told = [problem.partition(" by ")[0] for problem in seen.problems]
    assert told == ([] if well else ["memory grew"])


def test_leaked_sockets_are_found() -> None:
    """One open file more every ten seconds, with flat memory, is a problem of its own."""
    seen = verdict(files=lambda n: 8 + n // 10)
    assert seen.grown_files > MAX_GROWN_FILES
    assert [problem.split(" grew")[0] for problem in seen.problems] == ["open files"]


def test_a_worker_that_stands_still_is_no_success() -> None:
    """Flat memory proves nothing when no message moves any more."""
    seen = verdict(messages=lambda n: min(n, 60) * 100)
    assert seen.problems == ("no message was moved in the last quarter",)


def test_too_few_samples_are_refused() -> None:
    """A run too short to judge says so."""
    with pytest.raises(ValueError, match=r"0 samples; take at least 12"):
        judged([])


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


@pytest.mark.nightly
def test_a_leak_is_noticed() -> None:
    """A worker that keeps 4 MB a second fails the same judgement on its memory, and nothing else."""
    verdict = judged(soak(8, program=[sys.executable, "-c", LEAKING]))
    assert len(verdict.problems) == 1, verdict.line()
    assert "memory grew by" in verdict.problems[0]
