"""S3's own clock, by the dates of its answers: leases of all who use a bucket go by one clock."""

from __future__ import annotations

from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from typing import Any, Final

from sqsdelay.core.clock import Clock, SystemClock

_APART_MS: Final = 3_000
"""An answer's date may lie so far behind what is known: it is cut off, and was some time on its way.
More, and the machine's monotonic clock has run away."""


class BucketClock:
    """S3's now, epoch milliseconds; the machine's until S3 has answered.

    Args:
        given: tests only: this clock instead of the dates of answers.
    """

    def __init__(self, given: Clock | None) -> None:
        self._given = given
        self._local = SystemClock()
        self._best: tuple[int, float] | None = None

    def read(self, response: Mapping[str, Any]) -> None:
        """Learn from an answer's ``Date``, which tells whole seconds (RFC 9110, 5.6.7)."""
        date = response.get("ResponseMetadata", {}).get("HTTPHeaders", {}).get("date")
        if self._given is not None or date is None:
            return
        read_ms = int(parsedate_to_datetime(date).timestamp()) * 1000
        best = self._best
        ahead_ms = 0 if best is None else self._passed(best) - read_ms
        if best is None or not 0 < ahead_ms <= _APART_MS:
            self._best = (read_ms, self._local.monotonic())

    def now_ms(self) -> int:
        """About S3's now."""
        if self._given is not None:
            return self._given.now_ms()
        best = self._best
        return self._local.now_ms() if best is None else self._passed(best)

    def _passed(self, best: tuple[int, float]) -> int:
        read_ms, at = best
        return read_ms + int((self._local.monotonic() - at) * 1000)
