"""Run the demo and write what it prints as the README's picture, docs/images/demo.svg."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from rich.console import Console
from rich.text import Text

PICTURE = Path(__file__).resolve().parent.parent / "docs" / "images" / "demo.svg"
HEAD, TAIL = 15, 8
"""Lines of the table that are shown, from its beginning and its end."""


def main() -> int:
    demo = subprocess.run(
        [sys.executable, "-c", "from sqsdelay.cli import main; main()", "demo"],
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    lines = demo.stdout.splitlines()
    shown = [*lines[:HEAD], f"  … {len(lines) - HEAD - TAIL} more", *lines[-TAIL:]]
    console = Console(record=True, width=max(map(len, shown)), file=sys.stderr)
    for line in ["$ make demo", demo.stderr.strip(), *shown]:
        console.print(Text(line))
    svg = console.export_svg(title="make demo", unique_id="demo")
    # Rich names a font on a server: pictures are read offline, too.
    PICTURE.write_text(re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL))
    print(f"{PICTURE.name}: {lines[-1]}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
