"""The arithmetic of docs/capacity.md: what limits a system, and that the page shows the script's figures."""

from __future__ import annotations

import json
import os
from typing import Any

import pytest

from benchmarks.capacity import (
    DOCUMENT,
    MEASURED,
    SCRIPT,
    about,
    dispatcher_function,
    function,
    tables,
    worker,
)
from benchmarks.capacity_measured import WARM_UP, environment, in_process, worker_cost
from benchmarks.support.blocks import rewritten
from benchmarks.support.sqs_stub import running_stub
from sqsdelay.core.limits import DELAY_CONSUMER_MEMORY_MB, MAX_BATCH_ENTRIES

COST = 0.1


def test_lanes_or_the_quota_limit_a_function() -> None:
    """Ten batches at once, each some 80 ms; 50 calls a second are 500 messages, however many batches."""
    lanes = function("ten", COST, lanes=10, calls=2_400)
    assert lanes.saturates == "batches in hand"
    assert lanes.rate == pytest.approx(100 / (0.07 + 0.001 / (DELAY_CONSUMER_MEMORY_MB / 1769)))
    calls = function("quota", COST, lanes=1_000, calls=50)
    assert (calls.rate, calls.saturates) == (500, "send calls")
    flight = function("flight", COST, lanes=10**9, calls=10**9)
    assert flight.rate == pytest.approx(12_000 * lanes.rate / 10)


def test_a_workers_receivers_share_one_processor() -> None:
    """0.1 ms a message are 10,000 a second at most; two receivers wait for their answers instead."""
    assert worker(COST).saturates == "batches in hand"
    assert worker(COST, answer_seconds=0.001).rate == 10_000
    assert worker(COST, receivers=2, answer_seconds=0.1).rate == pytest.approx(2 * 10 / 0.3)


def test_a_dispatchers_claims_or_its_stores_quota_limit_it() -> None:
    """More runs release more, until the store's quota."""
    rates = [
        dispatcher_function("f", COST, ("answers", 0.1), runs=runs, quota=50_000).rate
        for runs in (1, 3, 6, 600)
    ]
    assert rates[0] < rates[1] < rates[2] < rates[3] == 50_000


def test_the_docs_show_the_scripts_figures() -> None:
    """Nobody types a figure into docs/capacity.md: its tables are those of the stored measurements."""
    document = DOCUMENT.read_text()
    stored: dict[str, Any] = json.loads(MEASURED.read_text())
    for name, made in tables(stored).items():
        assert rewritten(document, SCRIPT, name, made) == document, f"{name}: run make capacity"
    assert [about(n) for n in (7.4, 123, 98_765)] == ["7", "120", "99,000"]


def test_a_missing_block_is_said() -> None:
    """A table that the document has no place for is not silently left out."""
    with pytest.raises(ValueError, match="has no block 'answers'"):
        rewritten("# Capacity", SCRIPT, "answers", "|")


def test_a_worker_is_measured() -> None:
    """CPU and memory are those of a process of its own, whose environment is not ours."""
    with running_stub() as stub:
        cost = in_process(environment(stub), worker_cost, stub, 400)
        assert stub.requests()["SendMessageBatch"] == (400 + WARM_UP) / MAX_BATCH_ENTRIES
    assert 0.01 < cost["cpu_seconds"] < 10
    assert 20 < cost["mib"] < 500
    assert "SQSDELAY_ENDPOINT" not in os.environ
