"""An endpoint's queues, for tests of what is done with them."""

from __future__ import annotations

from typing import Any

from sqsdelay.core.endpoint import Endpoint
from sqsdelay.core.limits import DEFAULT_HOP_SECONDS
from sqsdelay.sqs.endpoints import _wanted, create_queue


def create_endpoint(
    client: Any, endpoint: Endpoint | str, *, hop_seconds: int = DEFAULT_HOP_SECONDS
) -> None:
    """A request for each queue: of the twenty of sqsdelay's own most look for what cannot be here."""
    if isinstance(endpoint, str):
        endpoint = Endpoint.parse(endpoint)
    for ref, attributes in _wanted(endpoint, hop_seconds):
        create_queue(client, ref, attributes)


def in_queue(client: Any, queue: str, *, wait: int = 0) -> list[dict[str, Any]]:
    """Up to ten messages of a queue, by its name or URL, with all their attributes; they stay there."""
    url = queue if "://" in queue else client.get_queue_url(QueueName=queue)["QueueUrl"]
    given = {"AttributeNames": ["All"], "MessageAttributeNames": ["All"], "WaitTimeSeconds": wait}
    answer = client.receive_message(QueueUrl=url, MaxNumberOfMessages=10, **given)
    return list(answer.get("Messages", []))
