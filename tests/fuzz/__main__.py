"""``python -m tests.fuzz SECONDS [TARGET…]``: the coverage-guided fuzzer, target by target (`make fuzz`).

It begins with the corpus, and adds to it the last inputs that reached new code. An input that
breaks a promise ends the run and is left in ``tests/fuzz/found``: mend the bug, and move the input into
the corpus.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from tests.fuzz.targets import TARGETS

CORPUS = Path(__file__).with_name("corpus")
FOUND = Path(__file__).with_name("found")
KEPT = 3
"""Inputs that one run adds to a target's corpus at most."""

LONGEST = 2000
"""Bytes of an input that is made up."""


def explore(target: str, seconds: int) -> None:
    """Fuzz one target for so long, and keep what is worth keeping."""
    corpus = CORPUS / target
    FOUND.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as made:
        _fuzzer(
            target,
            f"-max_total_time={seconds}",
            f"-max_len={LONGEST}",
            "-timeout=10",
            f"-artifact_prefix={FOUND}/{target}-",
            made,
            str(corpus),
        )
        # The last ones took longest to find: they reach what nothing before them did.
        newest = sorted(Path(made).iterdir(), key=lambda path: path.stat().st_mtime_ns)[-KEPT:]
        for path in newest:
            (corpus / path.name[:12]).write_bytes(path.read_bytes())
    FOUND.rmdir()


def _fuzzer(target: str, *options: str) -> None:
    command = [sys.executable, "-m", "tests.fuzz.fuzzer", target, *options]
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        sys.exit(f"{done.stderr[-4000:]}\n{target}: see {FOUND}")
    told = [line for line in done.stderr.splitlines() if "cov:" in line or line.startswith("Done")]
    print(target, *told[-2:], sep="\n  ", flush=True)  # noqa: T201


if __name__ == "__main__":
    for each in sys.argv[2:] or TARGETS:
        explore(each, int(sys.argv[1]))
