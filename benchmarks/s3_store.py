"""What a year in the S3 store costs, in requests counted where the client sends them.

Delay consumer, store and dispatcher are the ones that run in production, on queues and a bucket in memory
and under virtual time: messages of 204 bytes are received from the delay queue and parked in groups,
wait for a year, go through all levels of slots, and are released. Prices are sqsdelay's own file. Exits
with 1 if anything is lost, released twice or early, or dearer than it should be.
"""

from __future__ import annotations

import argparse
import base64
import json
import random
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cache
from typing import Any, Final

from sqsdelay.core.checked_message import new_message_id
from sqsdelay.core.endpoint import QueueRef
from sqsdelay.core.message import OutgoingMessage, string
from sqsdelay.core.stored_message import StoredMessage
from sqsdelay.cost import Prices, Workload, bill, shipped_prices
from sqsdelay.cost.places import LINE_BYTES, MONTH_SECONDS, SLOTS
from sqsdelay.parking.parking import ParkingSettings
from sqsdelay.relaying.mover import Outcome, RelaySettings
from sqsdelay.relaying.parker import Gathering
from sqsdelay.relaying.relay import Relay
from sqsdelay.relaying.visibility import Visibility
from sqsdelay.stores import S3Store
from sqsdelay.stores.s3.s3_store import TURN_SECONDS
from sqsdelay.testing import InMemoryQueues, ManualClock
from tests.services.in_memory_s3 import InMemoryS3

BODY: Final = json.dumps(
    {"order": 7, "text": base64.b85encode(random.Random(7).randbytes(144)).decode()}
)
"""204 bytes of noise as text can be: they deflate to 182, where an order's JSON becomes half of it."""

DAY = 86_400
YEAR = 365 * DAY
GROUP = 5_000
BATCH = 500
AHEAD_MS = 900_000
MILLION = 10**6
AIM_QUEUE_USD = Fraction(40, 100)
AIM_DIRECT_USD = Fraction(30, 100)
DELAY_QUEUE = "delay queue: send, receive, delete"
SEND_MS = Fraction(2, 10)
"""Assumed of a dispatcher's processor for a message's share of a batch send."""
PUTS = ("PutObject", "ListObjectsV2")
GETS = ("GetObject", "HeadObject", "HeadBucket")


@dataclass
class Released:
    """What a year came to."""

    messages: int
    parking: Counter[str]
    waiting: Counter[str]
    stored_bytes: int
    arrived: Counter[str] = field(default_factory=Counter)
    early: int = 0
    late: int = 0
    looks: int = 0
    cpu_seconds: float = 0.0


class Wheel:
    """A store, its bucket and their clock."""

    def __init__(self, messages: int, spread_seconds: int) -> None:
        self.clock = ManualClock()
        self.s3 = InMemoryS3()
        client: Any = self.s3
        self.store = S3Store("parked", endpoint="orders", client=client, clock=self.clock)
        self.messages = messages
        self.spread_seconds = spread_seconds
        self.chance = random.Random(7)

    def year(self) -> Released:
        """Park them, wait, release."""
        self.park()
        done = Released(
            messages=self.messages,
            parking=Counter(self.s3.requests),
            waiting=Counter(),
            stored_bytes=sum(map(len, self.s3.objects.values())),
        )
        self._wait(done)
        done.waiting = self.s3.requests - done.parking
        # Looks that found nothing are fixed costs, of each dispatcher and year.
        done.waiting["ListObjectsV2"] -= done.looks
        return done

    def park(self) -> None:
        """In groups."""
        for start in range(0, self.messages, GROUP):
            count = min(GROUP, self.messages - start)
            self.store.store([self.message() for _ in range(count)])

    def message(self) -> StoredMessage:
        """One that is due in a year."""
        due_ms = self.clock.now_ms() + YEAR * 1000
        due_ms += self.chance.randrange(self.spread_seconds * 1000)
        return StoredMessage(
            message_id=new_message_id(due_ms),
            destination="orders",
            due_ms=due_ms,
            body=self._body(),
        )

    def _body(self) -> bytes:
        """As long as the others' in these benchmarks, but no two alike: this one is compressed."""
        text = json.dumps({"order": self.chance.randrange(10**6), "text": ""})
        return text.replace(
            '""', f'"{self.chance.randbytes(90).hex()[: len(BODY) - len(text)]}"'
        ).encode()

    def _wait(self, done: Released) -> None:
        """Look now and then, as slots come near and when messages may be due."""
        end_ms = self.clock.now_ms() + (YEAR + self.spread_seconds) * 1000
        due_from_ms = self.clock.now_ms() + (YEAR - 2 * DAY) * 1000
        while self.clock.now_ms() < end_ms:
            self.clock.advance(TURN_SECONDS if self.clock.now_ms() > due_from_ms else DAY / 4)
            while self._claim(done):
                pass

    def _claim(self, done: Released) -> bool:
        before, started = Counter(self.s3.requests), time.process_time()
        with self.store.claim(BATCH, due_by_ms=self.clock.now_ms() + AHEAD_MS) as claim:
            ids = [message.message_id for message in claim.messages]
            for message in claim.messages:
                done.early += message.due_ms > self.clock.now_ms() + AHEAD_MS
                done.late += message.due_ms < self.clock.now_ms()
            claim.remove(ids)
        done.arrived.update(ids)
        if ids:
            done.cpu_seconds += time.process_time() - started
        elif self.s3.requests["PutObject"] == before["PutObject"]:
            done.looks += self.s3.requests["ListObjectsV2"] - before["ListObjectsV2"]
        return bool(ids)


@cache
def worker_requests(messages: int = 1_000) -> int:
    """What a worker asks of SQS to gather and park so many that arrive together, and the sender."""
    clock = ManualClock()
    queues = InMemoryQueues(clock)
    endpoint = queues.create_endpoint("orders")
    client: Any = InMemoryS3()
    store = S3Store("parked", endpoint="orders", client=client, clock=clock)
    delay = {"NServiceBus.AmazonSQS.DelaySeconds": string(str(YEAR))}
    for start in range(0, messages, 10):
        names = [f"m{n}" for n in range(start, start + 10)]
        entries = [
            OutgoingMessage(BODY, delay, len(BODY), group_id=name, deduplication_id=name)
            for name in names
        ]
        queues.send_batch("orders-delay.fifo", entries)
    clock.advance(900)
    relay = Relay(queues, endpoint, RelaySettings(parking=ParkingSettings(store)))
    visibility = Visibility(queues, clock)
    gathering = Gathering(relay, visibility, clock)
    gathering.most = messages
    parked: list[Outcome] = []
    while not parked:
        gathering.keep(visibility.receive(QueueRef("orders-delay.fifo"), wait_seconds=0))
        visibility.extend()
        parked = gathering.park(only_if_full=True)
    assert len(parked) == messages
    calls = Counter(queues.calls)
    return sum(calls[name] for name in ("send", "receive", "delete", "hide"))


def parts(done: Released, prices: Prices, *, delay_seconds: int = YEAR) -> dict[str, Fraction]:
    """Dollars for a million messages, by what they are paid for, parked by a worker."""
    share = Fraction(MILLION, done.messages)
    sample = 1_000
    fifo = Fraction(worker_requests(sample) * MILLION, sample) * prices.sqs_fifo_request
    gigabytes = share * done.stored_bytes / 2**30

    def requests(counts: Counter[str]) -> Fraction:
        puts = sum(counts[name] for name in PUTS) * prices.s3_put
        return share * (puts + sum(counts[name] for name in GETS) * prices.s3_get)

    return {
        DELAY_QUEUE: fifo,
        "S3: groups written": requests(done.parking),
        "S3: stored": gigabytes * Fraction(delay_seconds, MONTH_SECONDS) * prices.s3_gb_month,
        "S3: split, merge, lease, checkpoint": requests(done.waiting),
        "last send, with a message timer": Fraction(MILLION, 10) * prices.sqs_standard_request,
    }


def dearer_than_told(done: Released, spread_seconds: int) -> list[str]:
    """What messages take more of than ``sqsdelay cost`` reckons with, or less of requests, by a twentieth;
    ten fewer may be, where a run begins and ends."""
    # What lies in one of the finest slots is released together.
    together = done.messages * SLOTS[-1] // spread_seconds
    load = Workload(
        delay_seconds=YEAR,
        messages=done.messages,
        message_bytes=len(BODY),
        batch=10,
        due_together=max(1, together),
    )
    of = bill("stored-in-s3", load, shipped_prices())

    def told(start: str) -> Fraction:
        return Fraction(sum(e.quantity for e in of.lines if start in e.what and not e.fixed))

    most, bytes_told = Fraction(21, 20), done.messages * (len(BODY) + LINE_BYTES)
    reckoned = {
        "writes and listings": (
            sum(done.waiting[n] for n in PUTS),
            told("S3 PUT and LIST"),
            1 / most,
        ),
        "reads": (sum(done.waiting[n] for n in GETS), told("S3 GET"), 1 / most),
        # Compressed they are fewer; the sum does not count on that.
        "bytes": (done.stored_bytes, Fraction(bytes_told), Fraction()),
    }
    return [
        f"{counted} {what}; sqsdelay cost reckons with {float(of_told):.0f}"
        for what, (counted, of_told, least) in reckoned.items()
        if not of_told * least - 10 <= counted <= of_told * most
    ]


def _print_parts(title: str, paid: dict[str, Fraction]) -> Fraction:
    total = sum(paid.values(), Fraction())
    print(f"\n{title}")
    for name, amount in paid.items():
        print(f"  {name:40} {float(amount):8.4f} USD per million")
    print(f"  {'in all':40} {float(total):8.4f}")
    return total


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=50_000)
    parser.add_argument("--spread", type=int, default=DAY // 2, help="seconds they are due within")
    options = parser.parse_args()
    prices = shipped_prices()
    started = time.process_time()
    done = Wheel(options.messages, options.spread).year()
    paid = parts(done, prices)
    looks = Fraction(YEAR, TURN_SECONDS) * prices.s3_put
    print(
        f"{done.messages:,} messages of {len(BODY)} bytes, a year each, due within "
        f"{options.spread:,} s; parked {GROUP:,} at a time"
    )
    print(f"compressed and stored: {done.stored_bytes / done.messages:.0f} bytes a message")
    queue = _print_parts("through the delay queue, a worker parks", paid)
    direct = queue - paid[DELAY_QUEUE]
    print(f"\nstored by the sender, a worker releases: {float(direct):.4f} USD per million")
    print(f"fixed, a dispatcher that looks once a minute for a year: {float(looks):.2f} USD")
    rate = done.messages / done.cpu_seconds
    print(f"\nreleased up to the send: {rate:,.0f} messages a CPU second (an S3 in memory)")
    print(f"in all {time.process_time() - started:.0f} s of CPU")
    return _failed(done, queue, direct, dearer_than_told(done, options.spread))


def _failed(done: Released, queue: Fraction, direct: Fraction, reckoned: Sequence[str]) -> bool:
    """Tell what is not as it should be; whether anything is."""
    wrong = list(reckoned)
    if len(done.arrived) != done.messages or set(done.arrived.values()) != {1}:
        wrong.append(f"{len(done.arrived)} arrived, {sum(done.arrived.values())} times")
    if done.early or done.late:
        wrong.append(f"{done.early} early, {done.late} late")
    if queue > AIM_QUEUE_USD or direct > AIM_DIRECT_USD:
        wrong.append(
            f"dearer than {float(AIM_QUEUE_USD)} and {float(AIM_DIRECT_USD)} USD per million"
        )
    for text in wrong:
        print(f"FAILED: {text}")
    return bool(wrong)


if __name__ == "__main__":
    raise SystemExit(main())
