"""A failed Spark job's reason, without the traces around it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from sqsdelay.errors import SqsDelayError

if TYPE_CHECKING:
    from pyspark.errors import PySparkException

_OURS: Final = re.compile(r"^sqsdelay\.errors\.\w+: (.+)$", re.MULTILINE)
_PYTHONS: Final = re.compile(r"^[\w.]+(?:Error|Exception): .+$", re.MULTILINE)
"""The last line of a trace from one of Spark's workers."""


def failure(error: PySparkException) -> SqsDelayError:
    """sqsdelay's own error if that ended the job, or else Python's, or the first line of Spark's."""
    text = str(error)
    told = _OURS.findall(text) or _PYTHONS.findall(text) or [text.strip().partition("\n")[0]]
    return SqsDelayError(told[-1])
