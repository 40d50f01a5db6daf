"""The grants for an S3 store, a ledger in S3 and schedules, as deployed, on a local AWS that enforces IAM.

Each grant on these is taken away in turn; what it is for breaks, and nothing else does. Those on an
endpoint's other queues and on its logs are the same as beside a table: see ``test_deploy_with_iam.py``.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest
from botocore.exceptions import ClientError

from sqsdelay.core.endpoint import Endpoint
from sqsdelay.core.message import DELAY_SECONDS, new_message_id, string
from sqsdelay.core.received_message import ReceivedMessage
from sqsdelay.core.schedule_input import input_of
from sqsdelay.core.stored_message import Amendment, StoredMessage
from sqsdelay.errors import SqsDelayError
from sqsdelay.parking.parking import ParkingSettings
from sqsdelay.ports.queues import Failure
from sqsdelay.relaying import Outcome, Relay, RelaySettings, Status
from sqsdelay.relaying.gathering import Parker, forwards
from sqsdelay.sqs.queues import SqsQueues
from sqsdelay.stores import S3Store, SchedulerStore
from sqsdelay.testing.local_aws import LocalAws
from tests.acceptance.iam.conftest import Deployed
from tests.acceptance.iam.grants import Actor, Policy, granted
from tests.messages import a_copy, a_message

KEPT, TIMED = Endpoint.parse("kept"), Endpoint.parse("timed")
DAY_MS = 86_400_000
Tried = dict[str, Callable[[], object]]

CHANGES = {"amend", "cancel", "move", "release"}
READS = {"find", "list", "read amendments"}
STORED = {
    ("s3:GetObject", "objects"): CHANGES | READS,
    ("s3:PutObject", "objects"): CHANGES | {"store"},
    ("s3:DeleteObject", "objects"): {"cancel", "release"},
    ("s3:ListBucket", "bucket"): CHANGES | READS | {"store"},
    ("firehose:PutRecord", "stream"): {"record"},
}
GATHERED = {
    ("sqs:ReceiveMessage", "parking queue"): {"gather"},
    ("sqs:DeleteMessage", "parking queue"): {"gather"},
    ("sqs:GetQueueUrl", "parking queue"): {"gather"},
    # What of a group could not be parked goes there again, without the rest.
    ("sqs:SendMessage", "parking queue"): set[str](),
    **{
        (f"s3:{a}Object", "objects"): STORED[f"s3:{a}Object", "objects"] | {"gather"}
        for a in ("Get", "Put")
    },
    ("s3:ListBucket", "bucket"): STORED["s3:ListBucket", "bucket"] | {"gather"},
}
FORWARDED = {
    ("sqs:GetQueueUrl", "parking queue"): {"forward"},
    ("sqs:SendMessage", "parking queue"): {"forward"},
}
EXPECTED = {"DelayConsumer": STORED | FORWARDED, "Dispatcher": STORED | GATHERED}
"""What breaks without a grant, for each of both functions."""


@pytest.fixture(scope="module")
def kept(stacks: dict[str, Deployed]) -> Deployed:
    return stacks["sqsdelay-kept"]


def broken(tried: Mapping[str, Callable[[], object]]) -> set[str]:
    """What does not work: refused, or answered with nothing."""
    failed = set()
    for name, attempt in tried.items():
        try:
            if not attempt():
                failed.add(name)
        except (SqsDelayError, ClientError):
            failed.add(name)
    return failed


def broken_without_each(
    actor: Actor, policy: Policy, names: Mapping[str, str], tried: Callable[[], Tried]
) -> dict[tuple[str, str], set[str]]:
    """What breaks without each grant on these resources; with all of them nothing does."""
    actor.allow(policy)
    assert broken(tried()) == set()
    found = {}
    for grant in granted(policy):
        if grant.resource in names:
            actor.allow(grant.taken_from(policy))
            found[grant.action, names[grant.resource]] = broken(tried())
    return found


def message(due_ms: int) -> StoredMessage:
    name = new_message_id(due_ms)
    return a_message(name, due_ms, to="kept")


def in_store(admin: S3Store, store: S3Store) -> Tried:
    """Everything that is done to a store, each to messages that were put there for it."""
    now_ms = time.time_ns() // 1_000_000
    due = message(now_ms - 60_000)
    found, cancelled, moved = (message(now_ms + n * DAY_MS) for n in (40, 80, 120))
    amended = uuid.uuid4().hex
    assert all(admin.store([due, found, cancelled, moved]))
    admin.amend([Amendment(message_id=amended, at_ms=now_ms)])

    def release() -> bool:
        with store.claim(10, due_by_ms=now_ms) as claim:
            return all(claim.remove([each.message_id for each in claim.messages]))

    def amend() -> bool:
        store.amend([Amendment(message_id=amended, at_ms=now_ms)])
        return True

    tried: Tried = {
        "store": lambda: all(store.store([message(now_ms + DAY_MS)])),
        "find": lambda: store.find(found.message_id),
        "list": lambda: store.pending(1, due_from_ms=found.due_ms),
        "cancel": lambda: all(store.cancel([cancelled.message_id])),
        "move": lambda: store.reschedule(moved.message_id, now_ms + 60 * DAY_MS),
        "amend": amend,
        "read amendments": lambda: store.amendments([amended]),
        "release": release,
    }
    return tried


@pytest.mark.parametrize(
    "holder", [pytest.param("DelayConsumer", marks=pytest.mark.nightly), "Dispatcher"]
)
def test_both_functions_may_do_just_what_an_s3_store_takes(
    aws: LocalAws, kept: Deployed, holder: str
) -> None:
    """And put what happens into the ledger's stream; one of them fills the parking queue, one empties it."""
    bucket = kept.outputs["StoreUrl"].removeprefix("s3://")
    sqs, admin_queues = SqsQueues(aws.client("sqs")), aws.client("sqs")
    parking = admin_queues.get_queue_url(QueueName=KEPT.parking_queue.name)["QueueUrl"]
    attributes = admin_queues.get_queue_attributes(QueueUrl=parking, AttributeNames=["QueueArn"])
    [stream] = aws.client("firehose").list_delivery_streams()["DeliveryStreamNames"]
    described = aws.client("firehose").describe_delivery_stream(DeliveryStreamName=stream)
    names = {
        f"arn:aws:s3:::{bucket}": "bucket",
        f"arn:aws:s3:::{bucket}/*": "objects",
        attributes["Attributes"]["QueueArn"]: "parking queue",
        described["DeliveryStreamDescription"]["DeliveryStreamARN"]: "stream",
    }

    def waiting() -> set[str]:
        asked = admin_queues.get_queue_attributes(QueueUrl=parking, AttributeNames=["All"])
        return {n for key, n in asked["Attributes"].items() if key.startswith("ApproximateNumber")}

    actor = Actor(aws, f"as-{holder}")
    admin = S3Store(bucket, endpoint=KEPT.name, client=aws.client("s3"))

    def tried() -> Tried:
        # New ones, which have looked up nothing yet.
        queues = SqsQueues(actor.client("sqs"))
        store = S3Store(bucket, endpoint=KEPT.name, client=actor.client("s3"))
        copies = [copy_of("far"), copy_of("far")]
        firehose = actor.client("firehose")
        record = {"Data": b"{}"}
        if holder == "DelayConsumer":
            more: Tried = {"forward": lambda: forward(queues, copies) == [None]}
        else:
            admin_queues.purge_queue(QueueUrl=parking)
            forward(sqs, copies)
            settings = RelaySettings(parking=ParkingSettings(store), hop_seconds=1)
            parker = Parker(queues, KEPT, settings)
            more = {"gather": lambda: gathered(parker, waiting)}
        return {
            **in_store(admin, store),
            **more,
            "record": lambda: firehose.put_record(DeliveryStreamName=stream, Record=record),
        }

    found = broken_without_each(actor, kept.policy(holder), names, tried)
    admin.close()
    assert found == EXPECTED[holder]


def forward(queues: SqsQueues, copies: Sequence[ReceivedMessage]) -> list[Failure | None]:
    """Send copies to the parking queue, in one message."""
    forwarded = [Outcome(copy, Status.FORWARDED) for copy in copies]
    return Relay(queues, KEPT)._send(forwards(KEPT, forwarded))


def gathered(parker: Parker, waiting: Callable[[], set[str]]) -> bool:
    """Whether all that waits in the parking queue is parked, and deleted there."""
    rounds = parker.rounds(more=lambda: True)
    return {outcome.status for each in rounds for outcome in each} == {
        Status.PARKED
    } and waiting() == {"0"}


def copy_of(body: str) -> ReceivedMessage:
    now_ms = time.time_ns() // 1_000_000
    name = uuid.uuid4().hex
    return a_copy(
        {DELAY_SECONDS: string("864000")},
        body=body,
        receipt_handle=name,
        sqs_message_id=name,
        sent_ms=now_ms,
        first_receive_ms=now_ms,
        receive_count=1,
        group_id=name,
        deduplication_id=name,
    )


def test_the_ledgers_stream_writes_to_its_two_folders_alone(aws: LocalAws, kept: Deployed) -> None:
    """Firehose's role does what its guide asks for there, and nothing elsewhere in the bucket."""
    bucket = kept.outputs["LedgerUrl"].split("/")[2]
    actor = Actor(aws, "as-firehose")
    s3 = actor.client("s3")
    aws.client("s3").put_object(Bucket=bucket, Key="ledger/kept/there", Body=b"x")

    def tried() -> Tried:
        upload = aws.client("s3").create_multipart_upload(Bucket=bucket, Key="ledger/kept/parts")
        at = {"Bucket": bucket, "Key": "ledger/kept/parts", "UploadId": upload["UploadId"]}
        return {
            "put": lambda: s3.put_object(Bucket=bucket, Key="ledger/kept/day/x", Body=b"x"),
            "put errors": lambda: s3.put_object(Bucket=bucket, Key="ledger-errors/kept/x"),
            "get": lambda: s3.get_object(Bucket=bucket, Key="ledger/kept/there"),
            "abort": lambda: s3.abort_multipart_upload(**at),
            "locate": lambda: s3.get_bucket_location(Bucket=bucket),
            "list": lambda: s3.list_objects_v2(Bucket=bucket),
            "list uploads": lambda: s3.list_multipart_uploads(Bucket=bucket),
        }

    arn = f"arn:aws:s3:::{bucket}"
    names = {
        arn: "bucket",
        f"{arn}/ledger/kept/*": "ledger",
        f"{arn}/ledger-errors/kept/*": "errors",
    }
    found = broken_without_each(actor, kept.policy("Ledger"), names, tried)
    actor.allow(kept.policy("Ledger"))
    for key in ("x", "ledger/other/x", "ledger-errors/x"):
        with pytest.raises(ClientError, match="AccessDenied"):
            s3.put_object(Bucket=bucket, Key=key, Body=b"x")
    assert found == {
        ("s3:PutObject", "ledger"): {"put"},
        ("s3:PutObject", "errors"): {"put errors"},
        ("s3:GetObject", "ledger"): {"get"},
        ("s3:AbortMultipartUpload", "ledger"): {"abort"},
        ("s3:GetBucketLocation", "bucket"): {"locate"},
        ("s3:ListBucket", "bucket"): {"list"},
        ("s3:ListBucketMultipartUploads", "bucket"): {"list uploads"},
        # As in the other folder.
        ("s3:GetObject", "errors"): set(),
        ("s3:AbortMultipartUpload", "errors"): set(),
    }


@pytest.fixture(scope="module")
def timed(stacks: dict[str, Deployed]) -> Deployed:
    return stacks["sqsdelay-timed"]


@pytest.mark.parametrize(
    "holder", ["DelayConsumer", pytest.param("Dispatcher", marks=pytest.mark.nightly)]
)
def test_both_functions_may_do_just_what_schedules_take(
    aws: LocalAws, timed: Deployed, holder: str
) -> None:
    """One of them empties the parking queue. The local AWS takes every schedule for one of the group
    ``default``, and does not check ``iam:PassRole``: see ``tests/infra/test_schedules.py`` for that."""
    policy = timed.policy(holder)
    names: dict[str, str] = {}
    for statement in policy["Statement"]:
        if statement["Sid"] == "Park":
            arn = str(statement["Resource"]).replace("schedule/timed/", "schedule/default/")
            statement["Resource"] = arn
            names[arn] = "schedules"
        elif statement["Sid"] == "Help":
            names[str(statement["Resource"])] = "help"
    role = timed.outputs["StoreUrl"].partition("role=")[2]
    actor = Actor(aws, f"as-timed-{holder}")
    queues = {"parking queue": TIMED.parking_queue, "queue": TIMED.queue}
    queues |= {"error queue": TIMED.error_queue, "delay queue": TIMED.delay_queue}
    sqs = aws.client("sqs")
    if holder == "Dispatcher":
        names |= {f"arn:aws:sqs:us-east-1:000000000000:{q.name}": n for n, q in queues.items()}
    parking = sqs.get_queue_url(QueueName=TIMED.parking_queue.name)["QueueUrl"]

    def left() -> set[str]:
        asked = sqs.get_queue_attributes(QueueUrl=parking, AttributeNames=["All"])["Attributes"]
        return {n for key, n in asked.items() if key.startswith("ApproximateNumber")}

    def emptied(store: SchedulerStore, sent: dict[str, Any], fate: Status) -> bool:
        sqs.purge_queue(QueueUrl=parking)
        sqs.send_message(**sent | {"QueueUrl": parking, "DelaySeconds": 0})
        settings = RelaySettings(parking=ParkingSettings(store))
        rounds = Parker(SqsQueues(actor.client("sqs")), TIMED, settings).rounds(more=lambda: True)
        return [o.status for some in rounds for o in some] == [fate] and left() == {"0"}

    def fired(waiting: StoredMessage, due_ms: int) -> dict[str, Any]:
        told = replace(waiting, due_ms=due_ms)
        at = due_ms // 1000 - 900
        text = input_of(told, parking, fires_at=at, kept_since_ms=due_ms - DAY_MS)
        return dict(json.loads(text))

    def emptying(store: SchedulerStore, now_ms: int, cancelled: StoredMessage) -> Tried:
        soon, later = message(now_ms + 60_000), message(now_ms + 2_000_000)
        ours = [replace(each, destination="timed") for each in (soon, later, cancelled)]
        near, hops, gone = (fired(each, min(each.due_ms, now_ms + 2_000_000)) for each in ours)
        function = timed.outputs["DispatcherName"]
        dry = {"InvocationType": "DryRun", "FunctionName": function}
        return {
            "hand over": lambda: emptied(store, near, Status.HANDED_OVER),
            "hop": lambda: emptied(store, hops, Status.REQUEUED),
            "heed": lambda: emptied(store, gone, Status.CANCELLED),
            "reject": lambda: emptied(store, {"MessageBody": "poison"}, Status.REJECTED),
            "help": lambda: actor.client("lambda").invoke(**dry),
        }

    def opened(client: Any) -> SchedulerStore:
        return SchedulerStore(TIMED.name, role_arn=role, endpoint=TIMED.name, client=client)

    def tried() -> Tried:
        store = opened(actor.client("scheduler"))
        now_ms = time.time_ns() // 1_000_000
        waiting = [replace(message(now_ms + 3 * DAY_MS), destination="timed") for _ in range(4)]
        new, found, cancelled, moved = waiting
        with closing(opened(aws.client("scheduler"))) as admin:
            admin.store([found, cancelled, moved])
            admin.amend([Amendment(message_id=found.message_id, at_ms=now_ms)])

        def amend() -> bool:
            store.amend([Amendment(message_id=new.message_id, at_ms=now_ms)])
            return True

        empties = holder == "Dispatcher"
        return (emptying(store, now_ms, found) if empties else {}) | {
            # An id of the user's own may be of one that was cancelled a moment ago.
            "park": lambda: all(store.store([replace(new, message_id=uuid.uuid4().hex)])),
            "find": lambda: store.find(found.message_id),
            "amend": amend,
            "read amendments": lambda: store.amendments([found.message_id]),
            "cancel": lambda: all(store.cancel([cancelled.message_id])),
            "move": lambda: store.reschedule(moved.message_id, now_ms + 4 * DAY_MS),
        }

    found = broken_without_each(actor, policy, names, tried)
    gather = {"hand over", "hop", "heed", "reject"}
    # What may have been cancelled waits until that can be read.
    heed = {"hand over", "hop", "heed"} if holder == "Dispatcher" else set()
    sends = {"queue": "hand over", "error queue": "reject", "delay queue": "hop"}
    emptied_with: dict[tuple[str, str], set[str]] = {
        **{(f"sqs:{a}Message", "parking queue"): gather for a in ("Receive", "Delete")},
        ("sqs:GetQueueUrl", "parking queue"): gather,
        # What of a group could not be settled goes there again, without the rest.
        ("sqs:SendMessage", "parking queue"): set(),
        **{(f"sqs:{a}", q): {t} for q, t in sends.items() for a in ("GetQueueUrl", "SendMessage")},
        ("lambda:InvokeFunction", "help"): {"help"},
    }
    assert found == (emptied_with if holder == "Dispatcher" else {}) | {
        ("scheduler:CreateSchedule", "schedules"): {"park", "amend"},
        # Whatever is asked first, the version is looked at.
        ("scheduler:GetSchedule", "schedules"): {"park", "amend", "cancel", "move"}
        | (READS - {"list"} | heed),
        ("scheduler:UpdateSchedule", "schedules"): {"move"},
        ("scheduler:DeleteSchedule", "schedules"): {"cancel"},
    }


def test_the_schedules_role_sends_to_its_two_queues_alone(aws: LocalAws, timed: Deployed) -> None:
    """Into the parking queue and, what cannot be sent, into the error queue; it reads nothing."""
    actor = Actor(aws, "as-schedules")
    actor.allow(timed.policy("SchedulesRole"))
    sqs, admin = actor.client("sqs"), aws.client("sqs")
    queues = (TIMED.parking_queue, TIMED.error_queue, TIMED.queue, TIMED.delay_queue)
    parking, error, *others = [
        admin.get_queue_url(QueueName=queue.name)["QueueUrl"] for queue in queues
    ]
    ids = {"MessageGroupId": "m", "MessageDeduplicationId": "m"}
    sqs.send_message(QueueUrl=parking, MessageBody="due", **ids)
    sqs.send_message(QueueUrl=error, MessageBody="unsent")
    for other in others:
        with pytest.raises(ClientError, match="AccessDenied"):
            sqs.send_message(QueueUrl=other, MessageBody="no", **ids)
    with pytest.raises(ClientError, match="AccessDenied"):
        sqs.receive_message(QueueUrl=error)
