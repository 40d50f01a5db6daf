"""The bill's requests are those that the real code makes: counted where they leave, under virtual time."""

from __future__ import annotations

import random
import secrets
import zlib
from collections.abc import Iterator
from fractions import Fraction

import pytest

from benchmarks.support.counting import Kind, counted, relayed
from benchmarks.support.dynalite import running_dynalite
from sqsdelay.cost import Bill, Workload, bill, shipped_prices

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

GRID = [
    (code, batch, due_together, place % 2 == 0)
    for code, sizes in (
        ("parked", ((10, 10), (10, 1))),
        ("stored", ((1, 1), (10, 40), (1, 5))),
        ("parked-in-s3", ((10, 1), (10, 60), (1, 3))),
        ("stored-in-s3", ((1, 1), (10, 1), (10, 130), (1, 12))),
        ("parked-in-s3-by-functions", ((10, 20), (1, 1))),
        ("scheduled", ((10, 100), (1, 1))),
        ("scheduled-by-sender", ((10, 1), (10, 300), (1, 30))),
    )
    for place, (batch, due_together) in enumerate(sizes)
]
"""Strategies that park, by what shares a request, what is due together, and whose the ids are."""


@pytest.fixture(scope="module")
def dynamodb() -> Iterator[str]:
    """One that tells what each call consumes."""
    with running_dynalite() as url:
        yield url


def agrees(of: Bill, requests: dict[str, float]) -> None:
    wrong = []
    for kind, starts in UNITS.items():
        lines = [e for e in of.lines if not e.fixed and e.what.startswith(tuple(starts.split("|")))]
        told, found = Fraction(sum(e.quantity for e in lines)), Fraction(requests.get(kind, 0))
        if abs(told - found) > WITHIN * found:
            wrong.append(f"{kind}: {float(told):.1f} billed, {float(found):.1f} counted")
    assert not wrong


@pytest.mark.parametrize("seed", range(6))
def test_hops(seed: int) -> None:
    """Of any size that shares a request, delay and batch."""
    chance = random.Random(seed)
    size, batch = chance.randrange(1, 6_000), chance.randrange(1, 11)
    delay_seconds = chance.randrange(901, 5 * 900)
    load = Workload(delay_seconds=delay_seconds, messages=batch, message_bytes=size, batch=batch)
    found = relayed(delay_seconds, batch, "x" * size).counts
    agrees(bill("relay", load, shipped_prices()), dict(found))


@pytest.mark.parametrize(("code", "batch", "due_together", "own_ids"), GRID)
def test_parked(
    dynamodb: str,
    monkeypatch: pytest.MonkeyPatch,
    code: str,
    batch: int,
    due_together: int,
    own_ids: bool,
) -> None:
    """Of any size and delay: by consumer or sender, in tens or singly, due together or apart."""
    chance = random.Random(f"{code}{batch}{due_together}{own_ids}")
    monkeypatch.setattr(secrets, "randbits", chance.getrandbits)
    body = "".join(chance.choices(LETTERS, k=chance.randrange(1, 3_000)))
    delay_seconds = chance.randrange(3, 300) * DAY
    kind = Kind(
        code=code,
        groups=20 if due_together <= 12 or "s3" in code else 6,
        batch=batch,
        due_together=due_together,
        own_ids=own_ids,
    )
    # Compressed it takes less than is billed; the sum does not count on that.
    deflated = len(zlib.compress(body.encode())) if "s3" not in code else len(body)
    load = Workload(
        delay_seconds=delay_seconds,
        messages=kind.messages,
        message_bytes=min(len(body), deflated),
        batch=batch,
        due_together=due_together,
        own_ids=own_ids,
    )
    found = counted(dynamodb, kind, delay_seconds, body)
    agrees(bill(code, load, shipped_prices()), dict(found))
