"""The bill's requests are those that the real code makes: counted where they leave, under virtual time."""

from __future__ import annotations

import math
import random
import secrets
import time
import zlib
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from fractions import Fraction

import pytest

from benchmarks.support.counting import Kind, counted, relayed
from benchmarks.support.dynalite import READS, TABLE, Meter, create_table, running_dynalite
from sqsdelay import Message
from sqsdelay.cost import Bill, Workload, bill, shipped_prices
from sqsdelay.cost.places import IDLE_READ_UNITS
from sqsdelay.dispatching.dispatcher import DEFAULT_BATCH
from sqsdelay.stores import to_store
from sqsdelay.stores.dynamodb import DynamoDbStore

WITHIN = Fraction(5, 100)
LETTERS = [chr(n) for n in range(33, 127) if chr(n) not in '"\\']
DAY = 86_400

UNITS = {
    "sqs fifo": "SQS FIFO",
    "sqs standard": "SQS standard",
    "dynamodb writes": "DynamoDB write units|DynamoDB lease writes",
    "dynamodb reads": "DynamoDB read units",
    "s3 puts": "S3 PUT",
    "s3 gets": "S3 GET",
    "invocations": "EventBridge Scheduler invocations",
}
"""What is counted, and how the lines of a bill begin that tell it."""

PARKED = [
    pytest.param(code, seed, marks=[pytest.mark.nightly] if seed else [])
    for code, seeds in (
        ("parked", 3),
        ("stored", 3),
        ("parked-in-s3", 4),
        ("stored-in-s3", 4),
        ("parked-in-s3-by-functions", 5),
        ("scheduled", 4),
        ("scheduled-by-sender", 4),
    )
    for seed in range(seeds)
]
"""Strategies that park, and where the chances of their cases begin; the first of each by day, too."""

MOST_BYTES = 4_000_000


@pytest.fixture(scope="module")
def dynamodb() -> Iterator[str]:
    """One that tells what each call consumes."""
    with running_dynalite() as url:
        yield url


def agrees(of: Bill, requests: dict[str, float], *, deflated: Bill | None = None) -> None:
    """A body goes through DynamoDB deflated where that helps, and through SQS as it is."""
    wrong = []
    for kind, starts in UNITS.items():
        told_by = deflated if deflated and kind.startswith("dynamodb") else of
        lines = [
            e for e in told_by.lines if not e.fixed and e.what.startswith(tuple(starts.split("|")))
        ]
        told, found = Fraction(sum(e.quantity for e in lines)), Fraction(requests.get(kind, 0))
        if abs(told - found) > WITHIN * found:
            wrong.append(f"{kind}: {float(told):.1f} billed, {float(found):.1f} counted")
    assert not wrong


@pytest.mark.parametrize("seed", range(6))
def test_hops(seed: int) -> None:
    """Of any size whose batch is one request as billed, delay and batch."""
    chance = random.Random(seed)
    batch = chance.randrange(1, 11)
    size = chance.randrange(1, 60_000 // batch)
    delay_seconds = chance.randrange(901, 5 * 900)
    load = Workload(delay_seconds=delay_seconds, messages=batch, message_bytes=size, batch=batch)
    found = relayed(delay_seconds, batch, "x" * size)
    agrees(bill("relay", load, shipped_prices()), dict(found))


@pytest.mark.parametrize(("code", "seed"), PARKED)
def test_parked(dynamodb: str, monkeypatch: pytest.MonkeyPatch, code: str, seed: int) -> None:
    """Of any size, delay, batch and density, with ids of ours or the user's: by consumer or sender."""
    chance = random.Random(f"{code}{seed}")
    monkeypatch.setattr(secrets, "randbits", chance.getrandbits)
    batch = chance.choice([1, 10, chance.randrange(2, 10)])
    together = int(10 ** chance.uniform(0, 1.7))
    if 1 < batch < 10:
        together = batch * -(-together // batch)
    kind = Kind(
        code=code,
        groups=40 if "s3" in code else 20 if together <= 12 else 6,
        batch=batch,
        due_together=together,
        own_ids=chance.random() < 0.5,
    )
    most = min(5.3, math.log10(MOST_BYTES / kind.messages))
    body = "".join(chance.choices(LETTERS, k=int(10 ** chance.uniform(0.5, most))))
    delay_seconds = chance.randrange(3, 300) * DAY
    load = Workload(
        delay_seconds=delay_seconds,
        messages=kind.messages,
        message_bytes=len(body),
        batch=batch,
        due_together=together,
        own_ids=kind.own_ids,
    )
    # In S3 it takes less than is billed, compressed; the sum does not count on that.
    deflated = replace(load, message_bytes=min(len(body), len(zlib.compress(body.encode()))))
    found = counted(dynamodb, kind, delay_seconds, body)
    prices = shipped_prices()
    agrees(bill(code, load, prices), dict(found), deflated=bill(code, deflated, prices))


def test_an_idle_run_of_the_dispatcher(dynamodb: str) -> None:
    """It finds nothing due, and one message far away."""
    counts: Counter[str] = Counter()
    client = Meter(counts).client(dynamodb)
    create_table(client)
    with closing(DynamoDbStore(TABLE, endpoint="orders", client=client)) as store:
        now_ms = time.time_ns() // 1_000_000
        store.store([to_store(Message("x", delay=DAY), "orders", now_ms=now_ms)])
        counts.clear()
        with store.claim(DEFAULT_BATCH, due_by_ms=now_ms) as claim:
            assert not claim.messages
        store.pending(1)
    assert 0 < counts[READS] <= IDLE_READ_UNITS
