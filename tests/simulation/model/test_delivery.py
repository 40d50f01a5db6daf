"""Whatever breaks, in whatever order: nothing lost, nothing early, nothing delivered that was cancelled."""

from __future__ import annotations

import re
import uuid

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RULE_MARKER, run_state_machine_as_test

from sqsdelay.core import delay as decision
from sqsdelay.core import outgoing
from sqsdelay.core.delay import utc
from sqsdelay.core.received_message import DelayedMessage
from sqsdelay.ledger.events import EventKind
from sqsdelay.parking.parking import Parking
from sqsdelay.relaying import relay as consumer
from sqsdelay.relaying.outcomes import Outcome, Status
from sqsdelay.sqs import outbox
from sqsdelay.stores.sql import SqlClaim
from sqsdelay.testing import InMemoryStore, ManualClock
from tests.simulation.model import world
from tests.simulation.model.machine import DeliveryMachine
from tests.simulation.model.world import MOVES, STATES, World


class InMemory(DeliveryMachine):
    endpoint = "orders"

    def make_store(self, clock: ManualClock) -> InMemoryStore:
        return InMemoryStore(clock)


class InMemoryFifo(InMemory):
    endpoint = "orders.fifo"


def explore(machine: type[DeliveryMachine], examples: int, **changes: object) -> None:
    """So many runs of up to 40 steps, or as many times fewer or more as the profile runs of the usual 100."""
    count = examples * settings().max_examples // 100
    chosen = settings(max_examples=count, stateful_step_count=40, **changes)  # type: ignore[arg-type]
    run_state_machine_as_test(machine, settings=chosen)


def first_found(machine: type[DeliveryMachine]) -> None:
    """As many runs as it takes to find something wrong; the rarest needs some hundreds."""
    explore(
        machine,
        5000,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
        report_multiple_bugs=False,
        database=None,
    )


@pytest.mark.parametrize(("machine", "examples"), [(InMemory, 200), (InMemoryFifo, 120)])
def test_every_promise_holds(machine: type[DeliveryMachine], examples: int) -> None:
    """At least once, never early, on time, intact, once unless something broke, never once cancelled."""
    explore(machine, examples)


def early(due_ms: int, now_ms: int) -> int:
    return max(0, (due_ms - now_ms) // 1000)


BUGS = {
    "seconds rounded down at a hop": (decision, "seconds_until", early),
    "seconds rounded down at a release": (outbox, "seconds_until", early),
    "a requeued copy is another message": (
        outgoing, "hop_deduplication_id", lambda *_: f"hop.{uuid.uuid4()}"
    ),
    "a delay counted anew at every hop": (
        consumer.Relay,
        "_read",
        lambda self, copy: DelayedMessage(copy.message_id, copy.sent_ms + 5_000_000),
    ),
    "a cancellation that leaves no amendment": (InMemoryStore, "amend", lambda *_: None),
    "what was released stays in the store": (
        SqlClaim, "remove", lambda self, ids: [True] * len(ids)
    ),
    "what fails to be sent is taken for sent": (
        consumer.Relay, "_failed", lambda self, copy, *_: Outcome(copy, Status.REQUEUED)
    ),
}  # fmt: skip


LATE_FOUND = {
    "seconds rounded down at a release",
    "a requeued copy is another message",
    "what was released stays in the store",
    "what fails to be sent is taken for sent",
}


@pytest.mark.parametrize(
    "bug",
    [pytest.param(bug, marks=[pytest.mark.nightly] if bug in LATE_FOUND else []) for bug in BUGS],
)
def test_planted_bugs_are_found(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model that finds nothing must have been able to find something."""
    monkeypatch.setattr(*BUGS[bug])
    with pytest.raises(AssertionError):
        first_found(InMemory)


def wrong_in_any_interleaving() -> list[str]:
    """A message is cancelled, or moved, between each two calls of who parks it and who releases it."""
    wrong = []
    for calls in range(8):
        for moved in (None, 90_000):
            world = World("orders", InMemoryStore, park_after_seconds=1000, error_ms=0)
            due_at = None if moved is None else utc(world.clock.true_ms + moved * 1000)
            world.send("m", "x", None, 5000.0, parks=False)
            world.clock.advance(900)
            world.meanwhile("m", due_at, after_calls=calls)
            world.relay(0)
            world.clock.advance(3500)
            world.meanwhile("m", due_at, after_calls=calls)
            world.dispatch(0)
            world.drain()
            world.judge_end()
            world.close()
            wrong += world.wrong
    return wrong


def test_a_change_at_any_moment_of_a_consumers_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """It counts, or says that it is too late; a consumer that read no amendments after parking would fail."""
    assert wrong_in_any_interleaving() == []
    monkeypatch.setattr(Parking, "_apply_amendments", lambda *_: {})
    assert "m was to be cancelled, and is parked all the same" in wrong_in_any_interleaving()


@settings(max_examples=settings().max_examples * 3 // 5)
@given(
    st.lists(
        st.tuples(st.integers(1, 4_000), st.sampled_from("ab"), st.booleans()),
        min_size=2,
        max_size=12,
        unique_by=lambda message: message[0] // 3,
    )
)
def test_a_group_keeps_the_order_of_its_due_times(messages: list[tuple[int, str, bool]]) -> None:
    """On a FIFO endpoint whose consumer keeps up, for due times two seconds and more apart."""
    world = World("orders.fifo", InMemoryStore, park_after_seconds=1500, error_ms=0)
    for position, (seconds, group, exact) in enumerate(messages):
        due_seconds = seconds // 3 * 3 + (1 if exact else 0.5)
        world.send(f"m-{position}", "x", group, due_seconds, parks=True)
    world.drain()
    world.close()
    assert not world.wrong
    delivered = [promise for promise in world.arrived if promise.group_id == "a"]
    assert [p.message_id for p in delivered] == [
        p.message_id for p in sorted(delivered, key=lambda promise: min(promise.dues))
    ]
    assert len(world.arrived) == len(messages)


# docs/how-it-works.md is the specification: its moves, rules and events are the model's and the code's.


def test_the_page_has_every_rule_of_the_model() -> None:
    """A rule that is added, renamed or taken away changes the page."""
    rules = {n for n, each in vars(DeliveryMachine).items() if hasattr(each, RULE_MARKER)}
    cells = [row.split("|")[4] for row in STATES.splitlines() if row.startswith("| `")]
    besides = STATES.partition("## The model")[2]
    assert set(re.findall(r"`([a-z_]+)`", " ".join(cells) + besides)) == rules


def test_the_page_has_every_transition() -> None:
    """An event is a message that moved: each has its row."""
    assert set(re.findall(r"^\| `([a-z-]+)` \|", STATES, re.MULTILINE)) == set(EventKind)


PLAYED = {
    (before, to)
    for before, to in MOVES
    if before != to or before == "hopping"
    if {before, to} <= {"new", "hopping", "parked", "due queue", "destination"}
}
"""The parking queue, the error queue and receivers are not in this model."""


@pytest.mark.parametrize("move", sorted(PLAYED))
def test_the_model_holds_the_code_to_each_move(
    move: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without its place in the table, the code's own move is found."""
    monkeypatch.setattr(world, "MOVES", MOVES - {move})
    with pytest.raises(AssertionError, match=f"was .*{move[0]}.* and is {move[1]}: not in"):
        first_found(InMemoryFifo if "due queue" in move else InMemory)
