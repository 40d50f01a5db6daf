"""Real Dramatiq and taskiq workers on a local SQS, and the lines of their guide."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from sqsdelay import DelayConsumer
from sqsdelay.core.message import DELAY_SECONDS, MESSAGE_ID
from sqsdelay.testing import LocalAws
from tests.guides.page import ROOT
from tests.patience import PATIENCE_SECONDS, ended
from tests.services.endpoints import create_endpoint, in_queue
from tests.services.processes import Running, environment, running

GUIDE = (ROOT / "docs" / "celery.md").read_text().partition("\n## Dramatiq and")[2]
LOCK = Path(__file__).parent / "requirements.txt"
HOP, DELAY = 2, 5
MODULES = {
    "dramatiq": "tests.acceptance.task_queues.dramatiq_tasks",
    "taskiq": "tests.acceptance.task_queues.taskiq_tasks",
}
WORKERS = {
    "dramatiq": (MODULES["dramatiq"], "--processes", "1", "--threads", "2"),
    "taskiq": ("worker", f"{MODULES['taskiq']}:broker", "--workers", "1"),
}


@pytest.fixture(scope="module")
def brokers() -> Path:
    """A folder with the brokers, beside this environment's packages."""
    digest = hashlib.sha256(LOCK.read_bytes()).hexdigest()[:16]
    folder = ROOT / "build" / f"task-queues-{digest}"
    if not (folder / "dramatiq_sqs").is_dir():
        options = ("--quiet", "--disable-pip-version-check", "--require-hashes", "--no-deps")
        command = [sys.executable, "-m", "pip", "install", *options, "--target", folder, "-r", LOCK]
        subprocess.run([str(part) for part in command], check=True, timeout=PATIENCE_SECONDS)
    return folder


def blocks(kind: str) -> list[str]:
    """The guide's blocks of Python about one of the two."""
    part = GUIDE.split("\n### ")[1 if kind == "dramatiq" else 2]
    assert part.lower().startswith(kind)
    return re.findall(r"```python\n(.*?)```", part, re.DOTALL)


class Site:
    """The guide's app on queues of its own."""

    def __init__(self, local_aws: LocalAws, kind: str, folder: Path, brokers: Path) -> None:
        self.kind = kind
        self.told = {"dramatiq": "actors", "taskiq": "tasks"}[kind]
        self.sqs = local_aws.client("sqs")
        self.name = f"{kind}-{uuid.uuid4().hex[:8]}"
        self.queue = f"{self.name}_default" if kind == "dramatiq" else self.name
        (folder / "tasks.py").write_text(blocks(kind)[0])
        self.env = local_aws.environment() | {
            "GUIDE_APP": str(folder),
            "NAMESPACE": self.name,
            "QUEUE": self.queue,
            "HOP": str(HOP),
            "PYTHONPATH": os.pathsep.join((str(brokers), str(ROOT))),
        }

    @contextmanager
    def relayed(self) -> Iterator[None]:
        """The endpoint's queues and a delay consumer."""
        create_endpoint(self.sqs, self.queue, hop_seconds=HOP)
        stop = threading.Event()
        consumer = DelayConsumer(self.queue, self.sqs, hop_seconds=HOP, wait_seconds=1)
        relaying = threading.Thread(target=consumer.run, args=(stop,))
        relaying.start()
        try:
            yield
        finally:
            stop.set()
            relaying.join(PATIENCE_SECONDS)

    @contextmanager
    def working(self) -> Iterator[Running]:
        program = [sys.executable, "-m", self.kind, *WORKERS[self.kind]]
        with running(env=self.env, program=program) as worker:
            yield worker
            worker.process.send_signal(signal.SIGTERM)
            worker.end()

    def python(self, code: str) -> str:
        done = ended([sys.executable, "-c", code], env=environment(self.env), cwd=ROOT)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def waiting(self, count: int) -> list[dict[str, Any]]:
        """What becomes visible in the delay queue."""
        found: list[dict[str, Any]] = []
        deadline = time.monotonic() + PATIENCE_SECONDS
        while len(found) < count:
            assert time.monotonic() < deadline, found
            found += in_queue(self.sqs, f"{self.queue}-delay.fifo", wait=2)
        return found


def told(text: str, what: str) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
    return [line for line in lines if what in line]


@pytest.fixture(params=MODULES)
def site(
    request: pytest.FixtureRequest, local_aws: LocalAws, tmp_path: Path, brokers: Path
) -> Site:
    return Site(local_aws, request.param, tmp_path, brokers)


def test_delayed_messages_run_once_and_not_early(site: Site) -> None:
    """Relayed, with a message timer, at once; and a retry whose delay is more than a hop."""
    with site.relayed(), site.working() as worker:
        (sent,) = told(site.python(f"import {MODULES[site.kind]} as t; t.send({DELAY})"), "started")
        deadline = time.monotonic() + PATIENCE_SECONDS
        expected = {"relayed": DELAY, "timer": 0.9, "now": 0, "stubborn-0": 0, "stubborn-1": 3}
        while len(told(worker.text, "ran")) < len(expected):
            assert time.monotonic() < deadline, worker.text
            assert worker.process.poll() is None, worker.text
            time.sleep(0.1)
    ran = told(worker.text, "ran")
    assert Counter(run["ran"] for run in ran) == dict.fromkeys(expected, 1)
    for run in ran:
        assert run["at"] - sent["started"] >= expected[run["ran"]], run


def test_the_guides_lines(site: Site) -> None:
    """Its calls put messages of days and years into the delay queue, under their ids."""
    app, sending = blocks(site.kind)
    names = {
        "dramatiq": ("shop_default", 'namespace="shop"'),
        "taskiq": ("shop", 'SQSBroker("shop"'),
    }
    endpoint, named = names[site.kind]
    assert f"sqsdelay endpoint create {endpoint} " in GUIDE
    assert named in app
    own = {"dramatiq": f'namespace="{site.name}"', "taskiq": f'SQSBroker("{site.queue}"'}[site.kind]
    (Path(site.env["GUIDE_APP"]) / "tasks.py").write_text(
        app.replace(named, own).replace(f'"{site.queue}")', f'"{site.queue}", endpoint_url=AWS)')
        .replace("broker =", "import os; AWS = os.environ['AWS_ENDPOINT_URL']\nbroker =")
    )  # fmt: skip
    create_endpoint(site.sqs, site.queue, hop_seconds=1)
    site.python(f"import sys; sys.path.insert(0, {site.env['GUIDE_APP']!r})\n{sending}")
    waiting = site.waiting(sending.count("order-"))
    delays = {message["MessageAttributes"][DELAY_SECONDS]["StringValue"] for message in waiting}
    week, year = str(7 * 86_400), str(365 * 86_400)
    assert delays == ({week, year} if site.kind == "dramatiq" else {week})
    assert all(message["MessageAttributes"][MESSAGE_ID]["StringValue"] for message in waiting)


def test_another_broker_is_refused(site: Site) -> None:
    """With what to give instead; settings are checked, too."""
    other = {
        "dramatiq": "from dramatiq.brokers.stub import StubBroker as Other",
        "taskiq": "from taskiq import InMemoryBroker as Other",
    }
    code = f"""
{other[site.kind]}
from sqsdelay.errors import ConfigurationError
from sqsdelay.{site.kind} import unrestricted_{site.told} as unrestricted
try:
    unrestricted(Other())
except ConfigurationError as error:
    print(error)
"""
    assert "is not a broker on SQS; give a " in site.python(code)


def test_a_dramatiq_retry_that_cannot_be_delayed_is_not_lost(
    local_aws: LocalAws, tmp_path: Path, brokers: Path
) -> None:
    """Without a delay queue it is sent with its eta, by which a worker holds it; a first send fails."""
    site = Site(local_aws, "dramatiq", tmp_path, brokers)
    code = f"""
from {MODULES["dramatiq"]} import note
from sqsdelay.errors import DelayQueueMissing
message = note.message("again")
try:
    note.broker.enqueue(message, delay=3000)
except DelayQueueMissing:
    note.broker.enqueue(message.copy(options={{"retries": 1}}), delay=3000)
    print("sent")
"""
    sent_ms = time.time() * 1000
    assert site.python(code) == "sent\n"
    (message,) = in_queue(site.sqs, site.queue, wait=20)
    options = json.loads(base64.b64decode(message["Body"]))["options"]
    assert options["retries"] == 1
    assert options["eta"] >= sent_ms + 3000
