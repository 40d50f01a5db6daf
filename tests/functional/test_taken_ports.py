"""A port that another program binds between the choice and the start costs a try, not the start."""

from __future__ import annotations

import signal
import socket
import time
from itertools import chain

import psutil
import pytest

from sqsdelay.testing import local_aws
from sqsdelay.testing.local_aws import LocalAws, LocalAwsError, free_port
from tests.services.processes import running


def test_the_local_aws(monkeypatch: pytest.MonkeyPatch) -> None:
    """It answers on the next port, and another program's answer is never taken for its own."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = int(other.getsockname()[1])
        ports = chain([taken], iter(free_port, taken))
        monkeypatch.setattr(local_aws, "free_port", lambda: next(ports))
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
