"""sqsdelay on AWS: CDK constructs, one per file."""

from __future__ import annotations

from sqsdelay.cdk.unrestricted_delay import UnrestrictedDelay

__all__ = ["UnrestrictedDelay"]
