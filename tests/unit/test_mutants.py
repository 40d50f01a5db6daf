"""What a mutation run says in its last lines, and what it counts."""

from __future__ import annotations

import ast
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
    """A module that joins the core, or a room where messages can be lost, joins pyproject.toml's list."""
    config = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["mutmut"]
    named = {path for pattern in config["only_mutate"] for path in ROOT.glob(pattern)}
    for room in ("core", "relaying", "sending", "parking", "dispatching", "receiving"):
        assert named >= set((ROOT / "sqsdelay" / room).glob("*.py"))


def test_a_survivor_is_known_by_what_it_changes() -> None:
    """mutmut's numbers move with every new line; function and change stay."""
    assert (ONE.where, ONE.change) == ("delay.delay_ms", "- if delay > 0:\n+ if delay >= 0:")
    method = Survivor.of("sqsdelay.core.delay.xǁBrokerClockǁnow_ms__mutmut_1", DIFF)
    assert method.where == "delay.BrokerClock.now_ms"


def test_too_many_survivors_fail_and_are_shown() -> None:
    """How many, which, and how to look at one, in the last lines. A well-proven room does not stand in for
    another, and a run that found no mutant has proven nothing."""
    tried = {"core": 10, "sending": 90}
    text, failed = report([ONE], tried=tried, equivalents={}, limit_percent=8)
    assert failed
    assert report([], tried={}, equivalents={}, limit_percent=8)[1]
    assert text.splitlines() == [
        "survives: sqsdelay.core.delay.x_delay_ms__mutmut_7",
        "    - if delay > 0:",
        "    + if delay >= 0:",
        "core: 1 of 10 mutants survive: 10.0 %, which is not below 8 % (0 more mean the same)",
        "sending: 0 of 90 mutants survive: 0.0 %, which is below 8 % (0 more mean the same)",
        "look at one: .venv/bin/mutmut show sqsdelay.core.delay.x_delay_ms__mutmut_7",
    ]


def test_a_mutant_that_means_the_same_is_told_but_not_counted() -> None:
    """With its reason."""
    same = {("delay.delay_ms", "if delay >= 0:"): "0 ends elsewhere"}
    text, failed = report([ONE], tried={"core": 10}, equivalents=same, limit_percent=8)
    assert not failed
    assert text.splitlines()[:2] == [
        "the same: sqsdelay.core.delay.x_delay_ms__mutmut_7: 0 ends elsewhere",
        "core: 0 of 10 mutants survive: 0.0 %, which is below 8 % (1 more mean the same)",
    ]


def test_an_equivalent_that_matches_nothing_fails() -> None:
    """Its code has changed, or a test notices it after all. A module that was not tried tells nothing."""
    same = {("delay.delay_ms", "if delay >= 1:"): "0 ends elsewhere"}
    for modules, stale in ((["delay"], True), (None, True), (["fifo"], False)):
        text, failed = report(
            [], tried={"core": 10}, equivalents=same, limit_percent=8, modules=modules
        )
        assert failed is stale
        told = "matches no survivor, take it out: delay.delay_ms: if delay >= 1:"
        assert (told in text) is stale


def test_a_zip_that_is_less_strict_means_the_same() -> None:
    """Of lists of one length it does what it did; any other change counts."""
    one = DIFF.replace("if delay > 0:", "for a, b in zip(x, y, strict=True):")
    for becomes, same in (
        ("for a, b in zip(x, y, strict=False):", True),
        ("for a, b in zip(x, y, ):", True),
        ("for a, b in zip(x, strict=True):", False),
    ):
        survivor = Survivor.of("delay.x_ms__mutmut_1", one.replace("if delay >= 0:", becomes))
        assert survivor.is_less_strict is same


def test_each_equivalent_mutant_has_its_reason() -> None:
    """Listed, not papered over; and its function is there."""
    config = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["mutmut"]
    there: set[str] = set()
    for path in {path for pattern in config["only_mutate"] for path in ROOT.glob(pattern)}:
        for node in ast.walk(ast.parse(path.read_text())):
            functions = node.body if isinstance(node, ast.ClassDef) else [node]
            owner = f"{node.name}." if isinstance(node, ast.ClassDef) else ""
            there |= {
                f"{path.stem}.{owner}{function.name}"
                for function in functions
                if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
            }
    assert all(len(why) > 20 for why in read_equivalents().values())
    assert {where for where, _ in read_equivalents()} <= there
