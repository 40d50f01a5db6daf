"""How many delayed messages one endpoint holds, and how many of them due at once: measured, then simulated.

Without options: simulates from the stored measurements and rewrites the figures of docs/capacity.md,
the same each time. ``--measure`` measures anew on this machine first.
"""

from __future__ import annotations

import argparse
import json
import sys
from datetime import UTC, datetime

from benchmarks.capacity.document import DOCS, DOCUMENT, rewritten
from benchmarks.capacity.figures import MEASURED_FILE, Measured


def measured_anew(messages: int, *, checks_only: bool) -> None:
    """Measure on this machine and store it, or only the runs that the simulation is compared with."""
    from benchmarks.capacity.checks import check
    from benchmarks.capacity.measurement import measure, stored

    if checks_only:
        kept = json.loads(MEASURED_FILE.read_text())
    else:
        kept = stored(measure(messages), today=datetime.now(UTC).date().isoformat())
    kept["checks"] = check()
    MEASURED_FILE.write_text(json.dumps(kept, indent=2) + "\n")


def rewrite() -> None:
    """Simulate, and write the document's tables and plots."""
    # Not above: the processes that are measured import this file too, and need none of it.
    from benchmarks.capacity.plots import draw
    from benchmarks.capacity.systems import Systems
    from benchmarks.capacity.tables import tables

    systems = Systems(Measured.load())
    document = DOCUMENT.read_text()
    for name, made in tables(systems).items():
        document = rewritten(document, name, made)
        print(f"{made}\n")
    DOCUMENT.write_text(document)
    draw(systems, DOCS)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.capacity", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--measure", action="store_true", help="measure anew, and store it")
    parser.add_argument("--check", action="store_true", help="only the real runs to compare with")
    parser.add_argument("--messages", type=int, default=2000, help="messages to measure with")
    options = parser.parse_args()
    if options.messages < 400 or options.messages % 40:
        parser.error("use a multiple of 40, at least 400: whole batches of each kind")
    if options.measure or options.check:
        measured_anew(options.messages, checks_only=not options.measure)
    rewrite()
    return 0


if __name__ == "__main__":
    sys.exit(main())
