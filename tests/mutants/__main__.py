"""``python -m tests.mutants [MODULE or ROOM…]``: change the core bit by bit, and see what no test notices.

mutmut makes the changes, `SAMPLE` of them in each module (MUTANTS=n; 0 for all), always the same ones
(SEED=2: others, to judge tests that were sharpened by these), and runs the unit tests that name the room and
reach the change. pyproject.toml's ``[tool.mutmut]`` names the modules. The last lines say for each room how
many were tried and survived, and which. `LIMIT_PERCENT` or more in any of them end with exit code 1.

A mutant that means the same as the code, so that no test can notice, is listed in equivalent.toml
with the reason; it is shown, and not counted. An entry there that matches none fails, too, if all were tried.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from fnmatch import fnmatch
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

from tests.mutants.survivors import Survivor, read_equivalents, report, room_of

LIMIT_PERCENT: Final = 8
SAMPLE: Final = int(os.environ.get("MUTANTS", "25"))
SEED: Final = os.environ.get("SEED", "")
ROOT: Final = Path(__file__).parents[2]
WORK: Final = ROOT / "mutants"
LOG: Final = ROOT / "build" / "mutants.log"


def main(asked: list[str]) -> int:
    """Try mutants of all modules, or of some modules and rooms, a room at a time; the exit code."""
    import mutmut.configuration as mutmut

    tried, survivors, named = Counter[str](), list[Survivor](), set[str]()
    paths = {path for glob in mutmut.config().only_mutate for path in ROOT.glob(glob)}
    paths = {path for path in paths if not asked or {path.stem, path.parent.name} & set(asked)}
    LOG.parent.mkdir(exist_ok=True)
    for room in sorted({path.parent.name for path in paths}):
        modules = [str(path.relative_to(ROOT)) for path in paths if path.parent.name == room]
        # mutmut would keep verdicts of tests that have changed.
        shutil.rmtree(WORK, ignore_errors=True)
        _say(f"{room}: {SAMPLE or 'all'} a module; progress in {LOG.relative_to(ROOT)}")
        program = f"from tests.mutants.__main__ import attempt; attempt({room!r}, {modules!r})"
        with LOG.open("w") as log:
            command = [sys.executable, "-c", program]
            failed = subprocess.run(command, cwd=ROOT, stdout=log, stderr=log, check=False)
        if failed.returncode:
            _say(f"{LOG.read_text()[-4000:]}\nmutmut failed: see {LOG}")
            return 1
        _read_verdicts(tried, survivors, named)
    equivalents = read_equivalents()
    whole: Any = () if SAMPLE else named if asked else None
    limits: dict[str, Any] = {"limit_percent": LIMIT_PERCENT, "modules": whole}
    text, too_many = report(survivors, tried=tried, equivalents=equivalents, **limits)
    _say(text)
    return int(too_many)


def _say(text: str) -> None:
    print(text, flush=True)  # noqa: T201


def attempt(room: str, modules: list[str]) -> None:
    """Try a sample of the mutants of a room's modules, in a process of its own."""
    import mutmut.__main__ as mutmut

    config = mutmut.config()
    config.only_mutate = modules
    config.pytest_add_cli_args_test_selection = _tests_of(
        room, config.pytest_add_cli_args_test_selection
    )
    mutmut.makedirs(WORK, exist_ok=True)
    mutmut.copy_src_dir()
    mutmut.copy_also_copy_files()
    mutmut.setup_source_paths()
    mutmut.create_mutants(1)
    names: list[str] = []
    for meta in WORK.rglob("*.py.meta"):
        found = list(json.loads(meta.read_text())["exit_code_by_key"])
        # A CRC would put mutants 1, 5 and 9 of a function side by side.
        found.sort(key=lambda name: sha256(f"{SEED}{name}".encode()).digest())
        names += found[: SAMPLE or None]
    mutmut._run(names, 2)


def _tests_of(room: str, given: list[str]) -> list[str]:
    """pytest's arguments, of whose tests those that name the room."""
    options = [each for each in given if each.startswith("-")]
    paths = [ROOT / each for each in given if each not in options]
    files = [
        file for path in paths for file in (path.glob("test_*.py") if path.is_dir() else [path])
    ]
    # pytest does not ignore what it is told by name.
    ignored = [each.partition("=")[2] for each in options if each.startswith("--ignore-glob=")]
    files = [file for file in files if not any(fnmatch(str(file), glob) for glob in ignored)]
    named = f"sqsdelay.{room.removeprefix('sqsdelay')}"
    # What many tests share names the room for them.
    shared = [f for f in (ROOT / "tests" / "unit").glob("*_site.py") if named in f.read_text()]
    names = {named, *(f"tests.unit.{file.stem}" for file in shared)}
    chosen = [f for f in files if any(name in f.read_text() for name in names)]
    return [*(str(file.relative_to(ROOT)) for file in chosen), *options]


_NOTICED: Final = frozenset({1, 3, -24, 24, 36, 152, 255})
"""pytest's exit codes for a failed test or an error, and those of a test that never ended."""


def _read_verdicts(tried: Counter[str], survivors: list[Survivor], named: set[str]) -> None:
    """How many mutants were tried of each room, those that no test noticed, and the modules."""
    from mutmut.mutation.diff_apply import find_mutant, get_diff_for_mutant

    for meta in sorted(WORK.rglob("*.py.meta")):
        named.add(meta.name.removesuffix(".py.meta"))
        for name, code in json.loads(meta.read_text())["exit_code_by_key"].items():
            if code is None:
                continue  # Not in the sample.
            tried[room_of(name)] += 1
            if code not in _NOTICED:
                diff = get_diff_for_mutant(name, path=find_mutant(name).path)
                survivors.append(Survivor.of(name, diff))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
