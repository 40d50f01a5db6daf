"""The timeout manager beside a dispatcher that takes the same messages from the same store without ids.

    python -m benchmarks.timeouts [--messages 20000] [--latency 0] [--store sqlite:///…|postgresql://…]

Queues are in memory; ``--latency`` is what each of their requests takes, in ms. It fails below 1,000 ids a
second, and when a healthy message is 2 s late beside half as many for a queue that does not exist.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable
from contextlib import closing
from typing import Any

from sqsdelay.core.clock import SystemClock
from sqsdelay.core.endpoint import Endpoint
from sqsdelay.core.stored_message import StoredMessage
from sqsdelay.dispatching.dispatcher import Dispatcher
from sqsdelay.sqs.outbox import SqsOutbox
from sqsdelay.sqs.timeouts import SqsTimeouts
from sqsdelay.stores import open_store
from sqsdelay.testing import InMemoryQueues
from sqsdelay.timeouts.manager import TimeoutManager

LEAST_A_SECOND = 1_000
MOST_LATE_SECONDS = 2.0
ORDERS = Endpoint.parse("orders")
QUEUES = ("orders", "orders-delay-error", "orders-timeouts", "orders-timeouts-dispatcher", "well")


class WallClock(SystemClock):
    """The queues' time is the real one."""

    @property
    def true_ms(self) -> int:
        return self.now_ms()


class SlowQueues(InMemoryQueues):
    """Each request takes a while, as over a network."""

    def __init__(self, latency_seconds: float) -> None:
        clock: Any = WallClock()
        super().__init__(clock)
        self._latency = latency_seconds
        for name in QUEUES:
            self.create_queue(name)

    def __getattribute__(self, name: str) -> Any:
        if name.endswith("_batch"):
            time.sleep(object.__getattribute__(self, "_latency"))
        return super().__getattribute__(name)


def put(store: Any, to: str, count: int, due_ms: int) -> None:
    """Messages that are due."""
    for start in range(0, count, 1000):
        names = [f"{to}-{uuid.uuid4().hex}" for _ in range(min(1000, count - start))]
        store.store(
            [
                StoredMessage(message_id=n, destination=to, due_ms=due_ms, body=b"x" * 200)
                for n in names
            ]
        )


def seconds_until_empty(store: Any, run: Callable[[threading.Event], None]) -> float:
    """How long something needs that empties the store."""
    stop = threading.Event()
    thread = threading.Thread(target=run, args=[stop])
    began = time.perf_counter()
    thread.start()
    while store.pending_count():
        time.sleep(0.005)
    took = time.perf_counter() - began
    stop.set()
    thread.join()
    return took


def worst_lateness(store: Any, queues: SlowQueues, bad: int) -> float:
    """Seconds that the latest of 100 healthy messages arrives late, beside so many for no queue."""
    clock = SystemClock()
    put(store, "gone", bad, clock.now_ms() - 60_000)
    manager = TimeoutManager(store, SqsTimeouts(queues, ORDERS))
    stop, worst = threading.Event(), 0.0
    thread = threading.Thread(target=manager.run, args=[stop])
    thread.start()
    for n in range(100):
        put(store, "well", 1, clock.now_ms())
        began = time.monotonic()
        while len(queues._queues["well"].messages) <= n:
            time.sleep(0.005)
        worst = max(worst, time.monotonic() - began)
        time.sleep(max(0.0, 0.1 - (time.monotonic() - began)))
    stop.set()
    thread.join()
    return worst


def main() -> int:
    """Measure, print, and tell whether the aims are met."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--messages", type=int, default=20_000)
    parser.add_argument("--latency", type=float, default=0.0)
    parser.add_argument("--store")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        url = given.store or f"sqlite:///{folder}/store.db"
        rates = {}
        for what in ("timeout manager", "dispatcher"):
            queues = SlowQueues(given.latency / 1000)
            table = f"timeouts_{uuid.uuid4().hex[:8]}"
            with closing(open_store(f"{url}?table={table}", endpoint="orders")) as store:
                store.set_up()
                put(store, "well", given.messages, SystemClock().now_ms() - 1000)
                run = (
                    TimeoutManager(store, SqsTimeouts(queues, ORDERS)).run
                    if what == "timeout manager"
                    else Dispatcher(store, SqsOutbox(queues, ORDERS)).run
                )
                rates[what] = given.messages / seconds_until_empty(store, run)
                print(f"{what}: {rates[what]:,.0f} messages a second")
        ratio = rates["timeout manager"] / rates["dispatcher"]
        print(f"timeout manager / dispatcher: {ratio:.2f}")
        with closing(open_store(f"{url}?table={table}_bad", endpoint="orders")) as store:
            store.set_up()
            late = worst_lateness(store, SlowQueues(given.latency / 1000), given.messages // 2)
        print(f"beside {given.messages // 2:,} for a missing queue: at most {late:.2f} s late")
    return int(rates["timeout manager"] < LEAST_A_SECOND or late >= MOST_LATE_SECONDS)


if __name__ == "__main__":
    sys.exit(main())
