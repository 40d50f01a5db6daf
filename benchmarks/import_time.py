"""What importing sqsdelay adds to the start of Python, in fresh processes that take turns.

The exit code is 1 if `import sqsdelay` adds 50 ms or more.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence

AIM_MS = 50
BARE = "pass"
OURS = "import sqsdelay"
PROGRAMS = (
    BARE,
    OURS,
    "from sqsdelay import Message",
    "import boto3",
    "from sqsdelay import DelaySender",
)
"""The last two are for comparison: a sender comes with boto3, which its user has to load anyway."""


def started_ms(program: str) -> float:
    """Milliseconds a process takes from its start to its end."""
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", program], check=True)
    return (time.perf_counter() - start) * 1000


def measure(rounds: int) -> list[Sequence[float]]:
    """For each program its times, after one round that fills the caches."""
    turns = [[started_ms(program) for program in PROGRAMS] for _ in range(rounds + 1)]
    return list(zip(*turns[1:], strict=True))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=21, help="rounds of each, taking turns")
    options = parser.parse_args()
    if options.rounds < 1:
        parser.error("use at least 1 round")
    times = measure(options.rounds)
    added = [
        statistics.median(own - bare for own, bare in zip(column, times[0], strict=True))
        for column in times
    ]
    print(f"python -c …, {options.rounds} rounds, medians")
    for program, column, more in zip(PROGRAMS, times, added, strict=True):
        print(f"  {program:<36}{statistics.median(column):>8.1f} ms{more:>+9.1f} ms")
    ours = added[PROGRAMS.index(OURS)]
    met = ours < AIM_MS
    print(f"{'ok' if met else 'FAILED':<7}{OURS} adds {ours:.1f} ms (aim < {AIM_MS})")
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
