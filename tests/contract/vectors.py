"""The sender's contract: what `DelaySender` does with each vector of contract/vectors.json.

``python -m tests.contract.vectors`` writes down what it does now, for the inputs that stand there.
"""

from __future__ import annotations

import base64
import json
import re
from email.utils import format_datetime
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import boto3

from sqsdelay import DelaySender, Message
from sqsdelay.core import limits
from sqsdelay.core.delay import due_at_ms, utc
from sqsdelay.core.endpoint import Endpoint
from sqsdelay.core.message import MADE_HERE, due_ms_of_id, new_message_id
from sqsdelay.core.readable import parse_due_at
from sqsdelay.errors import InvalidEndpoint, SqsDelayError
from sqsdelay.sending.sender import SendResult
from sqsdelay.sqs.queues import ENTRY_ATTEMPTS
from sqsdelay.testing import ManualClock

FILE: Final = Path(__file__).parents[2] / "contract" / "vectors.json"
ACCOUNT: Final = "123456789012"
ID, DEDUPLICATION_ID, BODY = "{id}", "{deduplication id}", "{body}"
"""They stand for what is made up anew each time, and for a long body."""

SETTINGS: Final = {"maxDelaySeconds": "max_delay_seconds", "hopSeconds": "hop_seconds"}
FIELDS: Final = {
    "delay": "delay",
    "messageId": "message_id",
    "messageGroupId": "message_group_id",
    "messageDeduplicationId": "message_deduplication_id",
    "traceHeader": "trace_header",
}
SHARED_LIMITS: Final = (
    "MAX_MESSAGE_TIMER_SECONDS", "MAX_BATCH_ENTRIES", "MAX_BATCH_BYTES", "MAX_MESSAGE_BYTES",
    "MIN_QUEUE_LIMIT_BYTES", "MAX_ATTRIBUTES", "MAX_ATTRIBUTE_NAME_CHARS", "MAX_QUEUE_NAME_CHARS",
    "MAX_ENDPOINT_CHARS", "MAX_ID_CHARS", "MAX_DUE_MS", "DEFAULT_MAX_DELAY_SECONDS",
)  # fmt: skip


class Sqs:
    """SQS as a vector has it: the endpoint's queues, and all that they were sent.

    Args:
        now_ms: the date of its answers.
        vector: the ``endpoint``, its ``missing`` queues, and attributes of those ``deployed``.
    """

    def __init__(self, now_ms: int, vector: dict[str, Any]) -> None:
        self.sends: list[dict[str, Any]] = []
        self.calls: list[dict[str, Any]] = []
        self._deployed = vector.get("deployed", {})
        try:
            queues = Endpoint.parse(vector["endpoint"]).queues
        except InvalidEndpoint:
            queues = ()
        self._names = {queue.name for queue in queues} - set(vector.get("missing", ()))
        self._date = format_datetime(utc(now_ms), usegmt=True)
        self.client = _client()
        events = self.client.meta.events
        events.unregister("before-call.sqs", unique_id="vector")
        events.register("before-call.sqs", self._answer, unique_id="vector")

    def _answer(self, params: dict[str, Any], model: Any, **_: Any) -> Any:
        asked = json.loads(params["body"])
        status, answer = getattr(self, f"_{model.name}")(asked)
        answer["ResponseMetadata"] = {
            "HTTPStatusCode": status,
            "RequestId": "r-1",
            "HTTPHeaders": {"date": self._date},
        }
        return SimpleNamespace(status_code=status), answer

    def _GetQueueUrl(self, asked: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        name, account = asked["QueueName"], asked.get("QueueOwnerAWSAccountId", ACCOUNT)
        if name not in self._names:
            return 400, {"Error": {"Code": "QueueDoesNotExist", "Message": "no such queue"}}
        return 200, {"QueueUrl": f"https://sqs.us-east-1.amazonaws.com/{account}/{name}"}

    def _GetQueueAttributes(self, asked: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        name = asked["QueueUrl"].rpartition("/")[2]
        return 200, {"Attributes": self._deployed.get(name, {"DelaySeconds": "900"})}

    def _SendMessage(self, asked: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        self.calls.append({"queueUrl": asked["QueueUrl"], "entries": 1})
        self.sends.append(asked)
        return 200, {"MessageId": f"sqs-{len(self.sends)}"}

    def _SendMessageBatch(self, asked: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        entries = asked["Entries"]
        self.calls.append({"queueUrl": asked["QueueUrl"], "entries": len(entries)})
        return 200, {
            "Successful": [{"Id": e["Id"], "MessageId": f"sqs-{e['Id']}"} for e in entries]
        }


@cache
def _client() -> Any:
    """Made once: that takes longer than all the vectors."""
    return boto3.client("sqs", region_name="us-east-1")


def read() -> dict[str, Any]:
    """The file."""
    found: dict[str, Any] = json.loads(FILE.read_text())
    return found


def message_of(given: dict[str, Any]) -> Message:
    """A vector's message in Python's words; the inverse of what TypeScript's test does."""
    arguments = {FIELDS[name]: given[name] for name in FIELDS if name in given}
    if "dueAt" in given:
        arguments["due_at"] = parse_due_at(given["dueAt"])
    attributes = {name: _attribute(value) for name, value in given.get("attributes", {}).items()}
    body = given["body"] * given.get("bodyRepeat", 1)
    return Message(body, attributes=attributes, **arguments)


def _attribute(value: Any) -> Any:
    if isinstance(value, dict) and "BinaryValue" in value:
        return {**value, "BinaryValue": base64.b64decode(value["BinaryValue"])}
    return value


def _sender(now_ms: int, vector: dict[str, Any], sqs: Sqs) -> DelaySender:
    settings = {SETTINGS[name]: value for name, value in vector.get("settings", {}).items()}
    return DelaySender(sqs.client, clock=ManualClock(now_ms), **settings)


def observed(now_ms: int, vector: dict[str, Any]) -> dict[str, Any]:
    """What Python's sender does with a vector: ``sends``, or the ``error`` it raises."""
    sqs = Sqs(now_ms, vector)
    sender, message = _sender(now_ms, vector, sqs), message_of(vector["message"])
    try:
        result = sender.send(
            vector["endpoint"],
            message.body,
            delay=message.delay,
            due_at=message.due_at,
            attributes=message.attributes,
            message_id=message.message_id,
            message_group_id=message.message_group_id,
            message_deduplication_id=message.message_deduplication_id,
            trace_header=message.trace_header,
        )
    except SqsDelayError as error:
        if sqs.sends or not all(words in str(error) for words in vector["says"]):
            raise AssertionError(f"{vector['name']}: {error}") from error
        return {"error": type(error).__name__}
    (request,) = sqs.sends
    return {"sends": _shown(vector, request, result)}


def _shown(vector: dict[str, Any], request: dict[str, Any], result: SendResult) -> dict[str, Any]:
    """A request without what is made up anew each time, and how that looks."""
    assert result.due is not None
    assert result.route is not None
    shown: dict[str, Any] = {
        "route": result.route.value,
        "queueUrl": request.pop("QueueUrl"),
        "dueMs": due_at_ms(result.due),
    }
    if request["MessageBody"] != vector["message"]["body"]:
        request["MessageBody"] = BODY
    made_up = {
        one
        for one in (result.message_id, request.get("MessageDeduplicationId"))
        if one is not None and due_ms_of_id(one) is not None
    }
    if made_up:
        # The letters of the time are the same in every id of that due time.
        shown["id"] = f"^{new_message_id(shown['dueMs'])[:11]}[0-9a-hjkmnp-tv-z]{{16}}$"
        assert all(re.fullmatch(shown["id"], one) for one in made_up)
    text = json.dumps(shown | {"messageId": result.message_id, "request": request})
    for one in made_up:
        text = text.replace(one, ID)
    deduplication_id = request.get("MessageDeduplicationId", "")
    if MADE_HERE.fullmatch(deduplication_id):
        text = text.replace(deduplication_id, DEDUPLICATION_ID)
    answer: dict[str, Any] = json.loads(text)
    return answer


def observed_batch(now_ms: int, batch: dict[str, Any]) -> dict[str, Any]:
    """The calls and the errors of a `send_many`; the calls in the order of their queues and sizes."""
    sqs = Sqs(now_ms, batch)
    messages = [message_of(m) for m in batch["messages"] for _ in range(m.get("times", 1))]
    results = _sender(now_ms, batch, sqs).send_many(batch["endpoint"], messages)
    return {
        "calls": sorted(sqs.calls, key=lambda call: (call["queueUrl"], call["entries"])),
        "errors": {
            str(n): type(result.error).__name__ for n, result in enumerate(results) if result.error
        },
    }


def contract() -> dict[str, Any]:
    """The file as it should read: its inputs, and what the code makes of them now."""
    told = read()
    now_ms = due_at_ms(parse_due_at(told["now"]))
    told["limits"] = {name: getattr(limits, name) for name in SHARED_LIMITS}
    told["limits"]["ENTRY_ATTEMPTS"] = ENTRY_ATTEMPTS
    for vector in told["vectors"]:
        for answer in ("sends", "error"):
            vector.pop(answer, None)
        vector |= observed(now_ms, vector)
    for batch in told["batches"]:
        batch |= observed_batch(now_ms, batch)
    return told


if __name__ == "__main__":
    FILE.write_text(json.dumps(contract(), indent=1) + "\n")
