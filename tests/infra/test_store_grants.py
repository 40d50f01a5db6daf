"""What is granted on the table, held against the calls that are made."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import boto3
import pytest
from aws_cdk import Stack
from aws_cdk import aws_iam as iam
from aws_cdk import aws_sqs as sqs
from aws_cdk.assertions import Template
from moto import mock_aws

from lambdas.dispatcher import handler
from sqsdelay import Change, DelaySender
from sqsdelay.cdk import function_names
from sqsdelay.cdk.unrestricted_delay import UnrestrictedDelay
from sqsdelay.core.checked_message import new_message_id
from sqsdelay.core.clock import SystemClock
from sqsdelay.core.endpoint import Endpoint
from sqsdelay.core.stored_message import Amendment, StoredMessage
from sqsdelay.limits import MAX_DUE_MS
from sqsdelay.parking.parking import DEFAULT_PARK_AFTER_SECONDS, Parking
from sqsdelay.sqs import create_endpoint
from sqsdelay.stores.dynamodb import DynamoDbStore
from tests.infra.resources import Templates, only


@pytest.fixture
def template(endpoint_template: Templates) -> Template:
    """Endpoint `orders` with a store."""
    return endpoint_template(store="dynamodb")


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Iterator[set[str]]:
    """Names of the calls made on the table of an endpoint on moto, from now on."""
    called: set[str] = set()

    def record(params: dict[str, Any], model: Any, **_: Any) -> None:
        if model.name != "TransactWriteItems":
            called.add(f"dynamodb:{model.name}")
            return
        # IAM asks for each write of a transaction.
        kinds = {kind for item in params["TransactItems"] for kind in item}
        called.update(
            "dynamodb:ConditionCheckItem" if kind == "ConditionCheck" else f"dynamodb:{kind}Item"
            for kind in kinds
        )

    with mock_aws():
        create_endpoint(boto3.client("sqs"), Endpoint.parse("orders"))
        store = DynamoDbStore("orders.parked", endpoint="orders")
        store.set_up()
        store.close()
        session = boto3.Session()
        session.events.register("provide-client-params.dynamodb", record)
        monkeypatch.setattr(boto3, "DEFAULT_SESSION", session)
        yield called


@pytest.fixture
def store(calls: set[str]) -> Iterator[DynamoDbStore]:
    """The store on that table."""
    opened = DynamoDbStore("orders.parked", endpoint="orders")
    yield opened
    opened.close()


def stored(message_id: str, queue: str = "orders", due_ms: int = MAX_DUE_MS) -> StoredMessage:
    return StoredMessage(message_id=message_id, destination=queue, due_ms=due_ms, body=b"body")


def table_grants(template: Template, function: str) -> set[str]:
    """Actions of DynamoDB that a function's role is granted."""
    role = template.find_resources("AWS::IAM::Role")[
        only(template, "AWS::Lambda::Function", Handler=function)["Properties"]["Role"][
            "Fn::GetAtt"
        ][0]
    ]
    [policy] = role["Properties"]["Policies"]
    actions = [s["Action"] for s in policy["PolicyDocument"]["Statement"]]
    listed = [a if isinstance(a, list) else [a] for a in actions]
    return {action for some in listed for action in some if action.startswith("dynamodb:")}


def test_dispatcher_is_granted_the_calls_it_makes(
    template: Template, monkeypatch: pytest.MonkeyPatch, calls: set[str], store: DynamoDbStore
) -> None:
    """A run with messages to release, one to retry and one that is far away needs all and no more."""
    store.store([stored("due", due_ms=0), stored("lost", "nowhere", due_ms=0), stored("far")])
    monkeypatch.setenv(function_names.NUMBER_OF_RETRIES_VARIABLE, "1")
    calls.clear()
    monkeypatch.setenv("AWS_LAMBDA_FUNCTION_NAME", "orders-dispatcher")
    monkeypatch.setenv(function_names.ENDPOINT_VARIABLE, "orders")
    monkeypatch.setenv(function_names.STORE_VARIABLE, "dynamodb://orders.parked")
    handler.function.cache_clear()
    handler.handler({}, SimpleNamespace(get_remaining_time_in_millis=lambda: 50_000))
    handler.function().store.close()
    handler.function.cache_clear()
    assert calls == table_grants(template, function_names.DISPATCHER_HANDLER)


def test_delay_consumer_is_granted_the_calls_it_makes(
    template: Template, calls: set[str], store: DynamoDbStore
) -> None:
    """Parking, once more when a copy comes back; a cancellation and a new due time that came meanwhile."""
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
    assert parking.apply_amendments(dict.fromkeys(["cancelled", moved])) == {"cancelled"}
    assert calls == table_grants(template, function_names.CONSUMER_HANDLER)


def test_producer_is_granted_the_calls_it_makes(
    stack: Stack, calls: set[str], store: DynamoDbStore
) -> None:
    """Storing, listing, moving and cancelling, whether or not the message is still there."""
    sender = DelaySender(store=store)
    sender.send("orders", "body", delay=30 * 86_400, message_id="order-7")
    assert [m.message_id for m in sender.pending("orders")] == ["order-7"]
    assert sender.reschedule("orders", "order-7", delay=60 * 86_400) is Change.DONE
    assert sender.cancel("orders", "order-7") is Change.DONE
    assert sender.cancel("orders", "order-7") is Change.REQUESTED
    orders = sqs.Queue(stack, "Orders", queue_name="orders")
    delay = UnrestrictedDelay(stack, "Delay", queue=orders, store="dynamodb")
    assert delay.store is not None
    delay.store.grant_store(iam.User(stack, "Producer"))
    [policy] = Template.from_stack(stack).find_resources("AWS::IAM::Policy").values()
    [on_table] = policy["Properties"]["PolicyDocument"]["Statement"]
    assert calls == set(on_table["Action"])
