"""Several received copies as one message: how they travel through the parking queue.

The body is JSON: ``{"version": 1, "copies": [...]}``, each copy spelt as a record of a Lambda SQS event,
with all that tells which message it is, when it is due and when it was first sent.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, Final

from sqsdelay.core.message import Attribute
from sqsdelay.core.received_message import ReceivedMessage, from_lambda_event
from sqsdelay.errors import MalformedMessage

VERSION: Final = 1


def packed(copy: ReceivedMessage) -> str:
    """One copy as text; `group_of` makes a body of such texts."""
    system = {
        "SentTimestamp": None if copy.sent_ms is None else str(copy.sent_ms),
        "MessageGroupId": copy.group_id,
        "MessageDeduplicationId": copy.deduplication_id,
        "AWSTraceHeader": copy.trace_header,
    }
    record = {
        "messageId": copy.sqs_message_id,
        "body": copy.body,
        "attributes": {name: value for name, value in system.items() if value is not None},
        "messageAttributes": {name: _shaped(each) for name, each in copy.attributes.items()},
    }
    return json.dumps(record, ensure_ascii=False, separators=(",", ":"))


def _shaped(attribute: Attribute) -> dict[str, str]:
    if "BinaryValue" in attribute:
        value = {"binaryValue": base64.b64encode(attribute["BinaryValue"]).decode("ascii")}
    else:
        value = {"stringValue": attribute["StringValue"]}
    return {"dataType": attribute["DataType"], **value}


def group_of(packed_copies: Iterable[str]) -> str:
    """A body of copies that were `packed`."""
    return f'{{"version":{VERSION},"copies":[{",".join(packed_copies)}]}}'


def unpacked(group: ReceivedMessage) -> Sequence[ReceivedMessage]:
    """The copies of a group as it was received, received as often.

    A group that cannot be read is one copy, which says so in ``unreadable``: it is rejected whole.
    """
    try:
        found = json.loads(group.body)
        if found["version"] != VERSION:
            raise MalformedMessage(f"version {found['version']!r}; this sqsdelay reads {VERSION}")
        copies = [_copy(record, group) for record in found["copies"]]
    except (ValueError, TypeError, KeyError, RecursionError, MalformedMessage) as error:
        return [replace(group, unreadable=f"not a group of copies: {error!r}"[:200])]
    return copies


def _copy(record: dict[str, Any], group: ReceivedMessage) -> ReceivedMessage:
    received = {**record, "receiptHandle": group.receipt_handle}
    copy = from_lambda_event(received, received_at=group.received_at)
    return replace(copy, receive_count=group.receive_count)
