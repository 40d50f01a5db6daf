"""``sqsdelay store`` and ``sqsdelay dispatch``, as processes on a SQLite file and a local AWS."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path
from typing import Any

import pytest

from sqsdelay.endpoint import Endpoint
from sqsdelay.sqs import create_endpoint
from sqsdelay.testing.local_aws import LocalAws
from tests.patience import PATIENCE_SECONDS

COMMAND = Path(sys.executable).parent / "sqsdelay"


class CommandLine:
    """The command, with a store of its own and the local AWS."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        self.folder = folder
        self.environment = environment | {
            "PATH": os.environ["PATH"],
            "SQSDELAY_STORE": f"sqlite:///{folder}/store.db",
            "COLUMNS": "200",
        }

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [COMMAND, *arguments],
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=PATIENCE_SECONDS,
            check=False,
        )

    def ok(self, *arguments: str) -> str:
        done = self.run(*arguments)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [COMMAND, *arguments],
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )


@pytest.fixture
def cli(tmp_path: Path, local_aws: LocalAws) -> CommandLine:
    return CommandLine(tmp_path, local_aws.environment())


def listed(cli: CommandLine, *arguments: str) -> list[Any]:
    output = cli.ok("store", "pending", "orders", "--json", *arguments)
    return [json.loads(line) for line in output.splitlines()]


def test_a_stored_message_is_listed_moved_and_cancelled(cli: CommandLine) -> None:
    """The way of a message that is not wanted after all."""
    cli.ok("store", "create", "orders")
    due = "2035-01-31T09:00:00.000+00:00"
    sent = cli.ok("store", "send", "orders", "--body", "hi", "--due-at", due, "--message-id", "a")
    assert sent == f"a  due {due}\n"
    again = cli.ok("store", "send", "orders", "--body", "hi", "--due-at", due, "--message-id", "a")
    assert again == "a  was stored before\n"
    table = cli.ok("store", "pending", "orders")
    assert "1 of 1 pending" in table
    assert due in table
    moved = cli.ok("store", "reschedule", "orders", "a", "--due-at", "2036-01-31T09:00:00Z")
    assert moved == "a  due 2036-01-31 09:00:00+00:00\n"
    (message,) = listed(cli)
    assert message == {
        "message_id": "a",
        "destination": "orders",
        "due": "2036-01-31T09:00:00.000+00:00",
        "bytes": 2,
        "failures": 0,
    }
    assert cli.ok("store", "cancel", "orders", "a") == "a  cancelled\n"
    late = cli.run("store", "cancel", "orders", "a")
    assert (late.returncode, "released already" in late.stdout) == (1, True)
    late = cli.run("store", "reschedule", "orders", "a", "--delay", "1h")
    assert (late.returncode, "released already" in late.stdout) == (1, True)
    assert listed(cli) == []


def test_a_file_of_messages(cli: CommandLine) -> None:
    """Good lines are stored, bad ones named; the exit code tells."""
    cli.ok("store", "create", "orders")
    lines = [{"body": f"b{n}", "delay": f"{n + 1}h", "message_id": f"m{n}"} for n in range(1100)]
    file = cli.folder / "messages.jsonl"
    bad = '{"body": "x", "delay": "-1h"}\n'
    file.write_text(bad + "".join(json.dumps(line) + "\n" for line in lines))
    done = cli.run("store", "send", "orders", "--file", str(file), "--json")
    assert done.returncode == 1
    assert "line 1:" in done.stderr
    assert "1 not stored" in done.stderr
    assert sum(json.loads(line)["new"] for line in done.stdout.splitlines()) == 1100
    assert [m["message_id"] for m in listed(cli, "--limit", "1050")] == [
        f"m{n}" for n in range(1050)
    ]


def test_errors_are_one_line(cli: CommandLine) -> None:
    """What is wrong, and what to do; no traceback."""
    for arguments, told in (
        (["store", "pending", "orders"], "run sqsdelay store create"),
        (["store", "pending", "orders", "--store", "mysql://x"], "give sqlite:///FILE"),
        (["store", "send", "orders", "--body", "x", "--delay", "1y"], "not understood"),
        (["dispatch", "orders", "--release-ahead", "901"], "timers allow 0 to 900"),
        (["dispatch", "orders-" + uuid.uuid4().hex], "does not exist"),
    ):
        done = cli.run(*arguments)
        assert done.returncode == 1, arguments
        assert told in done.stderr
        assert "Traceback" not in done.stderr
        assert len(done.stderr.strip().splitlines()) <= 2


def received(client: Any, name: str) -> list[Any]:
    url = client.get_queue_url(QueueName=name)["QueueUrl"]
    answer = client.receive_message(
        QueueUrl=url, WaitTimeSeconds=5, MaxNumberOfMessages=10, MessageAttributeNames=["All"]
    )
    return list(answer.get("Messages", []))


def test_dispatch_delivers_when_due(cli: CommandLine, local_aws: LocalAws) -> None:
    """Stored by one process, released by another with a message timer, received, not early."""
    client = local_aws.client("sqs")
    name = f"orders-{uuid.uuid4().hex[:8]}"
    create_endpoint(client, Endpoint.parse(name))
    cli.ok("store", "create", name)
    process = cli.start("dispatch", name, "--json")
    cli.ok("store", "send", name, "--body", "hi", "--delay", "3", "--message-id", "m")
    due = time.time() + 3
    assert process.stdout is not None
    released = json.loads(process.stdout.readline())
    assert (released["message_id"], released["status"], released["late_ms"]) == ("m", "released", 0)
    messages: list[Any] = []
    while not messages and time.time() < due + PATIENCE_SECONDS:
        messages = received(client, name)
    arrived = time.time()
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 0, errors
    assert "stopped; 1 released" in errors
    (message,) = messages
    assert message["Body"] == "hi"
    assert message["MessageAttributes"]["sqsdelay.MessageId"]["StringValue"] == "m"
    # The store's clock is this machine's, as the local AWS's is; a timer's rest is rounded up.
    assert arrived >= due


def test_a_lasting_outage_has_its_own_exit_code(cli: CommandLine, local_aws: LocalAws) -> None:
    """75, so that a supervisor restarts it; the message waits on."""
    client = local_aws.client("sqs")
    name = f"orders-{uuid.uuid4().hex[:8]}"
    create_endpoint(client, Endpoint.parse(name))
    cli.ok("store", "create", name)
    process = cli.start("dispatch", name, "--fetch-breaker", "0.5")
    assert process.stderr is not None
    assert "dispatching" in process.stderr.readline()
    time.sleep(1)
    (cli.folder / "store.db").write_bytes(b"no database any more" * 100)
    _, errors = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 75, errors
    assert "fetch circuit breaker: failing for" in errors
