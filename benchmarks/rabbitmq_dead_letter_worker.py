"""RabbitMQ's two settings for handing messages over between quorum queues, each beside its default.

``dead_letter_worker_consumer_prefetch``: how fast messages leave a level that are due at one moment.
``dead_letter_worker_publisher_confirm_timeout``: how long a message waits that nobody was bound for when
it was due, once its queue is there, where no alternate exchange catches it.

Both are settings of the broker alone: `advanced.config`, section ``rabbit``. Each run starts a private
RabbitMQ from Debian's package. Takes about five minutes, three of them the default timeout.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pika

from sqsdelay.rabbitmq import RabbitMqMessage, RabbitMqSender, Topology, bind, declare
from tests.services.rabbitmq import RabbitNode

SHARED = Topology("nsb.v2")
LEVEL_SECONDS = 8
"""One bit, so that a message waits in one level and leaves the infrastructure from there."""

DEFAULT_PREFETCH, DEFAULT_TIMEOUT_SECONDS = 32, 180
"""Source: rabbitmq.com/docs/quorum-queues, "At-least-once dead lettering"; rabbit_fifo_dlx_worker.erl."""


@contextmanager
def broker(prefetch: int, timeout_seconds: int) -> Iterator[RabbitNode]:
    """A private node with both settings, made before there is a queue."""
    with tempfile.TemporaryDirectory() as folder:
        node = RabbitNode(Path(folder))
        try:
            node.start()
            for name, value in (
                ("consumer_prefetch", prefetch),
                ("publisher_confirm_timeout", timeout_seconds * 1000),
            ):
                node.ctl(
                    "eval", f"application:set_env(rabbit, dead_letter_worker_{name}, {value})."
                )
            yield node
        finally:
            node.stop()


def arrivals(url: str, queue: str, count: int, *, seconds: float) -> list[float]:
    """When each message came, by this machine's monotonic clock."""
    came: list[float] = []
    deadline = time.monotonic() + seconds
    with pika.BlockingConnection(pika.URLParameters(url)) as connection:
        channel = connection.channel()
        for method, _, _ in channel.consume(queue, auto_ack=True, inactivity_timeout=0.5):
            if method is not None:
                came.append(time.monotonic())
            if len(came) == count or time.monotonic() > deadline:
                break
        channel.cancel()
    if len(came) != count:
        raise SystemExit(f"{len(came)} of {count} messages came within {seconds:g} s")
    return came


def make_queue(url: str, name: str) -> None:
    with pika.BlockingConnection(pika.URLParameters(url)) as connection:
        connection.channel().queue_declare(name, durable=True, arguments={"x-queue-type": "quorum"})


def drained_per_second(prefetch: int, messages: int) -> float:
    """The rate at which messages leave a level that are due at the same moment."""
    with broker(prefetch, DEFAULT_TIMEOUT_SECONDS) as node:
        declare(node.url)
        make_queue(node.url, "orders")
        with RabbitMqSender(node.url) as sender:
            body = b"x" * 200
            results = sender.send_many(
                "orders", [RabbitMqMessage(body, delay=LEVEL_SECONDS)] * messages
            )
        assert all(result.error is None for result in results)
        came = arrivals(node.url, "orders", messages, seconds=120)
        return (messages - 1) / (came[-1] - came[0])


def seconds_until_retried(timeout_seconds: int) -> float:
    """From the binding of a queue to the arrival of what was due for it before."""
    with broker(DEFAULT_PREFETCH, timeout_seconds) as node:
        declare(node.url, SHARED)
        make_queue(node.url, "late")
        with RabbitMqSender(
            node.url, prefix=SHARED.prefix, bind=False, without_alternate_exchange=True
        ) as sender:
            sender.send("late", "hi", delay=1)
        time.sleep(3)
        bind(node.url, "late", SHARED)
        bound = time.monotonic()
        (came,) = arrivals(node.url, "late", 1, seconds=DEFAULT_TIMEOUT_SECONDS * 2)
        return came - bound


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=5_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--prefetch", type=int, default=1_000)
    parser.add_argument("--timeout", type=int, default=10, help="seconds")
    parser.add_argument("--skip-timeout", action="store_true", help="leave out the slow half")
    options = parser.parse_args()
    defaults, others = [], []
    for _ in range(options.rounds):  # in turns, so that a busy moment of the machine hits both
        defaults.append(drained_per_second(DEFAULT_PREFETCH, options.messages))
        others.append(drained_per_second(options.prefetch, options.messages))
    print(
        f"{options.messages:,} messages due at once leave a level, a second, {options.rounds} rounds:"
    )
    for prefetch, rates in ((DEFAULT_PREFETCH, defaults), (options.prefetch, others)):
        shown = ", ".join(f"{rate:,.0f}" for rate in rates)
        print(f"  dead_letter_worker_consumer_prefetch {prefetch:6}: {shown}")
    ratios = sorted(other / default for default, other in zip(defaults, others, strict=True))
    print(f"  ratio {ratios[0]:.2f} to {ratios[-1]:.2f}")
    if options.skip_timeout:
        return
    default, other = (
        seconds_until_retried(seconds) for seconds in (DEFAULT_TIMEOUT_SECONDS, options.timeout)
    )
    print("a message that nobody was bound for comes, after its queue was bound, seconds:")
    for seconds, waited in ((DEFAULT_TIMEOUT_SECONDS, default), (options.timeout, other)):
        print(f"  dead_letter_worker_publisher_confirm_timeout {seconds:4} s: {waited:6.1f}")
    print(f"  ratio {default / other:.1f}")


if __name__ == "__main__":
    main()
