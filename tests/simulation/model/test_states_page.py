"""docs/how-it-works.md is the specification: its moves, rules and events are the model's and the code's."""

from __future__ import annotations

import re

import pytest
from hypothesis.stateful import RULE_MARKER

from sqsdelay.ledger.events import EventKind
from tests.simulation.model import world
from tests.simulation.model.machine import DeliveryMachine
from tests.simulation.model.test_delivery import InMemory, InMemoryFifo, first_found
from tests.simulation.model.world import MOVES, STATES


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
