"""Our docstrings as mkdocstrings reads them: several names may share one line, and need no words.

Griffe's Google parser wants one name and a text per entry of "Args" and "Raises". An error named
without words is told in the words of its class.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import griffe

_SECTION = re.compile(r"(Args|Raises|Attributes):")
_ENTRY = re.compile(r" {4}([\w`]+(?:, [\w`]+)*)(?::(?: (.*))?)?")
_ERRORS = Path(__file__).parents[1] / "sqsdelay" / "errors.py"


class SharedEntries(griffe.Extension):
    """Gives every name of a shared entry an entry of its own."""

    def __init__(self) -> None:
        super().__init__()
        self._errors = _first_lines(_ERRORS)

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = separated(obj.docstring.value, self._errors)


def separated(text: str, words: dict[str, str]) -> str:
    """The docstring with one name per entry, and a text for each.

    Args:
        words: what to say of a name that stands without words.
    """
    lines: list[str] = []
    inside = False
    for line in _joined(text.splitlines()):
        if line and not line.startswith(" "):
            inside = _SECTION.fullmatch(line) is not None
        entry = _ENTRY.fullmatch(line) if inside else None
        if entry is None:
            lines.append(line)
            continue
        names = entry[1].split(", ")
        lines += [f"    {name}: {entry[2] or words.get(name, '')}".rstrip() for name in names]
    return "\n".join(lines)


def _joined(lines: list[str]) -> list[str]:
    """Lists of names that go on in the next line become one line."""
    joined: list[str] = []
    for line in lines:
        if joined and re.fullmatch(r" {4}(\w+, )*\w+,", joined[-1]):
            joined[-1] += " " + line.strip()
        else:
            joined.append(line)
    return joined


def _first_lines(path: Path) -> dict[str, str]:
    classes = [n for n in ast.parse(path.read_text()).body if isinstance(n, ast.ClassDef)]
    return {
        node.name: (ast.get_docstring(node) or "").partition("\n\n")[0].replace("\n", " ")
        for node in classes
    }
