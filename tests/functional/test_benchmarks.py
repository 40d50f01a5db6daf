"""The benchmarks run, and fail where they should. Speed is never asserted."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from benchmarks import accuracy
from benchmarks.support.sqs_stub import running_stub
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
    """Counted by the server; what asyncio.to_thread takes stands beside it."""
    done = run("async_send", "--messages", "100", "--rounds", "1", "--latency-ms", "1")
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"asyncio\.to_thread\(sender\.send\) .* 100 requests$", done.stdout, re.M)
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
