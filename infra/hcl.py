"""Terraform's language, as far as the module needs it: blocks, attributes, values."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


class Expression(str):
    """Terraform's own words, to be written as they are."""


@dataclass(frozen=True)
class Nested:
    """A block within a block."""

    attributes: dict[str, Any]


def block(head: str, attributes: dict[str, Any], indent: str = "") -> str:
    """A block with its attributes and the blocks within it, as ``terraform fmt`` writes it."""
    inner = indent + "  "
    lines: list[str] = []
    run: list[tuple[str, str]] = []

    def end_run() -> None:
        width = max((len(name) for name, _ in run), default=0)
        lines.extend(f"{inner}{name.ljust(width)} = {text}" for name, text in run)
        run.clear()

    for name, value in attributes.items():
        if value is None:
            continue
        if isinstance(value, Nested):
            end_run()
            lines.append(block(name.strip(), value.attributes, inner))
            continue
        text = written(value, inner)
        run.append((name, text))
        if "\n" in text:
            # Alignment ends at a value of several lines.
            last = run.pop()
            end_run()
            run.append(last)
            end_run()
    end_run()
    return f"{indent}{head} {{\n" + "\n".join(lines) + f"\n{indent}}}"


def written(value: Any, indent: str = "") -> str:
    """A value in Terraform's syntax."""
    if isinstance(value, Expression):
        return str(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return quoted(value)
    if isinstance(value, int | float):
        return f"{value:g}" if isinstance(value, float) else str(value)
    if isinstance(value, dict):
        return _object(value, indent)
    if isinstance(value, Sequence):
        return _list(value, indent)
    raise TypeError(f"{value!r} has no form in Terraform")


def quoted(text: str) -> str:
    """A string; what would be a template in it is not one."""
    plain = json.dumps(text, ensure_ascii=False)
    return re.sub(r"([$%])\{", r"\1\1{", plain)


def _object(value: dict[str, Any], indent: str) -> str:
    inner = indent + "  "
    keys = {key: key if re.fullmatch(r"[A-Za-z_]\w*", key) else quoted(key) for key in value}
    texts = {key: written(each, inner) for key, each in value.items()}
    lines, run = [], []
    for key in value:
        run.append(key)
        if "\n" in texts[key] or key == list(value)[-1]:
            flat = [each for each in run if "\n" not in texts[each]]
            width = max((len(keys[each]) for each in flat), default=0)
            for each in run:
                pad = width if each in flat else 0
                lines.append(f"{inner}{keys[each].ljust(pad)} = {texts[each]}")
            run = []
    return "{\n" + "\n".join(lines) + f"\n{indent}}}"


def _list(value: Sequence[Any], indent: str) -> str:
    inner = indent + "  "
    flat = ", ".join(written(each, inner) for each in value)
    if "\n" not in flat and len(flat) < 80:
        return f"[{flat}]"
    lines = (f"{inner}{written(each, inner)}," for each in value)
    return "[\n" + "\n".join(lines) + f"\n{indent}]"
