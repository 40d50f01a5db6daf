"""The grants for schedules, on a local AWS that enforces IAM: enough, and none that nobody needs.

They are the guide's, which another test compares with those that are deployed. The local AWS takes every
schedule for one of the group ``default``, and checks neither ``iam:PassRole`` nor who may assume a role:
see ``tests/infra/test_schedules.py`` for those.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from botocore.exceptions import ClientError

from infra.local import ROOT
from sqsdelay.core.endpoint import Endpoint
from sqsdelay.core.stored_message import Amendment, StoredMessage
from sqsdelay.errors import StoreError
from sqsdelay.sqs.endpoints import create_endpoint
from sqsdelay.stores.scheduler import SchedulerStore
from sqsdelay.testing.local_aws import LocalAws
from tests.acceptance.grants import Actor, Policy, granted

ENDPOINT = Endpoint.parse("orders")
ROLE = "orders-schedules"
DAY_MS = 86_400_000

EXPECTED = {
    "scheduler:CreateSchedule": {"park", "leave an amendment"},
    "scheduler:GetSchedule": {
        "park",
        "find",
        "read amendments",
        "cancel",
        "move",
    },
    "scheduler:UpdateSchedule": {"move"},
    "scheduler:DeleteSchedule": {"cancel"},
    "scheduler:GetScheduleGroup": set[str](),
}
"""What breaks without a grant. The group is looked up where a schedule is missing, for the error's sake."""


@pytest.fixture(scope="module")
def aws() -> Iterator[LocalAws]:
    """It enforces IAM over TLS only."""
    with LocalAws({"AUTH": "true", "USE_SSL": "1"}) as local:
        create_endpoint(local.client("sqs"), ENDPOINT)
        yield local


def policy_of(section: str, aws: LocalAws) -> Policy:
    """The guide's policy, with the names of this AWS."""
    guide = (ROOT / "docs" / "permissions.md").read_text()
    text = guide.partition(f"## {section}\n")[2]
    found = re.search(r"```json\n(.*?)```", text, re.DOTALL)
    assert found is not None, section
    account = aws.client("sts").get_caller_identity()["Account"]
    names = {"REGION": aws.client("sqs").meta.region_name, "SCHEDULER-ROLE": ROLE}
    policy = found[1].replace("ACCOUNT", account).replace("schedule/orders/", "schedule/default/")
    for word, name in names.items():
        policy = policy.replace(word, name)
    return dict(json.loads(policy))


@pytest.fixture(scope="module")
def role(aws: LocalAws) -> str:
    """The schedules' role, with the guide's policy."""
    iam = aws.client("iam")
    trust = {"Effect": "Allow", "Principal": {"Service": "scheduler.amazonaws.com"}}
    document = {"Version": "2012-10-17", "Statement": [trust | {"Action": "sts:AssumeRole"}]}
    made = iam.create_role(RoleName=ROLE, AssumeRolePolicyDocument=json.dumps(document))
    policy = json.dumps(policy_of("The role of the schedules", aws))
    iam.put_role_policy(RoleName=ROLE, PolicyName="send", PolicyDocument=policy)
    return str(made["Role"]["Arn"])


def opened(client: Any, role: str) -> SchedulerStore:
    return SchedulerStore(ENDPOINT.name, role_arn=role, endpoint=ENDPOINT.name, client=client)


def message(message_id: str) -> StoredMessage:
    due_ms = time.time_ns() // 1_000_000 + 3 * DAY_MS
    return StoredMessage(message_id=message_id, destination="orders", due_ms=due_ms, body=b"x")


def broken(admin: SchedulerStore, actor: SchedulerStore, run: int) -> set[str]:
    """What an actor cannot do; what it needs to find is put there for it."""
    waiting = [message(f"{word}-{run}") for word in ("find", "cancel", "move")]
    admin.store(waiting)
    found, cancelled, moved = (each.message_id for each in waiting)
    now_ms = time.time_ns() // 1_000_000
    tried: dict[str, Callable[[], object]] = {
        "park": lambda: actor.store([message(f"park-{run}")]),
        "leave an amendment": lambda: actor.amend(
            [Amendment(message_id=f"amend-{run}", at_ms=now_ms)]
        ),
        "read amendments": lambda: actor.amendments([f"amend-{run}"]),
        "find": lambda: actor.find(found),
        "cancel": lambda: actor.cancel([cancelled]),
        "move": lambda: actor.reschedule(moved, now_ms + 4 * DAY_MS),
    }
    failed = set[str]()
    for name, attempt in tried.items():
        try:
            attempt()
        except StoreError as error:
            failed.add(name if "AccessDenied" in str(error) else str(error))
    return failed


def test_each_grant_taken_away_breaks_just_what_it_is_for(aws: LocalAws, role: str) -> None:
    """With all of them everything works; without one, that which it is for stops."""
    policy = policy_of("Schedules instead of a table", aws)
    passing = policy["Statement"].pop()
    assert passing["Action"] == "iam:PassRole"
    actor = Actor(aws, "parks")
    admin, place = opened(aws.client("scheduler"), role), opened(actor.client("scheduler"), role)
    admin.set_up()
    actor.allow(policy)
    assert broken(admin, place, 0) == set()
    found = {}
    for run, grant in enumerate(granted(policy), start=1):
        actor.allow(grant.taken_from(policy))
        found[grant.action] = broken(admin, place, run)
    admin.close()
    place.close()
    assert found == EXPECTED


def test_the_schedules_role_sends_to_its_two_queues_alone(aws: LocalAws, role: str) -> None:
    """Into the delay queue and, what cannot be sent, into the error queue; it reads nothing."""
    assumed = aws.client("sts").assume_role(RoleArn=role, RoleSessionName="scheduler")
    keys = assumed["Credentials"]
    sqs = aws.client(
        "sqs",
        aws_access_key_id=keys["AccessKeyId"],
        aws_secret_access_key=keys["SecretAccessKey"],
        aws_session_token=keys["SessionToken"],
    )
    admin = aws.client("sqs")
    urls = {q.name: admin.get_queue_url(QueueName=q.name)["QueueUrl"] for q in ENDPOINT.queues}
    delay, error = urls[ENDPOINT.delay_queue.name], urls[ENDPOINT.error_queue.name]
    sqs.send_message(
        QueueUrl=delay, MessageBody="due", MessageGroupId="m", MessageDeduplicationId="m"
    )
    sqs.send_message(QueueUrl=error, MessageBody="unsent")
    with pytest.raises(ClientError, match="AccessDenied"):
        sqs.send_message(QueueUrl=urls[ENDPOINT.name], MessageBody="no")
    with pytest.raises(ClientError, match="AccessDenied"):
        sqs.receive_message(QueueUrl=error)
