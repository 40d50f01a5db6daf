"""Lambda's functions on events nobody would send: an answer, or an error Lambda can count."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import boto3
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from moto import mock_aws

from lambdas.delay_consumer import handler as module
from sqsdelay.core.endpoint import Endpoint
from sqsdelay.errors import SqsDelayError
from sqsdelay.sqs import create_endpoint
from tests.hostile.strategies import broken, records, values


@pytest.fixture(params=["orders", "tasks.fifo"])
def endpoint(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Endpoint]:
    """A function's environment on moto, wired anew for each endpoint."""
    endpoint = Endpoint.parse(request.param)
    monkeypatch.setenv("SQSDELAY_ENDPOINT", endpoint.name)
    monkeypatch.setenv("AWS_LAMBDA_FUNCTION_NAME", "f")
    module.function.cache_clear()
    with mock_aws():
        create_endpoint(boto3.client("sqs"), endpoint)
        yield endpoint
    module.function.cache_clear()


@settings(
    max_examples=25,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(data=st.data())
def test_any_event(endpoint: Endpoint, data: st.DataObject) -> None:
    """What is no event is an error; of an event only records that failed are named, by their ids."""
    queue = data.draw(st.sampled_from(endpoint.queues)).name
    arn = broken(st.just(f"arn:aws:sqs:us-east-1:123456789012:{queue}"))
    events = broken(st.fixed_dictionaries({"Records": broken(st.lists(records, max_size=3))}))
    event = data.draw(events)
    given: list[Any] = []
    if isinstance(event, dict) and isinstance(event.get("Records"), list):
        given = event["Records"]
        for record in given:
            if isinstance(record, dict):
                record["eventSourceARN"] = data.draw(arn)
    try:
        answer = module.handler(event, None)
    except SqsDelayError:
        return
    ids = {str(record["messageId"]) for record in given if isinstance(record, dict)}
    assert {failed["itemIdentifier"] for failed in answer["batchItemFailures"]} <= ids


@given(values)
@settings(
    max_examples=15,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
def test_what_is_no_event(endpoint: Endpoint, event: Any) -> None:
    """Refused whole: Lambda counts an error, and what is in the queue stays there."""
    with pytest.raises(SqsDelayError, match="not an SQS event"):
        module.handler(event, None)
