"""The quick start, pasted: what README and the site show is what `sqsdelay local` prints, and it works."""

from __future__ import annotations

import os
import re
import signal
import sys
from pathlib import Path

from tests.patience import ended
from tests.services.processes import ROOT, running

PRINTED_PORT = re.compile(r"127\.0\.0\.1:\d+")
COMMAND = Path(sys.executable).parent / "sqsdelay"


def pasted(page: str) -> list[str]:
    """The lines to paste into another terminal."""
    text = (ROOT / page).read_text()
    (block,) = re.findall(r"```console\n(export AWS_ENDPOINT_URL.*?)```", text, re.DOTALL)
    return str(block).splitlines()


def test_the_pasted_lines_show_an_arrival() -> None:
    """From the first send to its arrival in one go: with a short hop, that is seconds."""
    with running("local", "--port", "0", env={}, program=[str(COMMAND)]) as served:
        served.wait_for("Stop with Ctrl-C")
        shown = [line.strip() for line in served.text.splitlines() if line.startswith("  ")]
        assert [each.replace(".venv/bin/", "") for each in pasted("README.md")] == [
            PRINTED_PORT.sub("127.0.0.1:4566", each).replace(f"{COMMAND.parent}/", "")
            for each in shown
        ]
        done = ended(
            ["bash", "-euc", "\n".join(shown)],
            cwd=ROOT,
            env={**os.environ, "PATH": f"{COMMAND.parent}:{os.environ['PATH']}"},
        )
        assert done.returncode == 0, done.stderr
        sent, arrived = done.stdout.splitlines()[0], done.stdout.splitlines()[-1]
        assert "delay-queue" in sent
        assert arrived.endswith("hello from the future")
        served.process.send_signal(signal.SIGTERM)
        assert served.end() == 0
    assert "1 handed-over" in served.text


def test_a_port_that_is_taken_is_told() -> None:
    """Another local AWS may be running."""
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        done = ended([COMMAND, "local", "--port", port])
    assert done.returncode == 1
    assert f"port {port} is in use" in done.stderr


def test_no_bare_command_before_its_path_is_told() -> None:
    """Who types the first line of a page must find the program."""
    blocks = re.findall(r"```console\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    lines = [line for block in blocks for line in block.splitlines()]
    bare = next(n for n, line in enumerate(lines) if line.startswith("sqsdelay "))
    assert any(line.startswith("export PATH=$PWD/.venv/bin") for line in lines[:bare])
