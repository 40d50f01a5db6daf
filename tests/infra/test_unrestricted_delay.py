"""The construct in somebody else's CDK app."""

from __future__ import annotations

import pytest
from aws_cdk import Stack
from aws_cdk import aws_dynamodb as dynamodb
from aws_cdk import aws_events as events
from aws_cdk import aws_iam as iam
from aws_cdk import aws_kms as kms
from aws_cdk import aws_lambda as lambda_
from aws_cdk import aws_s3 as s3
from aws_cdk import aws_sqs as sqs
from aws_cdk.assertions import Template

from sqsdelay import Change, DelaySender
from sqsdelay.cdk.unrestricted_delay import UnrestrictedDelay
from sqsdelay.errors import ConfigurationError, InvalidEndpoint
from sqsdelay.stores import DynamoDbStore, S3Store
from tests.infra.conftest import Calls, Stores, actions, policies


def test_exposes_queues_function_and_alarms(stack: Stack) -> None:
    """An app can build on what the construct made."""
    orders = sqs.Queue(stack, "Orders", queue_name="orders")
    delay = UnrestrictedDelay(stack, "Delay", queue=orders)
    assert isinstance(delay.delay_queue, sqs.Queue)
    assert isinstance(delay.error_queue, sqs.Queue)
    assert isinstance(delay.function, lambda_.Function)
    assert len(delay.alarms.all) == 5
    Template.from_stack(stack).has_resource_properties(
        "AWS::SQS::Queue", {"QueueName": "orders-delay.fifo"}
    )


def test_queue_without_a_name_of_its_own(stack: Stack) -> None:
    """Where CloudFormation makes up the name, our queues are named after it all the same."""
    UnrestrictedDelay(stack, "Delay", queue=sqs.Queue(stack, "Orders"))
    template = Template.from_stack(stack)
    [orders] = [i for i in template.find_resources("AWS::SQS::Queue") if i.startswith("Orders")]
    name = {"Fn::GetAtt": [orders, "QueueName"]}
    template.has_resource_properties(
        "AWS::SQS::Queue", {"QueueName": {"Fn::Join": ["", [name, "-delay.fifo"]]}}
    )


@pytest.mark.parametrize("hop_seconds", [900, 899])
def test_grant_send_gives_just_what_sending_needs(stack: Stack, hop_seconds: int) -> None:
    """Find, ask and send to two queues."""
    orders = sqs.Queue(stack, "Orders", queue_name="orders")
    delay = UnrestrictedDelay(stack, "Delay", queue=orders, hop_seconds=hop_seconds)
    delay.grant_send(iam.User(stack, "Producer"))
    [granted] = policies(Template.from_stack(stack))
    assert granted["Action"] == ["sqs:GetQueueAttributes", "sqs:GetQueueUrl", "sqs:SendMessage"]
    assert len(granted["Resource"]) == 2


def test_customer_key_is_granted_to_relay_dispatcher_and_producer(stack: Stack) -> None:
    """A queue under a key of one's own can be sent to, by all; none may do more with the key."""
    orders = sqs.Queue(stack, "Orders", encryption_master_key=kms.Key(stack, "Key"))
    delay = UnrestrictedDelay(stack, "Delay", queue=orders, store="dynamodb")
    delay.grant_send(iam.User(stack, "Producer"))
    template = Template.from_stack(stack)
    names = "".join(template.find_resources("AWS::IAM::Policy"))
    assert all(who in names for who in ("DelayConsumer", "Dispatcher", "Producer"))
    with_key = [s for s in policies(template) if "kms" in str(s["Action"])]
    assert len(with_key) == 3
    assert all(s["Action"] == ["kms:Decrypt", "kms:GenerateDataKey"] for s in with_key)


def test_name_too_long_is_refused(stack: Stack) -> None:
    """Found at synth, not by SQS in the middle of a deployment."""
    long = sqs.Queue(stack, "Orders", queue_name="x" * 69)
    with pytest.raises(InvalidEndpoint, match="69 characters; the limit is 68"):
        UnrestrictedDelay(stack, "Delay", queue=long)


@pytest.mark.parametrize("hop_seconds", [0, 901])
def test_hop_out_of_range_is_refused(stack: Stack, hop_seconds: int) -> None:
    """The delay of a queue ends at 900 s."""
    queue = sqs.Queue(stack, "Orders")
    with pytest.raises(ConfigurationError, match=f"hop_seconds={hop_seconds}; use 1 to 900"):
        UnrestrictedDelay(stack, "Delay", queue=queue, hop_seconds=hop_seconds)


@pytest.mark.parametrize("shards", [0, 1001])
def test_shards_that_the_functions_refuse_are_not_deployed(stack: Stack, shards: int) -> None:
    """The store's own limit: each run of the dispatcher failed."""
    queue = sqs.Queue(stack, "Orders")
    with pytest.raises(ConfigurationError, match=f"store_shards={shards}; use 1 to 1000"):
        UnrestrictedDelay(stack, "Delay", queue=queue, store="dynamodb", store_shards=shards)


def test_nothing_unless_asked_for(stack: Stack) -> None:
    """A store is a table, a function and a schedule, and costs as much; bodies up to 1 MiB need no bucket,
    and sending is granted none."""
    delay = UnrestrictedDelay(stack, "Delay", queue=sqs.Queue(stack, "Orders"))
    delay.grant_send(iam.User(stack, "Producer"))
    assert (delay.store, delay.body_bucket) == (None, None)
    template = Template.from_stack(stack)
    for kind in ("AWS::DynamoDB::Table", "AWS::Events::Rule", "AWS::S3::Bucket"):
        template.resource_count_is(kind, 0)
    assert actions(policies(template), "s3") == set()


@pytest.mark.parametrize("kind", [DynamoDbStore, S3Store])
def test_a_producer_is_granted_the_calls_it_makes(
    stack: Stack, calls: Calls, opened: Stores, kind: type[DynamoDbStore | S3Store]
) -> None:
    """Storing, listing, moving and cancelling, whether or not the message is still there."""
    sender = DelaySender(store=opened(kind))
    message_id = sender.send("orders", "body", delay=30 * 86_400).message_id
    assert message_id is not None
    assert [m.message_id for m in sender.pending("orders")] == [message_id]
    assert sender.reschedule("orders", message_id, delay=60 * 86_400) is Change.DONE
    assert sender.cancel("orders", message_id) is Change.DONE
    assert sender.cancel("orders", message_id) is Change.REQUESTED
    service = "s3" if kind is S3Store else "dynamodb"
    orders = sqs.Queue(stack, "Orders", queue_name="orders")
    delay = UnrestrictedDelay(stack, "Delay", queue=orders, store=service)
    place = delay.store or delay.s3_store
    assert place is not None
    place.grant_store(iam.User(stack, "Producer"))
    granted = policies(Template.from_stack(stack))
    assert actions(granted, service) == calls.of(service)


def test_exposes_the_store(stack: Stack) -> None:
    """An app can build on table, dispatcher, schedule and alarms, and name the store to its code."""
    orders = sqs.Queue(stack, "Orders", queue_name="orders")
    store = UnrestrictedDelay(stack, "Delay", queue=orders, store="dynamodb").store
    assert store is not None
    assert isinstance(store.table, dynamodb.Table)
    assert isinstance(store.function, lambda_.Function)
    assert isinstance(store.schedule, events.Rule)
    assert len(store.alarms.all) == 3
    assert Stack.of(stack).resolve(store.url)["Fn::Join"][1][0] == "dynamodb://"


def test_unknown_store_is_refused(stack: Stack) -> None:
    """With the kinds there are."""
    queue = sqs.Queue(stack, "Orders")
    words = "store='redis'; use dynamodb, s3 or scheduler, leave it out"
    with pytest.raises(ConfigurationError, match=words):
        UnrestrictedDelay(stack, "Delay", queue=queue, store="redis")


def test_code_may_be_the_callers(stack: Stack) -> None:
    """An app may bring the function's code built elsewhere, in its CI say."""
    queue = sqs.Queue(stack, "Orders")
    code = lambda_.Code.from_bucket_v2(
        s3.Bucket.from_bucket_name(stack, "Builds", "builds"), "delay_consumer.zip"
    )
    UnrestrictedDelay(stack, "Delay", queue=queue, code=code)
    Template.from_stack(stack).has_resource_properties(
        "AWS::Lambda::Function", {"Code": {"S3Bucket": "builds", "S3Key": "delay_consumer.zip"}}
    )
