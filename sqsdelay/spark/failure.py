"""A failed Spark job's reason, without the traces around it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from sqsdelay.errors import SqsDelayError

if TYPE_CHECKING:
    from pyspark.errors import PySparkException

_OURS: Final = re.compile(r"^(?:E\s+)?sqsdelay\.errors\.\w+: (.+)$", re.MULTILINE)


def failure(error: PySparkException) -> SqsDelayError:
    """sqsdelay's own error, if that is what ended the job, or else the first line of Spark's."""
    text = str(error)
    ours = _OURS.findall(text)
    return SqsDelayError(ours[-1] if ours else text.strip().partition("\n")[0])
