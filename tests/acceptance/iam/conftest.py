"""One account that enforces IAM, with all that these tests are about deployed by one command."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from aws_cdk import App, CfnOutput, Stack
from aws_cdk import aws_iam as iam
from aws_cdk import aws_sqs as sqs

from infra.local import CdkCommand
from sqsdelay.cdk import UnrestrictedDelay
from sqsdelay.testing.local_aws import LocalAws
from tests.acceptance.iam.grants import Policy, deployed_policy, template_policies
from tests.infra.conftest import CONTEXT, synthesise

QUICK = {"hopSeconds": "1"}


@dataclass(frozen=True)
class Deployed:
    """A stack's outputs, and its policies by the logical ids of who has them: as synthesised, as deployed."""

    outputs: dict[str, str]
    synthesised: dict[str, Policy]
    deployed: dict[str, Policy]

    def policy(self, holder: str) -> Policy:
        """Of the role whose logical id has that in it, less what the local AWS does not check."""
        [found] = [policy for name, policy in self.deployed.items() if holder in name]
        kept = [each for each in found["Statement"] if "Condition" not in each]
        return {**found, "Statement": kept}


@pytest.fixture(scope="package")
def aws() -> Iterator[LocalAws]:
    """It enforces IAM over TLS only."""
    with LocalAws({"AUTH": "true", "USE_SSL": "1"}) as local:
        yield local


@pytest.fixture(scope="package")
def stacks(aws: LocalAws, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Deployed]:
    """Somebody's shop; `kept`, an endpoint with store and ledger in S3; `timed`, which parks in schedules."""
    folder: Path = tmp_path_factory.mktemp("app")
    app = App(context=CONTEXT, outdir=str(folder))
    add_shop(app)
    kept, timed = ({"endpoint": "kept", "store": "s3", "ledger": "s3"}, {"endpoint": "timed"})
    synthesise(app, QUICK | kept, QUICK | timed | {"store": "scheduler"})
    cdk = CdkCommand(aws, tmp_path_factory.mktemp("cdk"))
    cdk.bootstrap()
    found = {}
    for name, outputs in cdk.deploy("--all", "--concurrency=3", "--app", str(folder)).items():
        synthesised = template_policies(folder / f"{name}.template.json")
        held = {grantee: deployed_policy(aws, name, grantee) for grantee in synthesised}
        found[name] = Deployed(outputs, synthesised, held)
    # Runs of the dispatchers would release and park what the tests put there.
    for rule in aws.client("events").list_rules()["Rules"]:
        aws.client("events").disable_rule(Name=rule["Name"])
    return found


def add_shop(app: App) -> None:
    """Into their app; its outputs are what the tests ask for."""
    stack = Stack(app, "shop")
    orders = sqs.Queue(stack, "Orders")
    delay = UnrestrictedDelay(
        stack, "Delay", queue=orders, hop_seconds=1, store="dynamodb", large_bodies=True
    )
    assert delay.store is not None
    assert delay.body_bucket is not None
    producer, keeper, receiver = (
        iam.User(stack, name) for name in ("Producer", "Keeper", "Receiver")
    )
    delay.grant_send(producer)
    delay.store.grant_store(keeper)
    delay.body_bucket.grant_fetch(receiver)
    for name, value in (
        ("QueueName", orders.queue_name),
        ("QueueUrl", orders.queue_url),
        ("QueueArn", orders.queue_arn),
        ("DelayQueueUrl", delay.delay_queue.queue_url),
        ("DelayQueueArn", delay.delay_queue.queue_arn),
        ("ErrorQueueUrl", delay.error_queue.queue_url),
        ("ErrorQueueArn", delay.error_queue.queue_arn),
        ("TableName", delay.store.table.table_name),
        ("TableArn", delay.store.table.table_arn),
        ("BucketName", delay.body_bucket.bucket_name),
        ("BucketArn", delay.body_bucket.bucket_arn),
        ("FunctionName", delay.function.function_name),
        ("DispatcherName", delay.store.function.function_name),
        ("GuardName", delay.removal_guard.function.function_name),
        ("StackId", stack.stack_id),
        ("ProducerName", producer.user_name),
        ("KeeperName", keeper.user_name),
        ("ReceiverName", receiver.user_name),
    ):
        CfnOutput(stack, name, value=value)
