"""The pure policy: decisions as functions of a message and a time. No I/O, no vendor."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def on_first_use(package: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """The ``__getattr__`` of a package that loads a name when it is asked for: what that needs may not be
    installed, or takes time. ``homes`` has the names by the module that they come from."""

    def load(name: str) -> Any:
        for module, names in homes.items():
            if name in names.split():
                return getattr(import_module(module), name)
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return load
