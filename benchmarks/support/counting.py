"""Requests really made for delayed messages: counted where botocore sends them, under virtual time."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from fractions import Fraction
from functools import cache
from typing import Any

import boto3
import time_machine
from moto import mock_aws

from benchmarks.support.body import BODY
from benchmarks.support.dynalite import AMENDMENTS, READS, TABLE, Meter, create_table
from sqsdelay import DelayConsumer, DelaySender, Message
from sqsdelay.core.clock import SystemClock
from sqsdelay.core.endpoint import Endpoint
from sqsdelay.core.stored_message import to_store
from sqsdelay.cost import Workload
from sqsdelay.dispatching.dispatcher import Dispatcher, DispatchSettings
from sqsdelay.limits import MAX_BATCH_ENTRIES, MAX_MESSAGE_TIMER_SECONDS
from sqsdelay.relaying.mover import Status
from sqsdelay.sqs import create_endpoint
from sqsdelay.sqs.outbox import SqsOutbox
from sqsdelay.sqs.queues import SqsQueues
from sqsdelay.stores.dynamodb import DynamoDbStore
from sqsdelay.stores.dynamodb.dynamodb_store import DEFAULT_SHARDS
from sqsdelay.stores.dynamodb.layout import position

STORED = 200
SHARDS = 2
"""Batches of a hundred messages of a shard, as the cost command assumes them."""

DAY = 24 * 3600
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
def relayed(delay_seconds: int, messages: int, body: str = BODY) -> Counted:
    """Send together, relay hop by hop, until the last is handed over."""
    with emulated() as (travel, wire, client):
        clock = TravellingClock()
        sent = DelaySender(client, clock=clock).send_many(
            "orders", [Message(body, delay=delay_seconds)] * messages
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
def stored(
    url: str, delay_seconds: int, messages: int, body: str = BODY, *, own_ids: bool = False
) -> Counted:
    """Put into the store by the sender, and released by the dispatcher."""
    with emulated() as (travel, wire, client):
        clock = TravellingClock()
        store = open_table(url, wire, clock)
        now_ms = clock.now_ms()
        given = [
            Message(body, delay=delay_seconds, message_id=f"order-{n}" if own_ids else None)
            for n in range(messages)
        ]
        store.store([to_store(message, "orders", now_ms=now_ms) for message in given])
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
