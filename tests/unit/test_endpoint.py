"""Endpoint names, and the queues that serve them."""

from __future__ import annotations

from typing import Any

import pytest

from sqsdelay.core.endpoint import Endpoint, QueueRef
from sqsdelay.errors import InvalidEndpoint


def test_an_endpoint_names_its_delay_and_error_queue() -> None:
    """The names are NServiceBus's convention, and ours for the error queue."""
    endpoint = Endpoint.parse("orders")
    assert endpoint.name == "orders"
    assert endpoint.delay_queue == QueueRef("orders-delay.fifo")
    assert endpoint.error_queue == QueueRef("orders-delay-error")


def test_an_arn_keeps_account_and_region() -> None:
    """The queues beside it are looked up in the same account and region."""
    endpoint = Endpoint.parse("arn:aws:sqs:eu-west-1:123456789012:orders")
    assert endpoint.queue == QueueRef("orders", "123456789012", "eu-west-1")
    assert endpoint.delay_queue == QueueRef("orders-delay.fifo", "123456789012", "eu-west-1")


@pytest.mark.parametrize(
    ("url", "region"),
    [
        ("https://sqs.eu-west-1.amazonaws.com/123456789012/orders", "eu-west-1"),
        ("https://sqs.cn-north-1.amazonaws.com.cn/123456789012/orders", "cn-north-1"),
        ("https://sqs.eu-west-1.api.aws/123456789012/orders", "eu-west-1"),
        ("https://eu-west-1.queue.amazonaws.com/123456789012/orders", "eu-west-1"),
        ("http://localhost:4566/123456789012/orders", None),
        ("https://sqs.example.com/123456789012/orders", None),
    ],
)
def test_a_url_is_used_as_it_is(url: str, region: str | None) -> None:
    """A destination given by URL is not looked up; its account and region find its delay queue."""
    endpoint = Endpoint.parse(url)
    assert endpoint.queue == QueueRef("orders", "123456789012", region, url)
    assert endpoint.error_queue == QueueRef("orders-delay-error", "123456789012", region)
    assert Endpoint.parse(url + "/") == endpoint


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is not a queue name"),
        ("orders queue", "is not a queue name"),
        ("örders", "is not a queue name"),
        ("orders\n", "is not a queue name"),
        (".fifo", "is not a queue name"),
        ("orders.fifo.fifo", "is not a queue name"),
        ("orders-delay.fifo", "ends like one of sqsdelay's own queues"),
        ("orders-delay-error", "ends like one of sqsdelay's own queues"),
        ("orders-delay", "ends like one of sqsdelay's own queues"),
        ("arn:aws:sns:eu-west-1:123456789012:orders", "is not a queue ARN"),
        ("https://sqs.eu-west-1.amazonaws.com/", "has no queue name"),
        ("http://[", "is not a queue URL"),
        (None, "is not a queue name, queue URL or queue ARN"),
        ("\ud800", "is not a queue name"),
    ],
)
def test_what_is_no_endpoint_is_refused(text: Any, message: str) -> None:
    """The error names the value and says what an endpoint looks like."""
    with pytest.raises(InvalidEndpoint, match=message):
        Endpoint.parse(text)


def test_a_url_without_a_host_or_an_account() -> None:
    """Local servers have such addresses: no account, no region, and the queue is the last part."""
    assert Endpoint.parse("http:///orders").queue == QueueRef(
        "orders", None, None, "http:///orders"
    )
    url = "http://127.0.0.1:9324/queue/orders"
    assert Endpoint.parse(url + "/").queue == QueueRef("orders", None, None, url)
    three = "http://127.0.0.1:9324/000000000000/queue/orders"
    assert Endpoint.parse(three).queue == QueueRef("orders", None, None, three)


def test_a_url_that_ends_in_the_letter_x() -> None:
    """Slashes at its end are dropped, and nothing else."""
    assert Endpoint.parse("http://127.0.0.1/boX").queue.url == "http://127.0.0.1/boX"
