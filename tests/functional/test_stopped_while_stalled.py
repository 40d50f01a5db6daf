"""SIGTERM to a process whose broker accepts connections and says nothing."""

from __future__ import annotations

import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.functional.test_store_cli import CommandLine
from tests.patience import PATIENCE_SECONDS

STALLED = "stopped while a call is not answered; what is in hand comes back"


@pytest.fixture
def black_hole() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0), backlog=64) as listener:
        yield listener.getsockname()[1]


@pytest.mark.parametrize(
    ("command", "first_word"), [("timeout-manager", "serving"), ("dispatch", "dispatching")]
)
def test_it_ends_before_its_call_does(
    tmp_path: Path, black_hole: int, command: str, first_word: str
) -> None:
    """In 4 s, said in a line; the call itself is given up after 15 s at the earliest."""
    environment = {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{black_hole}",
        "AWS_ACCESS_KEY_ID": "x",
        "AWS_SECRET_ACCESS_KEY": "x",
        "AWS_DEFAULT_REGION": "us-east-1",
        "SQSDELAY_STORE": "sqlite:///store.db",
    }
    cli = CommandLine(tmp_path, environment)
    cli.ok("store", "create", "orders")
    with cli.started(command, "orders") as process:
        assert process.stderr is not None
        assert first_word in process.stderr.readline()
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 0, errors
    assert STALLED in errors
    assert "stopped; nothing" in errors


def test_a_store_that_does_not_answer_keeps_no_worker(tmp_path: Path, black_hole: int) -> None:
    """The worker leaves its connection as it is: the pool would wait for it, after what run waited."""
    with socket.create_server(("127.0.0.1", 0)) as database:
        environment = {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{black_hole}",
            "AWS_ACCESS_KEY_ID": "x",
            "AWS_SECRET_ACCESS_KEY": "x",
            "AWS_DEFAULT_REGION": "us-east-1",
        }
        store = f"postgresql://x:x@127.0.0.1:{database.getsockname()[1]}/x"
        cli = CommandLine(tmp_path, environment)
        database.settimeout(PATIENCE_SECONDS)
        with cli.started("consume", "orders", "--store", store) as process, database.accept()[0]:
            process.send_signal(signal.SIGTERM)
            _, errors = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 0, errors
    assert STALLED in errors
    assert "stopped; nothing" in errors
