"""The maintainers' pages name what is there: paths, benchmarks, and names in the files they list."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.guides.page import ROOT

PAGES = sorted((ROOT / "docs/maintainers").glob("*.md"))
_TICKED = re.compile(r"`([^`\n]+)`")
_FENCED = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)
_PATH = re.compile(r"(?:[\w.-]+/)+(?:[\w-]+\.\w+)?")
_BENCHMARK = re.compile(r"python -m (benchmarks\.[\w.]+)\b.*")
_NAME = re.compile(r"\w+(?:\.\w+)*(?:\(\))?")
_COMMAND = re.compile(r"(?:make|sqsdelay) .+")


def missing(text: str) -> list[str]:
    """What a page has between backticks and the repository does not have.

    A name, each part of a dotted one, is used in the code of one of the files that the page lists;
    anything else, a key say, stands in one of them as it is.
    """
    ticked = list(dict.fromkeys(_TICKED.findall(_FENCED.sub("", text))))
    paths = [each for each in ticked if _PATH.fullmatch(each) and (ROOT / each).exists()]
    listed = [(ROOT / path).read_text() for path in paths if (ROOT / path).is_file()]
    words = [_words(ROOT / path) for path in paths if (ROOT / path).is_file()]

    def there(each: str) -> bool:
        if benchmark := _BENCHMARK.fullmatch(each):
            module = ROOT / benchmark[1].replace(".", "/")
            return module.with_suffix(".py").is_file() or (module / "__main__.py").is_file()
        if _NAME.fullmatch(each):
            parts = set(each.removesuffix("()").split("."))
            return any(parts <= found or each in found for found in words)
        if _PATH.fullmatch(each):
            return each in paths
        return _COMMAND.fullmatch(each) is not None or any(each in text for text in listed)

    return [each for each in ticked if not there(each)]


def _words(path: Path) -> set[str]:
    """Names and short texts of the package's code, without comments and docstrings; else all words."""
    if path.suffix != ".py" or not path.is_relative_to(ROOT / "sqsdelay"):
        return set(re.findall(r"\w+", path.read_text()))
    nodes = ast.walk(ast.parse(path.read_text()))
    found = (value for node in nodes for _, value in ast.iter_fields(node))
    return {value for value in found if isinstance(value, str) and " " not in value}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_names_what_is_there(page: Path) -> None:
    """Whoever moves or renames something mends the page that sends readers to it."""
    assert missing(page.read_text()) == []


@pytest.mark.parametrize(
    "stale",
    [
        "`sqsdelay/core/gone.py`",
        "`sqsdelay/gone/`",
        "`python -m benchmarks.gone`",
        "`sqsdelay/core/delay.py` has `decided`",
        "`sqsdelay/core/delay.py` has `HandOver.retry_seconds`",
        "`decide`, in no file that the page names",
        "`sqsdelay/core/delay.py` has `ConfigurationError.outside`, a word of a docstring",
    ],
)
def test_what_is_gone_is_noticed(stale: str) -> None:
    """A path, a folder, a benchmark, a function, a field, a name without its file."""
    assert len(missing(stale)) == 1


def test_contributors_are_sent_to_every_page() -> None:
    """By the list of what to read before a change."""
    listed = (ROOT / "CONTRIBUTING.md").read_text()
    assert [page.name for page in PAGES if f"(docs/maintainers/{page.name})" not in listed] == []
