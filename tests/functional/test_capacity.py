"""The capacity simulation: it loses nothing, is punctual below saturation, and the docs show its figures."""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import pairwise

import pytest

from benchmarks.capacity import relay_simulation as relay
from benchmarks.capacity import store_simulation as store
from benchmarks.capacity.document import DOCUMENT, rewritten
from benchmarks.capacity.figures import DEPLOYED, Measured
from benchmarks.capacity.load import environment
from benchmarks.capacity.measurement import worker
from benchmarks.capacity.relay_simulation import Consumer
from benchmarks.capacity.store_simulation import Dispatcher
from benchmarks.capacity.systems import ON_TIME_SECONDS, Systems, most
from benchmarks.capacity.tables import tables
from benchmarks.support.fresh_process import in_process
from benchmarks.support.sqs_stub import running_stub

CONSUMER = Consumer(name="ten lanes", lanes=10, batch_seconds=0.1, calls_per_second=2_400)
"""1,000 messages a second, 900,000 pending."""

DISPATCHER = Dispatcher(
    name="a run a minute",
    claim=100,
    parts={"processor": 0.5},
    every_seconds=60,
    run_seconds=40,
)
"""200 a second while it runs: 8,000 a minute."""


@pytest.fixture(scope="module")
def systems() -> Systems:
    return Systems(Measured.load())


def rising(values: Sequence[float]) -> bool:
    """What is on time is all the same."""
    seen = [max(ON_TIME_SECONDS, value) for value in values]
    return all(earlier <= later for earlier, later in pairwise(seen))


@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize("due", [10, 5_000, 3_000_000])
def test_every_relayed_message_is_handed_over(due: int, together: bool) -> None:
    """A message that vanished in the simulation would make everything look punctual."""
    run = relay.due_in_a_minute(CONSUMER, due, together=together)
    assert run.sent == run.handed_over
    assert run.waiting == 0
    assert due <= run.sent <= due * 1.2 + 10 * relay.COHORTS
    assert all(late >= 0 for late in run.late)


def test_pending_messages_stay_as_many() -> None:
    """In the steady state what is handed over is replaced: sent is handed over and still waiting."""
    run = relay.steady(CONSUMER, 600_000)
    assert run.handed_over > 0
    assert run.sent == run.handed_over + run.waiting
    assert run.waiting == 600_000


def test_the_relay_is_on_time_below_saturation_and_late_above() -> None:
    """900 s of 1,000 messages a second is the limit; above it the wait settles where they balance."""
    assert relay.steady(CONSUMER, 850_000).late_share(1) <= ON_TIME_SECONDS
    over = relay.steady(CONSUMER, 1_800_000)
    assert over.throughput == pytest.approx(1_000, rel=0.02)
    assert 750 < over.late_share(1) <= 901  # 1,800 s at 1,000 a second, less the hop's 900 s
    assert max(over.utilisation, key=over.utilisation.__getitem__) == "batches in hand"
    assert over.utilisation["batches in hand"] == pytest.approx(1, abs=0.02)


def test_a_quota_saturates_before_the_lanes_do() -> None:
    """50 calls a second are 500 messages, however many batches may be in hand."""
    few_calls = Consumer(name="quota", lanes=10, batch_seconds=0.1, calls_per_second=50)
    run = relay.steady(few_calls, 1_800_000)
    assert run.throughput == pytest.approx(500, rel=0.02)
    assert max(run.utilisation, key=run.utilisation.__getitem__).endswith("calls")
    assert run.utilisation["batches in hand"] < 0.6


def test_more_messages_are_never_less_late() -> None:
    """Lateness grows with what is pending, and with what is due at once, relayed and parked."""
    assert rising([relay.steady(CONSUMER, n).late_share(1) for n in (10**5, 10**6, 10**7, 10**9)])
    for together in (False, True):
        runs = [
            relay.due_in_a_minute(CONSUMER, n, together=together) for n in (10**4, 10**6, 10**7)
        ]
        assert rising([run.late_share(1) for run in runs])
        assert runs[-1].late_share(1) > 3600
    parked = [store.due_in_a_minute(DISPATCHER, n).late_share(1) for n in (10**3, 10**5, 10**6)]
    assert rising(parked)
    assert parked[-1] > 3600


def test_sent_together_waits_for_all_before() -> None:
    """300,000 at the first hop at 1,000 a second: the last, due at once, is 240 s late (they take 60 s)."""
    run = relay.due_in_a_minute(CONSUMER, 300_000, together=True)
    assert run.late_share(1) == pytest.approx(240, abs=5)


@pytest.mark.parametrize("due", [1, 3_000, 1_000_000])
def test_every_parked_message_is_released(due: int) -> None:
    """What was parked is released or waits, and never before it is due."""
    run = store.due_in_a_minute(DISPATCHER, due)
    assert (run.parked, run.waiting) == (run.released, 0)
    assert run.parked >= due
    assert all(late >= 0 for late in run.late)
    unfinished = store.steady(DISPATCHER, 200, hours=2)
    assert unfinished.parked == unfinished.released + unfinished.waiting
    assert unfinished.waiting > 0


def test_the_dispatcher_is_on_time_below_its_throughput() -> None:
    """133 a second on average: 100 due a second are on time for a day, 160 are not."""
    assert DISPATCHER.throughput == pytest.approx(133, abs=1)
    below, above = store.steady(DISPATCHER, 100), store.steady(DISPATCHER, 160)
    assert below.late_share(1) <= ON_TIME_SECONDS
    assert below.overdue == 0
    assert above.late_share(1) > 3600
    # It begins at once, and the first are due 900 s later.
    assert above.overdue == pytest.approx((160 - 133.3) * 86_400 - 900 * 160, rel=0.06)
    # A burst may use the quarter of an hour that messages are released ahead.
    assert store.due_in_a_minute(DISPATCHER, 110_000).late_share(1) <= ON_TIME_SECONDS


def test_most_finds_the_limit() -> None:
    """The search for what is still on time ends near it, from below or above."""
    for about in (10, 1_000, 5_000):
        assert most(lambda n: 0.0 if n <= 1_234 else 10.0, about) == pytest.approx(1_234, rel=0.05)


def test_the_docs_show_the_scripts_figures(systems: Systems) -> None:
    """Nobody types a figure into docs/capacity.md: its tables are those of the stored measurements."""
    document = DOCUMENT.read_text()
    made = tables(systems)
    for name, table in made.items():
        assert rewritten(document, name, table) == document, f"{name}: run make capacity"


def test_a_missing_block_is_said() -> None:
    """A table that the document has no place for is not silently left out."""
    with pytest.raises(ValueError, match="has no block 'answers'"):
        rewritten("# Capacity", "answers", "|")


def test_a_worker_is_measured() -> None:
    """Three requests for ten messages, counted at the client; CPU and memory are those of a real process."""
    with running_stub() as stub:
        cost = in_process(environment(stub), worker, stub, 400)
    calls = ("DeleteMessageBatch", "ReceiveMessage", "SendMessageBatch")
    assert cost.requests == dict.fromkeys(calls, 1000 / DEPLOYED.batch)
    assert 0.01 < cost.cpu_seconds < 10
    assert 20 < cost.start_mib < 500
    assert "AWS_ENDPOINT_URL_SQS" not in os.environ
