"""Many callers that send one message each: `AsyncDelaySender`, and threads with ``linger_ms``.

The contestants take turns, round by round, on the same stub; the figures are medians. The exit code is
1 if coalescing takes more than a tenth of the requests, which the server counts, and a few. Speed
depends on the machine.

The rivals of `AsyncDelaySender` are what an engineer would write: with all the messages at hand, batches of
ten with aiobotocore, where that is installed, and with boto3 in 16 threads; and a task for each message, with
aiobotocore and a queue. None of them checks a message, or knows of a due time.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import importlib.util
import sys
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from benchmarks.support.contest import Work, compared
from benchmarks.support.sqs_stub import BODY, REGION, Stub, running_stub
from benchmarks.throughput import PlainBoto3, entry, own_client, raise_failed
from sqsdelay import AsyncDelaySender, DelaySender
from sqsdelay.core.limits import MAX_BATCH_ENTRIES
from sqsdelay.core.loop_calls import DEFAULT_LINGER_MS
from sqsdelay.sqs.sender import ASYNC_CONCURRENCY

DAY = 24 * 3600
FEW = 5
"""Requests above the tenth: groups that were not full when their first message had lingered."""


def delay_sender(stub: Stub, *, concurrency: int, linger_ms: float = 0) -> DelaySender:
    """A sender with a client as it makes itself, of the stub."""
    client = own_client(stub, connections=concurrency)
    return DelaySender(client, concurrency=concurrency, linger_ms=linger_ms)


def coalesced(stub: Stub, *, linger_ms: float = DEFAULT_LINGER_MS) -> Work:
    """`AsyncDelaySender`, as it comes."""
    sender = delay_sender(stub, concurrency=ASYNC_CONCURRENCY)

    async def work(messages: int) -> None:
        async with AsyncDelaySender(sender, linger_ms=linger_ms) as sends:
            await asyncio.gather(*(sends.send("orders", BODY, delay=DAY) for _ in range(messages)))

    return lambda messages: asyncio.run(work(messages))


def threads(stub: Stub, *, number: int, linger_ms: float) -> Work:
    """So many threads that send one message after the other."""
    sender = delay_sender(stub, concurrency=16, linger_ms=linger_ms)

    def one(_: int) -> None:
        sender.send("orders", BODY, delay=DAY)

    def work(messages: int) -> None:
        with ThreadPoolExecutor(number) as pool:
            list(pool.map(one, range(messages)))

    return work


def aiobotocore(stub: Stub, send: Callable[[Any, int], Awaitable[None]]) -> Work:
    """Its client's ``send_message_batch`` to the delay queue, and a way to use it."""
    session = importlib.import_module("aiobotocore.session").get_session()
    configured = importlib.import_module("aiobotocore.config").AioConfig
    config = configured(parameter_validation=False, max_pool_connections=16, user_agent="x")
    keys = {"aws_access_key_id": "stub", "aws_secret_access_key": "stub"}
    place = {"endpoint_url": stub.url, "region_name": REGION}

    async def work(messages: int) -> None:
        async with session.create_client("sqs", config=config, **place, **keys) as client:
            url = f"{stub.url}/000000000000/orders-delay.fifo"
            await send(partial(client.send_message_batch, QueueUrl=url), messages)

    return lambda messages: asyncio.run(work(messages))


async def by_hand(send_batch: Any, messages: int) -> None:
    """Batches of ten, 16 at a time."""
    lanes = asyncio.Semaphore(16)

    async def send() -> None:
        entries = [entry(str(number)) for number in range(MAX_BATCH_ENTRIES)]
        async with lanes:
            raise_failed(await send_batch(Entries=entries))

    await asyncio.gather(*(send() for _ in range(messages // MAX_BATCH_ENTRIES)))


async def by_queue(send_batch: Any, messages: int) -> None:
    """A task for each message; 16 others send what waits, up to ten at once, and tell each."""
    waiting: asyncio.Queue[tuple[Any, asyncio.Future[None]]] = asyncio.Queue()

    async def send() -> None:
        while True:
            taken = [await waiting.get()]
            while len(taken) < MAX_BATCH_ENTRIES and not waiting.empty():
                taken.append(waiting.get_nowait())
            entries = [{**one, "Id": str(number)} for number, (one, _) in enumerate(taken)]
            try:
                answer = await send_batch(Entries=entries)
                done = {each["Id"] for each in answer.get("Successful", ())}
            except Exception as error:
                done = {error}
            for number, (_, result) in enumerate(taken):
                if str(number) in done:
                    result.set_result(None)
                else:
                    result.set_exception(RuntimeError(f"not sent: {done}"))

    async def one() -> None:
        result = asyncio.get_running_loop().create_future()
        waiting.put_nowait((entry(""), result))
        await result

    senders = [asyncio.create_task(send()) for _ in range(16)]
    await asyncio.gather(*(one() for _ in range(messages)))
    for each in senders:
        each.cancel()


def benchmark(stub: Stub, *, messages: int, rounds: int) -> bool:
    """Run all comparisons at the stub's latency; whether coalescing took few enough requests."""
    contestants: dict[str, Work] = {}
    if importlib.util.find_spec("aiobotocore"):
        contestants["aiobotocore, batches by hand"] = aiobotocore(stub, by_hand)
        contestants["aiobotocore, a task each, by a queue"] = aiobotocore(stub, by_queue)
    contestants["boto3, batches by hand, 16 threads"] = PlainBoto3(stub, own_client(stub)).send
    contestants["AsyncDelaySender.send"] = coalesced(stub)
    print(f"{messages:,} tasks at once")
    *_, ours = compared(stub, contestants, messages=messages, rounds=rounds).values()
    print("100 threads, a message at a time")
    in_threads = {
        f"DelaySender(linger_ms={ms}).send": threads(stub, number=100, linger_ms=ms)
        for ms in (0, 5)
    }
    compared(stub, in_threads, messages=messages, rounds=rounds)
    most = messages / MAX_BATCH_ENTRIES + FEW
    return all(each.requests <= most for each in ours)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--messages", type=int, default=1000, help="messages a round")
    parser.add_argument("--rounds", type=int, default=5, help="rounds of each, taking turns")
    parser.add_argument("--latency-ms", type=float, nargs="+", default=[0, 20])
    options = parser.parse_args()
    if options.messages < MAX_BATCH_ENTRIES or options.rounds < 1:
        parser.error(f"use at least {MAX_BATCH_ENTRIES} messages and 1 round")
    ended_well = True
    with running_stub() as stub:
        for latency_ms in options.latency_ms:
            stub.set_latency(latency_ms)
            print(f"\n{latency_ms:g} ms latency, {options.rounds} rounds")
            ended_well &= benchmark(stub, messages=options.messages, rounds=options.rounds)
    if not ended_well:
        print(f"FAILED: more than a tenth of the requests and {FEW}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
