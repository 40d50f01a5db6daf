"""Every command and every line of Python in README and the documentation runs."""

from __future__ import annotations

import re

import pytest

from tests.guides.elsewhere import ELSEWHERE, elsewhere
from tests.guides.page import ROOT, blocks, pages, runnable
from tests.guides.reader import Reader
from tests.guides.taken_for_granted import AFTER, BEFORE

LANGUAGES = {"", "console", "json", "python"}
COMMAND = re.compile(r"(\$ )?(\.venv/bin/)?(sqsdelay|make|pip|npx|python|export|aws|git)\b")


@pytest.mark.parametrize("page", [page for page in pages() if runnable(page)])
def test_every_block_of_a_page_runs(
    page: str, reader: Reader, request: pytest.FixtureRequest
) -> None:
    """From top to bottom, as a reader would type it; a command ends with 0."""
    for block in runnable(page):
        place = (page, block.number)
        if place in BEFORE:
            BEFORE[place](reader, request)
        reader.read(block)
        if place in AFTER:
            AFTER[place](reader, request)


def test_no_command_hides_in_a_block_that_is_not_run() -> None:
    """A fence with commands names its language; the others hold drawings, output and JSON."""
    for page in pages():
        for block in blocks(page):
            assert block.language in LANGUAGES, f"{page}: {block.language}"
            if block.language == "":
                found = [line for line in block.text.splitlines() if COMMAND.match(line)]
                assert found == [], f"{page}: name the language of the block with {found[0]!r}"


def test_what_is_run_elsewhere_is_run_there() -> None:
    """Each exception is needed by some page, and each test it names exists."""
    typed = {
        command
        for page in pages()
        for block in runnable(page)
        if block.language == "console"
        for command in block.commands()
    }
    used = {entry for command in typed if (entry := elsewhere(command)) is not None}
    assert used == set(ELSEWHERE)
    for entry in ELSEWHERE:
        assert entry.test is None or (ROOT / entry.test).is_file(), entry


def test_what_is_prepared_is_read() -> None:
    """No preparation outlives its block."""
    places = {(page, block.number) for page in pages() for block in runnable(page)}
    assert set(BEFORE) | set(AFTER) <= places
