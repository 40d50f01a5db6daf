"""The bill's requests are those that the real code makes: counted at botocore, under virtual time."""

from __future__ import annotations

import random
from collections.abc import Iterator
from fractions import Fraction

import pytest

from benchmarks.support.counting import SHARDS, relayed, stored
from benchmarks.support.dynalite import MESSAGE_WRITES, OTHER_WRITES, running_dynalite
from sqsdelay.cost import Bill, Workload, bills, shipped_prices

WITHIN = Fraction(5, 100)


@pytest.fixture(scope="module")
def dynamodb() -> Iterator[str]:
    """One that tells what each call consumes."""
    with running_dynalite() as url:
        yield url


def bill(strategy: str, load: Workload) -> Bill:
    (found,) = (each for each in bills(load, shipped_prices()) if each.strategy == strategy)
    return found


def billed(of: Bill, *words: str) -> Fraction:
    lines = [
        line for line in of.lines if not line.fixed and any(word in line.what for word in words)
    ]
    return Fraction(sum(line.quantity for line in lines))


def near(told: Fraction, counted: float) -> bool:
    return abs(told - Fraction(counted)) <= WITHIN * Fraction(counted)


@pytest.mark.parametrize("seed", range(6))
def test_hops(seed: int) -> None:
    """Of any size that shares a request, delay and batch."""
    chance = random.Random(seed)
    size, batch = chance.randrange(1, 6_000), chance.randrange(1, 11)
    delay_seconds = chance.randrange(901, 5 * 900)
    load = Workload(delay_seconds=delay_seconds, messages=batch, message_bytes=size, batch=batch)
    counted = relayed(delay_seconds, batch, "x" * size).counts
    of = bill("relay", load)
    assert near(billed(of, "SQS FIFO"), counted["sqs fifo"])
    assert near(billed(of, "SQS standard"), counted["sqs standard"])


@pytest.mark.parametrize("own_ids", [False, True])
@pytest.mark.parametrize("seed", range(2))
def test_a_dynamodb_store(dynamodb: str, seed: int, own_ids: bool) -> None:
    """Writes of messages, of look-ups by ids of one's own, and of leases, of a batch that is due together."""
    chance = random.Random(seed)
    size, delay_seconds = chance.randrange(1, 900), chance.randrange(3, 300) * 86_400
    # Compressed it would take less than is billed; the sum does not count on that.
    body = "".join(chance.choices([chr(n) for n in range(33, 127)], k=size))
    messages = 100 * SHARDS
    load = Workload(
        delay_seconds=delay_seconds,
        messages=messages,
        message_bytes=size,
        batch=10,
        own_ids=own_ids,
    )
    counted = stored(dynamodb, delay_seconds, messages, body, own_ids=own_ids).counts
    of = bill("stored", load)
    writes = counted[MESSAGE_WRITES] + counted[OTHER_WRITES]
    assert near(billed(of, "write units", "lease writes"), writes)
    assert near(billed(of, "SQS standard"), counted["sqs standard"])
