"""OpenTelemetry: spans of sends and deliveries, and what became of messages as metrics.

It needs the package opentelemetry-api, which is imported with the first class. Without an SDK that the
program sets up, both classes do nothing.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sqsdelay.ledger.events import Ledger
    from sqsdelay.opentelemetry.telemetry import OpenTelemetryLedger, OpenTelemetryTracing
    from sqsdelay.ports.tracing import Tracing

__all__ = ["OpenTelemetryLedger", "OpenTelemetryTracing"]

_HOMES = {
    "OpenTelemetryLedger": "sqsdelay.opentelemetry.telemetry",
    "OpenTelemetryTracing": "sqsdelay.opentelemetry.telemetry",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def if_installed(ledger: Ledger | None) -> tuple[Tracing | None, Ledger | None]:
    """Tracing, and a ledger that also measures, for a process of ours; nothing new without the API.

    Args:
        ledger: where events are recorded in any case.
    """
    if find_spec("opentelemetry") is None:
        return None, ledger
    from sqsdelay.opentelemetry.telemetry import OpenTelemetryLedger, OpenTelemetryTracing

    return OpenTelemetryTracing(), OpenTelemetryLedger(then=ledger)
