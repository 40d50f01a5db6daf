"""The grants, on a local AWS that enforces IAM: enough for producer and relay, and no more needed."""

from __future__ import annotations

import copy
import json
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from botocore.exceptions import ClientError

from infra.cdk_command import CdkCommand
from sqsdelay import DelaySender
from sqsdelay.message import string
from sqsdelay.testing.local_aws import LocalAws
from sqsdelay.wire import DELAY_SECONDS
from tests.acceptance.deployment import receive

PRODUCER_APP = f"{sys.executable} -m tests.acceptance.producer_app"
BATCH_NAMES = {
    "sqs:SendMessage": "sqs:SendMessageBatch",
    "sqs:ChangeMessageVisibility": "sqs:ChangeMessageVisibilityBatch",
}
"""IAM has one action for the single call and its batch; the local AWS wants a name for each."""


@pytest.fixture(scope="module")
def aws() -> Iterator[LocalAws]:
    """A local AWS that enforces IAM, which it does over TLS only."""
    with LocalAws({"AUTH": "true", "USE_SSL": "1"}) as local:
        yield local


@pytest.fixture(scope="module")
def shop(aws: LocalAws, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The outputs of the deployed stack `shop`: a queue, our construct on it, and a producer."""
    cdk = CdkCommand(aws, tmp_path_factory.mktemp("cdk"))
    cdk.run("bootstrap")
    outputs = cdk.deploy("--app", PRODUCER_APP)
    user = outputs["ProducerName"]
    iam = aws.client("iam")
    [name] = iam.list_user_policies(UserName=user)["PolicyNames"]
    policy = iam.get_user_policy(UserName=user, PolicyName=name)["PolicyDocument"]
    iam.put_user_policy(UserName=user, PolicyName=name, PolicyDocument=with_batch_names(policy))
    role = Role(aws, outputs["FunctionName"])
    role.set_policy(role.deployed)
    return outputs


def with_batch_names(policy: dict[str, Any]) -> str:
    """The same grants, in the words of the local AWS."""
    policy = copy.deepcopy(policy)
    for statement in policy["Statement"]:
        actions = listed(statement["Action"])
        batched = [BATCH_NAMES[action] for action in actions if action in BATCH_NAMES]
        statement["Action"] = [*actions, *batched]
    return json.dumps(policy)


def listed(value: str | list[str]) -> list[str]:
    """A policy writes a list of one as the one."""
    return [value] if isinstance(value, str) else value


class Role:
    """The function's role and its one inline policy, as deployed."""

    def __init__(self, aws: LocalAws, function_name: str) -> None:
        configuration = aws.client("lambda").get_function_configuration(FunctionName=function_name)
        self.arn: str = configuration["Role"]
        self._name = self.arn.rpartition("/")[2]
        self._iam = aws.client("iam")
        assert self._iam.list_attached_role_policies(RoleName=self._name)["AttachedPolicies"] == []
        [self._policy] = self._iam.list_role_policies(RoleName=self._name)["PolicyNames"]
        granted = self._iam.get_role_policy(RoleName=self._name, PolicyName=self._policy)
        self.deployed: dict[str, Any] = granted["PolicyDocument"]

    def set_policy(self, policy: dict[str, Any]) -> None:
        self._iam.put_role_policy(
            RoleName=self._name,
            PolicyName=self._policy,
            PolicyDocument=with_batch_names(policy),
        )

    def without(self, action: str, resource: str) -> dict[str, Any]:
        """The deployed policy less one action on one queue."""
        policy: dict[str, Any] = copy.deepcopy(self.deployed)
        for statement in list(policy["Statement"]):
            resources = listed(statement["Resource"])
            if action in listed(statement["Action"]) and resource in resources:
                policy["Statement"].remove(statement)
                kept = [other for other in resources if other != resource]
                policy["Statement"].append({**statement, "Resource": kept})
        assert policy != self.deployed
        return policy


def producer(aws: LocalAws, shop: dict[str, str]) -> Any:
    """An SQS client with the producer's own keys."""
    key = aws.client("iam").create_access_key(UserName=shop["ProducerName"])["AccessKey"]
    return aws.client(
        "sqs",
        aws_access_key_id=key["AccessKeyId"],
        aws_secret_access_key=key["SecretAccessKey"],
    )


def test_granted_producer_and_relay_deliver(aws: LocalAws, shop: dict[str, str]) -> None:
    """With just its grants a producer sends, the relay hops, hands over and reports poison."""
    sqs = producer(aws, shop)
    DelaySender(sqs, hop_seconds=1).send(shop["QueueName"], "granted", delay=4)
    sqs.send_message(
        QueueUrl=shop["DelayQueueUrl"],
        MessageBody="poison",
        MessageGroupId="poison",
        MessageDeduplicationId="poison",
        MessageAttributes={DELAY_SECONDS: string("soon")},
    )
    [message] = receive(aws, shop["QueueUrl"], count=1, within=60)
    assert message["Body"] == "granted"
    [poison] = receive(aws, shop["ErrorQueueUrl"], count=1, within=60)
    assert poison["Body"] == "poison"


def test_producer_may_not_receive(aws: LocalAws, shop: dict[str, str]) -> None:
    """A grant to send is none to read or to empty a queue; and IAM is indeed enforced here."""
    sqs = producer(aws, shop)
    for url in (shop["QueueUrl"], shop["DelayQueueUrl"]):
        with pytest.raises(ClientError, match="AccessDenied"):
            sqs.receive_message(QueueUrl=url)
        with pytest.raises(ClientError, match="AccessDenied"):
            sqs.purge_queue(QueueUrl=url)


def test_missing_grant_holds_a_message_until_it_is_given(
    aws: LocalAws, shop: dict[str, str]
) -> None:
    """Without SendMessage on the destination nothing arrives and nothing is lost. It comes seconds
    after the grant, not a visibility timeout later: the role may change visibility too."""
    role = Role(aws, shop["FunctionName"])
    sqs = aws.client("sqs")
    destination = sqs.get_queue_attributes(QueueUrl=shop["QueueUrl"], AttributeNames=["QueueArn"])
    role.set_policy(role.without("sqs:SendMessage", destination["Attributes"]["QueueArn"]))
    DelaySender(sqs, hop_seconds=1).send(shop["QueueName"], "held", delay=2)
    with pytest.raises(AssertionError, match="0 of 1 messages"):
        receive(aws, shop["QueueUrl"], count=1, within=6)
    role.set_policy(role.deployed)
    [message] = receive(aws, shop["QueueUrl"], count=1, within=60)
    assert message["Body"] == "held"


@pytest.mark.parametrize(
    "action", ["sqs:ReceiveMessage", "sqs:DeleteMessage", "sqs:GetQueueAttributes"]
)
def test_event_source_may_poll_the_delay_queue_only(
    aws: LocalAws, shop: dict[str, str], action: str
) -> None:
    """Lambda polls with the function's role; the local AWS polls without asking, so IAM is asked."""
    role = Role(aws, shop["FunctionName"])
    for url, expected in (
        (shop["DelayQueueUrl"], "allowed"),
        (shop["QueueUrl"], "implicitDeny"),
        (shop["ErrorQueueUrl"], "implicitDeny"),
    ):
        attributes = aws.client("sqs").get_queue_attributes(
            QueueUrl=url, AttributeNames=["QueueArn"]
        )["Attributes"]
        answer = aws.client("iam").simulate_principal_policy(
            PolicySourceArn=role.arn,
            ActionNames=[action],
            ResourceArns=[attributes["QueueArn"]],
        )
        assert [r["EvalDecision"] for r in answer["EvaluationResults"]] == [expected]
