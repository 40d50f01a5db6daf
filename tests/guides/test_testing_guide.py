"""docs/testing.md as a user has it: a test file of their own, run by pytest."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from tests.guides.page import ROOT
from tests.patience import PATIENCE_SECONDS

NAMES = re.compile(r"^def (test_\w+)", re.MULTILINE)


def test_the_guides_tests_pass(tmp_path: Path) -> None:
    """Every block, as written, in one file: pytest knows the fixture."""
    text = (ROOT / "docs" / "testing.md").read_text()
    tests = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    (tmp_path / "test_reminders.py").write_text("\n".join(tests))
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-v", "-p", "no:cacheprovider", "-W", "error", "."],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
    )
    assert done.returncode == 0, done.stdout
    names = NAMES.findall("\n".join(tests))
    assert len(names) == 4
    for name in names:
        assert f"{name} PASSED" in done.stdout
