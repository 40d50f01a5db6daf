"""``make deploy-local``: what it prints works, in another process."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from infra.local import ENDPOINT, HOP_SECONDS, ROOT
from tests.patience import PATIENCE_SECONDS, ended


@pytest.fixture
def printed() -> Iterator[str]:
    """What it prints until it is up; it is interrupted at the end, as a person would."""
    process = subprocess.Popen(
        [sys.executable, "-m", "infra.local"], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    lines: list[str] = []
    for line in process.stdout:
        lines.append(line)
        if line.startswith("Ctrl-C"):
            break
    yield "".join(lines)
    process.send_signal(signal.SIGINT)
    process.stdout.close()
    assert process.wait(PATIENCE_SECONDS) == 0


def test_printed_commands_work(printed: str) -> None:
    """A person can copy them: the endpoint is fit, and a message of four hops is sent and arrives."""
    exported = dict(re.findall(r"^  export (\w+)=(.*)$", printed, re.MULTILINE))
    send, receive, check = re.findall(r"^  (\.venv/bin/sqsdelay .*)$", printed, re.MULTILINE)

    def run(command: str, *more: str) -> str:
        program, *arguments = shlex.split(command)
        done = ended(
            [str(Path(sys.executable).with_name("sqsdelay")), *arguments, *more],
            cwd=ROOT,
            env={k: v for k, v in os.environ.items() if not k.startswith("AWS_")} | exported,
        )
        assert program == ".venv/bin/sqsdelay"
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert f"{ENDPOINT} is ready for unrestricted delays" in run(check)
    assert f"--hop {HOP_SECONDS}" in send
    run(send)
    assert "hello" in run(receive, "--count", "1", "--idle", str(PATIENCE_SECONDS))
