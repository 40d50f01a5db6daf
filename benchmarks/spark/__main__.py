"""The Spark jobs, measured: ``sink`` against plain boto3, ``throttled`` too, ``wheel`` against a
plain write, ``report`` beside DuckDB.

``python -m benchmarks.spark`` runs all; name one to run it alone, with options of its own. Each has a
process of its own: Spark starts once in one.
"""

from __future__ import annotations

import subprocess
import sys

PARTS = ("sink", "throttled", "wheel", "report")


def run(part: str, *options: str) -> int:
    program = [sys.executable, "-m", f"benchmarks.spark.{part}"]
    return subprocess.run([*program, *options], check=False).returncode


def main(arguments: list[str]) -> int:
    if not arguments:
        return max(run(part) for part in PARTS)
    if arguments[0] not in PARTS:
        sys.exit(f"usage: python -m benchmarks.spark [{'|'.join(PARTS)} [OPTIONS]]")
    return run(*arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
