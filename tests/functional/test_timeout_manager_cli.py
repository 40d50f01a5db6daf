"""``sqsdelay timeout-manager`` and ``store migrate`` as processes, and their guide, on a local AWS."""

from __future__ import annotations

import json
import re
import signal
import time
import uuid
from pathlib import Path
from typing import Any

import pytest

from sqsdelay.core.limits import MAX_TIMEOUT_ENDPOINT_CHARS
from sqsdelay.dispatching.settlement import retry_seconds
from sqsdelay.testing.local_aws import LocalAws
from sqsdelay.timeouts.manager import TimeoutSettings
from tests.functional.test_store_cli import CommandLine, created
from tests.patience import PATIENCE_SECONDS
from tests.services.endpoints import in_queue
from tests.services.processes import Process

GUIDE = (Path(__file__).parents[2] / "docs/timeout-manager.md").read_text()


@pytest.fixture
def cli(tmp_path: Path, local_aws: LocalAws) -> CommandLine:
    return CommandLine(tmp_path, local_aws.environment())


def lines_until(process: Process, status: str) -> list[Any]:
    """What the command printed, up to a message of this status."""
    assert process.stdout is not None
    lines: list[Any] = []
    while not lines or lines[-1]["status"] != status:
        lines.append(json.loads(process.stdout.readline()))
    return lines


@pytest.mark.parametrize(
    ("store", "steps"),
    [("sqlite", ["stored", "announced", "dispatched"]), ("dynamodb", ["stored", "dispatched"])],
)
def test_the_guides_message_arrives_when_it_is_due(
    cli: CommandLine,
    aws_here: LocalAws,
    store: str,
    steps: list[str],
) -> None:
    """Set up, send as the guide says, and receive it: stored, announced, dispatched, not early."""
    name = f"orders-{uuid.uuid4().hex[:8]}"
    if store == "dynamodb":
        cli.environment["SQSDELAY_STORE"] = f"dynamodb://{name}.parked"
    with cli.started("timeout-manager", name, "--set-up", "--wait", "1", "--json") as process:
        assert process.stderr is not None
        assert (
            f"serving {name}-timeouts and {name}-timeouts-dispatcher" in process.stderr.readline()
        )
        examples = re.findall(r"```python\n(.*?)```", GUIDE, re.DOTALL)
        (sending,) = [example for example in examples if "boto3" in example]
        names: dict[str, Any] = {}
        exec(sending.replace('"orders', f'"{name}').replace(f'"{name}-7"', '"order-7"'), names)
        lines = lines_until(process, "dispatched")
        dispatched_at = time.time()
        told = [(line["message_id"], line["status"]) for line in lines]
        assert told == [("order-7", step) for step in steps]
        assert dispatched_at >= names["sent"].due.timestamp()
        (message,) = in_queue(aws_here.client("sqs"), name, wait=5)
        assert message["Body"] == '{"order": 7}'
        assert message["MessageAttributes"]["sqsdelay.MessageId"]["StringValue"] == "order-7"
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 0, errors
    assert "stopped; " + ", ".join(f"1 {step}" for step in sorted(steps)) in errors


def test_a_lasting_outage_of_the_storage_ends_it(cli: CommandLine, local_aws: LocalAws) -> None:
    """Exit code 75 and which part of the storage failed for how long."""
    name = f"orders-{uuid.uuid4().hex[:8]}"
    cli.ok("store", "create", name)
    serve = ("timeout-manager", name, "--set-up", "--wait", "1", "--outage", "1")
    with cli.started(*serve) as process:
        assert process.stderr is not None
        assert "serving" in process.stderr.readline()
        client = local_aws.client("sqs")
        url = client.get_queue_url(QueueName=f"{name}-timeouts")["QueueUrl"]
        client.send_message(QueueUrl=url, MessageBody="no timeout: it is read, and not stored")
        assert any("rejected: " in line for line in iter(process.stderr.readline, ""))
        (cli.folder / "store.db").write_bytes(b"no database any more" * 100)
        _, errors = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 75, errors
    assert "timeout storage (fetching) circuit breaker: failing for" in errors


def test_what_is_missing_is_one_line(cli: CommandLine) -> None:
    """No queues, and a name without room for the suffix."""
    (cli.folder / "store.db").touch()
    for code, name, told in (
        (1, f"orders-{uuid.uuid4().hex[:8]}", "run sqsdelay store create"),
        (2, "o" * 61, "the limit is 60"),
    ):
        done = cli.run("timeout-manager", name)
        assert done.returncode == code
        assert told in done.stderr
        assert "Traceback" not in done.stderr


def test_migrate_previews_and_then_moves(cli: CommandLine, local_aws: LocalAws) -> None:
    """Nothing without --live; then what is due after the cut-off is in the delay queue."""
    client, name = local_aws.client("sqs"), created(cli, local_aws)
    for message_id, delay in (("soon", "2h"), ("later", "48h")):
        send = f"send {name} --store-only --body x --delay {delay} --message-id {message_id}"
        cli.ok(*send.split())
    preview = cli.ok("store", "migrate", name)
    assert "1 would be migrated" in preview
    assert f"1 to {name}" in preview
    assert "due earlier: 1 would stay" in preview
    migrate = f"store migrate {name} --due-from 2020-01-01T00:00:00Z --json"
    told = json.loads(cli.ok(*migrate.split()))
    assert (told["would_migrate"], told["left"]) == (2, 0)
    moved = cli.ok("store", "migrate", name, "--live", "--json")
    assert [json.loads(line)["status"] for line in moved.splitlines()] == ["migrated"]
    url = client.get_queue_url(QueueName=f"{name}-delay.fifo")["QueueUrl"]
    attributes = client.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"]
    assert attributes["ApproximateNumberOfMessagesDelayed"] == "1"
    assert "0 would be migrated" in cli.ok("store", "migrate", name)


def test_migrate_fails_with_what_stays(cli: CommandLine, local_aws: LocalAws) -> None:
    """A destination without a delay queue: exit code 1, the reason, and the message still there."""
    name = f"orders-{uuid.uuid4().hex[:8]}"
    local_aws.client("sqs").create_queue(QueueName=name)
    cli.ok("store", "create", name)
    cli.ok("send", name, "--store-only", "--body", "x", "--delay", "48h", "--message-id", "m")
    done = cli.run("store", "migrate", name, "--live")
    assert done.returncode == 1
    assert f"m  failed: queue {name}-delay.fifo does not exist" in done.stderr
    assert "1 of 1 pending" in cli.ok("pending", name)


def test_the_guides_numbers_are_the_codes() -> None:
    """Defaults stand once in the code; the guide repeats them."""
    settings = TimeoutSettings()
    assert settings.outage_seconds == 120
    assert "failed for two minutes on end" in GUIDE
    assert f"for {settings.announce_again_seconds:g} s (`--announce-again`)" in " ".join(
        GUIDE.split()
    )
    assert f"endpoint's may have {MAX_TIMEOUT_ENDPOINT_CHARS}" in GUIDE
    assert f"(`--wait`) is {settings.wait_seconds} s;" in GUIDE
    assert f"(default {settings.number_of_retries}, about two minutes in all)" in GUIDE
    assert sum(retry_seconds(n) for n in range(settings.number_of_retries)) == 123
