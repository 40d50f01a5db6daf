"""Confirmed delayed publishes a second from asyncio: sqsdelay's senders beside aio-pika by hand.

All publish the same messages to one RabbitMQ, a private one from Debian's package, with the same exchanges
and routing keys. The contestants take turns; the figures are medians. Exits with 1 if an aim is missed.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from itertools import cycle

import aio_pika

from benchmarks.rabbitmq import BODY, OURS, delays, private_broker, queues
from sqsdelay.rabbitmq import (
    AsyncRabbitMqSender,
    RabbitMqMessage,
    RabbitMqSender,
    declare,
    teardown,
)
from sqsdelay.rabbitmq.topology import entry_level, routing_key

OF_SEND_MANY = 0.9
OF_AIO_PIKA = 1.0
"""Least of the rate, and most of the processor time."""

Work = list[tuple[str, int]]
"""Queues and delays of messages."""
Publishes = Callable[[Work], Awaitable[object]]
"""Sends these messages, and waits until the broker has confirmed all."""


def names(endpoints: int) -> list[str]:
    return [f"ours-{number}" for number in range(endpoints)]


def work(messages: int, endpoints: int) -> Work:
    """Messages for so many endpoints, in turn."""
    return list(zip(cycle(names(endpoints)), delays(messages), strict=False))


async def by_aio_pika(url: str) -> Publishes:
    """All at once on one channel, each confirmed; what sqsdelay adds to a message is left out."""
    connection = await aio_pika.connect(url)
    channel = await connection.channel(publisher_confirms=True)
    exchanges = [
        await channel.get_exchange(OURS.level_name(level), ensure=False) for level in range(28)
    ]

    async def publish(work: Work) -> object:
        return await asyncio.gather(
            *(
                exchanges[entry_level(each)].publish(
                    aio_pika.Message(BODY, delivery_mode=aio_pika.DeliveryMode.PERSISTENT),
                    routing_key(each, queue),
                )
                for queue, each in work
            )
        )

    return publish


def by_send_many(sender: RabbitMqSender) -> Publishes:
    async def publish(work: Work) -> object:
        for queue in dict.fromkeys(queue for queue, _ in work):
            messages = [RabbitMqMessage(BODY, delay=each) for to, each in work if to == queue]
            results = sender.send_many(queue, messages)
            assert all(result.error is None for result in results)
        return None

    return publish


def by_tasks(sender: AsyncRabbitMqSender) -> Publishes:
    async def publish(work: Work) -> object:
        return await asyncio.gather(*(sender.send(queue, BODY, delay=each) for queue, each in work))

    return publish


async def compare(url: str, options: argparse.Namespace, endpoints: int) -> bool:
    """Measure and print; True if the aims are met."""
    sender = RabbitMqSender(url, prefix=OURS.prefix)
    async with AsyncRabbitMqSender(RabbitMqSender(url, prefix=OURS.prefix)) as tasks:
        contestants = {
            "RabbitMqSender.send_many": by_send_many(sender),
            "AsyncRabbitMqSender.send, all at once": by_tasks(tasks),
            "aio-pika, all at once": await by_aio_pika(url),
        }
        rates: dict[str, list[float]] = {name: [] for name in contestants}
        spent: dict[str, list[float]] = {name: [] for name in contestants}
        for publish in contestants.values():
            await publish(work(200, endpoints))
        for _ in range(options.rounds):
            for name, publish in contestants.items():
                messages = work(options.messages, endpoints)
                began, used = time.perf_counter(), time.process_time()
                await publish(messages)
                rates[name].append(options.messages / (time.perf_counter() - began))
                spent[name].append(time.process_time() - used)
    sender.close()
    print(f"confirmed delayed publishes a second, {options.messages:,} to {endpoints} endpoints")
    for name, column in rates.items():
        print(f"  {name:<40}{statistics.median(column):>8,.0f}")
    many, ours, peer = rates.values()
    compared = [("aio-pika", peer, OF_AIO_PIKA)]
    if endpoints == 1:
        compared.append(("send_many", many, OF_SEND_MANY))
    met = True
    for text, others, aim in compared:
        ratio = statistics.median(a / b for a, b in zip(ours, others, strict=True))
        met = met and ratio >= aim
        print(f"  asyncio against {text}: {ratio:.2f} (aim >= {aim})")
    _, own, theirs = spent.values()
    ratio = statistics.median(a / b for a, b in zip(own, theirs, strict=True))
    print(f"  processor time of asyncio against aio-pika: {ratio:.2f} (aim <= {OF_AIO_PIKA})")
    return met and ratio <= OF_AIO_PIKA


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--url", help="amqp://…; a private broker when left out")
    parser.add_argument("--messages", type=int, default=5000, help="messages a round")
    parser.add_argument("--rounds", type=int, default=5, help="rounds of each, taking turns")
    parser.add_argument("--endpoints", default="1,20,200", help="numbers of them, with commas")
    options = parser.parse_args()
    counts = [int(each) for each in options.endpoints.split(",")]
    with private_broker() if options.url is None else nullcontext(options.url) as url:
        declare(url, OURS)
        queues(url, *names(max(counts)))
        met = [asyncio.run(compare(url, options, each)) for each in counts]
        teardown(url, OURS, force=True)
        hand_overs = (OURS.hand_over_queue(name) for name in names(max(counts)))
        queues(url, *(queue.name for queue in hand_overs if queue is not None), delete=True)
        queues(url, *names(max(counts)), delete=True)
    return 0 if all(met) else 1


if __name__ == "__main__":
    sys.exit(main())
