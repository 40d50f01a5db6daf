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

QUEUE = "ours"
OF_SEND_MANY = 0.9
OF_AIO_PIKA = 1.0

Publishes = Callable[[list[int]], Awaitable[object]]
"""Sends a message with each of these delays, and waits until the broker has confirmed all."""


async def by_aio_pika(url: str) -> Publishes:
    """All at once on one channel, each confirmed; what sqsdelay adds to a message is left out."""
    connection = await aio_pika.connect(url)
    channel = await connection.channel(publisher_confirms=True)
    exchanges = [
        await channel.get_exchange(OURS.level_name(level), ensure=False) for level in range(28)
    ]

    async def publish(seconds: list[int]) -> object:
        return await asyncio.gather(
            *(
                exchanges[entry_level(each)].publish(
                    aio_pika.Message(BODY, delivery_mode=aio_pika.DeliveryMode.PERSISTENT),
                    routing_key(each, QUEUE),
                )
                for each in seconds
            )
        )

    return publish


def by_send_many(sender: RabbitMqSender) -> Publishes:
    async def publish(seconds: list[int]) -> object:
        messages = [RabbitMqMessage(BODY, delay=each) for each in seconds]
        results = sender.send_many(QUEUE, messages)
        assert all(result.error is None for result in results)
        return results

    return publish


def by_tasks(sender: AsyncRabbitMqSender) -> Publishes:
    async def publish(seconds: list[int]) -> object:
        return await asyncio.gather(*(sender.send(QUEUE, BODY, delay=each) for each in seconds))

    return publish


async def compare(url: str, options: argparse.Namespace) -> bool:
    """Measure and print; True if the aims are met."""
    sender = RabbitMqSender(url, prefix=OURS.prefix)
    async with AsyncRabbitMqSender(RabbitMqSender(url, prefix=OURS.prefix)) as tasks:
        contestants = {
            "RabbitMqSender.send_many": by_send_many(sender),
            "AsyncRabbitMqSender.send, all at once": by_tasks(tasks),
            "aio-pika, all at once": await by_aio_pika(url),
        }
        rates: dict[str, list[float]] = {name: [] for name in contestants}
        for publish in contestants.values():
            await publish(delays(200))
        for _ in range(options.rounds):
            for name, publish in contestants.items():
                began = time.perf_counter()
                await publish(delays(options.messages))
                rates[name].append(options.messages / (time.perf_counter() - began))
    sender.close()
    print(f"confirmed delayed publishes a second, {options.messages:,} in a round")
    for name, column in rates.items():
        print(f"  {name:<40}{statistics.median(column):>8,.0f}")
    many, ours, peer = rates.values()
    met = True
    for text, others, aim in (("send_many", many, OF_SEND_MANY), ("aio-pika", peer, OF_AIO_PIKA)):
        ratio = statistics.median(a / b for a, b in zip(ours, others, strict=True))
        met = met and ratio >= aim
        print(f"  asyncio against {text}: {ratio:.2f} (aim >= {aim})")
    return met


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--url", help="amqp://…; a private broker when left out")
    parser.add_argument("--messages", type=int, default=5000, help="messages a round")
    parser.add_argument("--rounds", type=int, default=5, help="rounds of each, taking turns")
    options = parser.parse_args()
    with private_broker() if options.url is None else nullcontext(options.url) as url:
        declare(url, OURS)
        queues(url, QUEUE)
        met = asyncio.run(compare(url, options))
        teardown(url, OURS, force=True)
        queues(url, QUEUE, delete=True)
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
