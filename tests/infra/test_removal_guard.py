"""The removal guard: what its stack tells it of what was left out, and what it makes of that."""

from __future__ import annotations

import json
from typing import Any

import pytest
from aws_cdk import App, Stack
from aws_cdk import aws_sqs as sqs
from aws_cdk.assertions import Template
from constructs import Construct

from lambdas.removal_guard.handler import LEFT_OUT, is_part
from sqsdelay.cdk.function_code import guard_source
from sqsdelay.cdk.removal_guard import DUE_QUEUE, LARGE_BODIES, LEDGER, S3_STORE, SCHEDULES, STORE
from sqsdelay.cdk.unrestricted_delay import UnrestrictedDelay
from tests.infra.conftest import CONTEXT, Templates


def left_out(template: Template) -> list[dict[str, str]]:
    [guard] = template.find_resources("Custom::SqsDelayParts").values()
    return list(guard["Properties"][LEFT_OUT])


@pytest.mark.parametrize(
    ("name", "settings", "expected"),
    [
        ("orders", {}, [STORE, S3_STORE, SCHEDULES, LARGE_BODIES, LEDGER, DUE_QUEUE]),
        ("orders.fifo", {}, [STORE, S3_STORE, SCHEDULES, LARGE_BODIES, LEDGER]),
        (
            "orders",
            {"store": "dynamodb", "large_bodies": True, "ledger": True},
            [S3_STORE, SCHEDULES, LEDGER, DUE_QUEUE],
        ),
        (
            "orders",
            {"store": "scheduler", "ledger": "s3"},
            [STORE, S3_STORE, LARGE_BODIES, DUE_QUEUE],
        ),
        ("orders", {"store": "s3"}, [STORE, SCHEDULES, LARGE_BODIES, LEDGER, DUE_QUEUE]),
        ("orders", {"store": "none", "large_bodies": False, "ledger": False}, [DUE_QUEUE]),
    ],
)
def test_the_guard_is_told_what_is_neither_there_nor_let_go_of(
    endpoint_template: Templates, name: str, settings: dict[str, Any], expected: list[Any]
) -> None:
    """Forgotten and given up are two things."""
    told = [part["Words"] for part in left_out(endpoint_template(name, **settings))]
    assert told == [f"the stack has {part.words}; use {part.remedy}" for part in expected]


@pytest.mark.parametrize("path", [("Delay",), ("Store",), ("My-App", "Resource", "Delay_2")])
def test_a_part_is_known_by_the_logical_id_it_would_have(path: tuple[str, ...]) -> None:
    """Wherever the construct stands in somebody's app, and whatever it is called there."""

    def template(name: str, **settings: Any) -> Template:
        stack = Stack(App(context=CONTEXT), "theirs")
        scope: Construct = stack
        for each in path[:-1]:
            scope = Construct(scope, each)
        orders = sqs.Queue(stack, "Orders", queue_name=name, fifo=name.endswith(".fifo") or None)
        UnrestrictedDelay(scope, path[-1], queue=orders, **settings)
        return Template.from_stack(stack)

    full = {
        name: each
        for store in ("dynamodb", "s3", "scheduler")
        for name, each in template("orders.fifo", store=store, large_bodies=True, ledger="s3")
        .to_json()["Resources"]
        .items()
    }
    resources = [
        {
            "LogicalResourceId": name,
            "ResourceType": each["Type"],
            "ResourceStatus": "CREATE_COMPLETE",
        }
        for name, each in full.items()
    ]
    parts = left_out(template("orders"))
    assert len(parts) == 6
    for part in parts:
        found = [each for each in resources if is_part(part, each)]
        assert len(found) == 1, part
        assert not is_part(part, found[0] | {"ResourceStatus": "DELETE_SKIPPED"})


def test_the_delay_consumer_waits_for_the_guard(endpoint_template: Templates) -> None:
    """Refused before the function has forgotten the store, so that nothing has to be undone."""
    resources = endpoint_template().to_json()["Resources"]
    [guard] = [n for n, each in resources.items() if each["Type"] == "Custom::SqsDelayParts"]
    [function] = [
        each
        for name, each in resources.items()
        if each["Type"] == "AWS::Lambda::Function" and "RemovalGuard" not in name
    ]
    assert guard in function["DependsOn"]


def test_the_guards_code_is_in_the_template(endpoint_template: Templates) -> None:
    """One file without sqsdelay: nothing to build, and within CloudFormation's 4,096 characters."""
    functions = endpoint_template().find_resources("AWS::Lambda::Function")
    [guard] = [each for name, each in functions.items() if "RemovalGuard" in name]
    code = guard["Properties"]["Code"]["ZipFile"]
    assert code == guard_source()
    assert len(code) <= 4096
    assert "sqsdelay" not in json.dumps(code)
