"""The doors: the packages and modules whose names users import, and no other."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any, Final

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
