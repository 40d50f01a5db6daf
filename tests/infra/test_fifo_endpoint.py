"""What ``endpoint=orders.fifo`` deploys beside, or in place of, a standard endpoint's resources."""

from __future__ import annotations

from typing import Any

import pytest
from aws_cdk import App, Stack
from aws_cdk import aws_iam as iam
from aws_cdk import aws_sqs as sqs
from aws_cdk.assertions import Template

from infra.context import Deployment
from infra.endpoint_stack import EndpointStack
from sqsdelay.cdk import function_names
from sqsdelay.cdk.unrestricted_delay import UnrestrictedDelay
from sqsdelay.core.endpoint import Endpoint
from sqsdelay.core.limits import DELAY_QUEUE_VISIBILITY_SECONDS, MAX_MESSAGE_TIMER_SECONDS
from sqsdelay.errors import InvalidEndpoint
from sqsdelay.sqs.endpoints import due_queue_attributes, fifo_queue_attributes, waiting_problems
from tests.infra.conftest import CONTEXT, Templates, arn, logical_id, only, statements

QUEUES = {
    "orders.fifo",
    "orders-dead-letter.fifo",
    "orders-due",
    "orders-delay.fifo",
    "orders-delay-error",
}


@pytest.fixture
def template(endpoint_template: Templates) -> Template:
    """Endpoint `orders.fifo`."""
    return endpoint_template("orders.fifo")


def queue(template: Template, name: str) -> dict[str, Any]:
    """A queue's attributes under SQS's names, as text."""
    properties = dict(only(template, "AWS::SQS::Queue", QueueName=name)["Properties"])
    del properties["QueueName"]
    return {
        key: str(value).lower() if isinstance(value, bool) else str(value)
        for key, value in properties.items()
    }


def test_queues(template: Template) -> None:
    """The names that sender, relay and command line look for."""
    made = template.find_resources("AWS::SQS::Queue").values()
    assert {each["Properties"]["QueueName"] for each in made} == QUEUES
    assert {ref.name for ref in Endpoint.parse("orders.fifo").queues} < QUEUES


def test_destination_and_dead_letter_queue_are_fifo(template: Template) -> None:
    """As the command line makes the one; SQS takes no standard dead-letter queue for it."""
    destination = queue(template, "orders.fifo")
    redrive = only(template, "AWS::SQS::Queue", QueueName="orders.fifo")["Properties"]
    assert redrive["RedrivePolicy"] == {
        "deadLetterTargetArn": arn(template, "orders-dead-letter.fifo"),
        "maxReceiveCount": 5,
    }
    del destination["RedrivePolicy"]
    assert destination == fifo_queue_attributes()
    assert queue(template, "orders-dead-letter.fifo") == fifo_queue_attributes()


def test_due_queue(template: Template) -> None:
    """Standard, no redrive, 14 days: the command line makes the same."""
    attributes = queue(template, "orders-due")
    assert attributes == due_queue_attributes()
    assert list(waiting_problems("orders-due", attributes)) == []


def test_function_serves_delay_queue_and_due_queue(template: Template) -> None:
    """Both are event sources of the one function, which knows its endpoint by its whole name."""
    sources = template.find_resources("AWS::Lambda::EventSourceMapping").values()
    found = {str(source["Properties"]["EventSourceArn"]): source for source in sources}
    wanted = [str(arn(template, name)) for name in ("orders-delay.fifo", "orders-due")]
    assert sorted(found) == sorted(wanted)
    for source in found.values():
        assert source["Properties"]["FunctionResponseTypes"] == ["ReportBatchItemFailures"]
        assert source["Properties"]["BatchSize"] == 10
    function = only(template, "AWS::Lambda::Function")["Properties"]
    assert function["Environment"]["Variables"][function_names.ENDPOINT_VARIABLE] == "orders.fifo"


def test_role_consumes_both_and_sends_to_four(template: Template) -> None:
    """What the function does with the due queue is granted, on that queue."""
    [policy] = only(template, "AWS::IAM::Role")["Properties"]["Policies"]
    by_sid = {s["Sid"]: s["Resource"] for s in policy["PolicyDocument"]["Statement"]}

    def arns(*names: str) -> list[str]:
        return sorted(str(arn(template, name)) for name in names)

    assert sorted(map(str, by_sid["Consume"])) == arns("orders-delay.fifo", "orders-due")
    assert sorted(map(str, by_sid["Relay"])) == arns(
        "orders.fifo", "orders-due", "orders-delay.fifo", "orders-delay-error"
    )


def test_overdue_alarm_on_the_due_queue(template: Template) -> None:
    """What stays longer than a message timer and two attempts rings, and is on the dashboard."""
    due = {
        "Fn::GetAtt": [logical_id(template, "AWS::SQS::Queue", QueueName="orders-due"), "QueueName"]
    }
    kind = "AWS::CloudWatch::Alarm"
    wanted = {
        "MetricName": "ApproximateAgeOfOldestMessage",
        "Dimensions": [{"Name": "QueueName", "Value": due}],
    }
    alarm = only(template, kind, **wanted)["Properties"]
    assert alarm["Threshold"] == MAX_MESSAGE_TIMER_SECONDS + 2 * DELAY_QUEUE_VISIBILITY_SECONDS
    template.resource_count_is(kind, 6)
    assert logical_id(template, kind, **wanted) in str(dashboard(template))


def dashboard(template: Template) -> dict[str, Any]:
    return dict(only(template, "AWS::CloudWatch::Dashboard")["Properties"])


def test_dashboard(template: Template) -> None:
    """Its name is one that CloudWatch takes; deliveries are counted under the endpoint's name."""
    shown = dashboard(template)
    assert "." not in str(shown["DashboardName"]).replace("AWS::Region", "")
    metric = (
        f'["{function_names.METRIC_NAMESPACE}","{function_names.DELIVERED}","service","orders.fifo"'
    )
    assert metric in str(shown["DashboardBody"])


def test_dispatcher_releases_to_the_due_queue(endpoint_template: Templates) -> None:
    """The FIFO queue takes no message timers: a store's messages go where the timers run."""
    template = endpoint_template("orders.fifo", store="dynamodb")
    granted = statements(template, function_names.DISPATCHER_HANDLER)
    [release] = [each for each in granted if each["Sid"] == "Release"]
    assert release["Resource"] == [arn(template, "orders-due"), arn(template, "orders-delay-error")]
    table = only(template, "AWS::DynamoDB::Table")["Properties"]
    assert table["TableName"] == "orders.fifo.parked"


def test_no_room_for_the_dead_letter_queue_is_refused() -> None:
    """Found at synth; a queue of one's own needs none of ours."""
    endpoint = Endpoint.parse("x" * 64 + ".fifo")
    with pytest.raises(InvalidEndpoint, match=r"64 characters before '\.fifo'; the limit is 63"):
        EndpointStack(
            App(context=CONTEXT),
            "long",
            endpoint=endpoint,
            deployment=Deployment(endpoints=(endpoint,)),
        )


def test_grant_send_covers_the_due_queue(stack: Stack) -> None:
    """Delays up to 900 s go there at once."""
    orders = sqs.Queue(stack, "Orders", fifo=True, queue_name="orders.fifo")
    delay = UnrestrictedDelay(stack, "Delay", queue=orders)
    delay.grant_send(iam.User(stack, "Producer"))
    template = Template.from_stack(stack)
    [policy] = template.find_resources("AWS::IAM::Policy").values()
    [statement] = policy["Properties"]["PolicyDocument"]["Statement"]
    assert statement["Action"] == ["sqs:GetQueueAttributes", "sqs:GetQueueUrl", "sqs:SendMessage"]
    assert sorted(map(str, statement["Resource"])) == sorted(
        str(arn(template, name)) for name in ("orders.fifo", "orders-delay.fifo", "orders-due")
    )


def test_fifo_queue_without_a_name_of_its_own_is_refused(stack: Stack) -> None:
    """A made-up name ends in .fifo only when it is deployed, too late to name queues after it."""
    fifo = sqs.Queue(stack, "Orders", fifo=True)
    words = r"theirs/Orders has no explicit name.*give it a queue_name"
    with pytest.raises(InvalidEndpoint, match=words):
        UnrestrictedDelay(stack, "Delay", queue=fifo)
