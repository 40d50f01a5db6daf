"""Failover in a three-node RabbitMQ cluster: a level's leader is killed while messages wait and others
are published.

``dead_letter_worker_publisher_confirm_timeout``, a setting of the broker (`advanced.config`, section
``rabbit``), is tried with each value of ``--timeouts``, in seconds; RabbitMQ's default is 180. Starts private
nodes from Debian's package. What is `Unconfirmed` is sent again with the same id, as the guide says. Exits
with 1 if a message is lost or early, or if sending goes on later than 5 s after a level has a new leader.
"""

from __future__ import annotations

import argparse
import sys
import threading
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field

import pika
from pika.exceptions import AMQPError

from sqsdelay.core.message import WAS_DUE_AT
from sqsdelay.errors import SqsDelayError
from sqsdelay.rabbitmq import RabbitMqMessage, RabbitMqSender, Topology, bind, declare
from sqsdelay.rabbitmq.management import Management
from tests.services.rabbitmq import RabbitNode, three_nodes

TOPOLOGY = Topology()
QUEUE = "orders"
KILLED_LEVELS = (0, 4, 2, 5)
"""Whose leader is killed, one after the other."""
LONGEST_SECONDS = 200
"""Of the delays of those that wait."""
LONGEST_LIVE_SECONDS = 63
"""Of the delays of those that are published meanwhile."""
PAUSE_SECONDS = 15
"""Between a node's return and the next kill."""
RESUMED_WITHIN_SECONDS = 5.0


@dataclass
class Inbox:
    """Consumes from any node that lives; a message counts once it is acknowledged, and by its id."""

    urls: list[str]
    late_ms: dict[str, float] = field(default_factory=dict)
    twice: int = 0
    stopping: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        nodes = [pika.URLParameters(url) for url in self.urls]
        while not self.stopping.is_set():
            # The node that was killed is followed to the next.
            with suppress(AMQPError, OSError), pika.BlockingConnection(nodes) as connection:
                self._consume(connection)
            time.sleep(0.2)

    def _consume(self, connection: pika.BlockingConnection) -> None:
        channel = connection.channel()
        channel.basic_qos(prefetch_count=500)
        for method, properties, _ in channel.consume(QUEUE, inactivity_timeout=0.2):
            if self.stopping.is_set():
                return
            if method is None or properties is None:
                continue
            late = time.time() * 1000 - int(properties.headers[WAS_DUE_AT])
            # A copy for want of our acknowledgement is the consumer's doing, and says so.
            self.twice += properties.message_id in self.late_ms and not method.redelivered
            self.late_ms.setdefault(properties.message_id, late)
            channel.basic_ack(method.delivery_tag)


@dataclass
class Publishing:
    """Sends ten messages at a time and again what is not confirmed; notes when all ten were."""

    sender: RabbitMqSender
    confirmed: set[str] = field(default_factory=set)
    outcomes: Counter[str] = field(default_factory=Counter)
    whole_at: float = 0.0
    stopping: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        number, again = 0, list[str]()
        while not self.stopping.is_set() or again:
            ids = again or [f"live-{number + n}" for n in range(10)]
            number += 0 if again else 10
            again = self._send(ids)
            if not again:
                self.whole_at = time.monotonic()
            time.sleep(0.1)

    def _send(self, ids: list[str]) -> list[str]:
        messages = [
            RabbitMqMessage(
                "live", delay=1 + len(self.confirmed) % LONGEST_LIVE_SECONDS, message_id=each
            )
            for each in ids
        ]
        try:
            results = self.sender.send_many(QUEUE, messages)
        except SqsDelayError as error:
            self.outcomes[type(error).__name__] += len(ids)
            return ids
        for result in results:
            self.outcomes["confirmed" if result.error is None else type(result.error).__name__] += 1
        self.confirmed |= {str(each.message_id) for each in results if each.error is None}
        return [str(each.message_id) for each in results if each.error is not None]


def leader(nodes: list[RabbitNode], level: int, *, dead: RabbitNode | None = None) -> RabbitNode:
    """The node that leads a level, another than the dead one, as soon as the survivors say so."""
    asked = next(node for node in nodes if node is not dead)
    management = Management(asked.management_url, "/")
    while True:
        with suppress(SqsDelayError):
            name = management.named("queues")[TOPOLOGY.level_name(level)].get("leader")
            for node in nodes:
                if node is not dead and node.name == name:
                    return node
        time.sleep(0.05)


def kill(nodes: list[RabbitNode], level: int, live: Publishing) -> float:
    """Kill a level's leader and bring it back; seconds from the new leader to sending as before."""
    doomed = leader(nodes, level)
    doomed.kill()
    killed_at = time.monotonic()
    leader(nodes, level, dead=doomed)
    led_at = time.monotonic()
    while live.whole_at < led_at:
        time.sleep(0.02)
    resumed = live.whole_at - led_at
    print(
        f"    level {level:02}: a new leader after {led_at - killed_at:.1f} s, sending again "
        f"{resumed:.1f} s later",
        flush=True,
    )
    doomed.start()
    time.sleep(PAUSE_SECONDS)
    return resumed


def measure(timeout_seconds: int, waiting: int) -> bool:
    """One cluster, four kills; True if the aims are met."""
    print(f"confirm timeout {timeout_seconds} s, {waiting:,} waiting", flush=True)
    with three_nodes(confirm_timeout_seconds=timeout_seconds) as nodes:
        urls = [node.url for node in nodes]
        declare(urls, TOPOLOGY)
        with pika.BlockingConnection(pika.URLParameters(urls[0])) as connection:
            connection.channel().queue_declare(
                QUEUE, durable=True, arguments={"x-queue-type": "quorum"}
            )
        bind(urls, QUEUE)
        time.sleep(2)
        inbox = Inbox(urls)
        # Daemons: what goes wrong here must not leave the program waiting for them.
        consuming = threading.Thread(target=inbox.run, daemon=True)
        with RabbitMqSender(urls, confirm_seconds=10) as sender:
            live = Publishing(sender)
            began = time.monotonic()
            for start in range(0, waiting, 2_000):
                messages = [
                    RabbitMqMessage(
                        "waiting",
                        delay=30 + n % (LONGEST_SECONDS - 30),
                        message_id=f"waiting-{n}",
                    )
                    for n in range(start, min(start + 2_000, waiting))
                ]
                results = sender.send_many(QUEUE, messages)
                live.confirmed |= {str(each.message_id) for each in results if each.error is None}
            publishing = threading.Thread(target=live.run, daemon=True)
            consuming.start()
            publishing.start()
            time.sleep(5)
            resumed = [kill(nodes, level, live) for level in KILLED_LEVELS]
            live.stopping.set()
            publishing.join()
        last_due = max(began + LONGEST_SECONDS, time.monotonic() + LONGEST_LIVE_SECONDS)
        until = last_due + 60 + 2 * timeout_seconds
        while live.confirmed - inbox.late_ms.keys() and time.monotonic() < until:
            time.sleep(0.5)
        inbox.stopping.set()
        consuming.join()
        missing = sorted(live.confirmed - inbox.late_ms.keys())
        if missing:  # late rather than lost, if the broker holds as many
            queues = Management(nodes[0].management_url, "/").named("queues").values()
            held = {q["name"]: q["messages"] for q in queues if q.get("messages")}
            print(f"    missing {missing}; on the broker {held}", flush=True)
    late = sorted(inbox.late_ms.values())
    lost, early = len(missing), sum(each < 0 for each in late)
    print(
        f"    {len(live.confirmed):,} confirmed: {lost} lost, {early} early, {inbox.twice} twice; late by "
        f"{late[len(late) // 2] / 1000:.2f} s (p50), {late[len(late) * 99 // 100] / 1000:.1f} s (p99), "
        f"{late[-1] / 1000:.1f} s (most); outcomes of sends {dict(live.outcomes)}",
        flush=True,
    )
    return not lost and not early and max(resumed) <= RESUMED_WITHIN_SECONDS


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--waiting", type=int, default=20_000, help="messages that wait")
    parser.add_argument("--timeouts", default="180,10", help="seconds, with commas")
    options = parser.parse_args()
    met = [measure(int(each), options.waiting) for each in options.timeouts.split(",")]
    return 0 if all(met) else 1


if __name__ == "__main__":
    sys.exit(main())
