"""What ``store=scheduler`` adds to an endpoint, and what is granted, held against the calls made.

Who may use the schedules' role and group is asked by the rules of IAM: the local AWS enforces neither
``iam:PassRole`` nor a trust policy's conditions nor a schedule's group, but its evaluator knows them.
"""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from aws_cdk import App, RemovalPolicy, Stack
from aws_cdk import aws_iam as iam
from aws_cdk import aws_sqs as sqs
from aws_cdk.assertions import Template
from ministack.core.iam_evaluator import (  # type: ignore[import-untyped]
    EvalContext,
    evaluate,
    evaluate_resource_policy,
    parse_policy_document,
)

from sqsdelay.cdk import function_names
from sqsdelay.cdk.unrestricted_delay import UnrestrictedDelay
from sqsdelay.core.limits import GATHERING_SECONDS
from sqsdelay.core.schedule_input import VISIBLE_SECONDS
from sqsdelay.core.stored_message import Amendment
from sqsdelay.errors import ConfigurationError
from sqsdelay.operating.status import ROLE_TAG, STORE_TAG
from sqsdelay.parking.parking import Parking
from sqsdelay.stores import SchedulerStore
from sqsdelay.testing import InMemoryQueues, ManualClock
from tests.infra.conftest import (
    CONTEXT,
    Templates,
    actions,
    arn,
    function,
    logical_id,
    only,
    statements,
)
from tests.messages import a_message
from tests.services.in_memory_scheduler import InMemoryScheduler

ARN_OF_SQS = [
    *("arn:", {"Ref": "AWS::Partition"}, ":sqs:", {"Ref": "AWS::Region"}),
    *(":", {"Ref": "AWS::AccountId"}),
]
ROLE = "arn:aws:iam::123456789012:role/orders"
DAY_MS = 86_400_000


@pytest.fixture
def template(endpoint_template: Templates) -> Template:
    """Endpoint `orders` with a schedule group."""
    return endpoint_template(store="scheduler")


def test_what_it_adds(endpoint_template: Templates, template: Template) -> None:
    """A group and its role; the parking queue, and the function that empties it every five minutes."""
    without = endpoint_template().to_json()["Resources"]
    resources = template.to_json()["Resources"]
    added = {name: resources[name]["Type"] for name in set(resources) - set(without)}
    assert sorted(added.values()) == [
        *["AWS::CloudWatch::Alarm"] * 4,
        "AWS::Events::Rule",
        "AWS::IAM::Policy",
        *["AWS::IAM::Role"] * 2,
        "AWS::Lambda::EventInvokeConfig",
        "AWS::Lambda::Function",
        "AWS::Lambda::Permission",
        "AWS::Logs::LogGroup",
        "AWS::SQS::Queue",
        "AWS::SQS::QueuePolicy",
        "AWS::Scheduler::ScheduleGroup",
    ]
    assert only(template, "AWS::Scheduler::ScheduleGroup")["Properties"]["Name"] == "orders"


def test_the_parking_queue_is_emptied_every_five_minutes(template: Template) -> None:
    """By a function as small as the delay consumer, which may start more runs of itself."""
    name = logical_id(template, "AWS::Lambda::Function", Handler=function_names.DISPATCHER_HANDLER)
    made = function(template, function_names.DISPATCHER_HANDLER)
    assert (made["MemorySize"], made["Timeout"]) == (256, 290)
    assert "ReservedConcurrentExecutions" not in made
    rule = only(template, "AWS::Events::Rule")["Properties"]
    assert rule["ScheduleExpression"] == "rate(5 minutes)"
    [target] = rule["Targets"]
    assert target["Arn"] == {"Fn::GetAtt": [name, "Arn"]}
    assert json.loads(target["Input"]) == {function_names.PARK: True}
    [helping] = only(template, "AWS::IAM::Policy")["Properties"]["PolicyDocument"]["Statement"]
    assert helping["Action"] == "lambda:InvokeFunction"
    assert helping["Resource"] == target["Arn"]
    granted = statements(template, function_names.DISPATCHER_HANDLER)
    assert {"sqs:ReceiveMessage", "sqs:DeleteMessage"} <= actions(granted, "sqs")
    assert "scheduler:GetSchedule" in actions(granted, "scheduler")


def test_the_role_is_the_groups_and_may_only_send(template: Template) -> None:
    """To the parking queue, and what cannot be sent there to the error queue; for this group alone."""
    name = next(n for n in template.find_resources("AWS::IAM::Role") if "SchedulesRole" in n)
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
        arn(template, "orders-delay-error"),
        {"Fn::Join": ["", [*ARN_OF_SQS, ":orders-parking"]]},
    ]


@pytest.mark.parametrize("policy", ["Retain", "Delete"])
def test_what_is_retained_still_fires_and_is_found(
    endpoint_template: Templates, policy: str
) -> None:
    """The role is kept with its group and queue, whose tags tell both."""
    removal = RemovalPolicy.RETAIN if policy == "Retain" else RemovalPolicy.DESTROY
    template = endpoint_template(store="scheduler", removal_policy=removal)
    named = {n: r for n, r in template.to_json()["Resources"].items() if "Schedules" in n}
    [role] = [
        n for n, r in named.items() if r["Type"] == "AWS::IAM::Role" and "Dispatcher" not in n
    ]
    [queue] = [n for n, r in named.items() if r["Type"] == "AWS::SQS::Queue"]
    [group] = [n for n, r in named.items() if r["Type"] == "AWS::Scheduler::ScheduleGroup"]
    assert {named[n]["DeletionPolicy"] for n in (role, queue, group)} == {policy}
    tags = {tag["Key"]: tag["Value"] for tag in named[queue]["Properties"]["Tags"]}
    assert tags == {STORE_TAG: "scheduler://orders", ROLE_TAG: {"Fn::GetAtt": [role, "Arn"]}}


def test_an_alarm_rings_where_the_function_no_longer_runs(template: Template) -> None:
    """With its rule disabled, say: before what has become visible since the last run is due. A late run alone
    rings nothing."""
    [alarm] = [
        each["Properties"]
        for name, each in template.find_resources("AWS::CloudWatch::Alarm").items()
        if "DispatcherSilent" in name
    ]
    told = [alarm[name] for name in ("MetricName", "ComparisonOperator", "Threshold", "Period")]
    assert told == ["Invocations", "LessThanThreshold", 1, 60]
    assert alarm["TreatMissingData"] == "breaching"
    # CloudWatch looks at two minutes more, or three, and its data are a minute behind.
    silence = 60 * alarm["EvaluationPeriods"]
    assert GATHERING_SECONDS + 180 < silence < VISIBLE_SECONDS - 4 * 60


def test_the_delay_consumer_parks_there_and_is_granted_the_calls_it_makes(
    template: Template,
) -> None:
    """Parking, a copy met again, a cancellation and a new due time that came meanwhile."""
    clock = ManualClock()
    scheduler = InMemoryScheduler(clock, InMemoryQueues(clock))
    store = SchedulerStore(
        "orders", role_arn=ROLE, endpoint="orders", client=scheduler, clock=clock
    )
    scheduler.create_schedule_group(Name="orders")
    scheduler.calls.clear()
    parking, due_ms = Parking(store, after_seconds=7_200), clock.true_ms + DAY_MS
    messages = [a_message(n, due_ms) for n in "ab"]
    assert parking.park(messages) == [True, True]
    assert parking.park(messages[:1]) == [False]
    store.amend(
        [
            Amendment(message_id="a", at_ms=clock.true_ms),
            Amendment(message_id="b", at_ms=clock.true_ms, due_ms=due_ms + DAY_MS),
        ]
    )
    assert parking._apply_amendments({"a": 0, "b": 0}) == {"a": False}
    granted = statements(template, function_names.CONSUMER_HANDLER)
    called = {f"scheduler:{call}" for call in scheduler.calls}
    assert actions(granted, "scheduler") == called
    assert actions(granted, "iam") == {"iam:PassRole"}
    variables = function(template, function_names.CONSUMER_HANDLER)["Environment"]["Variables"]
    url: dict[str, Any] = variables[function_names.STORE_VARIABLE]
    assert url["Fn::Join"][1][0] == "scheduler://orders?role="


def test_a_producer_may_store_list_and_cancel() -> None:
    """With the role to pass to the service, and to nobody else."""
    stack = Stack(App(context=CONTEXT), "theirs")
    queue = sqs.Queue(stack, "Orders", queue_name="orders")
    delay = UnrestrictedDelay(stack, "Delay", queue=queue, store="scheduler", hop_seconds=60)
    assert delay.schedules is not None
    user = iam.User(stack, "Producer")
    delay.schedules.grant_store(user)
    policies = Template.from_stack(stack).find_resources("AWS::IAM::Policy")
    [policy] = [each for name, each in policies.items() if "Producer" in name]
    statements = {
        each.get("Sid", "List"): each
        for each in policy["Properties"]["PolicyDocument"]["Statement"]
    }
    assert set(statements) == {"Park", "PassRole", "List"}
    assert statements["PassRole"]["Condition"] == {
        "StringEquals": {"iam:PassedToService": "scheduler.amazonaws.com"}
    }


def test_a_name_no_group_takes_is_refused(endpoint_template: Templates) -> None:
    """At synthesis, and not by CloudFormation minutes later."""
    with pytest.raises(ConfigurationError, match="a schedule group takes 64"):
        endpoint_template("o" * 65, store="scheduler")


ACCOUNT, REGION = "123456789012", "eu-west-1"
GROUP = f"arn:aws:scheduler:{REGION}:{ACCOUNT}:schedule-group/orders"
SERVICE = "scheduler.amazonaws.com"

Policy = dict[str, Any]


def role_arn(name: str) -> str:
    return f"arn:aws:iam::{ACCOUNT}:role/{name}"


def resolved(value: Any, template: Template) -> Any:
    """What CloudFormation makes of a value of these templates."""
    if isinstance(value, list):
        return [resolved(each, template) for each in value]
    if not isinstance(value, dict):
        return value
    pseudo = {"AWS::AccountId": ACCOUNT, "AWS::Region": REGION, "AWS::Partition": "aws"}
    match value:
        case {"Ref": name} if name in pseudo:
            return pseudo[name]
        case {"Ref": name} | {"Fn::GetAtt": [name, "Arn"]}:
            if name == logical_id(template, "AWS::Scheduler::ScheduleGroup"):
                return "orders" if "Ref" in value else GROUP
            kind = template.to_json()["Resources"][name]["Type"]
            return role_arn(name) if kind == "AWS::IAM::Role" else f"arn:of:{name}"
        case {"Fn::Join": [between, parts]}:
            return between.join(resolved(parts, template))
    return {key: resolved(each, template) for key, each in value.items()}


def roles(template: Template) -> tuple[str, Policy, Policy]:
    """The schedules' role, its trust policy, and what the delay consumer may do."""
    found = template.find_resources("AWS::IAM::Role")
    name = next(each for each in found if "SchedulesRole" in each)
    trust = resolved(found[name]["Properties"]["AssumeRolePolicyDocument"], template)
    granted = {
        "Version": "2012-10-17",
        "Statement": statements(template, function_names.CONSUMER_HANDLER),
    }
    return role_arn(name), trust, resolved(granted, template)


def asked(action: str, resource: str, **more: str) -> EvalContext:
    """A request, with what the service says of it."""
    return EvalContext(
        principal_arn=f"arn:aws:sts::{ACCOUNT}:assumed-role/consumer/function",
        principal_type="AssumedRole",
        principal_account=ACCOUNT,
        action=action,
        resource_arn=resource,
        region=REGION,
        source_ip="10.0.0.1",
        secure_transport=True,
        service_context=more,
    )


def assumes(trust: Policy, role: str, *, service: str, account: str, source: str) -> bool:
    """Whether a service may take the role, for a schedule of that account and group."""
    more = {"aws:sourceaccount": account, "aws:sourcearn": source}
    request = asked("sts:AssumeRole", role, **more)
    request.principal_arn = f"arn:aws:iam::{account}:service-role/{service}"
    answer = evaluate_resource_policy(json.dumps(trust), request, service)
    return bool(answer.decision == "Allow")


RIGHT = {"service": SERVICE, "account": ACCOUNT, "source": GROUP}
WRONG: dict[str, dict[str, str]] = {
    "another service": {"service": "lambda.amazonaws.com"},
    "a schedule of another account": {"account": "999999999999"},
    "another group": {"source": GROUP.replace("/orders", "/invoices")},
    "a group whose name begins alike": {"source": f"{GROUP}-2"},
    "another account's group of this name": {"source": GROUP.replace(ACCOUNT, "999999999999")},
}


def test_schedules_of_this_group_alone_may_use_the_role(template: Template) -> None:
    """Not another's, who knows its name: the deputy is not confused."""
    role, trust, _ = roles(template)
    assert assumes(trust, role, **RIGHT)
    for who, wrong in WRONG.items():
        assert not assumes(trust, role, **(RIGHT | wrong)), who


@pytest.mark.parametrize(
    ("condition", "let_in"),
    [("aws:SourceAccount", "a schedule of another account"), ("aws:SourceArn", "another group")],
)
def test_each_condition_keeps_somebody_out(template: Template, condition: str, let_in: str) -> None:
    """Without it they would be let in."""
    role, trust, _ = roles(template)
    open_ = copy.deepcopy(trust)
    del open_["Statement"][0]["Condition"]["StringEquals"][condition]
    assert assumes(open_, role, **(RIGHT | WRONG[let_in]))


def test_who_parks_passes_this_role_to_this_service_alone(template: Template) -> None:
    """Neither another role to Scheduler, nor this one to a function of its own."""
    role, _, policy = roles(template)
    rules = [parse_policy_document(policy)]

    def passes(passed: str, to: str) -> bool:
        request = asked("iam:PassRole", passed, **{"iam:passedtoservice": to})
        return bool(evaluate(request, rules).decision == "Allow")

    assert passes(role, SERVICE)
    assert not passes(role, "lambda.amazonaws.com")
    assert not passes(role_arn("admin"), SERVICE)
    kept = [each for each in policy["Statement"] if each["Action"] != "iam:PassRole"]
    rules = [parse_policy_document(policy | {"Statement": kept})]
    assert not passes(role, SERVICE)


def test_who_parks_writes_to_this_group_alone(template: Template) -> None:
    """All four calls, and none on another group's schedules, whose name begins alike either."""
    _, _, policy = roles(template)
    rules = [parse_policy_document(policy)]

    def may(call: str, group: str, region: str = REGION) -> bool:
        schedule = f"arn:aws:scheduler:{region}:{ACCOUNT}:schedule/{group}/m.abc"
        return bool(evaluate(asked(f"scheduler:{call}", schedule), rules).decision == "Allow")

    for call in ("CreateSchedule", "GetSchedule", "UpdateSchedule", "DeleteSchedule"):
        assert may(call, "orders")
        assert not may(call, "orders-2")
        assert not may(call, "default")
        assert not may(call, "orders", "us-east-1")
    assert evaluate(asked("scheduler:DeleteScheduleGroup", GROUP), rules).decision != "Allow"
