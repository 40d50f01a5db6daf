"""``cdk deploy -c store=s3`` on a local AWS: bucket, parking queue, schedules, and a second deploy."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

import pytest

from infra.local import CdkCommand, CdkFailed
from sqsdelay.stores import S3Store
from sqsdelay.testing.local_aws import LocalAws
from tests.acceptance.deployed.conftest import Apps
from tests.acceptance.deployment import dispatch, given_up, receive, scheduled, sqsdelay
from tests.patience import wait_for

STACK = "sqsdelay-wheel"


@pytest.fixture(scope="module")
def wheel(aws: LocalAws, deployed: dict[str, dict[str, str]]) -> dict[str, str]:
    """The outputs of the endpoint `wheel` with an S3 store; nobody but the test runs its dispatcher."""
    scheduled(aws, deployed[STACK]["DispatcherName"], enabled=False)
    return deployed[STACK]


@pytest.fixture
def store(aws: LocalAws, wheel: dict[str, str]) -> Iterator[S3Store]:
    """The deployed bucket, as a store."""
    bucket = wheel["StoreUrl"].removeprefix("s3://")
    deployed = S3Store(bucket, endpoint="wheel", client=aws.client("s3"))
    yield deployed
    deployed.close()


def gathered(aws: LocalAws, wheel: dict[str, str]) -> None:
    """Wait until all is in the parking queue, in groups of one message or more, and the delay queue empty."""

    def counts(url: str) -> set[str]:
        answer = aws.client("sqs").get_queue_attributes(QueueUrl=url, AttributeNames=["All"])
        return {n for key, n in answer["Attributes"].items() if key.startswith("Approximate")}

    def forwarded() -> bool:
        waiting, gathering = counts(wheel["DelayQueueUrl"]), counts(wheel["ParkingQueueUrl"])
        return waiting == {"0"} and gathering != {"0"}

    wait_for(forwarded, "not forwarded")


def test_far_messages_gather_in_the_parking_queue_and_are_parked_together(
    aws: LocalAws, wheel: dict[str, str], store: S3Store
) -> None:
    """Sent, forwarded, parked in one object; one cancelled while it gathers never gets there, one
    moved near is released and arrives."""
    ids = [
        json.loads(
            sqsdelay(aws, "send", "wheel", "--body", body, "--delay", "30d", "--hop", "1", "--json")
        )["message_id"]
        for body in ("stays", "cancelled", "moved")
    ]
    gathered(aws, wheel)
    sqsdelay(aws, "cancel", "wheel", ids[1], "--store", wheel["StoreUrl"], codes={3})
    assert dispatch(aws, wheel, {"park": True}) == {"parked": 2, "cancelled": 1}
    assert sorted(m.body for m in store.pending(10)) == [b"moved", b"stays"]
    objects = aws.client("s3").list_objects_v2(Bucket=wheel["StoreUrl"].removeprefix("s3://"))
    assert len([o for o in objects["Contents"] if o["Key"].endswith(".jsonl.gz")]) == 1
    assert dispatch(aws, wheel, {"park": True}) == {}
    assert store.reschedule(ids[2], round(time.time() * 1000) + 2000)
    assert dispatch(aws, wheel)["released"] == 1
    [message] = receive(aws, wheel["QueueUrl"], count=1)
    assert message["Body"] == "moved"
    assert message["MessageAttributes"]["sqsdelay.MessageId"]["StringValue"] == ids[2]
    assert [m.body for m in store.pending(10)] == [b"stays"]


@pytest.mark.nightly
@pytest.mark.last
def test_a_second_deploy_keeps_the_bucket_and_lets_go_by_name_only(
    aws: LocalAws, cdk: CdkCommand, app: Apps, wheel: dict[str, str], store: S3Store
) -> None:
    """The same again changes nothing; without the store it is refused; ``none`` keeps what waits."""
    far = ("--delay", "30d", "--store", wheel["StoreUrl"])
    sqsdelay(aws, "send", "wheel", "--body", "waits", *far)
    assert (parked := len(store.pending(10)))
    assert cdk.deploy(STACK, *app("first")) == {STACK: wheel}
    with pytest.raises(CdkFailed, match="the stack has a store in S3"):
        cdk.deploy(STACK, *app("forgotten"))
    [outputs] = cdk.deploy(STACK, *app("given up")).values()
    assert "StoreUrl" not in outputs
    assert given_up(aws, "wheel") == [
        ("(store)", f"{parked} parked", f"run sqsdelay dispatch wheel --store {wheel['StoreUrl']}")
    ]
    aws.client("sqs").send_message(QueueUrl=wheel["ParkingQueueUrl"], MessageBody="group")
    told = given_up(aws, "wheel")[1]
    assert told[:2] == ("wheel-parking", "1 messages,")
    assert wheel["StoreUrl"] in told[2]
    assert aws.client("sqs").get_queue_url(QueueName=wheel["ParkingQueueName"])
