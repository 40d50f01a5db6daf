"""What each holder of a policy is there to do, tried one by one: the names of what did not work."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final

from botocore.config import Config
from botocore.exceptions import ClientError

from lambdas.dispatcher.handler import BATCH
from lambdas.removal_guard.handler import LEFT_OUT, Refused, check
from sqsdelay import DelaySender
from sqsdelay.core.delay import SystemClock
from sqsdelay.core.endpoint import Endpoint
from sqsdelay.core.limits import MAX_DUE_MS
from sqsdelay.core.message import DELAY_SECONDS, string
from sqsdelay.core.received_message import ReceivedMessage
from sqsdelay.core.stored_message import Amendment, StoredMessage
from sqsdelay.dispatching.dispatcher import Dispatcher, DispatchSettings
from sqsdelay.errors import BodyMissing, ConfigurationError, MessageTooLarge, SqsDelayError
from sqsdelay.ledger.events import EventKind
from sqsdelay.parking.parking import DEFAULT_PARK_AFTER_SECONDS, Parking, ParkingSettings
from sqsdelay.relaying.outcomes import RelaySettings, Status
from sqsdelay.s3 import BodyReader, Bucket
from sqsdelay.sending.sizes import PAYLOAD_SIZE, Pointer
from sqsdelay.sqs.consumer import DelayConsumer
from sqsdelay.sqs.endpoints import checked_relay
from sqsdelay.sqs.outbox import SqsOutbox
from sqsdelay.sqs.queues import SqsQueues
from sqsdelay.stores import DynamoDbStore
from sqsdelay.testing.in_memory import InMemoryLedger
from sqsdelay.testing.local_aws import LocalAws
from tests.acceptance.iam.grants import Actor
from tests.messages import a_message

HIDDEN_SECONDS: Final = 3600
"""Longer than the tests take: no run receives what the others need."""

POINTER_SIZE: Final = {PAYLOAD_SIZE: string("4")}


class Tries:
    """Collects what did not work."""

    def __init__(self) -> None:
        self.broken: set[str] = set()

    @contextmanager
    def __call__(self, behaviour: str) -> Iterator[None]:
        """What is refused inside, or found not done, is broken."""
        try:
            yield
        except (SqsDelayError, ClientError, AssertionError):
            self.broken.add(behaviour)


@dataclass(frozen=True)
class Site:
    """The deployed stack, and what the account's owner prepared in it."""

    aws: LocalAws
    outputs: Mapping[str, str]
    copies: Mapping[str, ReceivedMessage]
    spares: list[ReceivedMessage]
    destination_bytes: int = 262_144

    def store(self, client: Any) -> DynamoDbStore:
        return DynamoDbStore(
            self.outputs["TableName"], endpoint=self.outputs["QueueName"], client=client
        )

    @contextmanager
    def stored(self, *messages: StoredMessage) -> Iterator[DynamoDbStore]:
        """The owner's view of the table, with these messages in it for a while."""
        store = self.store(self.aws.client("dynamodb"))
        assert all(store.store(messages))
        try:
            yield store
        finally:
            store.cancel([message.message_id for message in messages])
            store.close()

    def message(self, *, due_ms: int = MAX_DUE_MS, body: bytes = b"body") -> StoredMessage:
        return a_message(uuid.uuid4().hex, due_ms, to=self.outputs["QueueName"], body=body)


def prepared(aws: LocalAws, outputs: Mapping[str, str], *, runs: int) -> Site:
    """Put one message of each kind into the delay queue, whose event source is off, and one to delete
    for each run of the delay consumer; receive them."""
    sqs, kinds = aws.client("sqs"), {"near": "1", "far": "3600", "poison": "soon"}
    spares = {f"spare {run}": "1" for run in range(runs)}
    for kind, delay in (kinds | spares).items():
        sqs.send_message(
            QueueUrl=outputs["DelayQueueUrl"],
            MessageBody=kind,
            MessageGroupId=uuid.uuid4().hex,
            MessageDeduplicationId=uuid.uuid4().hex,
            MessageAttributes={DELAY_SECONDS: string(delay)},
        )
    copies: dict[str, ReceivedMessage] = {}
    for _ in range(30):
        queues, url = SqsQueues(sqs), outputs["DelayQueueUrl"]
        received = queues.receive_batch(url, wait_seconds=1)
        if received:
            queues.hide_batch(url, [(copy, HIDDEN_SECONDS) for copy in received])
        copies |= {copy.body: copy for copy in received}
        if copies.keys() >= {*kinds, *spares}:
            break
    else:
        raise AssertionError(f"received {sorted(copies)} only")
    s3 = aws.client("s3")
    s3.put_bucket_lifecycle_configuration(
        Bucket=outputs["BucketName"],
        LifecycleConfiguration={
            "Rules": [
                {
                    "ID": "short",
                    "Status": "Enabled",
                    "Filter": {"Prefix": "short/"},
                    "Expiration": {"Days": 1},
                }
            ]
        },
    )
    return Site(aws, outputs, copies, [copies[spare] for spare in spares])


def delay_consumer(site: Site, actor: Actor) -> set[str]:
    """The delay consumer, and what Lambda does with its role: poll, delete, log."""
    tries, outputs = Tries(), site.outputs
    queues, url = SqsQueues(_impatient(actor, "sqs")), outputs["DelayQueueUrl"]
    store = site.store(_impatient(actor, "dynamodb"))
    fates: dict[str, Status] = {}
    with tries("start"):
        endpoint = Endpoint.parse(outputs["QueueName"])
        relay = checked_relay(
            queues,
            endpoint,
            RelaySettings(parking=ParkingSettings(store), hop_seconds=1, max_receives=5),
        )
        batch = [site.copies[kind] for kind in ("near", "far", "poison")]
        fates = {o.copy.body: o.status for o in relay.process(batch, delete=False)}
    for kind, behaviour, fate in (
        ("near", "hand over", Status.HANDED_OVER),
        ("far", "hop", Status.REQUEUED),
        ("poison", "reject", Status.REJECTED),
    ):
        with tries(behaviour):
            assert fates.get(kind) is fate
    with tries("receive"):
        queues.receive_batch(url, wait_seconds=0)
    with tries("work as a worker"):
        DelayConsumer(
            outputs["QueueName"], _impatient(actor, "sqs"), hop_seconds=1, store=store
        ).poll(wait_seconds=0)
    with tries("hold back"):
        assert queues.hide_batch(url, [(site.copies["near"], HIDDEN_SECONDS)]) == [None]
    with tries("delete"):
        assert queues.delete_batch(url, [site.spares.pop()]) == [None]
    _park(site, store, tries)
    store.close()
    _log(site, actor, tries, outputs["FunctionName"])
    return tries.broken


def _park(site: Site, store: DynamoDbStore, tries: Tries) -> None:
    parking = Parking(store, after_seconds=DEFAULT_PARK_AFTER_SECONDS)
    new, known, cancelled, moved = (site.message() for _ in range(4))
    with site.stored(known, cancelled, moved) as owners:
        now_ms = SystemClock().now_ms()
        owners.amend(
            [
                Amendment(message_id=cancelled.message_id, at_ms=now_ms),
                Amendment(message_id=moved.message_id, at_ms=now_ms, due_ms=7),
            ]
        )
        with tries("park"):
            assert parking.park([new]) == [True]
        with tries("park again"):
            assert parking.park([known]) == [False]
        with tries("read amendments"):
            assert parking.amendments([cancelled.message_id])[cancelled.message_id] is not None
        parking._apply_amendments(dict.fromkeys([cancelled.message_id, moved.message_id]))
        with tries("cancel"):
            assert owners.find(cancelled.message_id) is None
        with tries("move"):
            found = owners.find(moved.message_id)
            assert found is not None
            assert found.due_ms == 7
        owners.cancel([new.message_id])


def dispatcher(site: Site, actor: Actor) -> set[str]:
    """The dispatcher, with a message to release, one to reject and one that is far away."""
    tries, ledger = Tries(), InMemoryLedger()
    endpoint = Endpoint.parse(site.outputs["QueueName"])
    store = site.store(_impatient(actor, "dynamodb"))
    outbox = SqsOutbox(SqsQueues(_impatient(actor, "sqs")), endpoint)
    due, hopeless, far = (
        site.message(due_ms=1),
        site.message(due_ms=1, body=b"\xff"),
        site.message(),
    )
    with site.stored(due, hopeless, far) as owners:
        with tries("start"):
            settings = DispatchSettings(batch_size=BATCH)
            # A breaker would raise where each denial is to show by itself.
            running = Dispatcher(
                store, outbox, settings=settings, ledger=ledger, on_critical=lambda _: None
            )
            running.start()
            with suppress(SqsDelayError):
                running.dispatch()
        told = {(event.kind, event.message_id) for event in ledger.events}
        for behaviour, kind, message in (
            ("release", EventKind.RELEASED, due),
            ("reject", EventKind.REJECTED, hopeless),
        ):
            with tries(behaviour):
                assert (kind, message.message_id) in told
        with tries("remove"):
            assert owners.find(due.message_id) is None
        with tries("report what is overdue"):
            assert far.message_id in {m.message_id for m in store.pending(9)}
    store.close()
    outbox.close()
    _log(site, actor, tries, site.outputs["DispatcherName"])
    return tries.broken


def _log(site: Site, actor: Actor, tries: Tries, function: str) -> None:
    """The calls that Lambda makes with a function's role, for its log."""
    settings = site.aws.client("lambda").get_function_configuration(FunctionName=function)
    group, stream = settings["LoggingConfig"]["LogGroup"], uuid.uuid4().hex
    with tries("begin a log"):
        actor.client("logs").create_log_stream(logGroupName=group, logStreamName=stream)
    with suppress(ClientError):
        site.aws.client("logs").create_log_stream(logGroupName=group, logStreamName=stream)
    with tries("write the log"):
        actor.client("logs").put_log_events(
            logGroupName=group,
            logStreamName=stream,
            logEvents=[{"timestamp": round(time.time() * 1000), "message": "tried"}],
        )


def producer(site: Site, actor: Actor) -> set[str]:
    """Whoever was granted to send."""
    tries, name = Tries(), site.outputs["QueueName"]

    def sender() -> DelaySender:
        return DelaySender(_impatient(actor, "sqs"), hop_seconds=1)

    with tries("send"):
        sender().send(name, "tried", delay=1)
    with tries("send with a long delay"):
        sender().send(name, "tried", delay=86_400)
    with tries("know what the destination takes"):
        refused = False
        try:
            sender().send(name, "x" * (site.destination_bytes + 1), delay=86_400)
        except MessageTooLarge:
            refused = True
        assert refused
    with tries("keep a large body"):
        Bucket(site.outputs["BucketName"], actor.client("s3")).put("body", needed_until_ms=0)
    with tries("heed lifecycle rules"):
        short = Bucket(site.outputs["BucketName"], actor.client("s3"), prefix="short/")
        refused = False
        try:
            short.put("body", needed_until_ms=MAX_DUE_MS)
        except ConfigurationError:
            refused = True
        assert refused
    return tries.broken


def removal_guard(site: Site, actor: Actor) -> set[str]:
    """The function that refuses a deployment without the store."""
    tries = Tries()
    store = {"Prefix": "DelayStoreTable", "Type": "AWS::DynamoDB::Table", "Words": "the store"}
    event = {"StackId": site.outputs["StackId"], "ResourceProperties": {LEFT_OUT: [store]}}
    with tries("refuse"):
        refused = False
        try:
            check(event, _impatient(actor, "cloudformation"), 0)
        except Refused:
            refused = True
        assert refused
    _log(site, actor, tries, site.outputs["GuardName"])
    return tries.broken


def keeper(site: Site, actor: Actor) -> set[str]:
    """Whoever was granted to store, list, cancel and reschedule."""
    tries = Tries()
    store = site.store(_impatient(actor, "dynamodb"))
    new, kept, lost, amended = (site.message() for _ in range(4))
    with site.stored(kept, lost) as owners:
        owners.amend([Amendment(message_id=amended.message_id, at_ms=SystemClock().now_ms())])
        with tries("store"):
            assert store.store([new]) == [True]
        with tries("leave an amendment"):
            store.amend([Amendment(message_id=new.message_id, at_ms=SystemClock().now_ms())])
        with tries("read amendments"):
            assert set(store.amendments([amended.message_id])) == {amended.message_id}
        with tries("list"):
            assert kept.message_id in {m.message_id for m in store.pending(9)}
        with tries("find"):
            assert store.find(kept.message_id) is not None
        with tries("reschedule"):
            assert store.reschedule(kept.message_id, MAX_DUE_MS - 1)
        with tries("cancel"):
            assert store.cancel([lost.message_id]) == [True]
        owners.cancel([new.message_id])
    store.close()
    return tries.broken


def receiver(site: Site, actor: Actor) -> set[str]:
    """Whoever was granted to fetch large bodies."""
    tries, bucket = Tries(), site.outputs["BucketName"]
    body = Bucket(bucket, site.aws.client("s3")).put("body", needed_until_ms=0)
    reader = BodyReader(bucket, actor.client("s3"))
    with tries("read"):
        assert reader.read(body, POINTER_SIZE) == "body"
    with tries("tell gone from denied"):
        gone = False
        try:
            reader.read(Pointer(bucket, "gone").to_body(), POINTER_SIZE)
        except BodyMissing:
            gone = True
        assert gone
    with tries("delete"):
        reader.delete(body, POINTER_SIZE)
    return tries.broken


def _impatient(actor: Actor, service: str) -> Any:
    """A client that takes no for an answer."""
    return actor.client(service, config=Config(retries={"total_max_attempts": 1}))


Behaviours = Callable[[Site, Actor], set[str]]
