"""`FirehoseLedger`: each batch of events is one record of a Firehose stream."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from sqsdelay.core.delay import Clock, SystemClock
from sqsdelay.ledger.events import Event, Ledger, to_json

__all__ = ["FirehoseLedger"]

logger = logging.getLogger(__name__)

MAX_RECORD_BYTES: Final = 1_024_000
"""Of one record, before it is encoded. Source: PutRecord API reference ("1,000 KiB")."""

_CONNECT_SECONDS: Final = 1
_ANSWER_SECONDS: Final = 2
_ATTEMPTS: Final = 2
CALL_SECONDS: Final = _ATTEMPTS * (_CONNECT_SECONDS + _ANSWER_SECONDS) + 1
"""Longest that a call takes, the pause between its attempts included."""

PAUSE_SECONDS: Final = 60
"""After a call that failed, none is made for so long: a stream out of reach holds nobody up for more than
a call a minute."""


class FirehoseLedger:
    """Puts the events of one call into a Firehose stream as JSON lines in one record. Thread-safe.

    What the stream does not take goes to another ledger. Firehose delivers at least once, and an answer may
    be lost: an event can be in both, or twice in one. A report counts it once.

    Args:
        stream: the stream's name.
        otherwise: takes what the stream does not.
        client: a boto3 Firehose client; made from the default session when left out.
        may_call: False where no time is left for a call of ``CALL_SECONDS``.
        clock: for the pause after a failed call.
    """

    def __init__(
        self,
        stream: str,
        *,
        otherwise: Ledger,
        client: Any = None,
        may_call: Callable[[], bool] | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.stream = stream
        self._otherwise = otherwise
        if client is None:
            config = Config(
                connect_timeout=_CONNECT_SECONDS,
                read_timeout=_ANSWER_SECONDS,
                retries={"mode": "standard", "total_max_attempts": _ATTEMPTS},
                tcp_keepalive=True,
            )
            client = boto3.client("firehose", config=config)
        self._client = client
        self._may_call = may_call
        self._clock = clock or SystemClock()
        self._paused_until = -math.inf

    def record(self, events: Sequence[Event]) -> None:
        """Put the events into the stream, or else into the other ledger.

        Raises:
            Exception: whatever the other ledger raises.
        """
        for some, lines in _records(events):
            if not self._put(lines):
                self._otherwise.record(some)

    def _put(self, lines: bytes) -> bool:
        if len(lines) > MAX_RECORD_BYTES or self._clock.monotonic() < self._paused_until:
            return False
        if self._may_call is not None and not self._may_call():
            return False
        try:
            self._client.put_record(DeliveryStreamName=self.stream, Record={"Data": lines})
        except (BotoCoreError, ClientError) as error:
            self._paused_until = self._clock.monotonic() + PAUSE_SECONDS
            logger.warning(
                "stream %s does not take events, they go elsewhere for %d s: %s",
                self.stream,
                PAUSE_SECONDS,
                error,
            )
            return False
        return True


def _records(events: Sequence[Event]) -> Iterator[tuple[Sequence[Event], bytes]]:
    """Events that fit a record together, and their lines."""
    begin, lines = 0, b""
    for position, event in enumerate(events):
        line = to_json(event).encode("ascii") + b"\n"
        if lines and len(lines) + len(line) > MAX_RECORD_BYTES:
            yield events[begin:position], lines
            begin, lines = position, b""
        lines += line
    yield events[begin:], lines
