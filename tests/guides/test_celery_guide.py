"""docs/celery.md does what it says; tests/acceptance/test_celery.py lets its tasks run."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from kombu.transport.SQS import Channel
from typer.testing import CliRunner

from sqsdelay.cli import app as cli
from sqsdelay.cli.waiting import EXIT_REQUESTED
from sqsdelay.testing.local_aws import LocalAws
from tests.patience import PATIENCE_SECONDS
from tests.services.processes import environment

PROGRAMS = Path(sys.executable).parent
GUIDE = (
    (Path(__file__).parents[2] / "docs" / "celery.md").read_text().partition("\n## Dramatiq and")[0]
)


def guide_blocks(language: str) -> list[str]:
    """The guide's code blocks in one language."""
    return re.findall(rf"```{language}\n(.*?)```", GUIDE, re.DOTALL)


class Shell:
    """Runs the guide's lines in a folder of their own, on a local AWS."""

    def __init__(self, folder: Path, local_aws: LocalAws) -> None:
        self.folder = folder
        self.environment = environment(local_aws.environment())
        self.started: list[tuple[str, subprocess.Popen[bytes]]] = []

    def start(self, line: str) -> subprocess.Popen[bytes]:
        program, *arguments = shlex.split(line, comments=True)
        process = subprocess.Popen(
            [PROGRAMS / program, *arguments],
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
        )
        self.started.append((program, process))
        return process

    def run(self, line: str) -> int:
        """In this process, which is faster."""
        program, *arguments = shlex.split(line, comments=True)
        assert program == "sqsdelay"
        return CliRunner().invoke(cli, arguments).exit_code

    def end(self) -> None:
        for program, process in self.started:
            # A consumer would first end its long poll; a Celery worker has children to end.
            end = process.kill if program == "sqsdelay" else process.terminate
            end()
        for _, process in self.started:
            process.wait(PATIENCE_SECONDS)


@pytest.fixture
def shell(tmp_path: Path, aws_here: LocalAws, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shell]:
    monkeypatch.chdir(tmp_path)
    shell = Shell(tmp_path, aws_here)
    yield shell
    shell.end()


def test_its_commands_and_calls(shell: Shell, local_aws: LocalAws) -> None:
    """Line by line: Celery's own queue, the queues beside it, two tasks in the delay queue."""
    app, sending = guide_blocks("python")
    (shell.folder / "tasks.py").write_text(app)
    (shell.folder / "send.py").write_text(sending)
    (install, worker, create, consume), (store, consume_parking, cancel) = (
        block.splitlines() for block in guide_blocks("console")
    )
    assert install == "pip install 'sqsdelay[celery]'"
    shell.start(worker)
    sqs = local_aws.client("sqs")
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not sqs.list_queues(QueueNamePrefix="celery").get("QueueUrls"):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert shell.run(create) == 0
    assert shell.run(store) == 0
    consumers = [shell.start(consume), shell.start(consume_parking)]
    assert shell.start("python send.py").wait(PATIENCE_SECONDS) == 0
    attributes = [
        sqs.get_queue_attributes(
            QueueUrl=sqs.get_queue_url(QueueName=name)["QueueUrl"], AttributeNames=["All"]
        )["Attributes"]
        for name in ("celery", "celery-delay.fifo")
    ]
    assert attributes[0]["VisibilityTimeout"] == str(Channel.default_visibility_timeout)
    assert attributes[1]["ApproximateNumberOfMessagesDelayed"] == "2"
    assert shell.run(cancel) == EXIT_REQUESTED
    assert [consumer.poll() for consumer in consumers] == [None, None]
