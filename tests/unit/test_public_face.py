"""The public face: approved, each name one thing, and the only one that documentation names."""

from __future__ import annotations

import re
from difflib import unified_diff
from pathlib import Path

import pytest

from tests.approved import construct_face, payloads, public_face
from tests.approved.doors import offered

ROOT = Path(__file__).parents[2]

REMEDY = "if this is meant: .venv/bin/python -m tests.approved, and commit what it writes"


def change(path: Path, text: str) -> str:
    """The difference between an approved file and what the code says."""
    approved = path.read_text().splitlines() if path.exists() else []
    return "\n".join(unified_diff(approved, text.splitlines(), path.name, "the code", lineterm=""))


def test_the_public_face_is_the_approved_one() -> None:
    """A name, a parameter, a default or a field that changes is a diff for a reviewer."""
    changed = change(public_face.FILE, public_face.public_face())
    assert not changed, f"{changed}\n{REMEDY}"


def test_the_payloads_are_the_approved_ones() -> None:
    """What waits in queues and stores while a version is deployed is read by the next one."""
    made = payloads.payloads()
    assert sorted(made) == sorted(payloads.FOLDER.iterdir())
    for path, text in made.items():
        changed = change(path, text)
        assert not changed, f"{changed}\n{REMEDY}"


def test_a_change_is_noticed(tmp_path: Path) -> None:
    """The tests above can fail."""
    (tmp_path / "face.txt").write_text("class Message\n")
    assert "+class Letter" in change(tmp_path / "face.txt", "class Letter\n")


def test_a_name_is_one_thing() -> None:
    """What two doors offer under one name is the same object."""
    homes: dict[str, dict[int, str]] = {}
    for door, found in offered().items():
        for name, value in found.items():
            homes.setdefault(name, {})[id(value)] = door
    twice = {name: sorted(doors.values()) for name, doors in homes.items() if len(doors) > 1}
    assert twice == {}


PATH = re.compile(r"(?<![\w.-])(?<!-m )sqsdelay(?!\.zip)(?:\.\w+)+")


def deeper(text: str) -> list[str]:
    """Paths of the package in a text that are no door, nor a name or member of one."""
    found = {**offered(), construct_face.DOOR: construct_face.names()}
    wrong = []
    for path in PATH.findall(text):
        parts = path.split(".")
        doors = [d for n in range(1, len(parts) + 1) if (d := ".".join(parts[:n])) in found]
        rest = parts[doors[-1].count(".") + 1 :]
        if rest and rest[0] not in found[doors[-1]] and rest[0] not in WORDS:
            wrong.append(path)
    return wrong


WORDS = {"versions"} | {
    word
    for path in (ROOT / "sqsdelay").rglob("*.py")
    for word in re.findall(r"\"(?:sqsdelay\.|\{OUR_PREFIX\})(\w+)\"", path.read_text())
}
"""Words after ``sqsdelay.`` that are no code: message attributes, exchanges, a table of versions."""

PAGES = [
    ROOT / "README.md",
    ROOT / "docs/custom_broker.py",
    ROOT / "docs/custom_store.py",
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "examples").rglob("*.py")),
]


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_pages_name_doors_only(page: Path) -> None:
    """The rest may change; `python -m` names a command."""
    assert deeper(page.read_text()) == []


def test_a_deeper_path_is_noticed() -> None:
    """The test above can fail."""
    assert deeper("from sqsdelay.core.delay import decide") == ["sqsdelay.core.delay"]
    assert deeper("`sqsdelay.stores.SqliteStore`, sqsdelay.sqs") == []
