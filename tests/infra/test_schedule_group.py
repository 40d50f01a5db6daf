"""What ``store=scheduler`` adds to an endpoint, and what is granted, held against the calls made."""

from __future__ import annotations

from typing import Any

import pytest
from aws_cdk import App, Stack
from aws_cdk import aws_iam as iam
from aws_cdk import aws_sqs as sqs
from aws_cdk.assertions import Template

from sqsdelay.cdk import function_names
from sqsdelay.cdk.unrestricted_delay import UnrestrictedDelay
from sqsdelay.core.stored_message import Amendment, StoredMessage
from sqsdelay.errors import ConfigurationError
from sqsdelay.parking.parking import Parking
from sqsdelay.stores.scheduler import SchedulerStore
from sqsdelay.testing import InMemoryQueues, InMemoryScheduler, ManualClock
from tests.infra.conftest import CONTEXT
from tests.infra.resources import Templates, arn, logical_id, only

ROLE = "arn:aws:iam::123456789012:role/orders"
DAY_MS = 86_400_000


@pytest.fixture
def template(endpoint_template: Templates) -> Template:
    """Endpoint `orders` with a schedule group."""
    return endpoint_template(store="scheduler")


def actions(template: Template, role: str) -> set[str]:
    """What an inline policy of a role allows."""
    [policy] = template.find_resources("AWS::IAM::Role")[role]["Properties"]["Policies"]
    listed = [s["Action"] for s in policy["PolicyDocument"]["Statement"]]
    return {a for each in listed for a in (each if isinstance(each, list) else [each])}


def test_nothing_runs_for_it(endpoint_template: Templates, template: Template) -> None:
    """A group and a role; no function, no table, no alarm of its own."""
    without = endpoint_template().to_json()["Resources"]
    resources = template.to_json()["Resources"]
    added = {name: resources[name]["Type"] for name in set(resources) - set(without)}
    assert sorted(added.values()) == ["AWS::IAM::Role", "AWS::Scheduler::ScheduleGroup"]
    assert only(template, "AWS::Scheduler::ScheduleGroup")["Properties"]["Name"] == "orders"


def test_the_role_is_the_groups_and_may_only_send(template: Template) -> None:
    """To the delay queue, and what cannot be sent there to the error queue; for this group alone."""
    name = next(n for n in template.find_resources("AWS::IAM::Role") if "Schedules" in n)
    role = template.find_resources("AWS::IAM::Role")[name]["Properties"]
    [trust] = role["AssumeRolePolicyDocument"]["Statement"]
    assert trust["Principal"] == {"Service": "scheduler.amazonaws.com"}
    group = logical_id(template, "AWS::Scheduler::ScheduleGroup")
    assert trust["Condition"]["StringEquals"] == {
        "aws:SourceAccount": {"Ref": "AWS::AccountId"},
        "aws:SourceArn": {"Fn::GetAtt": [group, "Arn"]},
    }
    [policy] = role["Policies"]
    [statement] = policy["PolicyDocument"]["Statement"]
    assert statement["Action"] == "sqs:SendMessage"
    assert statement["Resource"] == [
        arn(template, "orders-delay.fifo"),
        arn(template, "orders-delay-error"),
    ]


def test_the_delay_consumer_parks_there_and_is_granted_the_calls_it_makes(
    template: Template,
) -> None:
    """Parking, a copy met again, a cancellation and a new due time that came meanwhile."""
    clock = ManualClock()
    scheduler = InMemoryScheduler(clock, InMemoryQueues(clock))
    store = SchedulerStore(
        "orders", role_arn=ROLE, endpoint="orders", client=scheduler, clock=clock
    )
    store.set_up()
    scheduler.calls.clear()
    parking, due_ms = Parking(store, after_seconds=7_200), clock.true_ms + DAY_MS
    messages = [
        StoredMessage(message_id=n, destination="orders", due_ms=due_ms, body=b"x") for n in "ab"
    ]
    assert parking.park(messages) == [True, True]
    assert parking.park(messages[:1]) == [False]
    store.amend(
        [
            Amendment(message_id="a", at_ms=clock.true_ms),
            Amendment(message_id="b", at_ms=clock.true_ms, due_ms=due_ms + DAY_MS),
        ]
    )
    assert parking.apply_amendments({"a": 0, "b": 0}) == {"a"}
    function = only(template, "AWS::Lambda::Function", Handler=function_names.CONSUMER_HANDLER)[
        "Properties"
    ]
    granted = actions(template, function["Role"]["Fn::GetAtt"][0])
    called = {f"scheduler:{call}" for call in scheduler.calls}
    assert {a for a in granted if a.startswith("scheduler:")} == called | {
        "scheduler:GetScheduleGroup"
    }
    assert "iam:PassRole" in granted
    url: dict[str, Any] = function["Environment"]["Variables"][function_names.STORE_VARIABLE]
    assert url["Fn::Join"][1][0] == "scheduler://orders?role="


def test_a_producer_may_store_list_and_cancel() -> None:
    """With the role to pass to the service, and to nobody else."""
    stack = Stack(App(context=CONTEXT), "theirs")
    queue = sqs.Queue(stack, "Orders", queue_name="orders")
    delay = UnrestrictedDelay(stack, "Delay", queue=queue, store="scheduler", hop_seconds=60)
    assert delay.schedules is not None
    user = iam.User(stack, "Producer")
    delay.schedules.grant_store(user)
    [policy] = Template.from_stack(stack).find_resources("AWS::IAM::Policy").values()
    statements = {
        each.get("Sid", "List"): each
        for each in policy["Properties"]["PolicyDocument"]["Statement"]
    }
    assert set(statements) == {"Park", "Group", "PassRole", "List"}
    assert statements["PassRole"]["Condition"] == {
        "StringEquals": {"iam:PassedToService": "scheduler.amazonaws.com"}
    }
    assert delay.schedules.url.endswith("&hop=60")


def test_a_name_no_group_takes_is_refused(endpoint_template: Templates) -> None:
    """At synthesis, and not by CloudFormation minutes later."""
    with pytest.raises(ConfigurationError, match="a schedule group takes 64"):
        endpoint_template("o" * 65, store="scheduler")
