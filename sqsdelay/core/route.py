"""The routes a message can take from its sender."""

from __future__ import annotations

from enum import StrEnum


class Route(StrEnum):
    """Where a message was sent first."""

    DIRECT = "direct"
    DELAY_QUEUE = "delay-queue"
    DUE_QUEUE = "due-queue"
    STORE = "store"
