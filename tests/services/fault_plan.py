"""Which requests of a client go wrong, and how: drawn by chance, the same for the same seed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from random import Random


class Fault(StrEnum):
    """What can happen to a request between a client and SQS."""

    LATENCY = "latency"
    """Request and answer each take up to half a second."""
    RESET_BEFORE = "connection reset before SQS acted"
    RESET_AFTER = "connection reset after SQS acted"
    INTERNAL_ERROR = "500"
    """InternalFailure; SQS acted on every second of them."""
    UNAVAILABLE = "503"
    THROTTLED = "400 throttling"
    """ThrottlingException or RequestThrottled."""
    PARTIAL = "partial batch failure, SenderFault false"
    REFUSED = "partial batch failure, SenderFault true"
    TRUNCATED = "answer cut off"
    """Its Content-Length is longer than what comes; SQS acted."""
    STALLED = "connection that stalls"
    """Nothing comes back, and nothing ends the connection; SQS acted on every second of them."""
    EMPTIED = "answer without content"
    """A 200 whose JSON is an empty object, as a gateway between may make it; SQS acted."""


@dataclass(frozen=True, kw_only=True)
class FaultPlan:
    """Faults with their chances per request.

    The nth request's fault depends on seed and n alone, so two runs of a client that makes the same
    requests in the same order meet the same faults.
    """

    seed: str
    chances: Mapping[Fault, float] = field(default_factory=dict)

    def draw(self, number: int) -> tuple[Fault | None, Random]:
        """The fault of request ``number``, and the chance that decides its details."""
        random = Random(f"{self.seed}/{number}")
        point = random.random()
        for fault, chance in self.chances.items():
            point -= chance
            if point < 0:
                return fault, random
        return None, random
