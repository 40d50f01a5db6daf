"""What delays cost in requests really made: counted where botocore sends them, under virtual time.

Sender, delay consumer, store and dispatcher are the ones that run in production. SQS is moto in this
process; DynamoDB is dynalite (npm), which says what each call consumes as AWS does. Prices are
sqsdelay's own file. Exits with 1 if the counts are not what `sqsdelay cost` reckons with.
"""

from __future__ import annotations

import argparse
import base64
import json
import random
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from fractions import Fraction
from functools import cache
from typing import Any

import boto3
import time_machine
from moto import mock_aws

from benchmarks.support.dynalite import (
    AMENDMENTS,
    MESSAGE_WRITES,
    OTHER_WRITES,
    READS,
    STORED_BYTES,
    TABLE,
    Meter,
    create_table,
    running_dynalite,
)
from sqsdelay import DelayConsumer, DelaySender, Message
from sqsdelay.core.clock import SystemClock
from sqsdelay.core.endpoint import Endpoint
from sqsdelay.core.message import size_of
from sqsdelay.core.stored_message import to_store
from sqsdelay.cost import Bill, Prices, Workload, bills, shipped_prices
from sqsdelay.cost.stored_message import STORAGE_OVERHEAD_BYTES, item_bytes
from sqsdelay.cost.strategies import IDLE_READ_UNITS
from sqsdelay.dispatching.dispatcher import Dispatcher
from sqsdelay.dispatching.settings import DispatchSettings
from sqsdelay.limits import MAX_BATCH_ENTRIES, MAX_MESSAGE_TIMER_SECONDS
from sqsdelay.relaying.outcome import Status
from sqsdelay.sqs import create_endpoint
from sqsdelay.sqs.outbox import SqsOutbox
from sqsdelay.sqs.queues import SqsQueues
from sqsdelay.stores.dynamodb import DynamoDbStore
from sqsdelay.stores.dynamodb.dynamodb_store import DEFAULT_SHARDS
from sqsdelay.stores.dynamodb.layout import position

HOUR = 3600
DAY = 24 * HOUR
DELAYS = {"1 hour": HOUR, "1 day": DAY, "30 days": 30 * DAY, "1 year": 365 * DAY}
BODY = json.dumps({"order": 7, "text": base64.b85encode(random.Random(7).randbytes(144)).decode()})
"""204 bytes of noise as text can be: they deflate to 182, where an order's JSON becomes half of it."""

AIMS_USD = {"parked": "2.30", "stored": "1.80", "stored, Standard-IA": "1.60"}
"""A year of a million messages of this size."""

EARLIER_USD = {"stored by the sender": "6.13", "parked": "6.58"}
"""A year in the earlier layout (an index, a claim per message), as this benchmark counted it then."""

STORED = 200
SHARDS = 2
"""Batches of a hundred messages of a shard, as the cost command assumes them."""
MILLION = 10**6
START = datetime(2027, 3, 1, 12, tzinfo=UTC)
ENDPOINT = Endpoint.parse("orders")

# Asked once in a process's life, whatever the number of messages.
LOOK_UPS = {
    "CreateQueue",
    "GetQueueAttributes",
    "GetQueueUrl",
}


class TravellingClock(SystemClock):
    """Both clocks follow time-machine, which leaves time.monotonic alone."""

    def monotonic(self) -> float:
        return time.time()


@dataclass
class Wire:
    """The requests that left through botocore, retries included."""

    counts: Counter[str] = field(default_factory=Counter)

    def watch(self, client: Any) -> Any:
        """Count a client's requests."""
        client.meta.events.register_first("before-send", self._count)
        return client

    def _count(self, request: Any, event_name: str, **_: Any) -> None:
        service, operation = event_name.split(".")[1:]
        if operation in LOOK_UPS:
            return
        assert service == "sqs", service
        fifo = json.loads(request.body)["QueueUrl"].endswith(".fifo")
        self.counts["sqs fifo" if fifo else "sqs standard"] += 1


@dataclass(frozen=True, kw_only=True)
class Counted:
    """Requests of some messages; ``invocations`` of a function, had the batches gone to one."""

    messages: int
    counts: Counter[str]
    invocations: int
    hops: int = 0

    def per_message(self, what: str) -> Fraction:
        return Fraction(self.counts[what]) / self.messages


@contextmanager
def emulated() -> Iterator[tuple[time_machine.Traveller, Wire, Any]]:
    """An endpoint on moto, under a clock that stands still, and the wire to it."""
    with mock_aws(), time_machine.travel(START, tick=False) as travel:
        wire = Wire()
        client: Any = wire.watch(boto3.client("sqs", region_name="us-east-1"))
        create_endpoint(client, ENDPOINT)
        yield travel, wire, client


@cache
def relayed(delay_seconds: int, messages: int) -> Counted:
    """Send together, relay hop by hop, until the last is handed over."""
    with emulated() as (travel, wire, client):
        clock = TravellingClock()
        sent = DelaySender(client, clock=clock).send_many(
            "orders", [Message(BODY, delay=delay_seconds)] * messages
        )
        assert all(result.error is None for result in sent)
        consumer = DelayConsumer("orders", client, clock=clock)
        handed_over = polls = 0
        while handed_over < messages:
            travel.shift(MAX_MESSAGE_TIMER_SECONDS)
            outcomes = consumer.poll(wait_seconds=0)
            assert len(outcomes) == messages, outcomes
            handed_over += sum(o.status is Status.HANDED_OVER for o in outcomes)
            polls += 1
        return Counted(messages=messages, counts=wire.counts, invocations=polls, hops=polls)


@cache
def stored(url: str, delay_seconds: int, messages: int) -> Counted:
    """Put into the store by the sender, and released by the dispatcher."""
    with emulated() as (travel, wire, client):
        clock = TravellingClock()
        store = open_table(url, wire, clock)
        message = Message(BODY, delay=delay_seconds)
        now_ms = clock.now_ms()
        store.store([to_store(message, "orders", now_ms=now_ms) for _ in range(messages)])
        # Registering the store's shards is no message's cost.
        wire.counts[AMENDMENTS] = 0
        travel.shift(delay_seconds - MAX_MESSAGE_TIMER_SECONDS)
        keep_up(store, clock, wire)
        release(store, client, clock, messages)
        return Counted(messages=messages, counts=wire.counts, invocations=1)


@cache
def parked(url: str, delay_seconds: int, messages: int) -> Counted:
    """Sent, parked by the delay consumer after one hop, and released by the dispatcher."""
    with emulated() as (travel, wire, client):
        clock = TravellingClock()
        store = open_table(url, wire, clock)
        DelaySender(client, clock=clock).send_many(
            "orders", [Message(BODY, delay=delay_seconds)] * messages
        )
        consumer = DelayConsumer(
            "orders",
            client,
            store=store,
            # Parked whatever the delay, so that an hour can be compared.
            park_after_seconds=MAX_MESSAGE_TIMER_SECONDS,
            clock=clock,
        )
        consumer.start()
        # The start asks the store once, and its shards are registered; that is no message's cost.
        store._book.register()
        wire.counts[AMENDMENTS] = 0
        travel.shift(MAX_MESSAGE_TIMER_SECONDS)
        batches = 0
        while outcomes := consumer.poll(wait_seconds=0):
            assert {outcome.status for outcome in outcomes} == {Status.PARKED}
            batches += 1
            if batches * MAX_BATCH_ENTRIES >= messages:
                break
        travel.shift(delay_seconds - 2 * MAX_MESSAGE_TIMER_SECONDS)
        keep_up(store, clock, wire)
        release(store, client, clock, messages)
        return Counted(messages=messages, counts=wire.counts, invocations=batches + 1, hops=1)


def idle_run(url: str) -> float:
    """With eight shards, what a dispatcher reads that finds nothing due, and one message far away."""
    with emulated() as (_, wire, _client):
        clock = TravellingClock()
        store = open_table(url, wire, clock, shards=DEFAULT_SHARDS)
        store.store([to_store(Message(BODY, delay=DAY), "orders", now_ms=clock.now_ms())])
        wire.counts.clear()
        with store.claim(STORED, due_by_ms=clock.now_ms()) as claim:
            assert not claim.messages
        store.pending(1)
        store.close()
        return wire.counts[READS]


def open_table(url: str, wire: Wire, clock: SystemClock, *, shards: int = SHARDS) -> DynamoDbStore:
    """A store whose calls are metered."""
    meter = Meter(wire.counts)
    client: Any = meter.client(url)
    meter.tell_messages(client)
    create_table(client)
    return DynamoDbStore(TABLE, endpoint="orders", client=client, shards=shards, clock=clock)


def keep_up(store: DynamoDbStore, clock: SystemClock, wire: Wire) -> None:
    """Leave the cursors where a dispatcher that has run every minute has them; not counted here, it is
    the cost of a system that runs, not of a message."""
    counts = Counter(wire.counts)
    for lease in store._book.read().shards:
        taken = store._book.take(lease, far="", near="")
        assert taken is not None
        store._book.settle(taken, cursor=position(clock.now_ms()))
    wire.counts.clear()
    wire.counts.update(counts)


def release(store: DynamoDbStore, client: Any, clock: SystemClock, messages: int) -> None:
    """Dispatch what is due within a message timer, and close the store."""
    outbox = SqsOutbox(SqsQueues(client, clock=clock), ENDPOINT)
    dispatcher = Dispatcher(
        store, outbox, settings=DispatchSettings(batch_size=2 * messages), clock=clock
    )
    dispatcher.start()
    done = dispatcher.dispatch()
    assert len(done.released) == messages, done
    outbox.close()
    store.close()


def extrapolated(counted: Counted, delay_seconds: int) -> Counted:
    """The same requests at every hop, for the hops of a longer delay."""
    hops = Workload(delay_seconds=delay_seconds).hops
    a_hop = Fraction(counted.counts["sqs fifo"], counted.hops)
    assert a_hop.denominator == 1, "hops differ in their requests"
    counts = Counter(counted.counts)
    counts["sqs fifo"] = a_hop.numerator * hops
    return Counted(messages=counted.messages, counts=counts, invocations=hops, hops=hops)


@dataclass(frozen=True)
class Measured:
    """A way of delaying: what was counted, and the load whose bill it is held against."""

    way: str
    strategy: str
    counted: Counted
    work: Workload
    remark: str = ""

    def bill(self, prices: Prices) -> Bill:
        (bill,) = [b for b in bills(self.work, prices) if b.strategy == self.strategy]
        return bill


def agrees(counted: Counted, bill: Bill) -> bool:
    """Whether the bill's quantities are what was counted, for as many messages."""
    labels = {
        "sqs fifo": "SQS FIFO",
        "sqs standard": "SQS standard",
        MESSAGE_WRITES: "write units",
        AMENDMENTS: "amendments",
    }
    return all(
        counted.counts[name]
        == sum(line.quantity for line in bill.lines if what in line.what and not line.fixed)
        for name, what in labels.items()
    )


def priced(counted: Counted, bill: Bill, prices: Prices, work: Workload) -> Fraction:
    """Dollars a million messages: what was counted and stored, and the bill's functions."""
    rare = work.infrequent_access
    write = prices.dynamodb_ia_write_unit if rare else prices.dynamodb_write_unit
    read = prices.dynamodb_ia_read_unit if rare else prices.dynamodb_read_unit
    requests = (
        counted.per_message("sqs fifo") * prices.sqs_fifo_request
        + counted.per_message("sqs standard") * prices.sqs_standard_request
        + (counted.per_message(MESSAGE_WRITES) + counted.per_message(OTHER_WRITES)) * write
        + (counted.per_message(READS) + counted.per_message(AMENDMENTS)) * read
    )
    others = sum(
        (line.amount for line in bill.lines if not line.fixed and "Lambda" in line.what),
        Fraction(0),
    )
    # As many bytes as were stored, of the bill's.
    stored_bytes = counted.per_message(STORED_BYTES) + STORAGE_OVERHEAD_BYTES
    told_bytes = item_bytes(work) + STORAGE_OVERHEAD_BYTES
    storage = sum(line.amount for line in bill.lines if "storage" in line.what)
    others += storage * stored_bytes / told_bytes
    return (requests + others / counted.messages) * MILLION


def measure(url: str, delay_seconds: int, count_seconds: int) -> list[Measured]:
    """Each way's counts."""
    remark = "hops extrapolated" if delay_seconds > count_seconds else ""
    found = []
    for way, messages in (("relay, one at a time", 1), ("relay, batches of 10", 10)):
        counted = relayed(min(delay_seconds, count_seconds), messages)
        if remark:
            counted = extrapolated(counted, delay_seconds)
        found.append(
            Measured(way, "relay", counted, load(delay_seconds, messages, messages), remark)
        )
    work = load(delay_seconds, STORED, 10)
    rare = replace(work, infrequent_access=True)
    for way, strategy, count in (
        ("stored by the sender", "stored", stored),
        ("parked", "parked", parked),
    ):
        # The same calls whatever the delay: counted over the longest.
        counted = count(url, max(DELAYS.values()), STORED)
        found.append(Measured(way, strategy, counted, work))
        found.append(Measured(f"{strategy}, Standard-IA", strategy, counted, rare))
    return found


def load(delay_seconds: int, messages: int, batch: int) -> Workload:
    return Workload(
        delay_seconds=delay_seconds,
        messages=messages,
        batch=batch,
        message_bytes=size_of(BODY, {}),
    )


def main() -> int:
    arguments = parsed()
    prices = shipped_prices()
    print(
        f"messages of {size_of(BODY, {})} bytes; hops counted up to {arguments.count_days} days; "
        f"{prices.region}, prices read on {prices.read_on}\n"
    )
    print(f"{'':24}{'a message':^48}{'USD a':>12}")
    print(
        f"{'way':24}{'FIFO':>12}{'standard':>12}{'write units':>12}{'read units':>12}{'million':>12}"
    )
    problems = []
    with running_dynalite() as url:
        for name, delay_seconds in DELAYS.items():
            print(f"-- {name}")
            dollars = {}
            for measured in measure(url, delay_seconds, arguments.count_days * DAY):
                bill = measured.bill(prices)
                dollars[measured.way] = priced(measured.counted, bill, prices, measured.work)
                show(measured, dollars[measured.way])
                if not agrees(measured.counted, bill):
                    counts = dict(measured.counted.counts)
                    problems.append(f"{name}, {measured.way}: {counts} is not what the bill says")
            for other in bills(load(delay_seconds, MILLION, 10), prices)[-2:]:
                cost = "impossible" if other.impossible else f"{float(other.for_messages):,.2f}"
                print(f"{other.strategy:24}{'':48}{cost:>12}  list price, not measured")
        idle = idle_run(url)
    print(f"\nan idle run of the dispatcher function reads {idle:g} units")
    if idle > IDLE_READ_UNITS:
        problems.append(f"sqsdelay cost reckons with {IDLE_READ_UNITS} units for an idle run")
    show_aims(dollars)
    for problem in problems:
        print(f"FAILED: {problem}")
    return 1 if problems else 0


def show_aims(dollars: dict[str, Fraction]) -> None:
    """A year of each way, its aim, and what it was in the earlier layout."""
    for aimed, aim in AIMS_USD.items():
        way = "stored by the sender" if aimed == "stored" else aimed
        told = "met" if dollars[way] < Fraction(aim) else "missed"
        before = f", ${EARLIER_USD[way]} in the earlier layout" if way in EARLIER_USD else ""
        print(f"a year {way}: ${float(dollars[way]):.3f} a million, aim ${aim}: {told}{before}")


def show(measured: Measured, dollars: Fraction) -> None:
    columns = "".join(
        f"{float(measured.counted.per_message(what)):>12,.1f}"
        for what in ("sqs fifo", "sqs standard")
    )
    writes = measured.counted.per_message(MESSAGE_WRITES) + measured.counted.per_message(
        OTHER_WRITES
    )
    reads = measured.counted.per_message(READS) + measured.counted.per_message(AMENDMENTS)
    columns += f"{float(writes):>12,.2f}{float(reads):>12,.2f}"
    print(f"{measured.way:24}{columns}{float(dollars):>12,.2f}  {measured.remark}".rstrip())


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument(
        "--count-days",
        type=int,
        default=1,
        help="delays up to so many days are counted hop by hop; longer ones are extrapolated",
    )
    arguments = parser.parse_args()
    if not 1 <= arguments.count_days <= 365:
        parser.error("--count-days: 1 to 365")
    return arguments


if __name__ == "__main__":
    sys.exit(main())
