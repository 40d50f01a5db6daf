"""The grants, on a local AWS that enforces IAM: enough for all, and none that nobody needs.

Each grant of the deployed stack is taken away in turn; what it is for breaks, and nothing else does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from botocore.exceptions import ClientError

from sqsdelay import DelaySender
from sqsdelay.core.message import DELAY_SECONDS, string
from sqsdelay.testing.local_aws import LocalAws
from tests.acceptance.deployment import receive
from tests.acceptance.iam import behaviours
from tests.acceptance.iam.behaviours import Site
from tests.acceptance.iam.conftest import Deployed
from tests.acceptance.iam.grants import Actor, Grant, Policy, granted, in_local_words

RELAYING = ("start", "hand over", "hop", "reject", "work as a worker")
LIMIT_KNOWN = "know what the destination takes"
DISPATCHING = ("start", "release", "reject", "remove")

EXPECTED: dict[str, dict[tuple[str, str], tuple[str, ...]]] = {
    "delay_consumer": {
        ("sqs:GetQueueUrl", "queue"): ("hand over",),
        ("sqs:SendMessage", "queue"): ("hand over",),
        ("sqs:GetQueueUrl", "delay queue"): RELAYING,
        ("sqs:SendMessage", "delay queue"): ("hop",),
        ("sqs:GetQueueUrl", "error queue"): ("reject",),
        ("sqs:SendMessage", "error queue"): ("reject",),
        ("sqs:GetQueueAttributes", "delay queue"): RELAYING,
        ("sqs:ReceiveMessage", "delay queue"): ("receive", "work as a worker"),
        ("sqs:DeleteMessage", "delay queue"): ("delete",),
        ("sqs:ChangeMessageVisibility", "delay queue"): ("hold back",),
        ("dynamodb:PutItem", "table"): ("park", "park again", "move"),
        # What is near may have been cancelled: it waits until that can be read.
        ("dynamodb:BatchGetItem", "table"): (
            "hand over",
            "park",
            "park again",
            "read amendments",
            "cancel",
            "move",
        ),
        ("dynamodb:ConditionCheckItem", "table"): ("cancel", "move"),
        ("dynamodb:DeleteItem", "table"): ("cancel", "move"),
        # For a message whose id does not tell when it is due and has no look-up item.
        ("dynamodb:Query", "table"): (),
        ("logs:CreateLogStream", "log"): ("begin a log",),
        ("logs:PutLogEvents", "log"): ("write the log",),
    },
    "dispatcher": {
        ("dynamodb:DescribeTable", "table"): DISPATCHING,
        ("dynamodb:Query", "table"): (*DISPATCHING, "report what is overdue"),
        ("dynamodb:PutItem", "table"): ("release", "reject", "remove"),
        # The messages of the claim are sent, and once more when their leases end.
        ("dynamodb:DeleteItem", "table"): ("reject", "remove"),
        # Its refusal tells SQS's time as well as its answer.
        ("sqs:GetQueueUrl", "queue"): ("release", "remove"),
        ("sqs:SendMessage", "queue"): ("release", "remove"),
        ("sqs:GetQueueUrl", "error queue"): DISPATCHING,
        ("sqs:SendMessage", "error queue"): ("reject",),
        ("logs:CreateLogStream", "log"): ("begin a log",),
        ("logs:PutLogEvents", "log"): ("write the log",),
    },
    "producer": {
        ("sqs:GetQueueUrl", "queue"): ("send", LIMIT_KNOWN),
        ("sqs:SendMessage", "queue"): ("send",),
        ("sqs:GetQueueUrl", "delay queue"): ("send with a long delay", LIMIT_KNOWN),
        ("sqs:SendMessage", "delay queue"): ("send with a long delay",),
        # The hop is 1 s here, which a sender makes sure of first.
        ("sqs:GetQueueAttributes", "delay queue"): ("send with a long delay", LIMIT_KNOWN),
        ("sqs:GetQueueAttributes", "queue"): (LIMIT_KNOWN,),
        ("s3:PutObject", "bodies"): ("keep a large body",),
        ("s3:GetLifecycleConfiguration", "bucket"): ("heed lifecycle rules",),
    },
    "removal_guard": {
        ("cloudformation:DescribeStacks", "stack"): ("refuse",),
        ("cloudformation:ListStackResources", "stack"): ("refuse",),
        ("logs:CreateLogStream", "log"): ("begin a log",),
        ("logs:PutLogEvents", "log"): ("write the log",),
    },
    "keeper": {
        ("dynamodb:PutItem", "table"): ("store", "leave an amendment", "reschedule"),
        ("dynamodb:BatchGetItem", "table"): (
            "store",
            "find",
            "leave an amendment",
            "read amendments",
            "cancel",
            "reschedule",
        ),
        ("dynamodb:ConditionCheckItem", "table"): ("cancel", "reschedule"),
        ("dynamodb:DeleteItem", "table"): ("cancel", "reschedule"),
        ("dynamodb:Query", "table"): ("list",),
    },
    "receiver": {
        ("s3:GetObject", "bodies"): ("read", "tell gone from denied"),
        ("s3:DeleteObject", "bodies"): ("delete",),
        # Not asked for by the local AWS, which says of any object that it is gone; S3 does ask.
        ("s3:ListBucket", "bucket"): (),
    },
}
"""What breaks without a grant, for every grant of every holder."""

TRIED: dict[str, Callable[[Site, Actor], set[str]]] = {
    "delay_consumer": behaviours.delay_consumer,
    "dispatcher": behaviours.dispatcher,
    "producer": behaviours.producer,
    "removal_guard": behaviours.removal_guard,
    "keeper": behaviours.keeper,
    "receiver": behaviours.receiver,
}


def resource(shop: Deployed, arn: str) -> str:
    """What an ARN of a policy names."""
    o = shop.outputs
    names = {
        o["StackId"]: "stack",
        o["QueueArn"]: "queue",
        o["DelayQueueArn"]: "delay queue",
        o["ErrorQueueArn"]: "error queue",
        o["TableArn"]: "table",
        o["BucketArn"]: "bucket",
        f"{o['BucketArn']}/*": "bodies",
    }
    return "log" if ":log-group:" in arn else names[arn]


def _holder(logical_id: str) -> str:
    """Whose policy it is."""
    known = {
        "DelayDelayConsumerRole": "delay_consumer",
        "DelayStoreDispatcherRole": "dispatcher",
        "DelayRemovalGuardRole": "removal_guard",
        "Producer": "producer",
        "Keeper": "keeper",
        "Receiver": "receiver",
    }
    return known[logical_id[:-8]]


@pytest.fixture(scope="module")
def shop(aws: LocalAws, stacks: dict[str, Deployed]) -> Deployed:
    """The deployed stack; its policies know the local AWS's names of batch calls, too."""
    found = stacks["shop"]
    synthesised, held = (
        {_holder(name): policy for name, policy in each.items()}
        for each in (found.synthesised, found.deployed)
    )
    read = Deployed(found.outputs, synthesised, held)
    user, iam = read.outputs["ProducerName"], aws.client("iam")
    [name] = iam.list_user_policies(UserName=user)["PolicyNames"]
    document = in_local_words(read.deployed["producer"])
    iam.put_user_policy(UserName=user, PolicyName=name, PolicyDocument=document)
    set_functions_policy(aws, read, read.deployed["delay_consumer"])
    return read


def set_functions_policy(aws: LocalAws, shop: Deployed, policy: Policy) -> None:
    """Put it in place of the one inline policy of the deployed delay consumer's role."""
    function = aws.client("lambda").get_function_configuration(
        FunctionName=shop.outputs["FunctionName"]
    )
    role, iam = function["Role"].rpartition("/")[2], aws.client("iam")
    [name] = iam.list_role_policies(RoleName=role)["PolicyNames"]
    iam.put_role_policy(RoleName=role, PolicyName=name, PolicyDocument=in_local_words(policy))


@pytest.fixture(scope="module")
def site(aws: LocalAws, shop: Deployed) -> Site:
    """The stack with its event source off, and a message of each kind taken from its delay queue."""
    function = aws.client("lambda")
    [source] = function.list_event_source_mappings(FunctionName=shop.outputs["FunctionName"])[
        "EventSourceMappings"
    ]
    function.update_event_source_mapping(UUID=source["UUID"], Enabled=False)
    smaller = {"MaximumMessageSize": str(Site.destination_bytes)}
    aws.client("sqs").set_queue_attributes(QueueUrl=shop.outputs["QueueUrl"], Attributes=smaller)
    return behaviours.prepared(aws, shop.outputs, runs=len(EXPECTED["delay_consumer"]) + 1)


def producer(aws: LocalAws, shop: Deployed) -> Any:
    """An SQS client with the producer's own keys."""
    user = shop.outputs["ProducerName"]
    key = aws.client("iam").create_access_key(UserName=user)["AccessKey"]
    return aws.client(
        "sqs", aws_access_key_id=key["AccessKeyId"], aws_secret_access_key=key["SecretAccessKey"]
    )


def test_granted_producer_and_relay_deliver(aws: LocalAws, shop: Deployed) -> None:
    """With just its grants a producer sends, the relay hops, hands over and reports poison."""
    sqs = producer(aws, shop)
    DelaySender(sqs, hop_seconds=1).send(shop.outputs["QueueName"], "granted", delay=4)
    sqs.send_message(
        QueueUrl=shop.outputs["DelayQueueUrl"],
        MessageBody="poison",
        MessageGroupId="poison",
        MessageDeduplicationId="poison",
        MessageAttributes={DELAY_SECONDS: string("soon")},
    )
    [message] = receive(aws, shop.outputs["QueueUrl"], count=1)
    assert message["Body"] == "granted"
    [poison] = receive(aws, shop.outputs["ErrorQueueUrl"], count=1)
    assert poison["Body"] == "poison"


def test_producer_may_not_receive(aws: LocalAws, shop: Deployed) -> None:
    """A grant to send is none to read or to empty a queue; and IAM is indeed enforced here."""
    sqs = producer(aws, shop)
    for url in (shop.outputs["QueueUrl"], shop.outputs["DelayQueueUrl"]):
        with pytest.raises(ClientError, match="AccessDenied"):
            sqs.receive_message(QueueUrl=url)
        with pytest.raises(ClientError, match="AccessDenied"):
            sqs.purge_queue(QueueUrl=url)


def test_missing_grant_holds_a_message_until_it_is_given(aws: LocalAws, shop: Deployed) -> None:
    """Without SendMessage on the destination nothing arrives and nothing is lost. It comes seconds
    after the grant, not a visibility timeout later: the role may change visibility too."""
    policy = shop.deployed["delay_consumer"]
    [send] = [
        grant
        for grant in granted(policy)
        if (grant.action, grant.resource) == ("sqs:SendMessage", shop.outputs["QueueArn"])
    ]
    set_functions_policy(aws, shop, send.taken_from(policy))
    DelaySender(aws.client("sqs"), hop_seconds=1).send(shop.outputs["QueueName"], "held", delay=2)
    with pytest.raises(AssertionError, match="0 of 1 messages"):
        receive(aws, shop.outputs["QueueUrl"], count=1, within=4)
    set_functions_policy(aws, shop, policy)
    [message] = receive(aws, shop.outputs["QueueUrl"], count=1)
    assert message["Body"] == "held"


def test_no_grant_without_a_stated_reason(shop: Deployed) -> None:
    """What is synthesised is deployed as it is, and each of its grants is tried below."""
    assert set(shop.synthesised) == set(EXPECTED) == set(TRIED)
    for holder, policy in shop.synthesised.items():
        found = granted(shop.deployed[holder])
        assert {(g.action, resource(shop, g.resource)) for g in found} == set(EXPECTED[holder])
        assert [(g.statement, g.action) for g in found] == [
            (g.statement, g.action) for g in granted(policy)
        ]


@pytest.mark.last  # nobody relays any more
@pytest.mark.parametrize("holder", EXPECTED)
def test_each_grant_taken_away_breaks_just_what_it_is_for(
    aws: LocalAws, shop: Deployed, site: Site, holder: str
) -> None:
    """With all grants everything works; without one, that which it is for stops, and all else goes on."""
    actor, policy = Actor(aws, f"as-{holder}"), shop.deployed[holder]
    actor.allow(policy)
    assert TRIED[holder](site, actor) == set()
    broken: dict[tuple[str, str], set[str]] = {}
    for grant in granted(policy):
        actor.allow(grant.taken_from(policy))
        broken[grant.action, resource(shop, grant.resource)] = TRIED[holder](site, actor)
    assert broken == {grant: set(named) for grant, named in EXPECTED[holder].items()}


def test_a_grant_in_other_words_would_be_noticed(shop: Deployed) -> None:
    """A wildcard, a NotAction or a condition is no grant that the test above could take away."""
    policy = shop.deployed["producer"]
    for odd in (
        {"Effect": "Allow", "NotAction": "sqs:*", "Resource": "*"},
        {"Effect": "Allow", "Action": "sqs:*", "Resource": "arn:aws:sqs:eu-west-1:1:orders"},
        {"Effect": "Allow", "Action": "sqs:SendMessage", "Resource": "*"},
        {"Effect": "Allow", "Action": "sqs:SendMessage", "Resource": "a", "Condition": {}},
    ):
        with pytest.raises(AssertionError):
            granted({"Statement": [*policy["Statement"], odd]})


def test_a_grant_is_taken_away_alone() -> None:
    """The rest of its statement stays."""
    policy: Policy = {
        "Statement": [{"Effect": "Allow", "Action": ["a:B", "a:C"], "Resource": ["x", "y"]}]
    }
    left = granted(Grant(0, "a:B", "y").taken_from(policy))
    assert {(g.action, g.resource) for g in left} == {("a:B", "x"), ("a:C", "x"), ("a:C", "y")}
