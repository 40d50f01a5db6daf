"""Every command and every line of Python in README and the documentation runs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import pytest

from tests.guides.covered_elsewhere import ELSEWHERE, WHOLE_PAGES, elsewhere
from tests.guides.page import ROOT, blocks, pages, runnable
from tests.guides.preconditions import AFTER, BEFORE, read
from tests.guides.reader import Reader

LANGUAGES = {"", "bash", "console", "erlang", "hcl", "json", "python"}
TYPED = [page for page in pages() if runnable(page) and page not in WHOLE_PAGES]
COMMAND = re.compile(r"(\$ )?(\.venv/bin/)?(sqsdelay|make|pip|npx|python (?!-c)|export|aws|git)\b")


@pytest.mark.parametrize("page", TYPED)
def test_each_block_of_a_page_runs(
    page: str, reader: Reader, request: pytest.FixtureRequest
) -> None:
    """From top to bottom, as a reader would type it; a command ends with 0, Python gives what it says."""
    read(runnable(page), reader, request)


def test_no_command_hides_in_a_block_that_is_not_run() -> None:
    """A fence with commands names its language; the others hold drawings, output and JSON."""
    for page in sorted(set(pages()) - set(WHOLE_PAGES)):
        for block in blocks(page):
            assert block.language in LANGUAGES, f"{page}: {block.language}"
            if block.language == "":
                found = [line for line in block.text.splitlines() if COMMAND.match(line)]
                assert found == [], f"{page}: name the language of the block with {found[0]!r}"


def test_no_blank_line_splits_a_table() -> None:
    """What follows it would be shown as text with bars, not as rows."""
    split = re.compile(r"^(\|.*)\n\n\|.*\n(?!\|[ :|-]+\|$)", re.MULTILINE)
    for page in pages():
        assert (page, split.findall((ROOT / page).read_text())) == (page, [])


LOOKED_UP: Final = {"fields": "every field of the ledger, column of the report and option of Spark"}
"""Pages that are looked up, not read from top to bottom, and what in them."""


def test_no_page_that_is_read_is_long() -> None:
    """It has 1,500 words at most."""
    long = {Path(page).stem for page in pages() if len((ROOT / page).read_text().split()) > 1_500}
    assert long <= set(LOOKED_UP)


def test_the_shelves_have_room_for_thirty_pages() -> None:
    """More, and nothing is found on them."""
    shelves = (ROOT / "mkdocs.yml").read_text().partition("\nnav:\n")[2]
    assert len(re.findall(r"^ {6}- .*\.md$", shelves, re.MULTILINE)) <= 30


def test_what_is_run_elsewhere_is_run_there() -> None:
    """Each exception is needed by some page, and each test it names exists."""
    typed = {
        command
        for page in TYPED
        for block in runnable(page)
        if block.language != "python"
        for command in block.commands()
    }
    used = {entry for command in typed if (entry := elsewhere(command)) is not None}
    assert used == set(ELSEWHERE)
    for entry in ELSEWHERE:
        assert entry.test is None or (ROOT / entry.test).is_file(), entry


@pytest.mark.parametrize("page", WHOLE_PAGES)
def test_a_page_with_a_test_of_its_own_has_no_new_block(page: str) -> None:
    """Whoever adds one sees to it that the page's test runs it, and counts again."""
    own = WHOLE_PAGES[page]
    assert len(blocks(page)) == own.blocks, f"does {own.test} run the new block?"
    assert Path(page).name in (ROOT / own.test).read_text()


def test_what_is_prepared_is_read() -> None:
    """No preparation outlives its block."""
    places = {(page, block.number) for page in pages() for block in runnable(page)}
    assert {*BEFORE, *AFTER} <= places
