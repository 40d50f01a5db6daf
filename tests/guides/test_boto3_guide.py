"""docs/boto3.md does what it says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import boto3
import pytest
from moto import mock_aws

from sqsdelay import unrestricted
from sqsdelay.core.endpoint import Endpoint
from sqsdelay.limits import MAX_ATTRIBUTES
from sqsdelay.sqs import create_endpoint

GUIDE = (Path(__file__).parents[2] / "docs" / "boto3.md").read_text()


def test_the_guides_python_runs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Client, resource, error and store, one after the other, with the outcomes in the comments."""
    monkeypatch.chdir(tmp_path)
    first, resource, failing, parking = re.findall(r"```python\n(.*?)```", GUIDE, re.DOTALL)
    names: dict[str, Any] = {}
    with mock_aws():
        create_endpoint(boto3.client("sqs"), Endpoint.parse("orders"))
        for block in (first, resource, failing):
            exec(block, names)
        printed = capsys.readouterr().out
        assert "queue other-delay.fifo does not exist" in printed
        assert "sqsdelay endpoint create other" in printed
        assert "DelayQueueMissing(" in printed
        exec(parking.replace("  # Change.DONE", " == 'done' or 1 / 0"), names)
        names["store"].close()


def test_the_guides_limits_are_the_codes() -> None:
    """So many attributes are the user's, and not one more."""
    told = re.search(r"leaves you (\d+) of SQS's (\d+) .*?: (\d+) with .*?, (\d+) to a", GUIDE)
    assert told is not None
    plain, most, grouped, fifo = map(int, told.groups())
    assert most == MAX_ATTRIBUTES
    with mock_aws():
        sqs: Any = unrestricted(boto3.client("sqs"))
        for name in ("orders", "payments.fifo"):
            create_endpoint(sqs, Endpoint.parse(name))
        for queue, count, group in (
            ("orders", plain, {}),
            ("orders", grouped, {"MessageGroupId": "g"}),
            ("payments.fifo", fifo, {"MessageGroupId": "g"}),
        ):
            given = {
                "QueueUrl": sqs.get_queue_url(QueueName=queue)["QueueUrl"],
                "MessageBody": "x",
                "DelaySeconds": 86_400,
                **group,
            }
            many = {f"a{n}": {"DataType": "String", "StringValue": "x"} for n in range(count + 1)}
            with pytest.raises(sqs.exceptions.ClientError, match="message attributes"):
                sqs.send_message(**given, MessageAttributes=many)
            del many["a0"]
            sqs.send_message(**given, MessageAttributes=many)
