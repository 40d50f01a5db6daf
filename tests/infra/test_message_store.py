"""What ``store=dynamodb`` adds to an endpoint, property by property, and what is granted on the table, held
against the calls made."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from aws_cdk.assertions import Template

from benchmarks import capacity
from lambdas.dispatcher.handler import KEPT_BACK_SECONDS
from sqsdelay.cdk import function_names
from sqsdelay.cdk.functions import CONCURRENCY, DEFAULT_MAX_CONCURRENCY, TIMEOUT_SECONDS
from sqsdelay.cdk.stores import KEEP_MESSAGES
from sqsdelay.core.delay import SystemClock
from sqsdelay.core.limits import (
    MAX_DUE_MS,
    MAX_MESSAGE_TIMER_SECONDS,
    SCHEDULE_SECONDS,
    SHORT_CALL_SECONDS,
)
from sqsdelay.core.message import new_message_id
from sqsdelay.core.stored_message import Amendment, StoredMessage
from sqsdelay.parking.parking import DEFAULT_PARK_AFTER_SECONDS, Parking
from sqsdelay.stores import DynamoDbStore, table_definition
from sqsdelay.stores.dynamodb.layout import EXPIRY
from sqsdelay.stores.shared import DEFAULT_LEASE_SECONDS
from tests.infra.conftest import (
    Calls,
    Stores,
    Templates,
    actions,
    arn,
    function,
    logical_id,
    only,
    statements,
)
from tests.messages import a_message


@pytest.fixture
def template(endpoint_template: Templates) -> Template:
    """Endpoint `orders` with a store."""
    return endpoint_template(store="dynamodb")


def dispatcher(template: Template) -> dict[str, Any]:
    """The properties of the dispatcher's function."""
    return function(template, function_names.DISPATCHER_HANDLER)


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
    assert properties.pop("TimeToLiveSpecification") == {"AttributeName": EXPIRY, "Enabled": True}
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
        function_names.HOP_SECONDS_VARIABLE: "900",
        function_names.STORE_VARIABLE: {"Fn::Join": ["", ["dynamodb://", {"Ref": table}]]},
    }


def test_runs_end_before_there_are_too_many_and_in_time_for_message_timers() -> None:
    """As many runs as may be at once; messages that a dead run held are free well before they are due."""
    assert KEPT_BACK_SECONDS + SHORT_CALL_SECONDS < TIMEOUT_SECONDS
    assert TIMEOUT_SECONDS < CONCURRENCY * SCHEDULE_SECONDS
    assert DEFAULT_LEASE_SECONDS + 2 * SCHEDULE_SECONDS < MAX_MESSAGE_TIMER_SECONDS


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


def test_role_may_do_just_what_it_does(template: Template) -> None:
    """One table, send on two queues, write one log; no wildcard."""
    granted = statements(template, function_names.DISPATCHER_HANDLER)
    assert {s["Sid"]: (s["Action"], s["Resource"]) for s in granted} == {
        "Lease": (
            [
                f"dynamodb:{action}"
                for action in ("DeleteItem", "DescribeTable", "PutItem", "Query")
            ],
            table_arn(template),
        ),
        "Release": (
            ["sqs:GetQueueUrl", "sqs:SendMessage"],
            [arn(template, "orders-delay-error"), arn(template, "orders")],
        ),
        "Log": (
            ["logs:CreateLogStream", "logs:PutLogEvents"],
            {"Fn::GetAtt": [dispatcher(template)["LoggingConfig"]["LogGroup"]["Ref"], "Arn"]},
        ),
    }


def test_delay_consumer_parks(template: Template) -> None:
    """It may read amendments, park, and apply an amendment to what it parked: no more."""
    consumer = function(template, function_names.CONSUMER_HANDLER)["Environment"]["Variables"]
    stored_in = dispatcher(template)["Environment"]["Variables"][function_names.STORE_VARIABLE]
    assert consumer[function_names.STORE_VARIABLE] == stored_in
    granted = statements(template, function_names.CONSUMER_HANDLER)
    [park] = [each for each in granted if "dynamodb" in str(each["Action"])]
    assert (park["Action"], park["Resource"]) == (list(KEEP_MESSAGES), table_arn(template))


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


def test_dashboard_shows_what_the_dispatcher_reports(template: Template) -> None:
    """Every metric of the function, under its name, namespace and dimension."""
    body = str(only(template, "AWS::CloudWatch::Dashboard")["Properties"])
    of_consumer = (function_names.PARKED, function_names.CANCELLED)
    for name in (
        *of_consumer,
        *function_names.DISPATCH_COUNTS,
        function_names.DISPATCH_LATENESS,
        function_names.OVERDUE,
    ):
        assert f'["{function_names.METRIC_NAMESPACE}","{name}","service","orders"' in body


def test_the_capacity_page_has_the_deployments_settings() -> None:
    """A changed concurrency or timeout must change docs/capacity.md too."""
    assert capacity.MAX_CONCURRENCY == DEFAULT_MAX_CONCURRENCY
    assert capacity.DISPATCHER_TIMEOUT_SECONDS == TIMEOUT_SECONDS
    assert capacity.DISPATCHER_RUNS == CONCURRENCY


def stored(message_id: str, queue: str = "orders", due_ms: int = MAX_DUE_MS) -> StoredMessage:
    return a_message(message_id, due_ms, to=queue, body=b"body")


def test_dispatcher_is_granted_the_calls_it_makes(
    template: Template,
    monkeypatch: pytest.MonkeyPatch,
    calls: Calls,
    opened: Stores,
    dispatch: Callable[..., Any],
) -> None:
    """A run with messages to release, one to retry and one that is far away needs all and no more."""
    opened(DynamoDbStore).store(
        [stored("due", due_ms=0), stored("lost", "nowhere", due_ms=0), stored("far")]
    )
    monkeypatch.setenv(function_names.NUMBER_OF_RETRIES_VARIABLE, "1")
    calls.made.clear()
    dispatch("dynamodb://parked", {}, seconds=50)
    granted = statements(template, function_names.DISPATCHER_HANDLER)
    assert calls.of("dynamodb") == actions(granted, "dynamodb")


def test_delay_consumer_is_granted_the_calls_it_makes(
    template: Template, calls: Calls, opened: Stores
) -> None:
    """Parking, once more when a copy comes back; a cancellation and a new due time that came meanwhile."""
    store = opened(DynamoDbStore)
    parking = Parking(store, after_seconds=DEFAULT_PARK_AFTER_SECONDS)
    moved = new_message_id(MAX_DUE_MS)
    assert parking.park([stored("cancelled"), stored(moved)]) == [True, True]
    assert parking.park([stored(moved)]) == [False]
    now_ms = SystemClock().now_ms()
    store.amend(
        [
            Amendment(message_id="cancelled", at_ms=now_ms),
            Amendment(message_id=moved, at_ms=now_ms, due_ms=MAX_DUE_MS - 1),
        ]
    )
    assert parking._apply_amendments(dict.fromkeys(["cancelled", moved])) == {"cancelled": False}
    granted = statements(template, function_names.CONSUMER_HANDLER)
    assert calls.of("dynamodb") == actions(granted, "dynamodb")
