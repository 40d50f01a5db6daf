"""The CDK context: what it may say, and the one clear line when it says something else."""

from __future__ import annotations

from typing import Any

import pytest
from aws_cdk import RemovalPolicy

from infra.context import KEYS, Deployment, refuse_unknown_keys
from sqsdelay.errors import SqsDelayError

QUEUE_ARN = "arn:aws:sqs:eu-west-1:123456789012:orders"


def read(account: str | None = None, region: str | None = None, **context: Any) -> Deployment:
    return Deployment.read(context.get, account=account, region=region)


def test_nothing_given_deploys_nothing() -> None:
    """`cdk bootstrap` runs the app before there is an endpoint."""
    assert read() == Deployment()
    assert read(endpoint="").endpoints == ()


def test_everything_given() -> None:
    """Each key reaches its setting."""
    topic = "arn:aws:sns:eu-west-1:123456789012:ops"
    deployment = read(
        endpoint="orders, invoices",
        hopSeconds="60",
        maxDelay="1d12h",
        alarmTopicArn=topic,
        removalPolicy="destroy",
        store="dynamodb",
        storeShards="8",
        storeClass="STANDARD_INFREQUENT_ACCESS",
        largeBodies="true",
        ledger="s3",
        ledgerBucket="ledgers",
    )
    assert [endpoint.name for endpoint in deployment.endpoints] == ["orders", "invoices"]
    assert deployment.settings == {
        "hop_seconds": 60,
        "max_delay_seconds": 129_600,
        "alarm_topic_arn": topic,
        "removal_policy": RemovalPolicy.DESTROY,
        "store": "dynamodb",
        "store_shards": 8,
        "store_class": "STANDARD_INFREQUENT_ACCESS",
        "large_bodies": True,
        "ledger": "s3",
        "ledger_bucket": "ledgers",
    }


@pytest.mark.parametrize("endpoint", [None, "orders"])
def test_existing_queue_names_the_endpoint(endpoint: str | None) -> None:
    """queueArn alone is enough; the endpoint may be said again."""
    deployment = read(queueArn=QUEUE_ARN, endpoint=endpoint)
    assert [e.name for e in deployment.endpoints] == ["orders"]
    assert deployment.queue_arn == QUEUE_ARN
    # A FIFO queue is an endpoint as any other.
    [fifo] = read(queueArn=QUEUE_ARN + ".fifo").endpoints
    assert fifo.fifo


@pytest.mark.parametrize(
    ("context", "line"),
    [
        ({"hopSeconds": "901"}, "hopSeconds='901'; use whole seconds, 1 to 900"),
        ({"hopSeconds": "0"}, "hopSeconds='0'; use whole seconds, 1 to 900"),
        ({"hopSeconds": "soon"}, "hopSeconds='soon'; use whole seconds"),
        ({"hopSeconds": "1.5"}, "hopSeconds='1.5'; use whole seconds"),
        ({"hopSeconds": "²"}, "hopSeconds='²'; use whole seconds"),
        ({"removalPolicy": "keep"}, "removalPolicy='keep'; use retain or destroy"),
        (
            {"store": "redis"},
            "store='redis'; use dynamodb, s3 or scheduler, leave it out for no store, or use none",
        ),
        (
            {"store": ""},
            "store=''; use dynamodb, s3 or scheduler, leave it out for no store, or use none to give one up",
        ),
        ({"alarmTopicArn": "ops"}, "'ops' is not an SNS topic ARN; write arn:aws:sns:"),
        ({"queueArn": "orders"}, "'orders' is not an ARN; write arn:aws:sqs:"),
        ({"queueArn": QUEUE_ARN, "endpoint": "invoices"}, "leave endpoint out"),
        ({"queueArn": QUEUE_ARN, "endpoint": "orders,invoices"}, "one endpoint at a time"),
        ({"queueArn": QUEUE_ARN, "account": "999999999999"}, "is in account 123456789012"),
        ({"queueArn": QUEUE_ARN, "region": "us-east-1"}, "is in region eu-west-1"),
        ({"endpoint": "or ders"}, "is not a queue name"),
        ({"endpoint": "orders,orders"}, "lists 'orders' twice"),
        ({"endpoint": "orders,orders.fifo"}, "share the queue 'orders-delay.fifo'; rename one"),
        ({"endpoint": "orders.fifo,orders-due"}, "would share the queue 'orders-due'; rename one"),
        ({"endpoint": QUEUE_ARN}, "for an existing queue use -c queueArn=ARN"),
        ({"endpoint": "x" * 69}, "the limit is 68"),
        ({"maxDelay": "soon"}, "maxDelay='soon': "),
        ({"largeBodies": "yes"}, "='yes'; use true, leave it out for bodies up to 1 MiB"),
        ({"largeBodies": 1}, "largeBodies=1; use true, leave it out"),
        ({"ledger": "file"}, "ledger='file'; use s3 for a bucket, true for the functions' logs,"),
        ({"ledger": 1}, "ledger=1; use s3 for a bucket"),
        ({"ledgerBucket": "mine"}, "ledgerBucket='mine'; use the name of a bucket"),
        ({"ledger": "s3", "ledgerBucket": "s3://mine"}, "or leave it out for a new bucket"),
    ],
)
def test_bad_context_is_one_clear_line(context: dict[str, Any], line: str) -> None:
    """The value, the limit, the remedy."""
    with pytest.raises(SqsDelayError) as caught:
        read(**context)
    assert line in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("context", "store", "other"),
    [
        ({}, None, None),
        ({"store": "none", "largeBodies": "none", "ledger": "none"}, "none", False),
        ({"largeBodies": "false", "ledger": False}, None, False),
        ({"largeBodies": False, "ledger": "none"}, None, False),
        ({"largeBodies": True, "ledger": "true"}, None, True),
    ],
)
def test_letting_go_is_not_leaving_out(
    context: dict[str, Any], store: str | None, other: bool | None
) -> None:
    """What is given up by name is told from what was forgotten, as text and from cdk.json alike."""
    settings = read(**context).settings
    assert settings.get("store") == store
    assert (settings.get("large_bodies"), settings.get("ledger")) == (other, other)


@pytest.mark.parametrize(
    ("key", "told"),
    [
        ("Store", "did you mean 'store'?"),
        ("stores", "did you mean 'store'?"),
        ("large-bodies", "did you mean 'largeBodies'?"),
        ("largebodies", "did you mean 'largeBodies'?"),
        ("endpoints", "did you mean 'endpoint'?"),
        ("hop_seconds", "did you mean 'hopSeconds'?"),
        ("colour", "is unknown; the keys are endpoint, queueArn"),
    ],
)
def test_a_key_nobody_asks_for_is_refused(key: str, told: str) -> None:
    """A misspelt setting would be one that was left out."""
    with pytest.raises(SqsDelayError) as caught:
        refuse_unknown_keys(["endpoint", key])
    assert f"context key {key!r} is unknown" in str(caught.value)
    assert told in str(caught.value)


def test_the_cdks_own_keys_are_none_of_ours() -> None:
    """Feature flags, settings, and what it looked up and keeps in cdk.context.json."""
    refuse_unknown_keys(
        [
            *KEYS,
            "@aws-cdk/core:target-partitions",
            "@aws-cdk-containers/ecs-service-extensions:enableDefaultLogDriver",
            "aws:cdk:enable-path-metadata",
            "aws-cdk:enableDiffNoFail",
            "availability-zones:account=123456789012:region=eu-west-1",
            "cli-telemetry",
            "acknowledged-issue-numbers",
        ]
    )
