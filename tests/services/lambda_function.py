"""The deployed function as Lambda runs it: a process of its own, fed by an event source on the queue."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from botocore.exceptions import BotoCoreError, ClientError

from tests.services.processes import ROOT, environment

if TYPE_CHECKING:
    from mypy_boto3_sqs import SQSClient


@dataclass
class Context:
    """What Lambda tells an invocation: how much time is left."""

    remaining_ms: float = 60_000
    function_name: str = "function"

    def get_remaining_time_in_millis(self) -> float:
        return self.remaining_ms


class LambdaFunction:
    """The delay consumer's handler in a process of its own; a context manager.

    Args:
        env: the function's environment variables.
    """

    def __init__(self, env: Mapping[str, str]) -> None:
        named = {"AWS_LAMBDA_FUNCTION_NAME": "delay-consumer", "POWERTOOLS_LOG_LEVEL": "CRITICAL"}
        self._environment = environment({**named, **env})
        self._lock = threading.Lock()

    def invoke(self, event: Mapping[str, Any]) -> dict[str, Any] | None:
        """The handler's answer; None if it raised."""
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        with self._lock:
            stdin.write(json.dumps(event) + "\n")
            stdin.flush()
            answer = json.loads(stdout.readline())
        assert answer is None or isinstance(answer, dict)
        return answer

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__],
            env=self._environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            cwd=ROOT,
        )
        return self

    def __exit__(self, *_: object) -> None:
        with self._process:
            self._process.kill()


class EventSource:
    """Polls a queue and invokes the function, as Lambda's event source mapping does.

    What the answer does not report as failed is deleted; the rest, and a whole batch whose
    invocation raised, comes back after the visibility timeout.
    """

    def __init__(self, client: SQSClient, queue_url: str, function: LambdaFunction) -> None:
        self._client = client
        self._queue_url = queue_url
        self._function = function

    def run(self, stop: threading.Event) -> None:
        """Poll until told to stop."""
        while not stop.is_set():
            try:
                self._poll()
            except (ClientError, BotoCoreError):
                stop.wait(0.2)

    def _poll(self) -> None:
        received = self._client.receive_message(
            QueueUrl=self._queue_url,
            MaxNumberOfMessages=10,
            WaitTimeSeconds=1,
            AttributeNames=["All"],
            MessageAttributeNames=["All"],
        ).get("Messages", [])
        if not received:
            return
        answer = self._function.invoke({"Records": [record(message) for message in received]})
        if answer is None:
            return
        failed = {failure["itemIdentifier"] for failure in answer["batchItemFailures"]}
        done = [message for message in received if message["MessageId"] not in failed]
        if done:
            self._client.delete_message_batch(
                QueueUrl=self._queue_url,
                Entries=[
                    {"Id": str(number), "ReceiptHandle": message["ReceiptHandle"]}
                    for number, message in enumerate(done)
                ],
            )


def record(message: Mapping[str, Any]) -> dict[str, Any]:
    """A received message in an event's spelling."""
    return {
        "messageId": message["MessageId"],
        "receiptHandle": message["ReceiptHandle"],
        "body": message["Body"],
        "attributes": message["Attributes"],
        "messageAttributes": {
            name: _attribute(value) for name, value in message.get("MessageAttributes", {}).items()
        },
        "eventSource": "aws:sqs",
    }


def _attribute(value: Mapping[str, Any]) -> dict[str, Any]:
    shaped: dict[str, Any] = {"dataType": value["DataType"]}
    if "BinaryValue" in value:
        shaped["binaryValue"] = base64.b64encode(value["BinaryValue"]).decode()
    else:
        shaped["stringValue"] = value["StringValue"]
    return shaped


def main() -> None:
    """Invoke the handler with each line of stdin; a line on stdout for each answer."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # the function's metrics go to its log
    from lambdas.delay_consumer.handler import handler

    for line in sys.stdin:
        try:
            answer = handler(json.loads(line), Context(30_000))
        except Exception as error:
            sys.stderr.write(f"{error!r}\n")
            answer = None
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
