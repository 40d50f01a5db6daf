"""The benchmarks run, and fail where they should. Speed is never asserted."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter

import pytest

from benchmarks import accuracy, cost, import_time, s3_store
from benchmarks.support import counting
from tests.patience import PATIENCE_SECONDS
from tests.services.postgres import VARIABLE
from tests.services.processes import ROOT


def run(name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", f"benchmarks.{name}", *arguments]
    return subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False
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


def test_the_cost_of_a_request_is_printed_for_each_way() -> None:
    """A small run: each way works against the stub, and has its ratio to plain boto3."""
    done = run("request_cost", "--requests", "3", "--rounds", "1")
    assert done.returncode == 0, done.stdout + done.stderr
    ways = re.findall(r"^(\S.*?)  +\d+ µs CPU +\d+\.\d\d x boto3$", done.stdout, re.M)
    assert len(ways) == 11
    assert {"boto3, its defaults", "sqsdelay's own client, by libcurl"} <= set(ways)


def test_timeouts_are_compared_with_a_dispatcher() -> None:
    """A small run on SQLite: rate, ratio and lateness."""
    done = run("timeouts", "--messages", "200")
    assert re.search(r"^timeout manager / dispatcher: \d", done.stdout, re.M), done.stderr
    assert "beside 100 for a missing queue: at most" in done.stdout


def test_throughput_runs_and_the_consumer_needs_three_requests() -> None:
    """Receive, send, delete: three requests for 10 messages and hop, counted by the server."""
    done = run("throughput", "--messages", "200", "--rounds", "1", "--latency-ms", "0", "1")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "consumer: 3.00 requests per 10 messages and hop" in done.stdout
    assert done.stdout.count("boto3, 16 threads ") == 6
    assert done.stdout.count("DelayConsumer.run, http=curl ") == 4


@pytest.mark.nightly
def test_coalesced_sends_take_a_tenth_of_the_requests() -> None:
    """Counted by the server; what asyncio.to_thread takes stands beside it."""
    done = run("async_send", "--messages", "100", "--rounds", "1", "--latency-ms", "1")
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"asyncio\.to_thread\(sender\.send\) .* 100 requests$", done.stdout, re.M)
    (ours,) = re.findall(r"AsyncDelaySender\.send .* (\d+) requests$", done.stdout, re.M)
    assert 10 <= int(ours) <= 15


@pytest.mark.nightly
def test_the_s3_store_keeps_a_year_for_cents() -> None:
    """Everything arrives once; the dollars follow from requests that were counted."""
    done = run("s3_store", "--messages", "3000", "--spread", "2600")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3,000 messages of 204 bytes, a year each" in done.stdout
    worker, functions = re.findall(r"^  in all +(0\.\d+)$", done.stdout, re.M)
    assert 0.2 < float(worker) < float(functions) < 0.4


@pytest.mark.nightly
def test_cost_counts_what_the_cost_command_reckons_with() -> None:
    """Three requests a hop, and one write unit parked beside leases, as dynalite meters it."""
    done = run("cost", "--s3-messages", "3000")
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [re.split(r"  +", line) for line in done.stdout.splitlines()]
    counts = [
        (row[0], row[1:4])
        for row in rows
        if row[0].startswith(("relay", "stored", "parked")) and row[0][-2:] not in ("IA", "S3")
    ]
    year = dict(counts[-4:])
    assert year == {
        "relay, one at a time": ["105,117.0", "1.0", "0.00"],
        "relay, batches of 10": ["10,511.7", "0.1", "0.00"],
        "stored by the sender": ["0.0", "0.1", "1.03"],
        "parked": ["0.3", "0.1", "1.03"],
    }
    assert len(counts) == 16
    assert done.stdout.count("hops extrapolated") == 4
    assert done.stdout.count("benchmarks.s3_store") == 8
    aims = re.findall(r"^a year .* a million, aim \$[\d.]+: (\w+)", done.stdout, re.M)
    assert aims == ["met"] * 6


def test_cost_fails_when_the_sums_are_wrong(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A relay that makes one request more than the bill says ends with exit code 1."""
    relayed = counting.relayed

    def wasteful(delay_seconds: int, messages: int) -> counting.Counted:
        counted = relayed(delay_seconds, messages)
        counted.counts["sqs standard"] += 1
        return counted

    monkeypatch.setattr(cost, "relayed", wasteful)
    monkeypatch.setattr(cost, "DELAYS", {"1 hour": 3600})
    none = s3_store.Released(messages=1, parking=Counter(), waiting=Counter(), stored_bytes=0)
    monkeypatch.setattr(s3_store, "year", lambda messages: none)
    monkeypatch.setattr(sys, "argv", ["cost.py"])
    assert cost.main() == 1
    printed = capsys.readouterr().out
    assert "FAILED: 1 hour, relay, one at a time:" in printed
    assert "1 hour, parked:" not in printed


def test_ledger_measures_and_misses_no_event() -> None:
    """Three lines of figures, and an event in the file for each message sent or relayed."""
    done = run("ledger", "--messages", "100", "--rounds", "1")
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.findall(r"^(\w[\w ]*?) +[\d.]+ µs/msg", done.stdout, re.M) == [
        "send_many",
        "poll",
        "recording alone",
    ]


@pytest.mark.parametrize(("added_ms", "code", "verdict"), [(49, 0, "ok"), (51, 1, "FAILED")])
def test_import_time_is_the_difference_to_python_itself(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    added_ms: int,
    code: int,
    verdict: str,
) -> None:
    """Whatever Python's own start takes on this machine, an import that adds too much fails."""
    monkeypatch.setattr(
        import_time, "started_ms", lambda program: 30 + added_ms * (program == import_time.OURS)
    )
    monkeypatch.setattr(sys, "argv", ["import_time.py", "--rounds", "3"])
    assert import_time.main() == code
    printed = capsys.readouterr().out
    assert re.search(rf"^{verdict} +import sqsdelay adds {added_ms}.0 ms", printed, re.M)


def test_import_time_starts_processes() -> None:
    """Each program is run, and takes its time."""
    columns = import_time.measure(1)
    assert [len(times) for times in columns] == [1] * len(import_time.PROGRAMS)
    assert all(times[0] > 0 for times in columns)


def test_it_runs_and_judges_every_aim(postgres: str) -> None:
    """Each comparison is made, and each aim is called met or missed; the exit code agrees."""
    small = "--rounds 1 --rows 1000 --pending 10100"
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.store", *small.split()],
        cwd=ROOT,
        env=os.environ | {VARIABLE: postgres},
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    assert done.returncode in (0, 1), done.stderr
    assert done.stderr == ""
    verdicts = [line.split()[0] for line in done.stdout.splitlines() if "(aim" in line]
    assert len(verdicts) == 7
    assert set(verdicts) <= {"ok", "FAILED"}
    assert (done.returncode == 1) == ("FAILED" in verdicts)
