"""Structured hostile input, made up by Hypothesis, for the same targets as the coverage-guided fuzzer."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.fuzz import targets
from tests.hostile.strategies import lines, records, texts, values

profile = settings.get_profile(settings.get_current_profile_name())
often = settings(
    max_examples=60 if profile.derandomize else profile.max_examples,
    suppress_health_check=[HealthCheck.too_slow],
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
