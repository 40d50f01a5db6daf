"""How late a long delay gets: by an absolute due time, and by recomputing what remains at every hop.

Both relays run under virtual time on the same in-memory queues with the same random latencies.
Exits with 1 if the due-time relay is early, or a second or more late.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from sqsdelay.core.endpoint import Endpoint
from sqsdelay.core.limits import MAX_MESSAGE_TIMER_SECONDS
from sqsdelay.core.message import DELAY_SECONDS, OutgoingMessage, string
from sqsdelay.core.outgoing import hop_deduplication_id
from sqsdelay.core.received_message import ReceivedMessage
from sqsdelay.ports.queues import Failure, SendReceipt
from sqsdelay.relaying.relay import Relay
from sqsdelay.sending.sender import QueueSender
from sqsdelay.testing import InMemoryQueues, ManualClock

DAY_SECONDS = 24 * 3600
ALLOWED_LATE_MS = 1000


@dataclass(frozen=True, kw_only=True)
class Arrival:
    """How one message fared.

    ``late_ms`` is when the destination shows the message, after its due time. ``last_hop_ms`` is
    the part of it that the last hop's answer, processing and send may take: no relay can know it
    before it has passed.
    """

    late_ms: int
    last_hop_ms: int
    hops: int


class Latencies:
    """A hop's latencies in seconds, log-normal around a median, the same for the same seed."""

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)
        self.next_hop()

    def next_hop(self) -> None:
        """Draw a new set."""
        self.receive = self._draw(0.040, 0.8)
        """From the end of the delay to the broker's receive stamp."""
        self.answer = self._draw(0.008, 0.5)
        """From the receive stamp until the copy is here."""
        self.processing = self._draw(0.004, 0.6)
        """Until the relay looks at it."""
        self.send = self._draw(0.022, 0.6)
        """From the relay's decision to the next copy's SentTimestamp."""

    def _draw(self, median_seconds: float, sigma: float) -> float:
        return median_seconds * self._random.lognormvariate(0, sigma)


class SlowQueues(InMemoryQueues):
    """Queues whose calls take time."""

    def __init__(self, clock: ManualClock, latencies: Latencies) -> None:
        super().__init__(clock)
        self._latencies = latencies

    def send_batch(
        self, queue_url: str, entries: Sequence[OutgoingMessage]
    ) -> list[SendReceipt | Failure]:
        self.clock.advance(self._latencies.send)
        return super().send_batch(queue_url, entries)

    def receive_batch(self, queue_url: str, **given: Any) -> list[ReceivedMessage]:
        self.clock.advance(self._latencies.receive)
        copies = super().receive_batch(queue_url, **given)
        self.clock.advance(self._latencies.answer)
        received_at = self.clock.monotonic()
        return [replace(copy, received_at=received_at) for copy in copies]


class RemainingDelayRelay:
    """The other method: at each hop, the delay minus the whole seconds the copy was in the queue."""

    def __init__(self, queues: InMemoryQueues, endpoint: Endpoint) -> None:
        self._queues = queues
        self._endpoint = endpoint

    def process(self, copies: Sequence[ReceivedMessage]) -> None:
        for copy in copies:
            assert copy.sent_ms is not None
            assert copy.first_receive_ms is not None
            elapsed = (copy.first_receive_ms - copy.sent_ms) // 1000
            delay = int(copy.attributes[DELAY_SECONDS]["StringValue"])
            self._send(copy, max(0, delay - elapsed))
        self._queues.delete_batch(self._endpoint.delay_queue.name, copies)

    def _send(self, copy: ReceivedMessage, remaining: int) -> None:
        if remaining > MAX_MESSAGE_TIMER_SECONDS:
            target = self._endpoint.delay_queue.name
            entry = OutgoingMessage(
                copy.body,
                {DELAY_SECONDS: string(str(remaining))},
                size=0,
                group_id=copy.group_id,
                deduplication_id=hop_deduplication_id(copy, copy.message_id),
            )
        else:
            target = self._endpoint.queue.name
            entry = OutgoingMessage(copy.body, {}, size=0, delay_seconds=remaining)
        self._queues.send_batch(target, [entry])


def delay_one_message(
    delay_seconds: int, seed: int, make_relay: Callable[[InMemoryQueues, Endpoint], Any]
) -> Arrival:
    """Send one message with the delay and relay it until the destination shows it."""
    clock = ManualClock()
    latencies = Latencies(seed)
    queues = SlowQueues(clock, latencies)
    endpoint = queues.create_endpoint("orders")
    relay = make_relay(queues, endpoint)
    QueueSender(queues).send("orders", "renew the contract", delay=delay_seconds)
    # A delay counts from the broker's SentTimestamp, which is now: sending was the last to take time.
    due_ms = clock.true_ms + delay_seconds * 1000
    hops = last_hop_ms = 0
    while True:
        visible_ms = queues.next_visible_ms()
        if visible_ms is None:
            raise RuntimeError(f"the message was lost at hop {hops}")
        clock.true_ms = visible_ms
        latencies.next_hop()
        copies = queues.receive_batch(endpoint.delay_queue.name, wait_seconds=0)
        if not copies:
            return Arrival(late_ms=visible_ms - due_ms, last_hop_ms=last_hop_ms, hops=hops)
        received_ms = clock.true_ms
        hops += 1
        clock.advance(latencies.processing)
        relay.process(copies)
        last_hop_ms = clock.true_ms - received_ms + round(latencies.answer * 1000)


def report(days: int, ours: Arrival, other: Arrival) -> None:
    """Print both methods side by side."""
    print(f"one message, delayed by {days} days, {MAX_MESSAGE_TIMER_SECONDS} s a hop")
    print(f"{'method':<32}{'hops':>8}{'late (s)':>12}{'of it, last hop (s)':>22}")
    methods = {"absolute due time (sqsdelay)": ours, "remaining delay at every hop": other}
    for name, each in methods.items():
        late, last_hop = each.late_ms / 1000, each.last_hop_ms / 1000
        print(f"{name:<32}{each.hops:>8}{late:>12.3f}{last_hop:>22.3f}")
    print(
        f"ratio: the remaining delay is {other.late_ms / max(1, ours.late_ms):,.0f} times as late "
        f"({other.late_ms / days / 1000:.1f} s a day)"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--days", type=int, default=365, help="length of the delay")
    parser.add_argument("--seed", type=int, default=1, help="of the random latencies")
    options = parser.parse_args()
    if options.days < 1:
        parser.error(f"--days {options.days}; use 1 or more")
    delay_seconds = options.days * DAY_SECONDS
    ours = delay_one_message(delay_seconds, options.seed, Relay)
    other = delay_one_message(delay_seconds, options.seed, RemainingDelayRelay)
    report(options.days, ours, other)
    if ours.late_ms < 0:
        print(f"FAILED: {-ours.late_ms} ms early; the least is 0")
        return 1
    if ours.late_ms >= ALLOWED_LATE_MS:
        print(
            f"FAILED: {ours.late_ms} ms late ({ours.last_hop_ms} ms of it the last hop's own latency); "
            f"{ALLOWED_LATE_MS} are too many"
        )
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
