"""The public face as text: every name of every door, with its signature, fields and members."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from types import ModuleType
from typing import Any, Final

FILE: Final = Path(__file__).parent / "public_face.txt"


def public_face() -> str:
    """One line a name or member; an object that several doors offer is written at the first."""
    lines: list[str] = []
    written: dict[int, str] = {}
    for door, found in offered().items():
        lines += ["", door]
        for name, value in found.items():
            if id(value) in written and not isinstance(value, str | int):
                lines.append(f"    {name} = {written[id(value)]}")
                continue
            written[id(value)] = f"{door}.{name}"
            lines += [f"    {line}" for line in _described(name, value)]
    return "\n".join([*lines[1:], "", construct_face()])


def _described(name: str, value: Any) -> Iterator[str]:
    if inspect.isclass(value):
        yield from _class(name, value)
    elif inspect.isroutine(value):
        yield f"{name}{_signature(value)}"
    elif isinstance(value, str | int | float | dict | frozenset):
        yield f"{name} = {value!r}"
    else:
        yield f"{name}: {value}"


def _class(name: str, value: type) -> Iterator[str]:
    bases = ", ".join(base.__name__ for base in value.__bases__ if base is not object)
    yield f"class {name}({bases})" if bases else f"class {name}"
    if issubclass(value, Enum):
        yield from (f"    {member.name} = {member.value!r}" for member in value)
    elif not getattr(value, "_is_protocol", False) and not issubclass(value, Exception):
        yield f"    {_signature(value)}"
    yield from (f"    {line}" for line in sorted(_members(value)))


def _members(value: type) -> Iterator[str]:
    """Fields, properties and methods, the inherited ones of the package too."""
    annotations = {
        name: text
        for base in reversed(value.__mro__)
        if base.__module__.startswith("sqsdelay")
        for name, text in vars(base).get("__annotations__", {}).items()
    }
    yield from (f"{name}: {text}" for name, text in annotations.items() if name[0] != "_")
    for name in dir(value):
        member = inspect.getattr_static(value, name)
        made: Any = member.fget if isinstance(member, property) else member
        made = getattr(made, "__func__", made)
        ours = getattr(made, "__module__", None) or ""
        if name[0] == "_" or not ours.startswith("sqsdelay") or name in annotations:
            continue
        if isinstance(member, property):
            yield f"{name} -> {inspect.signature(made).return_annotation}"
        elif inspect.isfunction(made):
            yield f"{name}{_signature(getattr(value, name))}"


def _signature(value: Any) -> str:
    try:
        text = str(inspect.signature(value)).replace("'", "").replace(" -> None", "")
        return re.sub(r"<function ([\w<>]+) at 0x[0-9a-f]+>", r"\1", text)
    except (TypeError, ValueError):  # a class of another language, or a type alias
        return ""


DOOR: Final = "sqsdelay.cdk"
FOLDER: Final = Path(__file__).parents[2] / "sqsdelay" / "cdk"
"""Read from its source: importing it would start Node."""


def construct_names() -> list[str]:
    """What the door offers: its ``__all__``."""
    tree = ast.parse((FOLDER / "__init__.py").read_text())
    (listed,) = (
        node.value
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
    )
    return list(ast.literal_eval(listed))


def construct_face() -> str:
    """A line for each class, its parameters or fields, its public methods."""
    classes = {
        node.name: node
        for path in sorted(FOLDER.glob("*.py"))
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.ClassDef)
    }
    lines = [DOOR]
    for name in construct_names():
        lines.append(f"    class {name}")
        for member in classes[name].body:
            if isinstance(member, ast.AnnAssign):
                lines.append(f"        {ast.unparse(member)}")
            elif isinstance(member, ast.FunctionDef) and (
                member.name == "__init__" or member.name[0] != "_"
            ):
                returned = "" if member.returns is None else f" -> {ast.unparse(member.returns)}"
                lines.append(f"        {member.name}({ast.unparse(member.args)}){returned}")
    return "\n".join(lines) + "\n"


DOORS: Final = (
    "sqsdelay",
    "sqsdelay.errors",
    "sqsdelay.sending",
    "sqsdelay.relaying",
    "sqsdelay.dispatching",
    "sqsdelay.timeouts",
    "sqsdelay.receiving",
    "sqsdelay.operating",
    "sqsdelay.ledger",
    "sqsdelay.sqs",
    "sqsdelay.rabbitmq",
    "sqsdelay.stores",
    "sqsdelay.s3",
    "sqsdelay.ledger.firehose",
    "sqsdelay.celery",
    "sqsdelay.dramatiq",
    "sqsdelay.taskiq",
    "sqsdelay.opentelemetry",
    "sqsdelay.spark",
    "sqsdelay.cost",
    "sqsdelay.testing",
)


def names(door: ModuleType) -> list[str]:
    """What a door offers: its ``__all__``, or the classes that stand in it."""
    own = [
        n for n, value in vars(door).items() if getattr(value, "__module__", "") == door.__name__
    ]
    return sorted(getattr(door, "__all__", own))


def offered() -> dict[str, dict[str, Any]]:
    """Of each door its names and what they stand for."""
    doors = {name: importlib.import_module(name) for name in DOORS}
    return {name: {n: getattr(door, n) for n in names(door)} for name, door in doors.items()}
