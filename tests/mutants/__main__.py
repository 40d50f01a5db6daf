"""``python -m tests.mutants [MODULE or ROOM…]``: change the core bit by bit, and see what no test notices.

mutmut makes the changes and runs the tests that reach each (`make mutants`); pyproject.toml's
``[tool.mutmut]`` names the modules and the tests. The last lines say for each room how many mutants survived,
which, and how to look at one. More survivors than `LIMIT_PERCENT` in any of them end with exit code 1.

A mutant that means the same as the code, so that no test can notice, is listed in equivalent.toml
with the reason; it is shown, and not counted. An entry there that matches none fails, too.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Final

from tests.mutants.survivors import Survivor, read_equivalents, report, room_of

LIMIT_PERCENT: Final = 8
ROOT: Final = Path(__file__).parents[2]
WORK: Final = ROOT / "mutants"
LOG: Final = ROOT / "build" / "mutants.log"
MUTMUT: Final = str(Path(sys.executable).with_name("mutmut"))


def main(modules: list[str]) -> int:
    """Try all mutants, or those of some modules and rooms; the exit code."""
    shutil.rmtree(WORK, ignore_errors=True)  # mutmut would keep verdicts of tests that have changed
    patterns = [f"sqsdelay.*{name}.{rest}" for name in modules for rest in ("x*", "*.x*")]
    LOG.parent.mkdir(exist_ok=True)
    print(f"trying mutants, for all hours; progress in {LOG.relative_to(ROOT)}", flush=True)  # noqa: T201
    with LOG.open("w") as log:
        done = subprocess.run(
            [MUTMUT, "run", "--max-children", "2", *patterns],
            cwd=ROOT, stdout=log, stderr=subprocess.STDOUT, check=False,
        )  # fmt: skip
    if done.returncode:
        print(LOG.read_text()[-4000:], f"\nmutmut failed: see {LOG}")  # noqa: T201
        return 1
    tried, survivors, named = _results(modules)
    text, failed = report(
        survivors,
        tried=tried,
        equivalents=read_equivalents(),
        limit_percent=LIMIT_PERCENT,
        modules=named if modules else None,
    )
    print(text)  # noqa: T201
    return int(failed)


_NOTICED: Final = frozenset({1, 3, -24, 24, 36, 152, 255})
"""pytest's exit codes for a failed test or an error, and those of a test that never ended."""


def _results(modules: list[str]) -> tuple[Counter[str], list[Survivor], set[str]]:
    """How many mutants were tried of each room, those that no test noticed, and the modules."""
    from mutmut.mutation.diff_apply import find_mutant, get_diff_for_mutant

    tried, survivors, named = Counter[str](), list[Survivor](), set[str]()
    for meta in sorted(WORK.rglob("*.py.meta")):
        module = meta.name.removesuffix(".py.meta")
        if modules and not {module, meta.parent.name} & set(modules):
            continue
        named.add(module)
        for name, code in json.loads(meta.read_text())["exit_code_by_key"].items():
            tried[room_of(name)] += 1
            if code not in _NOTICED:
                diff = get_diff_for_mutant(name, path=find_mutant(name).path)
                survivors.append(Survivor.of(name, diff))
    return tried, survivors, named


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
