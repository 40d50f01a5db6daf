"""The construct's face, read from its source: importing it would start Node."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Final

DOOR: Final = "sqsdelay.cdk"
FOLDER: Final = Path(__file__).parents[2] / "sqsdelay" / "cdk"


def names() -> list[str]:
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
    for name in names():
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
