"""docs/reliability.md says what the suite has counted, and explains every duplicate it knows of."""

from __future__ import annotations

import re

from tests.simulation.scenarios import VIRTUAL
from tests.simulation.table import BEGIN, DOCUMENT, END, GROUPS, rewritten, tables, told
from tests.simulation.tally import Cause, Tally

DOCUMENTED = DOCUMENT.read_text()
ROWS = re.findall(r"^\| (.+?) \| ([\d,]+) \| ([\d,]+) \| ([\d,]+) \|$", told(DOCUMENTED), re.M)


def test_each_fault_has_its_row() -> None:
    """A fault that is added or taken away changes the tables: `make faults`."""
    faults = [list(dict.fromkeys(s.fault for s in group)) for group in GROUPS.values()]
    assert [row[0] for row in ROWS] == [fault for group in faults for fault in group]


def test_nothing_was_lost_early_or_altered() -> None:
    """In all rows together; and in each there was something to lose."""
    assert "lost 0, early 0, altered 0, " in told(DOCUMENTED)
    sent = [int(row[1].replace(",", "")) for row in ROWS]
    assert min(sent) >= 100
    assert f"In all: {sum(sent):,} messages sent, " in told(DOCUMENTED)


def test_every_cause_is_explained() -> None:
    """Each cause of a duplicate has its own line outside the tables."""
    prose = DOCUMENTED.partition(BEGIN)[0] + DOCUMENTED.partition(END)[2]
    assert [cause for cause in Cause if f"**{cause}**" not in prose] == []


def test_rewriting_replaces_the_tables_alone() -> None:
    """What people wrote around them stays. Scenarios of one fault are one row."""
    counted = Tally(sent=1234, unknown=0, hops=9, injected=2, duplicated=1)
    counted.causes[Cause.DIED] += 1
    made = rewritten(DOCUMENTED, tables([(VIRTUAL[0], counted), (VIRTUAL[0], counted)]))
    assert f"| {VIRTUAL[0].fault} | 2,468 | 4 | 2 |\n\nIn all: 2,468 messages sent, " in told(made)
    assert (
        f"lost 0, early 0, altered 0, error queue 0, duplicated 2. Causes: {Cause.DIED} 2." in made
    )
    assert made.partition(BEGIN)[0] == DOCUMENTED.partition(BEGIN)[0]
    assert made.partition(END)[2] == DOCUMENTED.partition(END)[2]
