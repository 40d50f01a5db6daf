"""Every input the fuzzer found interesting, and every one written by hand, tried again without it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fuzz.targets import TARGETS

CORPUS = Path(__file__).with_name("corpus")


@pytest.mark.parametrize("target", TARGETS)
def test_hostile_input_breaks_nothing(target: str) -> None:
    """No crash, no hang, nothing delivered that should be rejected, no password shown."""
    inputs = sorted((CORPUS / target).iterdir())
    assert len(inputs) > 5
    for path in inputs:
        try:
            TARGETS[target](path.read_bytes())
        except BaseException as error:
            error.add_note(f"the input is {path.name}")
            raise


def test_every_input_has_its_target() -> None:
    """A folder of another name would never be tried."""
    assert {path.name for path in CORPUS.iterdir()} == set(TARGETS)
