"""Deduplication ids for the delay queue: for a sender's message and for each hop."""

from __future__ import annotations

import hashlib
import secrets

from sqsdelay.core.message import Attributes
from sqsdelay.core.received_message import ReceivedMessage
from sqsdelay.core.wire import DELAY_SECONDS, DUE_AT, MESSAGE_ID


def new_send_deduplication_id() -> str:
    """A new one for each call to send: its retries count as one message, and no other message does."""
    return f"send.{secrets.token_hex(32)}"


def send_deduplication_id(message_id: str, body: str, wired: Attributes) -> str:
    """An idempotent sender's: the same for equal copies of a message, different for any other message.

    It binds id, content and due time, or the delay where that is relative.

    Args:
        wired: the attributes, as `delayed` made them.
    """
    left_out = {MESSAGE_ID, DELAY_SECONDS} if DUE_AT in wired else {MESSAGE_ID}
    parts: list[str | bytes] = [message_id, body]
    for name in sorted(wired.keys() - left_out):
        value = wired[name]
        parts += [name, value["DataType"]]
        parts.append(value["BinaryValue"] if "BinaryValue" in value else value["StringValue"])
    counted = b"".join(map(_counted, parts))
    return f"send.{hashlib.sha256(counted).hexdigest()}"


def _counted(part: str | bytes) -> bytes:
    """A part behind its length: no other parts, joined, come to the same."""
    coded = part if isinstance(part, bytes) else part.encode("utf-8", "surrogatepass")
    return b"%d:%b" % (len(coded), coded)


def after_amendment(deduplication_id: str, amended_ms: int) -> str:
    """A sender's deduplication id for a message that amendments left by then do not apply to."""
    return f"send.{amended_ms}.{deduplication_id[-64:]}"


def hop_deduplication_id(
    copy: ReceivedMessage, message_id: str, first_sent_ms: int | None = None
) -> str:
    """The same copy gives the same id; the next hop gives another.

    A copy is told by SQS's own id and its SentTimestamp, beside the message id. Hashed, since a
    message id may fill all 128 characters. Before the hash stands when the message was first sent:
    here it costs none of the user's attributes.
    """
    found = f"{message_id}:{copy.sqs_message_id}:{copy.sent_ms}"
    hashed = hashlib.sha256(found.encode("utf-8", "surrogatepass")).hexdigest()
    return f"hop.{hashed}" if first_sent_ms is None else f"hop.{first_sent_ms}.{hashed}"
