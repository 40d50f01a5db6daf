"""What ``store=dynamodb`` adds to an endpoint, property by property."""

from __future__ import annotations

from typing import Any

import pytest
from aws_cdk import RemovalPolicy
from aws_cdk.assertions import Template

from benchmarks.capacity.figures import DEPLOYED
from lambdas.dispatcher import handler
from sqsdelay.cdk import function_names
from sqsdelay.cdk.functions import CONCURRENCY, DEFAULT_MAX_CONCURRENCY, TIMEOUT_SECONDS
from sqsdelay.cdk.stores import KEEP_MESSAGES
from sqsdelay.limits import MAX_MESSAGE_TIMER_SECONDS, SCHEDULE_SECONDS
from sqsdelay.stores.dispatchers import DEFAULT_LEASE_SECONDS
from sqsdelay.stores.dynamodb import table_definition
from sqsdelay.stores.dynamodb.layout import EXPIRY
from sqsdelay.stores.dynamodb.table import CONCURRENCY as THREADS
from tests.infra.resources import Templates, arn, logical_id, only


@pytest.fixture
def template(endpoint_template: Templates) -> Template:
    """Endpoint `orders` with a store."""
    return endpoint_template(store="dynamodb")


def dispatcher(template: Template) -> dict[str, Any]:
    """The properties of the dispatcher's function."""
    properties = only(template, "AWS::Lambda::Function", Handler=function_names.DISPATCHER_HANDLER)[
        "Properties"
    ]
    return dict(properties)


def dispatcher_id(template: Template) -> str:
    return logical_id(template, "AWS::Lambda::Function", Handler=function_names.DISPATCHER_HANDLER)


def table_arn(template: Template) -> dict[str, Any]:
    return {"Fn::GetAtt": [logical_id(template, "AWS::DynamoDB::Table"), "Arn"]}


def test_store_adds_and_replaces_nothing(endpoint_template: Templates, template: Template) -> None:
    """Adding a store to a running endpoint changes its function, role and dashboard in place."""
    without = endpoint_template().to_json()["Resources"]
    resources = template.to_json()["Resources"]
    changed = {name for name in without if resources[name] != without[name]}
    assert {without[name]["Type"] for name in changed} == {
        "AWS::CloudWatch::Dashboard",
        "AWS::IAM::Role",
        "AWS::Lambda::Function",
        "Custom::SqsDelayParts",
    }
    assert all(name.startswith("DelayStore") for name in set(resources) - set(without))


def test_table_is_the_one_the_store_would_make(template: Template) -> None:
    """Keys, index and billing as `sqsdelay store create` has them."""
    properties = dict(only(template, "AWS::DynamoDB::Table")["Properties"])
    assert properties.pop("TableName") == "orders.parked"
    assert properties.pop("PointInTimeRecoverySpecification") == {
        "PointInTimeRecoveryEnabled": True
    }
    assert properties.pop("SSESpecification") == {"SSEEnabled": True}
    assert properties.pop("TimeToLiveSpecification") == {
        "AttributeName": EXPIRY,
        "Enabled": True,
    }
    assert properties.pop("TableClass") == "STANDARD"
    assert properties == table_definition()


def test_table_class_and_shards(endpoint_template: Templates) -> None:
    """Where they are asked for: the functions learn the shards from the store's URL."""
    template = endpoint_template(
        store="dynamodb", store_shards=16, store_class="STANDARD_INFREQUENT_ACCESS"
    )
    table = only(template, "AWS::DynamoDB::Table")["Properties"]
    assert table["TableClass"] == "STANDARD_INFREQUENT_ACCESS"
    stored_in = dispatcher(template)["Environment"]["Variables"][function_names.STORE_VARIABLE]
    assert stored_in["Fn::Join"][1][-1] == "?shards=16"


@pytest.mark.parametrize(
    ("policy", "expected"), [(RemovalPolicy.RETAIN, "Retain"), (RemovalPolicy.DESTROY, "Delete")]
)
def test_table_goes_with_the_queues(
    endpoint_template: Templates, policy: RemovalPolicy, expected: str
) -> None:
    """Messages that wait stay or go together, wherever they wait; a table that gives way to
    another stays."""
    template = endpoint_template(store="dynamodb", removal_policy=policy)
    table = only(template, "AWS::DynamoDB::Table")
    assert (table["DeletionPolicy"], table["UpdateReplacePolicy"]) == (expected, "Retain")


def test_function(template: Template) -> None:
    """arm64, current Python, a few at a time, and told its queue and its store."""
    properties = dispatcher(template)
    assert properties["Architectures"] == ["arm64"]
    assert properties["Runtime"] == "python3.14"
    assert properties["MemorySize"] == 1769
    assert properties["Timeout"] == TIMEOUT_SECONDS
    assert properties["ReservedConcurrentExecutions"] == CONCURRENCY
    table = logical_id(template, "AWS::DynamoDB::Table")
    assert properties["Environment"]["Variables"] == {
        function_names.ENDPOINT_VARIABLE: "orders",
        function_names.STORE_VARIABLE: {"Fn::Join": ["", ["dynamodb://", {"Ref": table}]]},
    }


def test_runs_end_before_there_are_too_many_and_in_time_for_message_timers() -> None:
    """As many runs as may be at once; messages that a dead run held are free well before they are due."""
    assert handler.KEPT_BACK_MS / 1000 < TIMEOUT_SECONDS < CONCURRENCY * SCHEDULE_SECONDS
    assert DEFAULT_LEASE_SECONDS + 2 * SCHEDULE_SECONDS < MAX_MESSAGE_TIMER_SECONDS


def test_function_logs_json_for_a_month(template: Template) -> None:
    """Structured lines, no level that would drop the metrics in them, and an end to their keeping."""
    logging = dispatcher(template)["LoggingConfig"]
    assert logging["LogFormat"] == "JSON"
    assert "ApplicationLogLevel" not in logging
    log_group = template.find_resources("AWS::Logs::LogGroup")[logging["LogGroup"]["Ref"]]
    assert log_group["Properties"]["RetentionInDays"] == 30


def test_schedule(template: Template) -> None:
    """Every minute, for ever; a run that failed is not repeated, for the next one comes."""
    rule = only(template, "AWS::Events::Rule")["Properties"]
    assert (rule["ScheduleExpression"], rule["State"]) == ("rate(1 minute)", "ENABLED")
    [target] = rule["Targets"]
    assert target["Arn"] == {"Fn::GetAtt": [dispatcher_id(template), "Arn"]}
    once = {"MaximumEventAgeInSeconds": SCHEDULE_SECONDS, "MaximumRetryAttempts": 0}
    assert target["RetryPolicy"] == once
    invoke = only(template, "AWS::Lambda::EventInvokeConfig")["Properties"]
    assert once.items() <= invoke.items()
    permission = only(template, "AWS::Lambda::Permission")["Properties"]
    assert permission["Principal"] == "events.amazonaws.com"
    assert permission["SourceArn"]["Fn::GetAtt"][0] == logical_id(template, "AWS::Events::Rule")


def test_role_may_do_just_what_it_does(template: Template) -> None:
    """One table, send on two queues, write one log; no wildcard, no managed policy."""
    function = dispatcher(template)
    role = template.find_resources("AWS::IAM::Role")[function["Role"]["Fn::GetAtt"][0]]
    [policy] = role["Properties"]["Policies"]
    statements = {s["Sid"]: s for s in policy["PolicyDocument"]["Statement"]}
    assert {sid: (s["Action"], s["Resource"]) for sid, s in statements.items()} == {
        "Lease": (
            [
                f"dynamodb:{action}"
                for action in ("DeleteItem", "DescribeTable", "PutItem", "Query", "UpdateItem")
            ],
            table_arn(template),
        ),
        "Release": (
            ["sqs:GetQueueUrl", "sqs:SendMessage"],
            [arn(template, "orders-delay-error"), arn(template, "orders")],
        ),
        "Log": (
            ["logs:CreateLogStream", "logs:PutLogEvents"],
            {"Fn::GetAtt": [function["LoggingConfig"]["LogGroup"]["Ref"], "Arn"]},
        ),
    }
    assert "ManagedPolicyArns" not in role["Properties"]
    template.resource_count_is("AWS::IAM::Policy", 0)


def test_delay_consumer_parks(template: Template) -> None:
    """It may read amendments, park, and apply an amendment to what it parked: no more."""
    function = only(template, "AWS::Lambda::Function", Handler=function_names.CONSUMER_HANDLER)[
        "Properties"
    ]
    variables = function["Environment"]["Variables"]
    stored_in = dispatcher(template)["Environment"]["Variables"][function_names.STORE_VARIABLE]
    assert variables[function_names.STORE_VARIABLE] == stored_in
    role = template.find_resources("AWS::IAM::Role")[function["Role"]["Fn::GetAtt"][0]]
    [policy] = role["Properties"]["Policies"]
    [park] = [s for s in policy["PolicyDocument"]["Statement"] if "dynamodb" in str(s["Action"])]
    assert park["Action"] == list(KEEP_MESSAGES)
    assert park["Resource"] == table_arn(template)


def test_overdue_alarm(template: Template) -> None:
    """What is due for two runs and still there rings; so does a dispatcher that reports nothing."""
    alarm = only(template, "AWS::CloudWatch::Alarm", MetricName=function_names.OVERDUE)[
        "Properties"
    ]
    assert alarm["Namespace"] == function_names.METRIC_NAMESPACE
    assert alarm["Dimensions"] == [{"Name": function_names.METRIC_DIMENSION, "Value": "orders"}]
    assert (alarm["Statistic"], alarm["Threshold"]) == ("Maximum", 120_000)
    assert alarm["ComparisonOperator"] == "GreaterThanThreshold"
    assert alarm["TreatMissingData"] == "breaching"
    assert "AlarmActions" not in alarm


@pytest.mark.parametrize("metric", ["Errors", "Throttles"])
def test_alarm_on_the_dispatcher(template: Template, metric: str) -> None:
    """One error or throttle rings, and silence is no alarm."""
    alarm = only(
        template,
        "AWS::CloudWatch::Alarm",
        MetricName=metric,
        Dimensions=[{"Name": "FunctionName", "Value": {"Ref": dispatcher_id(template)}}],
    )["Properties"]
    assert (alarm["Threshold"], alarm["TreatMissingData"]) == (0, "notBreaching")


def test_alarms_tell_the_topic(endpoint_template: Templates) -> None:
    """With alarmTopicArn the store's alarms notify it too."""
    topic = "arn:aws:sns:eu-west-1:123456789012:ops"
    template = endpoint_template(store="dynamodb", alarm_topic_arn=topic)
    alarms = template.find_resources("AWS::CloudWatch::Alarm")
    assert len([name for name in alarms if name.startswith("DelayStore")]) == 3
    assert all(alarm["Properties"]["AlarmActions"] == [topic] for alarm in alarms.values())


def test_dashboard_shows_what_the_dispatcher_reports(template: Template) -> None:
    """Every metric of the function, under its name, namespace and dimension, and its alarms."""
    body = str(only(template, "AWS::CloudWatch::Dashboard")["Properties"])
    of_consumer = (function_names.PARKED, function_names.CANCELLED)
    for name in (
        *of_consumer,
        *function_names.DISPATCH_COUNTS,
        function_names.DISPATCH_LATENESS,
        function_names.OVERDUE,
    ):
        assert f'["{function_names.METRIC_NAMESPACE}","{name}","service","orders"' in body
    for name in template.find_resources("AWS::CloudWatch::Alarm"):
        assert name in body


def test_outputs_name_store_and_dispatcher(template: Template) -> None:
    """The store's URL, as the command line takes it, can be read from the stack."""
    assert {"StoreUrl", "DispatcherName"} <= set(template.find_outputs("*"))


def test_the_capacity_simulation_has_the_deployments_settings() -> None:
    """A changed concurrency, timeout or thread count must change docs/capacity.md too."""
    assert DEPLOYED.max_concurrency == DEFAULT_MAX_CONCURRENCY
    assert DEPLOYED.dispatcher_timeout_seconds == TIMEOUT_SECONDS
    assert DEPLOYED.dispatcher_runs == CONCURRENCY
    assert DEPLOYED.dynamodb_threads == THREADS
