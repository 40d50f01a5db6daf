"""A port that another program binds between the choice and the start costs a try, not the start."""

from __future__ import annotations

import signal
import socket
import time
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path

import psutil
import psycopg
import pytest

from sqsdelay.testing import local_aws
from sqsdelay.testing.local_aws import LocalAws, LocalAwsError, free_port
from tests.services import postgres, rabbitmq
from tests.services.postgres import postgres_server
from tests.services.processes import running
from tests.services.rabbitmq import RabbitNode


@pytest.fixture
def taken() -> Iterator[int]:
    """A port where another program listens."""
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        yield int(other.getsockname()[1])


def offered(*first: int) -> Callable[[], int]:
    """These ports first, then free ones; none twice."""
    given = set[int]()
    ports = chain(first, iter(free_port, None))

    def port() -> int:
        given.add(new := next(each for each in ports if each not in given))
        return new

    return port


def test_the_local_aws(taken: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """It answers on the next port, and another program's answer is never taken for its own."""
    monkeypatch.setattr(local_aws, "free_port", offered(taken))
    with LocalAws() as aws:
        assert aws.port != taken
        assert aws.client("sqs").list_queues()["ResponseMetadata"]["HTTPStatusCode"] == 200


def test_a_start_that_sigterm_ends_leaves_nothing_behind() -> None:
    """Whoever gave up on it finds its port free again."""
    with running("local", "--port", "0", env={}) as served:
        started: list[psutil.Process] = []
        while not started:
            assert served.process.poll() is None, served.text
            children = psutil.Process(served.process.pid).children()
            started = [each for each in children if "ministack" in each.cmdline()]
        time.sleep(0.05)  # Popen has returned by then.
        served.process.send_signal(signal.SIGTERM)
        assert served.end() != 0
    assert [each for each in started if each.is_running()] == []


def test_a_start_that_would_fail_again_is_not_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error tells what the program said."""
    tried: list[int] = []

    def counted() -> int:
        tried.append(free_port())
        return tried[-1]

    monkeypatch.setattr(local_aws, "free_port", counted)
    with pytest.raises(LocalAwsError, match=r"its last output:\n(.|\n)*Traceback"):
        LocalAws({"BIND_HOST": "no-such-host.invalid"}).start()
    assert len(tried) == 1


def test_postgresql(taken: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """It starts on the next port, and keeps that one."""
    monkeypatch.setattr(postgres, "free_port", offered(taken))
    with postgres_server() as server:
        assert server.port not in (None, taken)
        before = server.conninfo
        server.stop()
        server.start()
        assert server.conninfo == before
        psycopg.connect(server.conninfo).close()


@pytest.mark.nightly
def test_rabbitmq(taken: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its last port is taken: it starts on others, all of them."""
    first = [free_port() for _ in range(3)]
    monkeypatch.setattr(rabbitmq, "free_port", offered(*first, taken))
    node = RabbitNode(tmp_path)
    try:
        node.start()
        assert not {node.port, node.management_port, node.epmd_port} & {taken, *first}
    finally:
        node.stop()
