"""Structured hostile input, made up by Hypothesis, for the same targets as the coverage-guided fuzzer; and
every input that the fuzzer found interesting, tried again without it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from moto import mock_aws

from lambdas.delay_consumer import handler as module
from sqsdelay.core.endpoint import Endpoint
from sqsdelay.errors import SqsDelayError
from tests.fuzz import targets
from tests.hostile.strategies import broken, lines, records, texts, values
from tests.services.endpoints import create_endpoint
from tests.services.lambda_function import Context

often = settings(
    max_examples=60 * settings().max_examples // 100, suppress_health_check=[HealthCheck.too_slow]
)


def encoded(value: Any) -> bytes:
    return json.dumps(value).encode()


@often
@given(records)
def test_records_of_a_lambda_event(record: Any) -> None:
    """Relayed, parked, rejected or refused whole: never a crash, never delivered without a delay."""
    targets.record(encoded(record))


@often
@given(lines)
def test_lines_of_a_file(line: Any) -> None:
    """A message, or an error of its line."""
    targets.line(encoded(line))


@often
@given(st.one_of(values, st.fixed_dictionaries({"attributes": st.dictionaries(texts, values)})))
def test_headers_of_a_stored_row(headers: Any) -> None:
    """Read back as written, or rejected with the reason: one bad row stops no dispatcher."""
    targets.stored(encoded(headers))


USERINFO = st.sampled_from(("me:PASSWORD@", "PASSWORD@", "me:PASSWORD%zz@", "PASSWORD:", ""))
URLS = st.builds(
    "".join,
    st.tuples(
        st.sampled_from(("sqlite:///", "postgresql://", "dynamodb://", "amqp://", "http://", "x:", "")),
        USERINFO,
        st.one_of(texts, st.sampled_from(("host:5432/db", "[::1", "host:PASSWORD/", "h\u2100"))),
        st.sampled_from(("", "?sslmode=PASSWORD", "?PASSWORD", "#PASSWORD", "?heartbeat=PASSWORD")),
    ),
)  # fmt: skip


@often
@given(URLS)
@example("sqlite:///me:PASSWORD@\ud800")
def test_urls_with_passwords(url: str) -> None:
    """Opened or refused; no error shows the password, wherever in the URL it stands."""
    targets.store_url(url.encode("utf-8", "surrogatepass"))
    targets.rabbitmq(url.encode("utf-8", "surrogatepass"))


@often
@given(st.dictionaries(texts, values, max_size=5))
def test_headers_of_a_rabbitmq_message(headers: dict[str, Any]) -> None:
    """To be delayed, or a reject."""
    targets.rabbitmq_message(encoded(headers))


@often
@given(texts)
def test_delays_and_endpoints(text: str) -> None:
    """Understood, or refused with sqsdelay's own error."""
    targets.delay(text.encode("utf-8", "surrogatepass"))
    targets.endpoint(text.encode("utf-8", "surrogatepass"))


@pytest.mark.parametrize("digits", [4_299, 4_301, 1_000_000])
def test_many_digits_take_no_time(digits: int) -> None:
    """Python reads numbers in quadratic time; nothing of it is reached."""
    for text in ("9" * digits, "0" * digits, "٣" * digits):
        targets.delay(text.encode())
        targets.line(f'{{"body": "x", "delay": "{text}"}}'.encode())
        targets.record(
            encoded(
                {
                    "messageId": "s",
                    "receiptHandle": "r",
                    "body": "x",
                    "attributes": {"SentTimestamp": text},
                    "messageAttributes": {
                        "NServiceBus.AmazonSQS.DelaySeconds": {
                            "dataType": "String",
                            "stringValue": text,
                        }
                    },
                }
            )
        )


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
        answer = module.handler(event, Context())
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
        module.handler(event, Context())


CORPUS = Path(targets.__file__).with_name("corpus")


@pytest.mark.parametrize("target", targets.TARGETS)
def test_hostile_input_breaks_nothing(target: str) -> None:
    """No crash, no hang, nothing delivered that should be rejected, no password shown."""
    inputs = sorted((CORPUS / target).iterdir())
    assert len(inputs) > 5
    for path in inputs:
        try:
            targets.TARGETS[target](path.read_bytes())
        except BaseException as error:
            error.add_note(f"the input is {path.name}")
            raise


def test_every_input_has_its_target() -> None:
    """A folder of another name would never be tried."""
    assert {path.name for path in CORPUS.iterdir()} == set(targets.TARGETS)
