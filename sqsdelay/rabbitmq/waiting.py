"""What waits in an infrastructure: messages that are ready, and those a queue holds in other ways."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from pika.exceptions import ChannelClosedByBroker

from sqsdelay.errors import ConfigurationError, QueueUnavailable
from sqsdelay.rabbitmq.connection import NOT_FOUND, Address, channel
from sqsdelay.rabbitmq.management import Held, Management
from sqsdelay.rabbitmq.topology import Topology

FRESH_SECONDS: Final = 60.0
"""How long to wait for counts that are newer than the question. A quorum queue counts every 5 s, the
management plugin collects every 5 s. Source: rabbitmq.com/docs/management, "Statistics Interval";
rabbit_quorum_queue.erl, TICK_INTERVAL."""

_POLL_SECONDS: Final = 0.5

NEWER: Final = 2
"""Changes of a queue's figures after which they are surely newer than the first look: the first change
may have been under way."""

UNCOUNTED: Final = (
    "what the broker is handing over (messages_dlx) shows in its management API only; give "
    "--management http://user:password@host:15672 (management_url=; the plugin is enabled with: "
    "rabbitmq-plugins enable rabbitmq_management)"
)
"""Why AMQP alone cannot tell that an infrastructure is empty, and what can."""


def ready(given: Address, topology: Topology) -> dict[str, int]:
    """Messages that wait in each queue of the infrastructure, now; missing queues are left out.

    From the highest level down, as messages go: none slips past the count.

    Raises:
        ConfigurationError, QueueUnavailable
    """
    return depths(given, [queue.name for queue in reversed(list(topology.queues()))])


def depths(given: Address, names: Sequence[str]) -> dict[str, int]:
    """Messages that are ready in each of these queues, asked in that order; missing ones are left out.

    Raises:
        ConfigurationError, QueueUnavailable
    """
    counts: dict[str, int] = {}
    with channel(given) as first:
        for name in names:
            probe = first.connection.channel()
            try:
                declared = probe.queue_declare(name, passive=True)
                counts[name] = declared.method.message_count
                probe.close()
            except ChannelClosedByBroker as error:
                if error.reply_code != NOT_FOUND:
                    raise
    return counts


def held(
    management: Management,
    names: Mapping[str, int],
    *,
    sleep: Callable[[float], None] = time.sleep,
    monotonic: Callable[[], float] = time.monotonic,
) -> dict[str, Held]:
    """What each queue of ``names`` holds, counted by the broker after this call began: takes 5 to 10 s.

    Raises:
        ConfigurationError: the management API does not count these queues.
        QueueUnavailable: its counts do not change.
    """
    deadline = monotonic() + FRESH_SECONDS
    seen: dict[str, list[int]] = {name: [] for name in names}
    while True:
        counted = management.held()
        for name, marks in seen.items():
            now = counted.get(name)
            if now is not None and (not marks or marks[-1] != now.mark):
                marks.append(now.mark)
        found = {name: counted[name] for name in names if name in counted}
        stale = [name for name, marks in seen.items() if len(marks) <= NEWER]
        if not stale:
            return found
        if monotonic() > deadline:
            raise _uncounted(management, stale[0], known=bool(seen[stale[0]]))
        sleep(_POLL_SECONDS)


def _uncounted(management: Management, name: str, *, known: bool) -> Exception:
    if known:
        return QueueUnavailable(
            f"the counts of {name} in the management API at {management.place} did not change for "
            f"{FRESH_SECONDS:g} s, so they may be old; try again later, or skip this check with --force"
        )
    return ConfigurationError(
        f"the management API at {management.place} does not count the messages of {name}; give the URL "
        "of the same broker, with its statistics enabled (management.disable_stats = false), or skip "
        "this check with --force"
    )
