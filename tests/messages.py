"""Messages for tests to which most of what is in them does not matter."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqsdelay.core.message import Attribute
from sqsdelay.core.received_message import ReceivedMessage
from sqsdelay.core.stored_message import StoredMessage


def a_message(
    message_id: str, due_ms: int, *, to: str = "orders", body: bytes = b"x", **more: Any
) -> StoredMessage:
    """As stores keep it."""
    return StoredMessage(message_id=message_id, destination=to, due_ms=due_ms, body=body, **more)


def a_copy(
    attributes: Mapping[str, Attribute] | None = None, *, body: str = "x", **more: Any
) -> ReceivedMessage:
    """As it is received."""
    told: dict[str, Any] = {"receipt_handle": "r", "sqs_message_id": "s", "received_at": 0.0}
    return ReceivedMessage(body=body, attributes=dict(attributes or {}), **told | more)
