"""OpenTelemetry: spans of sends and deliveries, and what became of messages as metrics.

It needs the package opentelemetry-api, which is imported with the first class. Without an SDK that the
program sets up, both classes do nothing.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

from sqsdelay.core import on_first_use

if TYPE_CHECKING:
    from sqsdelay.ledger.events import Ledger
    from sqsdelay.opentelemetry.telemetry import OpenTelemetryLedger, OpenTelemetryTracing
    from sqsdelay.ports.queues import Tracing

__all__ = ["OpenTelemetryLedger", "OpenTelemetryTracing"]

__getattr__ = on_first_use(
    __name__, {"sqsdelay.opentelemetry.telemetry": "OpenTelemetryLedger OpenTelemetryTracing"}
)


def if_installed(ledger: Ledger | None) -> tuple[Tracing | None, Ledger | None]:
    """Tracing, and a ledger that also measures, for a process of ours; nothing new without the API.
    ``ledger``: where events are recorded in any case."""
    if find_spec("opentelemetry") is None:
        return None, ledger
    from sqsdelay.opentelemetry.telemetry import OpenTelemetryLedger, OpenTelemetryTracing

    return OpenTelemetryTracing(), OpenTelemetryLedger(then=ledger)
