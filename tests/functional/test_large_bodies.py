"""Large bodies: in S3 while they wait, a pointer on the way, AWS's Extended Client reads them."""

from __future__ import annotations

import json
import logging
import sys
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import boto3
import pytest
from botocore.stub import Stubber
from moto import mock_aws

from sqsdelay.core.message import Message, string
from sqsdelay.errors import (
    BodyMissing,
    BodyStoreMissing,
    BodyStoreUnavailable,
    ConfigurationError,
    InvalidMessage,
    MalformedMessage,
    MessageTooLarge,
    QueueMissing,
    TooManyAttributes,
)
from sqsdelay.parking.parking import ParkingSettings
from sqsdelay.s3 import BodyReader, Bucket
from sqsdelay.sending.router import SenderSettings
from sqsdelay.sending.sender import QueueSender, Route
from sqsdelay.sending.sizes import PAYLOAD_SIZE, Pointer
from sqsdelay.testing import InMemoryQueues, InMemoryStore, ManualClock
from sqsdelay.testing.local_aws import LocalAws
from tests.patience import ended
from tests.services.endpoints import create_endpoint
from tests.services.processes import environment, run, running

LARGE = "ä" * 600_000
"""1,200,000 bytes in UTF-8, fewer characters than SQS's limit has bytes."""


@pytest.fixture
def s3() -> Iterator[Any]:
    with mock_aws():
        client = boto3.client("s3")
        client.create_bucket(Bucket="bodies")
        yield client


@pytest.fixture
def queues() -> InMemoryQueues:
    queues = InMemoryQueues(ManualClock())
    queues.create_endpoint("orders")
    return queues


def sender_to(queues: InMemoryQueues, bucket: Bucket, **settings: Any) -> QueueSender:
    return QueueSender(queues, SenderSettings(large_bodies=bucket, **settings))


def keys(s3: Any) -> list[str]:
    return [entry["Key"] for entry in s3.list_objects_v2(Bucket="bodies").get("Contents", [])]


def test_a_large_body_travels_as_a_pointer(s3: Any, queues: InMemoryQueues) -> None:
    """The format of AWS's libraries; small bodies are untouched, and the user's attributes stay."""
    sender = sender_to(queues, Bucket("bodies", s3, prefix="orders/"))
    sender.send("orders", LARGE, attributes={"a": "b"})
    sender.send("orders", "small")
    large, small = queues.receive_batch("orders", wait_seconds=0)
    (key,) = keys(s3)
    assert key.startswith("orders/")
    assert json.loads(large.body) == [
        "software.amazon.payloadoffloading.PayloadS3Pointer",
        {"s3BucketName": "bodies", "s3Key": key},
    ]
    assert large.attributes == {
        "a": string("b"),
        "ExtendedPayloadSize": {"DataType": "Number", "StringValue": "1200000"},
    }
    reader = BodyReader("bodies", s3)
    assert reader.read(large.body, large.attributes) == LARGE
    assert (small.body, small.attributes) == ("small", {})
    assert reader.read(small.body, small.attributes) == "small"
    reader.delete(small.body, small.attributes)
    assert keys(s3) == [key]
    reader.delete(large.body, large.attributes)
    assert keys(s3) == []


def test_every_route_takes_it(s3: Any, queues: InMemoryQueues) -> None:
    """Direct, delay queue, store, FIFO: the pointer is small, so that many fit a batch."""
    store = InMemoryStore(queues.clock)
    bucket = Bucket("bodies", s3, above_bytes=10)
    sender = sender_to(queues, bucket, parking=ParkingSettings(store))
    messages = (Message("b" * 11, delay=each, message_id=f"{each}") for each in (5, 1000, 90_000))
    results = sender.send_many("orders", messages)
    assert [r.route for r in results] == [Route.DIRECT, Route.DELAY_QUEUE, Route.STORE]
    queues.create_endpoint("payments.fifo")
    fifo = sender_to(queues, bucket)
    assert fifo.send("payments.fifo", "b" * 11, delay=5, message_group_id="g").error is None
    queues.clock.advance(900)
    received = ("orders", "orders-delay.fifo", "payments-due")
    found = [copy for name in received for copy in queues.receive_batch(name, wait_seconds=0)]
    reader = BodyReader("bodies", s3)
    assert [reader.read(copy.body, copy.attributes) for copy in found] == ["b" * 11] * 3
    (stored,) = store.pending(9)
    assert reader.read(stored.body.decode(), stored.attributes) == "b" * 11
    assert len(keys(s3)) == 4


def test_without_a_bucket_the_error_says_how(queues: InMemoryQueues) -> None:
    """Value, limit and remedy."""
    with pytest.raises(MessageTooLarge, match=r"1200000 bytes.*large_bodies=Bucket"):
        QueueSender(queues).send("orders", LARGE)


def test_a_missing_bucket_is_found_before_anything_is_sent(s3: Any, queues: InMemoryQueues) -> None:
    """Its message fails alone."""
    sender = sender_to(queues, Bucket("nowhere", s3))
    large, small = sender.send_many("orders", [Message(LARGE), Message("small")])
    assert isinstance(large.error, BodyStoreMissing)
    assert "bucket nowhere does not exist" in str(large.error)
    assert small.error is None
    assert [c.body for c in queues.receive_batch("orders", wait_seconds=0)] == ["small"]


def test_a_denied_write_is_found_before_anything_is_sent(s3: Any, queues: InMemoryQueues) -> None:
    """S3's own words, and nothing sent."""
    with Stubber(s3) as stub:
        stub.add_response("get_bucket_lifecycle_configuration", {"Rules": []})
        stub.add_client_error("put_object", "AccessDenied", "no s3:PutObject", 403)
        told = r"bucket bodies cannot be used now.*s3:PutObj"
        with pytest.raises(BodyStoreUnavailable, match=told):
            sender_to(queues, Bucket("bodies", s3)).send("orders", LARGE)
    assert queues.receive_batch("orders", wait_seconds=0) == []


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"attributes": {f"a{n}": "x" for n in range(10)}}, TooManyAttributes),
        ({"attributes": {"a b": "x"}}, InvalidMessage),
        ({"message_id": "a b"}, InvalidMessage),
        ({"endpoint": "nowhere"}, QueueMissing),
    ],
)
def test_what_cannot_be_sent_leaves_no_body_behind(
    s3: Any, queues: InMemoryQueues, arguments: dict[str, Any], error: type[Exception]
) -> None:
    """All else is checked before the body is put."""
    given: Any = {"endpoint": "orders", "body": LARGE} | arguments
    with pytest.raises(error):
        sender_to(queues, Bucket("bodies", s3)).send(**given)
    assert keys(s3) == []


def test_a_vanished_object_is_named(s3: Any) -> None:
    """The message itself is still there, to be kept."""
    pointer = Bucket("bodies", s3).put("x", needed_until_ms=0)
    attributes = {PAYLOAD_SIZE: string("1")}
    (key,) = keys(s3)
    s3.delete_object(Bucket="bodies", Key=key)
    with pytest.raises(BodyMissing, match=f"body {key} is no longer in bucket bodies; keep the"):
        BodyReader("bodies", s3).read(pointer, attributes)
    with pytest.raises(MalformedMessage, match="its body of 5 characters is not a pointer"):
        BodyReader("bodies", s3).read("hello", attributes)


@pytest.mark.parametrize(
    "place",
    [
        Pointer("payroll", "orders/1"),
        Pointer("bodies", "private"),
        Pointer("bodies", "../orders/1"),
        Pointer("arn:aws:s3:eu-west-1:123456789012:accesspoint/bodies", "orders/1"),
    ],
    ids=["bucket", "key", "dots", "access-point"],
)
def test_a_forged_pointer_reads_and_deletes_nothing(s3: Any, place: Pointer) -> None:
    """Who may send must not borrow the receiver's rights on other objects."""
    s3.create_bucket(Bucket="payroll")
    for bucket, key in (("payroll", "orders/1"), ("bodies", "private"), ("bodies", "orders/1")):
        s3.put_object(Bucket=bucket, Key=key, Body=b"secret")
    reader = BodyReader("bodies", s3, prefix="orders/")
    forged = (place.to_body(), {PAYLOAD_SIZE: string("6")})
    for use in (reader.read, reader.delete):
        with pytest.raises(MalformedMessage, match=r"reads bucket 'bodies', keys 'orders/'… only"):
            use(*forged)
    assert len(keys(s3)) == 2
    assert s3.get_object(Bucket="payroll", Key="orders/1")["Body"].read() == b"secret"


def test_an_object_that_is_no_text_is_no_body(s3: Any) -> None:
    """A receiver's loop meets our error, not a decoder's."""
    s3.put_object(Bucket="bodies", Key="orders/1", Body=b"\xff")
    pointer = Pointer("bodies", "orders/1").to_body()
    with pytest.raises(MalformedMessage, match="bucket bodies is not a body, because it is not"):
        BodyReader("bodies", s3).read(pointer, {PAYLOAD_SIZE: string("1")})


NOW = datetime(2027, 1, 1, tzinfo=UTC)


def rule(**changes: Any) -> dict[str, Any]:
    return {"ID": "clean", "Status": "Enabled", "Filter": {"Prefix": ""}} | changes


TAGGED = {"And": {"Prefix": "", "Tags": [{"Key": "temporary", "Value": "1"}]}}


@pytest.mark.parametrize(
    ("rules", "refused"),
    [
        ([], False),
        ([rule(Expiration={"Days": 43})], True),
        ([rule(Expiration={"Days": 44})], False),
        ([rule(Expiration={"Date": NOW + timedelta(days=40)})], True),
        ([rule(Expiration={"Days": 1}, Status="Disabled")], False),
        ([rule(Expiration={"Days": 1}, Filter={"Prefix": "logs/"})], False),
        ([rule(Expiration={"Days": 1}, Filter={"Prefix": "bodies/orders/"})], True),
        ([rule(Expiration={"Days": 1}, Filter={"Prefix": "bod"})], True),
        ([rule(Expiration={"Days": 1}, Filter=TAGGED)], False),
        ([rule(AbortIncompleteMultipartUpload={"DaysAfterInitiation": 1})], False),
    ],
)
def test_a_lifecycle_rule_may_not_outrun_a_delay(
    s3: Any, rules: list[dict[str, Any]], refused: bool
) -> None:
    """Due in 30 days, and 14 days in the destination queue: 44 days the body must stay."""
    if rules:
        told = {"Rules": rules}
        s3.put_bucket_lifecycle_configuration(Bucket="bodies", LifecycleConfiguration=told)
    now_ms = round(NOW.timestamp() * 1000)
    queues = InMemoryQueues(ManualClock(now_ms))
    queues.create_endpoint("orders")
    bucket = Bucket("bodies", s3, prefix="bodies/", clock=ManualClock(now_ms))
    sender = sender_to(queues, bucket)
    if refused:
        words = r"rule 'clean' of bucket bodies .* 2027-02-14"
        with pytest.raises(ConfigurationError, match=words):
            sender.send("orders", LARGE, due_at=NOW + timedelta(days=30))
        assert keys(s3) == []
    else:
        sender.send("orders", LARGE, due_at=NOW + timedelta(days=30))


def test_rules_that_may_not_be_read_are_logged(s3: Any, caplog: pytest.LogCaptureFixture) -> None:
    """The write is tried all the same: many may write who may not read rules."""
    caplog.set_level(logging.WARNING)
    with Stubber(s3) as stub:
        stub.add_client_error("get_bucket_lifecycle_configuration", "AccessDenied")
        stub.add_response("put_object", {})
        Bucket("bodies", s3).put("x", needed_until_ms=10**14)
    assert "s3:GetLifecycleConfiguration" in caplog.text


OFFICIAL = """
import sys
import boto3
import sqs_extended_client
sqs = boto3.client("sqs")
url = sqs.get_queue_url(QueueName=sys.argv[1])["QueueUrl"]
answer = sqs.receive_message(QueueUrl=url, WaitTimeSeconds=20, MessageAttributeNames=["All"])
(message,) = answer["Messages"]
names = sorted(message["MessageAttributes"])
print(len(message["Body"].encode()), message["Body"][:1], message["Body"][-1:], names)
"""
"""A receiver with AWS's own library. It replaces boto3.Session when imported: in its own process."""


def program(text: str, name: str, env: dict[str, str]) -> str:
    """What it prints."""
    command = [sys.executable, "-W", "ignore", "-c", text, name]
    done = ended(command, env=environment(env))
    assert done.returncode == 0, done.stderr
    return done.stdout


def made(local_aws: LocalAws, **settings: Any) -> tuple[str, dict[str, str]]:
    """An endpoint and a bucket of the same name, and the environment of who uses them."""
    name = f"orders-{uuid.uuid4().hex[:8]}"
    local_aws.client("s3").create_bucket(Bucket=name)
    create_endpoint(local_aws.client("sqs"), name, **settings)
    return name, local_aws.environment()


def test_awss_own_library_reads_a_relayed_large_body(local_aws: LocalAws) -> None:
    """Sent, relayed through the delay queue, received by amazon-sqs-extended-client."""
    name, env = made(local_aws, hop_seconds=1)
    with running("consume", name, "--hop", "1", "--wait", "1", env=env) as worker:
        worker.wait_for("consuming")
        line = json.dumps({"body": "ä", "body_repeat": 600_000, "delay": 3, "message_id": "m-1"})
        options = ("--file", "-", "--hop", "1", "--bucket", name)
        sent = run("send", name, *options, env=env, stdin=line)
        assert sent.returncode == 0, sent.stderr
        received = program(OFFICIAL, name, env)
    assert received.strip() == "1200000 ä ä ['sqsdelay.MessageId', 'sqsdelay.WasDueAt']"


DELAYED = """
import sys
import boto3
import sqs_extended_client
import sqsdelay
from sqsdelay.s3 import Bucket
try:
    sqsdelay.DelayConsumer(sys.argv[1])
except sqsdelay.errors.ConfigurationError as error:
    print(error)
sqs = boto3.client("sqs")
sqs.large_payload_support = sys.argv[1]
url = sqs.get_queue_url(QueueName=sys.argv[1])["QueueUrl"]
message = {"QueueUrl": url, "MessageBody": "x" * 1_500_000, "DelaySeconds": 3}
try:
    sqsdelay.unrestricted(sqs, hop_seconds=1).send_message(**message)
except sqs.exceptions.ClientError as error:
    print(error)
bodies = Bucket(sys.argv[1], above_bytes=0)
unlimited = sqsdelay.unrestricted(sqs, hop_seconds=1, large_bodies=bodies)
unlimited.always_through_s3 = True
unlimited.send_message(**message)
"""


def test_a_client_of_awss_own_library_needs_large_bodies(local_aws: LocalAws) -> None:
    """It offloads what boto3 sends, and a delayed message is checked before that. A consumer in its process
    would relay the bodies that it fetches."""
    name, env = made(local_aws, hop_seconds=1)
    with running("consume", name, "--hop", "1", "--wait", "1", env=env) as worker:
        worker.wait_for("consuming")
        told = [program(each, name, env) for each in (DELAYED, OFFICIAL)]
    assert "does not import sqs_extended_client" in told[0]
    assert "the limit is 1048576" in told[0]
    assert told[1].startswith("1500000 x x")


def test_receive_reads_bodies_and_keeps_what_it_cannot_read(local_aws: LocalAws) -> None:
    """With --bucket the body is printed whole; a vanished one is named, its message not deleted."""
    name, env = made(local_aws)
    s3, sqs = local_aws.client("s3"), local_aws.client("sqs")

    def send() -> None:
        line = json.dumps({"body": "x", "body_repeat": 1_048_576, "message_id": "m-1"})
        sent = run("send", name, "--file", "-", "--bucket", name, env=env, stdin=line)
        assert sent.returncode == 0, sent.stderr

    receiving = ("receive", name, "--count", "1", "--bucket", name, "--delete", "--json")
    send()
    whole = run(*receiving, env=env)
    assert (whole.returncode, len(json.loads(whole.stdout)["body"])) == (0, 1_048_576)
    send()
    for entry in s3.list_objects_v2(Bucket=name)["Contents"]:
        s3.delete_object(Bucket=name, Key=entry["Key"])
    lost = run(*receiving, env=env)
    assert (lost.returncode, lost.stdout) == (1, "")
    assert "is no longer in bucket" in lost.stderr
    url = sqs.get_queue_url(QueueName=name)["QueueUrl"]
    names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
    kept = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=names)["Attributes"]
    assert sum(int(kept[name]) for name in names) == 1
