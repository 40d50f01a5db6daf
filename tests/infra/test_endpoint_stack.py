"""What one endpoint deploys, property by property."""

from __future__ import annotations

import ast
import re

import pytest
from aws_cdk import RemovalPolicy

from infra.endpoint_stack import stack_name
from infra.local import ROOT
from sqsdelay.cdk import function_names
from sqsdelay.cdk.ledger import LATE_SECONDS
from sqsdelay.cdk.unrestricted_delay import STORES
from sqsdelay.core.endpoint import Endpoint
from sqsdelay.core.limits import (
    DEDUPLICATION_INTERVAL_SECONDS,
    DELAY_QUEUE_VISIBILITY_SECONDS,
    FUNCTION_TIMEOUT_SECONDS,
    MAX_MESSAGE_TIMER_SECONDS,
    MAX_RETENTION_SECONDS,
)
from sqsdelay.cost.strategies import WATCHED
from sqsdelay.operating.status import OVERDUE_MARGIN_SECONDS, OVERDUE_MS
from sqsdelay.sqs.endpoints import delay_queue_attributes, delay_queue_problems
from tests.infra.conftest import Templates, arn, logical_id, only, statements, working

HOLDING = {"AWS::SQS::Queue", "AWS::DynamoDB::Table", "AWS::S3::Bucket"}


def test_delay_queue(endpoint_template: Templates) -> None:
    """High-throughput FIFO, 900 s of delay, 14 days, no redrive: the command line makes the same."""
    template = endpoint_template()
    properties = only(template, "AWS::SQS::Queue", QueueName="orders-delay.fifo")["Properties"]
    assert properties["FifoQueue"] is True
    assert properties["DelaySeconds"] == 900
    assert properties["MessageRetentionPeriod"] == 1_209_600
    assert "RedrivePolicy" not in properties
    as_attributes = {
        name: str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in properties.items()
        if name != "QueueName"
    }
    assert as_attributes == delay_queue_attributes()
    assert list(delay_queue_problems("orders-delay.fifo", as_attributes, hop_seconds=900)) == []


def test_visibility_is_six_timeouts_and_below_deduplication(endpoint_template: Templates) -> None:
    """A retried copy comes after the first attempt ended, and still deduplicates against it."""
    template = endpoint_template()
    queue = only(template, "AWS::SQS::Queue", QueueName="orders-delay.fifo")["Properties"]
    function = only(template, "AWS::Lambda::Function")["Properties"]
    assert queue["VisibilityTimeout"] == 6 * function["Timeout"] == DELAY_QUEUE_VISIBILITY_SECONDS
    assert queue["VisibilityTimeout"] < DEDUPLICATION_INTERVAL_SECONDS


def test_hop_reaches_queue_function_and_alarm(endpoint_template: Templates) -> None:
    """One setting, three places that must agree."""
    template = endpoint_template(hop_seconds=60)
    queue = only(template, "AWS::SQS::Queue", QueueName="orders-delay.fifo")["Properties"]
    function = only(template, "AWS::Lambda::Function")["Properties"]
    alarm = only(template, "AWS::CloudWatch::Alarm", MetricName="ApproximateAgeOfOldestMessage")
    assert queue["DelaySeconds"] == 60
    assert function["Environment"]["Variables"][function_names.HOP_SECONDS_VARIABLE] == "60"
    assert alarm["Properties"]["Threshold"] == 60 + 2 * DELAY_QUEUE_VISIBILITY_SECONDS


def test_destination_has_a_dead_letter_queue(endpoint_template: Templates) -> None:
    """What the endpoint's own consumers cannot handle is not lost."""
    template = endpoint_template()
    queue = only(template, "AWS::SQS::Queue", QueueName="orders")["Properties"]
    assert queue["RedrivePolicy"] == {
        "deadLetterTargetArn": arn(template, "orders-dead-letter"),
        "maxReceiveCount": 5,
    }


def test_error_queue_keeps_messages_fourteen_days(endpoint_template: Templates) -> None:
    """A person has two weeks to look."""
    queue = only(endpoint_template(), "AWS::SQS::Queue", QueueName="orders-delay-error")
    assert queue["Properties"]["MessageRetentionPeriod"] == MAX_RETENTION_SECONDS
    assert "FifoQueue" not in queue["Properties"]


def test_function(endpoint_template: Templates) -> None:
    """arm64, current Python, 30 s, and allowed to feed its own queue past 16 rounds."""
    properties = only(endpoint_template(), "AWS::Lambda::Function")["Properties"]
    assert properties["Architectures"] == ["arm64"]
    assert properties["Runtime"] == "python3.14"
    assert properties["Timeout"] == FUNCTION_TIMEOUT_SECONDS
    assert properties["RecursiveLoop"] == "Allow"
    assert properties["Handler"] == function_names.CONSUMER_HANDLER
    assert properties["Environment"]["Variables"] == {
        function_names.ENDPOINT_VARIABLE: "orders",
        function_names.HOP_SECONDS_VARIABLE: "900",
    }


def test_function_logs_json(endpoint_template: Templates) -> None:
    """Structured lines, no level that would drop the metrics in them."""
    template = endpoint_template()
    logging = only(template, "AWS::Lambda::Function")["Properties"]["LoggingConfig"]
    assert logging["LogFormat"] == "JSON"
    assert "ApplicationLogLevel" not in logging
    assert logging["LogGroup"] == {"Ref": logical_id(template, "AWS::Logs::LogGroup")}


def test_event_source(endpoint_template: Templates) -> None:
    """Full batches, bounded concurrency, and single failures that do not repeat a whole batch."""
    template = endpoint_template()
    properties = only(template, "AWS::Lambda::EventSourceMapping")["Properties"]
    assert properties["EventSourceArn"] == arn(template, "orders-delay.fifo")
    assert properties["BatchSize"] == 10
    assert properties["FunctionResponseTypes"] == ["ReportBatchItemFailures"]
    assert properties["ScalingConfig"] == {"MaximumConcurrency": 10}
    assert "MaximumBatchingWindowInSeconds" not in properties


def test_role_may_do_just_what_it_does(endpoint_template: Templates) -> None:
    """Send on three queues, consume one, write one log; no wildcard."""
    template = endpoint_template()
    delay = arn(template, "orders-delay.fifo")
    grants = {
        (action, str(resource))
        for each in statements(template, function_names.CONSUMER_HANDLER)
        for action in each["Action"]
        for resource in (
            each["Resource"] if isinstance(each["Resource"], list) else [each["Resource"]]
        )
    }
    sending = (arn(template, "orders"), delay, arn(template, "orders-delay-error"))
    log = {"Fn::GetAtt": [logical_id(template, "AWS::Logs::LogGroup"), "Arn"]}
    consume = ["ChangeMessageVisibility", "DeleteMessage", "GetQueueAttributes", "ReceiveMessage"]
    assert grants == {
        *((action, str(q)) for q in sending for action in ("sqs:GetQueueUrl", "sqs:SendMessage")),
        *((f"sqs:{action}", str(delay)) for action in consume),
        *((f"logs:{action}", str(log)) for action in ("CreateLogStream", "PutLogEvents")),
    }


@pytest.mark.parametrize(
    ("metric", "namespace", "threshold"),
    [
        ("ApproximateNumberOfMessagesVisible", "AWS/SQS", 0),
        ("ApproximateAgeOfOldestMessage", "AWS/SQS", 900 + 360),
        ("Errors", "AWS/Lambda", 0),
        ("Throttles", "AWS/Lambda", 0),
        ("RecursiveInvocationsDropped", "AWS/Lambda", 0),
    ],
)
def test_alarm(endpoint_template: Templates, metric: str, namespace: str, threshold: int) -> None:
    """Each alarm rings above its threshold, and silence is no alarm."""
    alarm = only(endpoint_template(), "AWS::CloudWatch::Alarm", MetricName=metric)["Properties"]
    assert alarm["Namespace"] == namespace
    assert alarm["Threshold"] == threshold
    assert alarm["ComparisonOperator"] == "GreaterThanThreshold"
    assert alarm["TreatMissingData"] == "notBreaching"
    assert "AlarmActions" not in alarm


@pytest.mark.parametrize("name", ["orders", "orders.fifo"])
@pytest.mark.parametrize("store", STORES)
def test_the_page_tells_how_to_import_all_that_is_retained(
    endpoint_template: Templates, name: str, store: str
) -> None:
    """By the names that resources have in a template, and what CloudFormation knows each kind by."""
    template = endpoint_template(name, store=store, ledger="s3", large_bodies=True).to_json()
    page = (ROOT / "docs" / "remove.md").read_text()
    told = dict(re.findall(r'"(\w+)":\s+\{"(\w+)": "', page))
    known_by = {
        "AWS::SQS::Queue": "QueueUrl",
        "AWS::S3::Bucket": "BucketName",
        "AWS::DynamoDB::Table": "TableName",
        "AWS::Scheduler::ScheduleGroup": "Name",
        "AWS::IAM::Role": "RoleName",
    }
    retained = {
        name: known_by[each["Type"]]
        for name, each in template["Resources"].items()
        if each.get("DeletionPolicy") == "Retain"
    }
    assert retained == {name: told.get(name) for name in retained}


@pytest.mark.parametrize("store", [None, *STORES])
def test_alarms_tell_the_topic(endpoint_template: Templates, store: str | None) -> None:
    """With alarmTopicArn every alarm notifies it, the store's too; and all are on the dashboard."""
    topic = "arn:aws:sns:eu-west-1:123456789012:ops"
    template = endpoint_template(store=store, alarm_topic_arn=topic)
    dashboard = str(only(template, "AWS::CloudWatch::Dashboard")["Properties"])
    for name, alarm in template.find_resources("AWS::CloudWatch::Alarm").items():
        assert alarm["Properties"]["AlarmActions"] == [topic]
        assert name in dashboard


@pytest.mark.parametrize("deploy", WATCHED)
def test_the_bill_counts_the_alarms(endpoint_template: Templates, deploy: str) -> None:
    """As many as are deployed, and one dashboard."""
    template = endpoint_template(store=deploy or None)
    _, alarms = WATCHED[deploy]
    assert len(template.find_resources("AWS::CloudWatch::Alarm")) == alarms
    template.resource_count_is("AWS::CloudWatch::Dashboard", 1)


def test_dashboard_shows_what_the_function_reports(endpoint_template: Templates) -> None:
    """Every metric of the function, under its name, namespace and dimension, is on the dashboard."""
    body = str(only(endpoint_template(), "AWS::CloudWatch::Dashboard")["Properties"])
    names = function_names
    for name in (names.HOPS, names.HANDED_OVER, names.LATENESS, names.FAILED, names.REJECTED):
        assert f'["{function_names.METRIC_NAMESPACE}","{name}","service","orders"' in body
    for name in ("Delayed", "Visible", "NotVisible"):
        assert f"ApproximateNumberOfMessages{name}" in body


@pytest.mark.parametrize(
    ("name", "store", "told"),
    [
        ("orders", None, {"QueueName", "DelayQueueName", "DelayQueueUrl", "ErrorQueueUrl"}),
        ("orders.fifo", None, {"DueQueueName", "DueQueueUrl", "QueueUrl"}),
        ("orders", "dynamodb", {"StoreUrl", "DispatcherName", "ErrorQueueName"}),
        ("orders", "s3", {"StoreUrl", "DispatcherName", "ParkingQueueName", "ParkingQueueUrl"}),
    ],
)
def test_outputs(
    endpoint_template: Templates, name: str, store: str | None, told: set[str]
) -> None:
    """Queues, store and dispatcher can be read from the stack."""
    assert told <= set(endpoint_template(name, store=store).find_outputs("*"))


@pytest.mark.parametrize("policy", [None, RemovalPolicy.RETAIN, RemovalPolicy.DESTROY])
@pytest.mark.parametrize(
    ("name", "store", "holding"),
    [("orders", None, 5), ("orders.fifo", "dynamodb", 7), ("orders", "s3", 7)],
)
def test_what_holds_messages_stays_or_goes_together(
    endpoint_template: Templates, name: str, store: str, holding: int, policy: RemovalPolicy | None
) -> None:
    """Stays if nothing is said, large bodies too. Also when an update replaces it; a table stays then in
    any case."""
    given = {"large_bodies": True} | ({} if policy is None else {"removal_policy": policy})
    resources = endpoint_template(name, store=store, **given).to_json()["Resources"].values()
    expected = "Delete" if policy is RemovalPolicy.DESTROY else "Retain"
    held = [each for each in resources if each["Type"] in HOLDING]
    assert len(held) == holding
    for each in held:
        of_table = each["Type"] == "AWS::DynamoDB::Table"
        assert each["DeletionPolicy"] == expected
        assert each["UpdateReplacePolicy"] == ("Retain" if of_table else expected)


@pytest.mark.parametrize(("name", "due"), [("orders", set()), ("orders.fifo", {"orders-due"})])
def test_existing_queue_is_used_not_created(
    endpoint_template: Templates, name: str, due: set[str]
) -> None:
    """With queueArn only our own queues are made, beside the queue of that name."""
    existing = f"arn:aws:sqs:eu-west-1:123456789012:{name}"
    template = endpoint_template(name, queue_arn=existing)
    names = {
        queue["Properties"]["QueueName"]
        for queue in template.find_resources("AWS::SQS::Queue").values()
    }
    assert names == {"orders-delay.fifo", "orders-delay-error"} | due
    granted = statements(template, function_names.CONSUMER_HANDLER)
    (relay,) = [each for each in granted if each["Sid"] == "Relay"]
    assert existing in relay["Resource"]


def test_stack_names_stay_apart() -> None:
    """Two endpoints never share a stack, though CloudFormation takes no underscores and no dots."""
    given = ("orders", "a-b", "a_b", "a--b", "a.fifo", "a-fifo", "a_fifo", "a")
    names = [stack_name(Endpoint.parse(name)) for name in given]
    assert len(set(names)) == len(given)
    assert names[0] == "sqsdelay-orders"
    assert not {"_", "."} & set("".join(names))


def test_docs_say_what_each_alarm_means(endpoint_template: Templates) -> None:
    """A row for each alarm that can ring, with the thresholds that are deployed."""
    text = (ROOT / "docs" / "operations.md").read_text()
    _, _, behind = text.partition("| alarm | what it means")
    section, _, _ = behind.partition("\n## ")
    rows = [line for line in section.splitlines() if line.startswith("| ") and "alarm" not in line]
    everything = endpoint_template("orders.fifo", store="dynamodb", ledger="s3")
    alarms = everything.find_resources("AWS::CloudWatch::Alarm")
    parking = [
        alarm["Properties"]["Threshold"]
        for store in ("s3", "scheduler")
        for name, alarm in endpoint_template(store=store)
        .find_resources("AWS::CloudWatch::Alarm")
        .items()
        if "ParkingMessage" in name
    ]
    told = "older than {} s; `store=s3`. {} s; `store=scheduler`".format(*parking)
    assert f"oldest parking message ({told})" in section
    assert len(rows) == len(alarms) + 2 == 13
    thresholds = {alarm["Properties"]["Threshold"] for alarm in alarms.values()}
    timer = MAX_MESSAGE_TIMER_SECONDS + OVERDUE_MARGIN_SECONDS
    assert thresholds == {0, timer, OVERDUE_MS, LATE_SECONDS}
    assert f"ledger late (older than {LATE_SECONDS} s)" in section
    assert f"the hop + {OVERDUE_MARGIN_SECONDS} s" in section
    assert f"older than {timer} s" in section
    assert f"above {OVERDUE_MS // 1000} s" in section


def test_no_limit_is_typed_twice() -> None:
    """Delays, retention and visibility come from sqsdelay.core.limits, where their sources stand."""
    limits = {
        MAX_MESSAGE_TIMER_SECONDS,
        MAX_RETENTION_SECONDS,
        DELAY_QUEUE_VISIBILITY_SECONDS,
        DEDUPLICATION_INTERVAL_SECONDS,
    }
    folders = ROOT / "infra", ROOT / "sqsdelay" / "cdk"
    for path in [ROOT / "app.py", *(file for folder in folders for file in folder.glob("*.py"))]:
        numbers = {
            node.value
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.Constant) and isinstance(node.value, int)
        }
        assert not numbers & limits, path


def test_the_functions_record_a_ledger_when_asked_to(endpoint_template: Templates) -> None:
    """Both of them, by the variable they read; neither by default."""
    for settings, expected in (({}, None), ({"ledger": True}, "true")):
        template = endpoint_template(store="dynamodb", **settings)
        environments = {
            function["Properties"]["Handler"]: function["Properties"]["Environment"]["Variables"]
            for function in working(template, "AWS::Lambda::Function").values()
        }
        both = {function_names.CONSUMER_HANDLER, function_names.DISPATCHER_HANDLER}
        told = {name: e.get(function_names.LEDGER_VARIABLE) for name, e in environments.items()}
        assert told == dict.fromkeys(both, expected)
