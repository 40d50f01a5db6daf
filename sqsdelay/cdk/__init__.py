"""sqsdelay on AWS: CDK constructs, and what the functions that they deploy are called and made of."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sqsdelay.cdk.functions import FunctionSettings
    from sqsdelay.cdk.unrestricted_delay import UnrestrictedDelay

__all__ = ["FunctionSettings", "UnrestrictedDelay"]

_HOMES = {
    "FunctionSettings": "sqsdelay.cdk.functions",
    "UnrestrictedDelay": "sqsdelay.cdk.unrestricted_delay",
}


def __getattr__(name: str) -> Any:
    """Load on first use: functions and builds need the names beside the constructs, and have no CDK."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
