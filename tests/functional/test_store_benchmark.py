"""The store benchmark runs, on a server of one's own too. Speed is never asserted."""

from __future__ import annotations

import os
import subprocess
import sys

from tests.patience import PATIENCE_SECONDS
from tests.services.postgres import VARIABLE
from tests.services.processes import ROOT


def test_it_runs_and_judges_every_aim(postgres: str) -> None:
    """Each comparison is made, and each aim is called met or missed; the exit code agrees."""
    small = "--rounds 1 --rows 200 --slow-rows 40 --single 20 --pending 10100 --flat-rows 50"
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
    assert len(verdicts) == 8
    assert set(verdicts) <= {"ok", "FAILED"}
    assert (done.returncode == 1) == ("FAILED" in verdicts)
