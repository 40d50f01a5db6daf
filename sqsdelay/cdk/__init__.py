"""sqsdelay on AWS: CDK constructs, one per file."""

from __future__ import annotations

from sqsdelay.cdk.function_settings import FunctionSettings
from sqsdelay.cdk.unrestricted_delay import UnrestrictedDelay

__all__ = ["FunctionSettings", "UnrestrictedDelay"]
