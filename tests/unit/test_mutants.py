"""What a mutation run says in its last lines, and what it counts."""

from __future__ import annotations

import tomllib
from pathlib import Path

from tests.mutants.survivors import Survivor, read_equivalents, report

ROOT = Path(__file__).parents[2]
DIFF = """--- sqsdelay/core/delay.py
+++ sqsdelay/core/delay.py
@@ -1,3 +1,3 @@
 def delay_ms(delay: Delay) -> int:
-    if delay > 0:
+    if delay >= 0:
         return 1
"""
ONE = Survivor.of("sqsdelay.core.delay.x_delay_ms__mutmut_7", DIFF)


def test_every_module_of_the_core_is_mutated() -> None:
    """A module that joins the core joins pyproject.toml's list."""
    config = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["mutmut"]
    named = {path for pattern in config["only_mutate"] for path in ROOT.glob(pattern)}
    assert named >= set((ROOT / "sqsdelay" / "core").glob("*.py"))


def test_a_survivor_is_known_by_what_it_changes() -> None:
    """mutmut's numbers move with every new line; function and change stay."""
    assert (ONE.where, ONE.change) == ("delay.delay_ms", "- if delay > 0:\n+ if delay >= 0:")
    method = Survivor.of("sqsdelay.core.clock.xǁBrokerClockǁnow_ms__mutmut_1", DIFF)
    assert method.where == "clock.BrokerClock.now_ms"


def test_too_many_survivors_fail_and_are_shown() -> None:
    """How many, which, and how to look at one, in the last lines."""
    text, failed = report([ONE], tried=10, equivalents={}, limit_percent=8)
    assert failed
    assert text.splitlines() == [
        "survives: sqsdelay.core.delay.x_delay_ms__mutmut_7",
        "    - if delay > 0:",
        "    + if delay >= 0:",
        "1 of 10 mutants survive: 10.0 %, which is not below 8 % (0 more mean the same)",
        "look at one: .venv/bin/mutmut show sqsdelay.core.delay.x_delay_ms__mutmut_7",
    ]


def test_a_mutant_that_means_the_same_is_told_but_not_counted() -> None:
    """With its reason."""
    same = {("delay.delay_ms", "if delay >= 0:"): "0 ends elsewhere"}
    text, failed = report([ONE], tried=10, equivalents=same, limit_percent=8)
    assert not failed
    assert text.splitlines()[:2] == [
        "the same: sqsdelay.core.delay.x_delay_ms__mutmut_7: 0 ends elsewhere",
        "0 of 10 mutants survive: 0.0 %, which is below 8 % (1 more mean the same)",
    ]


def test_nothing_tried_is_a_failure() -> None:
    """A run that found no mutant has proven nothing."""
    assert report([], tried=0, equivalents={}, limit_percent=8)[1]


def test_each_equivalent_mutant_has_its_reason() -> None:
    """Listed, not papered over."""
    assert all(len(why) > 20 for why in read_equivalents().values())
