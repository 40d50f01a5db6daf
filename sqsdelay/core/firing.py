"""When a schedule fires: early enough for the delay queue and a message timer to make the due time exact."""

from __future__ import annotations

import zlib
from typing import Final

from sqsdelay.limits import MAX_MESSAGE_TIMER_SECONDS

PRECISION_SECONDS: Final = 60
"""A schedule fires within this many seconds after its time. Source: EventBridge Scheduler User Guide,
"Schedule types": 60 seconds of precision."""

SLACK_SECONDS: Final = 60
"""What is left for a first retry, for the consumer's batch and for clocks that differ."""

CREATION_SECONDS: Final = 60
"""No schedule fires earlier than this after it was made: the time until it takes effect is not
documented."""


def latest_lead_seconds(hop_seconds: int) -> int:
    """The least time from a schedule's firing to the due time of its message."""
    return hop_seconds + PRECISION_SECONDS + SLACK_SECONDS


def earliest_lead_seconds(hop_seconds: int) -> int:
    """The most time: what is left after the hop still fits one message timer."""
    return hop_seconds + MAX_MESSAGE_TIMER_SECONDS


def soonest_seconds(hop_seconds: int) -> int:
    """How far ahead a message must be due to wait as a schedule."""
    return earliest_lead_seconds(hop_seconds) + CREATION_SECONDS


def firing_second(message_id: str, due_ms: int, *, hop_seconds: int) -> int:
    """When the schedule of a message fires, epoch seconds.

    Spread by the hash of the id over the time between the two leads (780 s at a hop of 900 s): a
    million messages due in one second need 1,282 invocations a second instead of a million.
    """
    latest = latest_lead_seconds(hop_seconds)
    spread = max(1, earliest_lead_seconds(hop_seconds) - latest)
    return (
        due_ms // 1000 - latest - zlib.crc32(message_id.encode("utf-8", "surrogatepass")) % spread
    )
