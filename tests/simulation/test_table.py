"""docs/reliability.md says what the suite has counted, and explains every duplicate it knows of."""

from __future__ import annotations

from tests.simulation import store_faults
from tests.simulation.scenarios import VIRTUAL
from tests.simulation.table import (
    BEGIN,
    DOCUMENT,
    END,
    SCENARIOS,
    STORE_BEGIN,
    STORE_END,
    cells,
    line_of,
    rewritten,
    table,
)
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
        assert int(row["sent"].replace(",", "")) >= 100, row


def test_the_stores_table_counts_what_the_promise_is() -> None:
    """A row for each way the store is broken; at most a batch again for each break."""
    rows = cells(DOCUMENTED, begin=STORE_BEGIN, end=STORE_END)
    assert [row["fault"] for row in rows] == [each.fault for each in store_faults.SCENARIOS]
    for row in rows:
        assert (row["lost"], row["early"], row["otherwise wrong"]) == ("0", "0", "0"), row
        again, at_most = (
            int(row[name].replace(",", "")) for name in ("delivered again", "at most")
        )
        assert again <= at_most, row
        assert int(row["stored"].replace(",", "")) > 0, row


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
