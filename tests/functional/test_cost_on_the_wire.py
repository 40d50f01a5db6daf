"""The bill's requests are those that the real code makes: counted where they leave, under virtual time."""

from __future__ import annotations

import math
import random
import secrets
import zlib
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest

from benchmarks.support.dynalite import running_dynalite
from sqsdelay.cost import Bill, Workload, bill, shipped_prices
from tests.functional.counted_requests import Kind, counted, idle, relayed

WITHIN = Fraction(5, 100)
LETTERS = [chr(n) for n in range(33, 127) if chr(n) not in '"\\']
DAY = 86_400

UNITS = {
    "sqs fifo": "SQS FIFO",
    "sqs standard": "SQS standard",
    "dynamodb writes": "DynamoDB write units|DynamoDB lease writes",
    "dynamodb reads": "DynamoDB read units",
    "s3 puts": "S3 PUT|S3 LIST",
    "s3 gets": "S3 GET",
    "invocations": "EventBridge Scheduler invocations",
}
"""What is counted, and how the lines of a bill begin that tell it."""

PARKED = [
    pytest.param(code, seed, marks=[] if seed == by_day else [pytest.mark.nightly])
    for code, seeds, by_day in (
        ("parked", 3, "large"),
        ("stored", 3, 0),
        ("parked-in-s3", 4, "large"),
        ("stored-in-s3", 4, 0),
        ("parked-in-s3-by-functions", 5, 0),
        ("scheduled", 4, 0),
        ("scheduled-by-sender", 4, "large"),
    )
    for seed in (*range(seeds), "large", "larger")
]
"""Strategies that park, where the chances of their cases begin, and the case by day: of each kind of store
many and large ones, and ids of the user's."""

MOST_BYTES = 4_000_000
LARGEST = {
    "parked": 400_000,
    "stored": 400_000,
    "scheduled": 220_000,
    "scheduled-by-sender": 220_000,
}


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


@pytest.mark.parametrize("seed", range(8))
def test_hops(seed: int) -> None:
    """Of any size, delay and batch."""
    chance = random.Random(seed)
    batch = chance.randrange(1, 11)
    size = int(10 ** chance.uniform(0, 6))
    delay_seconds = chance.randrange(901, 5 * 900)
    load = Workload(delay_seconds=delay_seconds, messages=batch, message_bytes=size, batch=batch)
    found = relayed(delay_seconds, batch, "x" * size)
    agrees(bill("relay", load, shipped_prices()), dict(found))


@pytest.mark.parametrize(("code", "seed"), PARKED)
def test_parked(dynamodb: str, monkeypatch: pytest.MonkeyPatch, code: str, seed: int | str) -> None:
    """Of any size, delay, batch and density, with ids of ours or the user's: by consumer or sender."""
    large = isinstance(seed, str)
    chance = random.Random(f"{code}{seed}")
    monkeypatch.setattr(secrets, "randbits", chance.getrandbits)
    batch = chance.choice([1, 10, chance.randrange(2, 10)])
    together = int(10 ** chance.uniform(0, 1.7))
    if 1 < batch < 10:
        together = batch * -(-together // batch)
    kind = Kind(
        code=code,
        groups=4 if large else 40 if "s3" in code else 8 if together <= 12 else 4,
        batch=batch,
        due_together=together if not large else batch if 1 < batch < 10 else 9,
        own_ids=chance.random() < 0.5,
    )
    largest = LARGEST.get(code, 10**6)
    most = largest if large else min(largest, MOST_BYTES / kind.messages)
    size = int(10 ** chance.uniform(5 if large else 0.5, math.log10(most)))
    body = "".join(chance.choices(LETTERS, k=size))
    delay_seconds = chance.randrange(3, 300) * DAY
    load = Workload(
        delay_seconds=delay_seconds,
        messages=kind.messages,
        message_bytes=len(body),
        batch=batch,
        due_together=kind.due_together,
        own_ids=kind.own_ids,
    )
    # In S3 it takes less than is billed, compressed; the sum does not count on that.
    deflated = replace(load, message_bytes=min(len(body), len(zlib.compress(body.encode()))))
    found = counted(dynamodb, kind, delay_seconds, body)
    prices = shipped_prices()
    agrees(bill(code, load, prices), dict(found), deflated=bill(code, deflated, prices))


@pytest.mark.parametrize(
    "code", ["stored-in-s3", pytest.param("parked-in-s3-by-functions", marks=pytest.mark.nightly)]
)
def test_a_day_with_so_many_that_it_is_split(code: str) -> None:
    """20,000, five hundred together: they are read and written anew twice, slot by slot."""
    kind = Kind(code=code, groups=40, batch=10, due_together=500, own_ids=False)
    load = Workload(
        delay_seconds=40 * DAY,
        messages=kind.messages,
        message_bytes=10,
        batch=10,
        due_together=kind.due_together,
    )
    agrees(bill(code, load, shipped_prices()), dict(counted("", kind, 40 * DAY, "x" * 10)))


def test_one_by_one_to_the_second_a_million_cost_160() -> None:
    """As dense as a million in a year, by the sender: what was counted, at its price, and functions' time."""
    one_by_one: dict[str, Any] = {"batch": 1, "due_together": 1, "own_ids": False}
    kind = Kind(code="scheduled-by-sender", groups=1000, by_chance_in=31, **one_by_one)
    load = Workload(delay_seconds=31_000, messages=1000, message_bytes=200, **one_by_one)
    found, billed = counted("", kind, 30 * DAY, "x" * 200), bill(kind.code, load, shipped_prices())
    agrees(billed, dict(found))
    prices = shipped_prices()
    paid = found["invocations"] * prices.eventbridge_scheduler_invocation
    paid += found["sqs standard"] * prices.sqs_standard_request
    paid += sum(e.amount for e in billed.lines if "Lambda" in e.what and not e.fixed)
    assert 1.55 < float(paid) * 1000 <= 1.60


@pytest.mark.parametrize("code", ["parked", "parked-in-s3-by-functions", "scheduled"])
def test_what_runs_meanwhile(dynamodb: str, code: str) -> None:
    """For an hour, beside one message that is due much later; Lambda's own polls cannot be counted."""
    found = idle(dynamodb, code, hours := 1)
    billed = bill(code, Workload(delay_seconds=hours * 3_600), shipped_prices())
    counted_here = [e for e in billed.lines if e.fixed and "polling" not in e.what]
    lines = tuple(replace(line, fixed=False) for line in counted_here)
    agrees(replace(billed, lines=lines), dict(found))
