"""A failed Spark job's reason, without the traces around it."""

from __future__ import annotations

import re
from typing import Final

from sqsdelay.errors import InvalidSetting, SqsDelayError

_OURS: Final = re.compile(r"^sqsdelay\.errors\.\w+: (.+)$", re.MULTILINE)
_PYTHONS: Final = re.compile(r"^[\w.]+(?:Error|Exception): .+$", re.MULTILINE)
"""The last line of a trace from one of Spark's workers."""


def cause(error: Exception) -> str:
    """The one line of a Java trace that says why."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    for mark in ("Caused by:", ":"):
        if reasons := [line for line in lines if line.startswith(mark)]:
            return reasons[0].removeprefix(":").strip()
    return lines[0] if lines else "Spark gives no reason"


def failure(error: Exception) -> SqsDelayError:
    """sqsdelay's own error if that ended the job, or else Python's, or Java's cause."""
    text = str(error)
    reasons = _OURS.findall(text) or _PYTHONS.findall(text) or [cause(error)]
    missing = reasons[-1].startswith("[PATH_NOT_FOUND]")
    return InvalidSetting(reasons[-1]) if missing else SqsDelayError(reasons[-1])
