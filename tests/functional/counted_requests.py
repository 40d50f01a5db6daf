"""Requests really made for delayed messages: counted where botocore sends them, under virtual time."""

from __future__ import annotations

import json
import random
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any

import boto3
import time_machine
from moto import mock_aws

from benchmarks.support.dynalite import (
    AMENDMENTS,
    MESSAGE_WRITES,
    OTHER_WRITES,
    READS,
    TABLE,
    Meter,
    create_table,
)
from sqsdelay import DelayConsumer, DelaySender, Message
from sqsdelay.core.delay import SystemClock, utc
from sqsdelay.core.endpoint import Endpoint
from sqsdelay.core.limits import (
    GATHERING_SECONDS,
    MAX_BATCH_ENTRIES,
    MAX_INVOCATION_BYTES,
    MAX_MESSAGE_TIMER_SECONDS,
)
from sqsdelay.core.message import OutgoingMessage, size_of
from sqsdelay.core.received_message import ReceivedMessage
from sqsdelay.core.stored_message import to_store
from sqsdelay.cost.workload import CHUNK_BYTES
from sqsdelay.dispatching.dispatcher import Dispatcher, DispatchSettings
from sqsdelay.parking.parking import ParkingSettings
from sqsdelay.ports.queues import Failure, SendReceipt
from sqsdelay.relaying import Relay, RelaySettings, Status
from sqsdelay.relaying.gathering import ForwardingRelay, Parker
from sqsdelay.sending.router import SenderSettings
from sqsdelay.sending.sender import QueueSender
from sqsdelay.sqs.outbox import SqsOutbox
from sqsdelay.stores import DynamoDbStore, S3Store
from sqsdelay.stores.dynamodb.layout import position
from sqsdelay.stores.scheduler.scheduler_store import SchedulerStore
from sqsdelay.testing import InMemoryQueues, ManualClock
from tests.services.endpoints import create_endpoint
from tests.services.in_memory_s3 import InMemoryS3
from tests.services.in_memory_scheduler import InMemoryScheduler

START = datetime(2027, 3, 1, 12, tzinfo=UTC)
ENDPOINT = Endpoint.parse("orders")

LOOK_UPS = ("CreateQueue", "GetQueueAttributes", "GetQueueUrl")
"""Asked once in a process's life, whatever the number of messages."""


class TravellingClock(SystemClock):
    """Both clocks follow time-machine, which leaves time.monotonic alone."""

    def monotonic(self) -> float:
        return time.time()


def kind_of(queue_url: str) -> str:
    return "sqs fifo" if queue_url.endswith(".fifo") else "sqs standard"


def chunks(sizes: Iterable[int]) -> int:
    """As what SQS bills a request with messages of these sizes."""
    return max(1, -(-sum(sizes) // CHUNK_BYTES))


def relayed(delay_seconds: int, messages: int, body: str) -> Counter[str]:
    """Send together, relay hop by hop, until the last is handed over: what left through botocore, retries
    included, as SQS bills it."""
    counts: Counter[str] = Counter()
    polled: list[str] = []

    def count(request: Any, event_name: str, **_: Any) -> None:
        if event_name.rpartition(".")[2] not in LOOK_UPS:
            asked = json.loads(request.body)
            polled[:] = [asked["QueueUrl"]]
            counts[kind_of(asked["QueueUrl"])] += chunks(
                size_of(each.get("MessageBody", ""), each.get("MessageAttributes", {}))
                for each in asked.get("Entries", [asked])
            )

    def received(parsed: Any, **_: Any) -> None:
        found = [size_of(m["Body"], m["MessageAttributes"]) for m in parsed.get("Messages", ())]
        counts[kind_of(polled[0])] += chunks(found) - 1

    with mock_aws(), time_machine.travel(START, tick=False) as travel:
        client: Any = boto3.client("sqs", region_name="us-east-1")
        client.meta.events.register_first("before-send", count)
        client.meta.events.register("after-call.sqs.ReceiveMessage", received)
        create_endpoint(client, ENDPOINT)
        clock = TravellingClock()
        sent = DelaySender(client, clock=clock).send_many(
            "orders", [Message(body, delay=delay_seconds)] * messages
        )
        assert all(result.error is None for result in sent)
        consumer = DelayConsumer("orders", client, clock=clock)
        handed_over = 0
        while handed_over < messages:
            travel.shift(MAX_MESSAGE_TIMER_SECONDS)
            outcomes = consumer.poll(wait_seconds=0)
            assert len(outcomes) == messages, outcomes
            handed_over += sum(o.status is Status.HANDED_OVER for o in outcomes)
    return counts


class CountedQueues(InMemoryQueues):
    """Queues in memory that count requests as SQS bills them; a receive that finds nothing is a poll's."""

    def __init__(self, clock: ManualClock, counts: Counter[str]) -> None:
        super().__init__(clock)
        self._counts = counts

    def _count(self, queue_url: str, sizes: Iterable[int]) -> None:
        self._counts[kind_of(queue_url)] += chunks(sizes)

    def send_batch(
        self, queue_url: str, entries: Sequence[OutgoingMessage]
    ) -> list[SendReceipt | Failure]:
        self._count(queue_url, (entry.size for entry in entries))
        return super().send_batch(queue_url, entries)

    def receive_batch(self, queue_url: str, **given: Any) -> list[ReceivedMessage]:
        found = super().receive_batch(queue_url, **given)
        if found:
            self._count(queue_url, (size_of(each.body, each.attributes) for each in found))
        return found

    def delete_batch(
        self, queue_url: str, copies: Sequence[ReceivedMessage]
    ) -> list[Failure | None]:
        self._count(queue_url, ())
        return super().delete_batch(queue_url, copies)


@dataclass(frozen=True, kw_only=True)
class Kind:
    """Messages of a strategy: so many groups, each of messages that are due together; by chance in so many
    seconds for each, or far apart."""

    code: str
    groups: int
    batch: int
    due_together: int
    own_ids: bool
    by_chance_in: int | None = None

    @property
    def messages(self) -> int:
        return self.groups * self.due_together

    @property
    def by_sender(self) -> bool:
        return "stored" in self.code or "sender" in self.code


class Site:
    """An endpoint with a store, whose senders, functions or worker and dispatcher run in virtual time.

    Counted is what messages add to a system at rest.
    """

    def __init__(self, url: str, kind: Kind, delay_seconds: int, body: str) -> None:
        self.kind = kind
        self.counts: Counter[str] = Counter()
        self.clock = ManualClock()
        self.queues = CountedQueues(self.clock, self.counts)
        self.endpoint = self.queues.create_endpoint("orders")
        self.queues.create_queue("orders-parking")
        # Never due as an hour begins: that cursors move then is no message's cost.
        self.first_ms = self.clock.now_ms() + (delay_seconds + 600) * 1000
        # A DynamoDB store releases together what is due within a minute, one in S3 within ten. What
        # schedules have sent is handed over every five.
        apart = 180 if kind.code in ("parked", "stored") else 900
        self.apart_ms = 1000 * (kind.by_chance_in or apart)
        chance = random.Random(repr(kind))
        due = range(0, kind.groups * self.apart_ms, self.apart_ms)
        self.messages = [
            Message(
                body,
                due_at=utc(self.first_ms + after_ms),
                message_id=f"order-{chance.getrandbits(64)}" if kind.own_ids else None,
            )
            for after_ms in (
                sorted(chance.choices(range(due.stop), k=len(due))) if kind.by_chance_in else due
            )
            for _ in range(kind.due_together)
        ]
        self.s3 = InMemoryS3()
        self.scheduler = InMemoryScheduler(self.clock, self.queues)
        self.meter = Meter(self.counts)
        self.store = self._store(url)

    def _store(self, url: str) -> Any:
        if "s3" in self.kind.code:
            client: Any = self.s3
            store: Any = S3Store(
                "parked",
                endpoint="orders",
                client=client,
                clock=self.clock,
                # The deployed functions' store has none.
                lookup=self.kind.own_ids and self.kind.code != "parked-in-s3-by-functions",
            )
            # Once a day, and once in a process's life, whatever waits.
            store._sweep = lambda *_: None
            store._wheel.check_version()
            self.s3.requests.clear()
            return store
        if "scheduled" in self.kind.code:
            role = "arn:aws:iam::123456789012:role/orders-scheduler"
            place = SchedulerStore(
                "orders", role_arn=role, endpoint="orders", client=self.scheduler, clock=self.clock
            )
            place.set_up()
            return place
        dynamodb: Any = self.meter.client(url)
        self.meter.tell_messages(dynamodb)
        create_table(dynamodb)
        table = DynamoDbStore(TABLE, endpoint="orders", client=dynamodb, clock=self.clock)
        table._table.register()
        self.counts.clear()
        return table

    def send(self) -> None:
        """In tens, all that arrive together; or what is due together within a minute, a request at a time."""
        settings = SenderSettings(
            parking=ParkingSettings(self.store) if self.kind.by_sender else None
        )
        sender = QueueSender(self.queues, settings)
        by_functions = self.kind.code == "parked-in-s3-by-functions"
        parking = RelaySettings(parking=ParkingSettings(self.store))
        kind = ForwardingRelay if by_functions else Relay
        self.relay = kind(self.queues, self.endpoint, parking)
        tens = self.kind.batch == MAX_BATCH_ENTRIES
        at_once = len(self.messages) if tens else self.kind.batch
        together = len(self.messages) if tens else self.kind.due_together
        for first in range(0, len(self.messages), together):
            group = self.messages[first : first + together]
            requests = [group[n : n + at_once] for n in range(0, len(group), at_once)]
            pause = 60_000 // len(requests) / 1000
            for each in requests:
                errors = [e.error for e in sender.send_many("orders", each) if e.error]
                assert not errors, errors[:1]
                self.clock.advance(pause)
            self.clock.advance(MAX_MESSAGE_TIMER_SECONDS - pause * len(requests))
            if not self.kind.by_sender:
                self._park(len(requests), pause)
            if by_functions:
                parker = Parker(self.queues, self.endpoint, parking)
                list(parker.rounds(more=lambda: True))

    def _park(self, requests: int, pause: float) -> None:
        """By the function as copies come; by a worker what has come within ten seconds."""
        worker = self.kind.code == "parked-in-s3"
        gathered: list[ReceivedMessage] = []
        url = self.queues.url(self.endpoint.delay_queue)
        until_ms = self.clock.now_ms() + 10_000
        for _ in range(requests):
            if not worker:
                self._lambda()
            while worker and (found := self.queues.receive_batch(url, wait_seconds=0)):
                gathered += found
            self.clock.advance(pause)
            if gathered and self.clock.now_ms() >= until_ms:
                self.relay.process(gathered)
                gathered, until_ms = [], self.clock.now_ms() + 10_000
        if gathered:
            self.relay.process(gathered)

    def _lambda(self) -> None:
        """Give the delay consumer what its queue has, ten at a time, as far as an invocation holds them, and
        delete it."""
        url = self.queues.url(self.endpoint.delay_queue)
        while found := self.queues.receive_batch(url, wait_seconds=0):
            in_one = MAX_INVOCATION_BYTES // max(size_of(e.body, e.attributes) for e in found)
            for first in range(0, len(found), in_one):
                given = found[first : first + in_one]
                assert all(each.settled for each in self.relay.process(given, delete=False))
                self.queues.delete_batch(url, given)

    def release(self) -> None:
        """Run until all have been sent to the endpoint's queue."""
        self.counts["s3 puts"] = self.s3.requests["PutObject"]
        last_ms = self.first_ms + self.kind.groups * self.apart_ms
        if "scheduled" in self.kind.code:
            parker = Parker(self.queues, self.endpoint, RelaySettings())
            self.clock.advance((self.first_ms - self.clock.now_ms()) / 1000 - 3_600)
            while (now_ms := self.clock.now_ms()) < last_ms:
                # Between whole seconds in which a schedule fires or the parking queue is emptied is nothing.
                emptied_ms = now_ms + 1000 * (
                    GATHERING_SECONDS - now_ms // 1000 % GATHERING_SECONDS
                )
                next_ms = min(self.scheduler.next_ms() or last_ms, emptied_ms, last_ms)
                self.clock.advance(max(1, -(-(next_ms - now_ms) // 1000)))
                self.counts["invocations"] += self.scheduler.fire()
                if self.clock.now_ms() // 1000 % GATHERING_SECONDS == 0:
                    list(parker.rounds(more=lambda: True))
            return
        outbox = SqsOutbox(self.queues, self.endpoint)
        released = DispatchSettings(batch_size=1000 if "s3" not in self.kind.code else 500)
        self.dispatcher = Dispatcher(self.store, outbox, settings=released, clock=self.clock)
        self.dispatcher.start()
        (self._release_from_s3 if "s3" in self.kind.code else self._release_from_dynamodb)(last_ms)
        outbox.close()

    def _run(self) -> int:
        """As the dispatcher function does."""
        released = 0
        while (done := self.dispatcher.dispatch()).claimed:
            released += len(done.released)
        self.store.pending(1, due_before_ms=self.clock.now_ms())
        return released

    def _release_from_s3(self, last_ms: int) -> None:
        self.clock.advance((self.first_ms - self.clock.now_ms()) / 1000 - 26 * 3600)
        released = 0
        while self.clock.now_ms() < last_ms:
            near = self.clock.now_ms() > self.first_ms - 3_600_000
            self.clock.advance(60 if near else 600)
            released += self._run()
            # Each run looks once, whether or not anything waits.
            self.s3.requests["ListObjectsV2"] -= 1
        assert released == self.kind.messages
        told = self.s3.requests
        self.counts["s3 puts"] = told["PutObject"] + told["ListObjectsV2"]
        self.counts["s3 gets"] = told["GetObject"] + told["HeadObject"]

    def _release_from_dynamodb(self, _: int) -> None:
        # Of each hour in which messages are due there is a note.
        hours = {each.due_at.replace(minute=0, second=0) for each in self.messages if each.due_at}
        self.counts[OTHER_WRITES] -= len(hours)
        for group in range(self.kind.groups):
            due_ms = self.first_ms + group * self.apart_ms
            self.clock.advance((due_ms - self.clock.now_ms()) / 1000 - 960)
            before = Counter(self.counts)
            for lease in self.store._table.read_leases().shards if group == 0 else ():
                taken = self.store._table.take_lease(lease, far="", near="")
                self.store._table.settle_lease(taken, cursor=position(self.clock.now_ms()))
            # The first may move cursors into another hour.
            assert not self._run()
            at_rest = Counter(self.counts)
            assert not self._run()
            idle = self.counts[READS] - at_rest[READS]
            self.counts.clear()
            self.counts.update(before)
            self.clock.advance(75)
            assert self._run() == self.kind.due_together
            self.counts[READS] -= idle
        self.store.close()
        writes = self.counts[MESSAGE_WRITES] + self.counts[OTHER_WRITES]
        self.counts["dynamodb writes"] = writes
        self.counts["dynamodb reads"] = self.counts[READS] + self.counts[AMENDMENTS]


def counted(url: str, kind: Kind, delay_seconds: int, body: str) -> Counter[str]:
    """Requests of messages that are sent, parked and released."""
    site = Site(url, kind, delay_seconds, body)
    site.send()
    site.release()
    return site.counts


def idle(url: str, code: str, hours: int) -> Counter[str]:
    """Requests of a dispatcher, and of who empties the parking queue, while one message waits for weeks."""
    kind = Kind(code=code, groups=1, batch=1, due_together=1, own_ids=False)
    site = Site(url, kind, 30 * 86_400, "x")
    if "s3" in code:
        site.store._sweep = partial(S3Store._sweep, site.store)
    site.store.store(
        [to_store(message, "orders", now_ms=site.clock.now_ms()) for message in site.messages]
    )
    settings = RelaySettings(parking=ParkingSettings(site.store))
    parker = Parker(site.queues, site.endpoint, settings)
    dispatched, parks = code != "scheduled", code != "parked"
    if dispatched:
        outbox = SqsOutbox(site.queues, site.endpoint)
        site.dispatcher = Dispatcher(site.store, outbox, clock=site.clock)
        site.dispatcher.start()
        site._run()
    for forgotten in (site.counts, site.s3.requests, site.queues.calls):
        forgotten.clear()
    for minute in range(60 * hours):
        site.clock.advance(60)
        if dispatched:
            site._run()
        if minute % 5 == 0 and parks:
            list(parker.rounds(more=lambda: True))
    told, counts = site.s3.requests, site.counts
    # A receive that finds nothing is a request; and of each hour in which messages are due there is a note.
    counts["sqs standard"] = site.queues.calls.count("receive")
    counts[OTHER_WRITES] += 0 if parks else hours
    counts["s3 puts"] = told["PutObject"] + told["ListObjectsV2"]
    counts["s3 gets"] = told["GetObject"] + told["HeadObject"]
    counts["dynamodb writes"] = counts[MESSAGE_WRITES] + counts[OTHER_WRITES]
    counts["dynamodb reads"] = counts[READS] + counts[AMENDMENTS]
    return counts
