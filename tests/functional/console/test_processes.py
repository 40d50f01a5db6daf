"""``sqsdelay console`` and ``sqsdelay demo --console`` as processes: they say where, serve, and end."""

from __future__ import annotations

import json
import re
import signal
import socket
from functools import partial
from pathlib import Path

import httpx
import pytest

from sqsdelay.testing.local_aws import LocalAws
from tests.functional.console.conftest import Running
from tests.functional.console.page import Page
from tests.patience import PATIENCE_SECONDS, wait_for
from tests.services.processes import Process, run, started


def ended(process: Process) -> tuple[int, str]:
    """Stopped by SIGTERM: its exit code, and what it said on stderr."""
    process.send_signal(signal.SIGTERM)
    _, told = process.communicate(timeout=PATIENCE_SECONDS)
    return process.wait(PATIENCE_SECONDS), told


def test_the_command_serves_until_it_is_stopped(aws_here: LocalAws, running: Running) -> None:
    """Its address is a line of JSON; a change is a line of its log; SIGTERM ends it well."""
    running.park("a")
    options = ["--endpoint", running.endpoint, "--store", running.url, "--port", "0", "--json"]
    with started("console", *options, env=aws_here.environment()) as process:
        assert process.stdout is not None
        url = json.loads(process.stdout.readline())["url"]
        assert url.startswith("http://127.0.0.1:")
        with httpx.Client(base_url=url, timeout=PATIENCE_SECONDS) as client:
            listed = Page(client, client.get("/messages"))
            asked = listed.press("Cancel…", m=listed.marks("a"))
            assert "1 done" in asked.press("Cancel 1 message").text
        code, told = ended(process)
    assert code == 0
    assert f"cancel {running.endpoint} by local: a: done, cancelled" in told


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--host", "0.0.0.0"], "would be open to the network"),
        (["--store", "nope=sqlite:///x.db"], "'nope' is not an endpoint"),
        (["--port", "{taken}"], "is in use; give another with --port"),
    ],
)
def test_what_cannot_start_says_why(options: list[str], words: str) -> None:
    """In one line, its log included, before anything is asked for; and its process ends."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        given = [each.format(taken=other.getsockname()[1]) for each in options]
        done = run("console", "--endpoint", "orders", *given, env={})
    assert done.returncode in (1, 2)
    assert words in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_the_demo_in_the_console(tmp_path: Path) -> None:
    """Its messages' hops are on the page while it runs; it stays until it is stopped."""
    file = tmp_path / "messages.jsonl"
    file.write_text('{"body": "x", "delay": 4, "message_id": "seen"}\n')
    command = ["demo", "--console", "--hop", "1", "--file", str(file), "--json"]
    with started(*command, env={}) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        lines = iter(process.stderr.readline, "")
        told = (re.search(r"watch it at (\S+)", line) for line in lines)
        url = next(found[1] for found in told if found)
        summary = json.loads(process.stdout.readline())
        assert summary["delivered"] == 1
        watching = partial(httpx.get, url, timeout=PATIENCE_SECONDS)
        wait_for(lambda: "received" in watching().text)
        page = watching().text
        assert "handed-over" in page
        assert ">hop<" in page
        code, _ = ended(process)
    assert code == 0
    with pytest.raises(httpx.ConnectError):
        httpx.get(url, timeout=5)
