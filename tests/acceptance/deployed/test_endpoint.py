"""What ``cdk deploy`` makes, on a local AWS: the command line, the stack of ``app.py``, the function as
deployed. (``app.py`` itself: ``tests/acceptance/test_deploy_local.py``.)"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from infra.endpoint_stack import stack_name
from infra.local import ROOT, CdkCommand, CdkFailed
from sqsdelay import DelaySender, SendResult
from sqsdelay.cdk import function_names
from sqsdelay.core.endpoint import Endpoint
from sqsdelay.core.limits import MAX_MESSAGE_BYTES
from sqsdelay.core.message import DELAY_SECONDS, ERROR, string
from sqsdelay.s3 import BodyReader, Bucket
from sqsdelay.sqs import check_endpoint
from sqsdelay.sqs.endpoints import delay_queue_attributes
from sqsdelay.testing.local_aws import LocalAws
from tests.acceptance.deployed.conftest import Apps
from tests.acceptance.deployment import metric, proven, queues, receive, sqsdelay
from tests.patience import PATIENCE_SECONDS
from tests.services.packages import build_wheel, install_wheel

HOP_SECONDS = 1
FAR_SECONDS = 90
LOOP_DETECTION_ROUNDS = 16
"""After which Lambda stops a function that feeds its own queue, unless allowed to."""


@dataclass(frozen=True)
class Existing:
    """An endpoint on a queue that was there before, and what was sent to it."""

    url: str
    function_name: str
    sent: SendResult


@pytest.fixture(scope="module")
def existing(aws: LocalAws, deployed: dict[str, dict[str, str]]) -> Existing:
    """Deployed on the queue `existing`, with a message that hops while the other tests run."""
    url = aws.client("sqs").get_queue_url(QueueName="existing")["QueueUrl"]
    sent = sender(aws).send("existing", "far", delay=FAR_SECONDS)
    return Existing(url, deployed["sqsdelay-existing"]["FunctionName"], sent)


@pytest.fixture(scope="module")
def orders(deployed: dict[str, dict[str, str]], existing: Existing) -> dict[str, str]:
    """The outputs of the deployed endpoint `orders`."""
    return deployed["sqsdelay-orders"]


def sender(aws: LocalAws) -> DelaySender:
    return DelaySender(aws.client("sqs"), hop_seconds=HOP_SECONDS)


def due(result: SendResult) -> float:
    assert result.due is not None
    return result.due.timestamp()


def test_deployed_endpoint_is_what_the_relay_needs(aws: LocalAws, orders: dict[str, str]) -> None:
    """The deployed queues carry the attributes that the command line's check and the relay ask for."""
    sqs = aws.client("sqs")
    assert check_endpoint(sqs, Endpoint.parse("orders"), hop_seconds=HOP_SECONDS) == []
    answer = sqs.get_queue_attributes(QueueUrl=orders["DelayQueueUrl"], AttributeNames=["All"])
    deployed = answer["Attributes"]
    assert delay_queue_attributes(HOP_SECONDS).items() <= deployed.items()
    assert "RedrivePolicy" not in deployed


def test_three_hundred_messages_at_once(aws: LocalAws, orders: dict[str, str]) -> None:
    """The command line's proof: each message arrives once, none early. It refuses a queue that holds
    messages of others, and leaves theirs."""
    assert set(proven(aws, "orders", 300)["routes"]) == {"direct", "delay-queue"}
    aws.client("sqs").send_message(QueueUrl=orders["QueueUrl"], MessageBody="foreign")
    sqsdelay(aws, "prove", "orders", "--longest", "8s", "--hop", "1", codes={1})
    [foreign] = receive(aws, orders["QueueUrl"], count=1)
    assert foreign["Body"] == "foreign"


def test_poison_message_ends_in_the_error_queue(aws: LocalAws, orders: dict[str, str]) -> None:
    """What cannot be read goes to the error queue with its reason; the others arrive."""
    aws.client("sqs").send_message(
        QueueUrl=orders["DelayQueueUrl"],
        MessageBody="poison",
        MessageGroupId="poison",
        MessageDeduplicationId="poison",
        MessageAttributes={DELAY_SECONDS: string("soon")},
    )
    for number in range(5):
        sender(aws).send("orders", f"good {number}", delay=3)
    good = receive(aws, orders["QueueUrl"], count=5)
    assert {m["Body"] for m in good} == {f"good {number}" for number in range(5)}
    [poison] = receive(aws, orders["ErrorQueueUrl"], count=1)
    assert poison["Body"] == "poison"
    assert "not a whole number of seconds" in poison["MessageAttributes"][ERROR]["StringValue"]


@pytest.mark.nightly
@pytest.mark.last
def test_second_deploy_updates_the_function_in_place(
    aws: LocalAws, cdk: CdkCommand, orders: dict[str, str], tmp_path: Path
) -> None:
    """New code and a new hop reach the same function; a message that waits meanwhile arrives."""
    checkout = copy_of_checkout(tmp_path)
    handler = checkout / "lambdas" / "delay_consumer" / "handler.py"
    handler.write_text(handler.read_text() + "\n# changed\n")
    before = aws.client("lambda").get_function_configuration(FunctionName=orders["FunctionName"])
    # One hop: the local AWS ends a function at its update, and what it held would be away for 180 s.
    DelaySender(aws.client("sqs")).send("orders", "meanwhile", delay=20)
    context = ("-c", "endpoint=orders", "-c", "hopSeconds=2")
    assert cdk.deploy("--all", *context, checkout=checkout) == {"sqsdelay-orders": orders}
    after = aws.client("lambda").get_function_configuration(FunctionName=orders["FunctionName"])
    assert after["CodeSha256"] != before["CodeSha256"]
    assert after["Environment"]["Variables"][function_names.HOP_SECONDS_VARIABLE] == "2"
    [message] = receive(aws, orders["QueueUrl"], count=1)
    assert message["Body"] == "meanwhile"


def copy_of_checkout(folder: Path) -> Path:
    """The app in another directory, so that a test may change it."""
    for name in ("app.py", "cdk.json"):
        shutil.copy(ROOT / name, folder / name)
    for name in ("infra", "lambdas", "sqsdelay"):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / name, folder / name, ignore=ignored)
    (folder / ".venv").symlink_to(ROOT / ".venv")
    return folder


def test_destroy_keeps_queues_and_messages_by_default(
    aws: LocalAws, cdk: CdkCommand, app: Apps, deployed: dict[str, dict[str, str]], tmp_path: Path
) -> None:
    """Without its stack a message waits where it is; the kept queues and buckets, imported, deliver again."""
    stack, outputs = "sqsdelay-kept", deployed["sqsdelay-kept"]
    found = aws.client("cloudformation").describe_stack_resources(StackName=stack)
    kept = {
        each["LogicalResourceId"]: each["PhysicalResourceId"] for each in found["StackResources"]
    }
    DelaySender(aws.client("sqs")).send("kept", "patient", delay=86_400)
    cdk.run("destroy", stack, "--force", *app("first"))
    assert waiting(aws, outputs) == "1"
    with pytest.raises(aws.client("lambda").exceptions.ResourceNotFoundException):
        aws.client("lambda").get_function(FunctionName=outputs["FunctionName"])
    mapping = mapping_from_docs(kept, tmp_path)
    cdk.run("import", stack, *app("first"), "--resource-mapping", str(mapping))
    assert waiting(aws, outputs) == "1"
    cdk.deploy(stack, *app("kept"))
    sender(aws).send("kept", "afterwards", delay=3)
    [message] = receive(aws, outputs["QueueUrl"], count=1)
    assert message["Body"] == "afterwards"


def waiting(aws: LocalAws, outputs: dict[str, str]) -> str:
    """How many messages of the delay queue are on a hop."""
    name = "ApproximateNumberOfMessagesDelayed"
    answer = aws.client("sqs").get_queue_attributes(
        QueueUrl=outputs["DelayQueueUrl"], AttributeNames=[name]
    )
    return str(answer["Attributes"][name])


def mapping_from_docs(kept: Mapping[str, str], folder: Path) -> Path:
    """The mapping file docs/remove.md tells to write, for what the stack had."""
    page = (ROOT / "docs" / "remove.md").read_text()
    told = re.findall(r'"(\w+)":\s+\{"(\w+)": "', page)
    path = folder / "kept-queues.json"
    path.write_text(json.dumps({name: {key: kept[name]} for name, key in told if name in kept}))
    return path


@pytest.mark.nightly
def test_destroy_removes_queues_when_told_to(aws: LocalAws, cdk: CdkCommand) -> None:
    """With removalPolicy=destroy nothing is left, and the endpoint can be deployed anew."""
    context = ("--all", "-c", "endpoint=gone", "-c", "removalPolicy=destroy")
    cdk.deploy(*context)
    assert len(queues(aws, "gone")) == 4
    cdk.run("destroy", "--force", *context)
    assert queues(aws, "gone") == []
    cdk.deploy(*context)
    assert check_endpoint(aws.client("sqs"), Endpoint.parse("gone")) == []


def test_existing_queue_gets_delays(aws: LocalAws, existing: Existing) -> None:
    """With queueArn the destination is left as it is, and a message arrives in it, not early. It makes
    at least 20 hops through the deployed function."""
    sent, hops_before = existing.sent, 0.0
    while True:
        [message] = receive(aws, existing.url, count=1, within=FAR_SECONDS + PATIENCE_SECONDS)
        assert message["Body"] == "far"
        assert message["ArrivedAt"] >= due(sent)
        hops = metric(aws, existing.function_name, function_names.HOPS)
        if hops - hops_before >= 20 or sent is not existing.sent:
            break
        # Beside much other work a hop of one second takes several.
        sent, hops_before = sender(aws).send("existing", "far", delay=225), hops
    assert hops - hops_before >= 20 > LOOP_DETECTION_ROUNDS
    assert queues(aws, "existing-dead-letter") == []


THEIR_STACK = "theirs"


def their_status(aws: LocalAws) -> str:
    [stack] = aws.client("cloudformation").describe_stacks(StackName=THEIR_STACK)["Stacks"]
    return str(stack["StackStatus"])


@pytest.mark.nightly
def test_in_somebodys_own_app(aws: LocalAws, cdk: CdkCommand, tmp_path: Path) -> None:
    """Installed outside this repository, the construct brings its functions and its guard: for the due
    queue of a queue that is FIFO no more. A deployment that fails for another reason finds its way
    back past it."""
    python = install_wheel(build_wheel(tmp_path / "wheel"), tmp_path / "venv")
    shutil.copy(Path(__file__).with_name("their_app.py"), tmp_path)

    def deploy(*context: str) -> None:
        app = f"{python} their_app.py"
        arguments = ("--app", app, "--require-approval=never", *context)
        cdk.run("deploy", *arguments, checkout=tmp_path)

    deploy("-c", "kind=fifo")
    DelaySender(aws.client("sqs"), hop_seconds=1).send(
        "theirs.fifo", "far", delay=4, message_group_id="g"
    )
    queue_url = aws.client("sqs").get_queue_url(QueueName="theirs.fifo")["QueueUrl"]
    assert [message["Body"] for message in receive(aws, queue_url, count=1)] == ["far"]
    with pytest.raises(CdkFailed):
        deploy("-c", "kind=fifo", "-c", "store=dynamodb", "-c", "broken=1")
    assert their_status(aws) == "UPDATE_ROLLBACK_COMPLETE"
    with pytest.raises(CdkFailed, match="the stack has a due queue"):
        deploy("-c", "kind=standard")
    assert their_status(aws) == "UPDATE_ROLLBACK_COMPLETE"
    deploy("-c", "kind=standard", "-c", "dueQueue=none")
    assert their_status(aws) == "UPDATE_COMPLETE"


def test_messages_reach_a_fifo_queue_in_order_and_whole(
    aws: LocalAws, deployed: dict[str, dict[str, str]]
) -> None:
    """One message by the due queue only, a large one by both queues: each on time, under its own
    deduplication id, in the order of their due times; and the queues are what the relay needs."""
    ordered = deployed[stack_name(Endpoint.parse("ordered.fifo"))]
    sqs, s3 = aws.client("sqs"), aws.client("s3")
    assert check_endpoint(sqs, Endpoint.parse("ordered.fifo"), hop_seconds=1) == []
    bodies = Bucket(ordered["BodyBucketName"], s3)
    sender = DelaySender(sqs, hop_seconds=1, large_bodies=bodies)
    large = "x" * (MAX_MESSAGE_BYTES + 1)
    sent = [
        sender.send("ordered.fifo", body, delay=delay, message_group_id="customer-7")
        for body, delay in ((large, 6), ("soon", 1))
    ]
    received = receive(aws, ordered["QueueUrl"], count=2)
    reader = BodyReader(ordered["BodyBucketName"], s3)
    read = [reader.read(m["Body"], m["MessageAttributes"]) for m in received]
    assert read == ["soon", large]
    for message, result in zip(received, reversed(sent), strict=True):
        assert result.due is not None
        assert message["ArrivedAt"] >= result.due.timestamp()
        carried = message["MessageAttributes"]["sqsdelay.MessageId"]["StringValue"]
        assert carried == result.message_id
    assert metric(aws, ordered["FunctionName"], function_names.DELIVERED) == 2
    # However few hops a busy machine made of its six seconds.
    assert metric(aws, ordered["FunctionName"], function_names.HANDED_OVER) >= 1
    proven(aws, "ordered.fifo", 40)
