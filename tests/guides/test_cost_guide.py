"""docs/cost.md does what it says."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from benchmarks import cost_by_delay
from benchmarks.support.blocks import rewritten
from sqsdelay.cli import app
from sqsdelay.cost import Workload, break_even_seconds, shipped_prices
from sqsdelay.cost.strategies import IDLE_READ_UNITS, ITEM_BYTES, write_units
from sqsdelay.cost.workload import DELAY_ATTRIBUTES_BYTES, DISPATCH_MS, FUNCTION_MS, LAMBDA_POLLERS
from sqsdelay.limits import DELAY_CONSUMER_MEMORY_MB, DISPATCHER_MEMORY_MB, SCHEDULE_SECONDS

GUIDE = (Path(__file__).parents[2] / "docs/cost.md").read_text()
PRICES = shipped_prices()


def test_its_commands_run_and_print_its_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every console block, in order; the first prints the table shown below it."""
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```console\n(.*?)```", GUIDE, re.DOTALL)
    commands = [line for block in blocks for line in block.splitlines() if "sqsdelay" in line]
    assert len(commands) == 3
    for number, command in enumerate(commands):
        _, *arguments = shlex.split(command)
        target = arguments[arguments.index(">") + 1] if ">" in arguments else None
        if target is not None:
            arguments = arguments[: arguments.index(">")]
        done = CliRunner().invoke(app, arguments)
        assert done.exit_code == 0, done.output
        if target is not None:
            Path(target).write_text(done.stdout)
        if number == 0:
            printed = [line.rstrip() for line in done.stdout.splitlines()]
            assert "\n".join(printed) in GUIDE


def test_its_break_even_table_is_the_codes() -> None:
    """Hours by message size, one at a time and in tens."""
    rows = re.findall(r"^\| (\d+) (bytes|KiB) \| ([\d.]+) h \| ([\d.]+) h \|$", GUIDE, re.M)
    assert len(rows) == 4
    for size, unit, alone, in_tens in rows:
        message_bytes = int(size) * (1024 if unit == "KiB" else 1)
        for batch, hours in ((1, alone), (10, in_tens)):
            seconds = break_even_seconds(PRICES, message_bytes=message_bytes, batch=batch)
            assert seconds / 3600 == float(hours)


def test_its_tables_by_delay_are_the_scripts() -> None:
    """Nobody types them, and the prices that are shipped are the ones they are made with."""
    for name, made in cost_by_delay.tables(PRICES).items():
        told = rewritten(GUIDE, cost_by_delay.SCRIPT, name, made)
        assert told == GUIDE, f"{name}: run python -m benchmarks.cost_by_delay"


def test_its_numbers_are_the_codes() -> None:
    """Sizes and assumptions stand once in the code; the guide repeats them."""
    words = {5: "five"}
    for text in (
        f"the {DELAY_ATTRIBUTES_BYTES} bytes that the delay adds",
        f"an item has {ITEM_BYTES} bytes besides",
        f"{DELAY_CONSUMER_MEMORY_MB} MB (arm64) for {FUNCTION_MS} ms",
        f"{DISPATCHER_MEMORY_MB:,} MB for {FUNCTION_MS} ms a run",
        f"and {DISPATCH_MS} ms for each message",
        f"keeps {words[LAMBDA_POLLERS]} long polls",
        f"every {SCHEDULE_SECONDS} s, and reads {IDLE_READ_UNITS} units",
        f"read on {PRICES.read_on}",
    ):
        assert text in " ".join(GUIDE.split()), text
    units = {
        size: write_units(Workload(delay_seconds=1, message_bytes=size)) for size in (964, 1988)
    }
    assert units == {964: 1, 1988: 2}
