"""docs/receiving.md does what it says."""

from __future__ import annotations

import re
import uuid
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sqsdelay.core.message import MESSAGE_ID, string
from sqsdelay.receiving.deduplication import Copy
from sqsdelay.testing.local_aws import LocalAws
from tests.guides.page import runnable
from tests.guides.preconditions import read
from tests.guides.reader import Reader

GUIDE = (Path(__file__).parents[2] / "docs" / "receiving.md").read_text()
LAMBDA, WORKER, EXACTLY_ONCE = re.findall(r"```python\n(.*?)```", GUIDE, re.DOTALL)[:3]


@pytest.fixture
def site(aws_here: LocalAws, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> LocalAws:
    """This process in a folder of its own, pointed at the local AWS."""
    monkeypatch.chdir(tmp_path)
    return aws_here


@pytest.fixture
def context() -> Any:
    """What Lambda gives a handler, as far as Powertools asks."""
    return SimpleNamespace(get_remaining_time_in_millis=lambda: 30_000)


def record(sqs_id: str, body: str, message_id: str | None) -> dict[str, Any]:
    given = {MESSAGE_ID: {"dataType": "String", "stringValue": message_id}} if message_id else {}
    return {
        "messageId": sqs_id,
        "receiptHandle": "r",
        "body": body,
        "attributes": {"ApproximateReceiveCount": "1"},
        "messageAttributes": given,
        "eventSource": "aws:sqs",
        "eventSourceARN": "arn:aws:sqs:us-east-1:123456789012:orders",
        "awsRegion": "us-east-1",
    }


@pytest.fixture
def instances(site: LocalAws) -> tuple[dict[str, Any], dict[str, Any]]:
    """Two instances of the guide's function, on a table of their own."""
    table = f"orders-received-{uuid.uuid4().hex[:8]}"
    site.client("dynamodb").create_table(
        TableName=table,
        AttributeDefinitions=[{"AttributeName": "id", "AttributeType": "S"}],
        KeySchema=[{"AttributeName": "id", "KeyType": "HASH"}],
        BillingMode="PAY_PER_REQUEST",
    )
    one: dict[str, Any] = {"__name__": "guide"}
    other: dict[str, Any] = {"__name__": "guide"}
    for names in (one, other):
        exec(LAMBDA.replace("orders-received", table), names)
    return one, other


Instances = tuple[dict[str, Any], dict[str, Any]]


def test_the_functions_copies(
    instances: Instances, context: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two copies of one hand-over differ in SQS's id only; so do not two direct messages."""
    copies = [record("sqs-1", "seven", "m-7"), record("sqs-2", "seven", "m-7")]
    direct = [record("sqs-3", "eight", None), record("sqs-4", "eight", None)]
    for names in instances:
        answer = names["handler"]({"Records": copies + direct}, context)
        assert answer == {"batchItemFailures": []}
    assert capsys.readouterr().out.splitlines() == ["order seven", "order eight", "order eight"]


def test_the_functions_failures(instances: Instances, context: Any) -> None:
    """One that raises is processed when it comes back; one in progress elsewhere is left."""
    one, other = instances
    seen: list[str] = []

    def handled(names: dict[str, Any], *records: dict[str, Any]) -> list[str]:
        answer = names["handler"]({"Records": list(records)}, context)
        return [failed["itemIdentifier"] for failed in answer["batchItemFailures"]]

    def fail_at_first(_: str, body: str) -> None:
        seen.append(body)
        if seen == ["seven"]:
            copy = record("sqs-2", "seven", "m-7")
            assert handled(other, copy, record("sqs-3", "eight", "m-8")) == ["sqs-2"]
            raise TimeoutError

    one["print"] = other["print"] = fail_at_first
    assert handled(one, record("sqs-1", "seven", "m-7"), record("sqs-4", "nine", "m-9")) == [
        "sqs-1"
    ]
    assert seen == ["seven", "eight", "nine"]
    assert handled(one, record("sqs-1", "seven", "m-7")) == []
    assert seen == ["seven", "eight", "nine", "seven"]


def worker_app(site: LocalAws, code: str) -> dict[str, Any]:
    """The guide's worker, on a queue of its own."""
    queue = f"orders-{uuid.uuid4().hex[:8]}"
    site.client("sqs").create_queue(QueueName=queue)
    names: dict[str, Any] = {}
    exec(code.replace('QueueName="orders"', f'QueueName="{queue}"'), names)
    return names


def send(names: dict[str, Any], body: str, message_id: str) -> None:
    attributes = {MESSAGE_ID: string(message_id)}
    names["sqs"].send_message(QueueUrl=names["url"], MessageBody=body, MessageAttributes=attributes)


def waiting(names: dict[str, Any]) -> set[str]:
    answer = names["sqs"].get_queue_attributes(QueueUrl=names["url"], AttributeNames=["All"])
    return {count for name, count in answer["Attributes"].items() if name.startswith("Approximate")}


def test_the_workers_copies(site: LocalAws, capsys: pytest.CaptureFixture[str]) -> None:
    """Every copy is deleted, each message is processed once; one in progress elsewhere is left."""
    names = worker_app(site, WORKER)
    for body, message_id in (("seven", "m-7"), ("seven", "m-7"), ("eight", "m-8")):
        send(names, body, message_id)
    printed: list[str] = []
    while len(printed) < 2 or waiting(names) != {"0"}:
        names["receive"]()
        printed += capsys.readouterr().out.splitlines()
    assert sorted(printed) == ["order eight", "order seven"]
    begun = names["inbox"].begin("m-9", claim="elsewhere", now_ms=0, until_ms=2**52)
    assert begun is Copy.FIRST
    send(names, "nine", "m-9")
    names["receive"]()
    assert capsys.readouterr().out == ""
    assert waiting(names) == {"0", "1"}
    names["inbox"].close()


def test_exactly_once(site: LocalAws) -> None:
    """The effect and the memory of the message are committed, or undone, together."""
    names = worker_app(site, WORKER)
    names["inbox"].close()
    exec(EXACTLY_ONCE, names)
    message = {"MessageId": "sqs-1", "Body": "seven"}
    unfit = {"MessageId": "sqs-2", "Body": object()}
    names["process_once"](message)
    names["process_once"](message)
    for _ in range(2):
        # Undone, it is new again, and fails again.
        with pytest.raises(names["sqlite3"].Error):
            names["process_once"](unfit)
    assert names["database"].execute("SELECT order_id FROM paid").fetchall() == [("seven",)]
    names["inbox"].close()
    names["database"].close()


def test_large_bodies(reader: Reader, request: pytest.FixtureRequest) -> None:
    """Sent, received and deleted."""
    read(runnable("docs/receiving.md")[3:], reader, request)
