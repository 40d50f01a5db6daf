"""docs/reliability.md says what the suite has counted, and explains every duplicate it knows of."""

from __future__ import annotations

from tests.simulation.scenarios import VIRTUAL
from tests.simulation.table import BEGIN, DOCUMENT, END, SCENARIOS, cells, line_of, rewritten, table
from tests.simulation.tally import Cause, Tally

DOCUMENTED = DOCUMENT.read_text()
ROWS = cells(DOCUMENTED)


def test_each_scenario_has_its_row() -> None:
    """A fault that is added or taken away changes the table: `make faults`."""
    told = [(row["fault"], row["time"], row["consumers"]) for row in ROWS]
    assert told == [(s.fault, s.time, s.consumers) for s in SCENARIOS]


def test_nothing_was_lost_early_or_altered() -> None:
    """In every row; and there was something to lose."""
    for row in ROWS:
        assert (row["lost"], row["early"], row["altered"]) == ("0", "0", "0"), row
        least = 1 if "DynamoDB" in row["consumers"] else 100
        assert int(row["sent"].replace(",", "")) >= least, row


def test_every_cause_is_explained() -> None:
    """Each cause of a duplicate has its own paragraph or line outside the table."""
    prose = DOCUMENTED.partition(BEGIN)[0] + DOCUMENTED.partition(END)[2]
    assert [cause for cause in Cause if f"**{cause}**" not in prose] == []


def test_rewriting_replaces_the_table_alone() -> None:
    """What people wrote around it stays."""
    counted = Tally(sent=1234, unknown=0, hops=9, injected=2, duplicated=1)
    counted.causes[Cause.DIED] += 1
    made = rewritten(DOCUMENTED, table([line_of(VIRTUAL[0], counted)]))
    (row,) = cells(made)
    assert (row["sent"], row["lost"], row["why"]) == ("1,234", "0", f"{Cause.DIED} 1")
    assert "In all: 1,234 messages sent, 9 hops, 2 faults; lost 0, early 0, altered 0" in made
    assert made.partition(BEGIN)[0] == DOCUMENTED.partition(BEGIN)[0]
    assert made.partition(END)[2] == DOCUMENTED.partition(END)[2]
