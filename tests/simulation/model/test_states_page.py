"""docs/how-it-works.md names the model's rules and the events that are recorded, and no others."""

from __future__ import annotations

import re
from pathlib import Path

from hypothesis.stateful import RULE_MARKER

from sqsdelay.ledger.events import EventKind
from tests.simulation.model.machine import DeliveryMachine

PAGE = (
    (Path(__file__).parents[3] / "docs/how-it-works.md").read_text().partition("## The states")[2]
)


def test_the_page_has_every_rule_of_the_model() -> None:
    """A rule that is added, renamed or taken away changes the page."""
    rules = {n for n, each in vars(DeliveryMachine).items() if hasattr(each, RULE_MARKER)}
    cells = [row.split("|")[4] for row in PAGE.splitlines() if row.startswith("| `")]
    besides = PAGE.partition("## The model")[2]
    assert set(re.findall(r"`([a-z_]+)`", " ".join(cells) + besides)) == rules


def test_the_page_has_every_transition() -> None:
    """An event is a message that moved: each has its row."""
    assert set(re.findall(r"^\| `([a-z-]+)` \|", PAGE, re.MULTILINE)) == set(EventKind)
