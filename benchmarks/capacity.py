"""How many delayed messages one endpoint holds, and how many of them due at once: measured, then simulated.

Without options: simulates from the stored measurements and rewrites the figures of docs/capacity.md,
the same each time. ``--measure`` measures anew on this machine first.
"""

from __future__ import annotations

import argparse
import json
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

sys.path.append(str(Path(__file__).parents[1]))

from capacity_figures import MEASURED_FILE, Measured

DOCS: Final = Path(__file__).parents[1] / "docs"
DOCUMENT: Final = DOCS / "capacity.md"
BEGIN: Final = "<!-- made by benchmarks/capacity.py: begin {} -->"
END: Final = "<!-- made by benchmarks/capacity.py: end {} -->"


def rewritten(document: str, name: str, made: str) -> str:
    """The document with another block of that name.

    Raises:
        ValueError: the document has no such block.
    """
    begin, end = BEGIN.format(name), END.format(name)
    before, found, rest = document.partition(begin)
    _, closed, after = rest.partition(end)
    if not found or not closed:
        raise ValueError(f"docs/capacity.md has no block {name!r}; add {begin} and {end}")
    return f"{before}{begin}\n\n{made}\n\n{end}{after}"


def measured_anew(messages: int, *, checks_only: bool) -> None:
    """Measure on this machine and store it, or only the runs that the simulation is compared with."""
    from capacity_checks import check
    from capacity_measurement import measure, stored

    if checks_only:
        kept = json.loads(MEASURED_FILE.read_text())
    else:
        kept = stored(measure(messages), today=datetime.now(UTC).date().isoformat())
    kept["checks"] = check()
    MEASURED_FILE.write_text(json.dumps(kept, indent=2) + "\n")


def rewrite() -> None:
    """Simulate, and write the document's tables and plots."""
    # Not above: the processes that are measured import this file too, and need none of it.
    from capacity_plots import draw
    from capacity_systems import Systems
    from capacity_tables import tables

    systems = Systems(Measured.load())
    document = DOCUMENT.read_text()
    for name, made in tables(systems).items():
        document = rewritten(document, name, made)
        print(f"{made}\n")
    DOCUMENT.write_text(document)
    draw(systems, DOCS)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
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
