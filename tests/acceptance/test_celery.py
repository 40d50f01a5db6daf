"""Real Celery workers on a local SQS: tasks due after the visibility timeout, with sqsdelay and without.

The tests' own Celery is the newest; the last of each older series runs the same tasks beside it.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from sqsdelay.core.endpoint import Endpoint
from sqsdelay.testing.local_aws import LocalAws
from tests.guides.test_celery_guide import guide_blocks
from tests.patience import PATIENCE_SECONDS, wait_for
from tests.services import packages
from tests.services.endpoints import create_endpoint
from tests.services.processes import CELERY, ROOT, Running, run, running

HOP, VISIBILITY, COUNTDOWN = 2, 3, 8
# kombu 5.5 does nothing while it waits for an answer of SQS. Before it deletes a message, seconds may
# have passed, and without sqsdelay, too, tasks run again where the visibility timeout is that short.
LONG_VISIBILITY, SHORT_COUNTDOWN = 60, 4
TASKS = "tests.acceptance.celery_tasks"
WORKER = ("-A", TASKS, "worker", "--concurrency", "2", "--loglevel", "WARNING")


@dataclass(frozen=True, kw_only=True)
class Site:
    """One app on one queue: its worker, and what was sent to it."""

    queue: str
    worker: Running
    sending: Running

    def told(self, process: Running, what: str) -> list[dict[str, Any]]:
        lines = [json.loads(line) for line in process.lines if line.startswith("{")]
        return [line for line in lines if what in line]

    def ran(self) -> list[dict[str, Any]]:
        return self.told(self.worker, "ran")

    def held(self) -> list[list[str]]:
        """What the worker kept in its memory for later, a list for each look."""
        return [line["held"] for line in self.told(self.worker, "held")]


def environment(
    local_aws: LocalAws, folder: Path, *, queue: str, visibility: int = VISIBILITY
) -> dict[str, str]:
    (folder / "results").mkdir(parents=True)
    (folder / "tasks.py").write_text(guide_blocks("python")[0])
    return local_aws.environment() | {
        "GUIDE_APP": str(folder),
        "QUEUE": f"{queue}-{uuid.uuid4().hex[:8]}",
        "RESULTS": str(folder / "results"),
        "VISIBILITY": str(visibility),
        "HOP": str(HOP),
        "PLAIN": "1" if queue == "plain" else "",
    }


def start_consumer(stack: ExitStack, env: dict[str, str]) -> None:
    consume = ("consume", env["QUEUE"], "--hop", str(HOP), "--wait", "1")
    stack.enter_context(running(*consume, env=env)).wait_for("consuming")


def send(stack: ExitStack, worker: Running, env: dict[str, str], countdown: float) -> Site:
    """The tasks are on their way."""
    code = f"import {TASKS} as t; t.send({countdown}, workflows={not env['PLAIN']})"
    sending = stack.enter_context(running(env=env, program=[sys.executable, "-c", code]))
    return Site(queue=env["QUEUE"], worker=worker, sending=sending)


@pytest.fixture(scope="module")
def sites(
    local_aws: LocalAws, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Site, Site]]:
    """The guide's app with sqsdelay, and the same without, side by side; the tasks are on their way."""
    with ExitStack() as stack:
        envs = [
            environment(local_aws, tmp_path_factory.mktemp(queue) / "app", queue=queue)
            for queue in ("ours", "plain")
        ]
        workers = [stack.enter_context(running(*WORKER, env=env, program=CELERY)) for env in envs]
        for worker in workers:
            worker.wait_for('"held"')
        # The guide's order: the worker has made its queue, with its visibility timeout.
        name = envs[0]["QUEUE"]
        created = run("endpoint", "create", name, "--hop", str(HOP), env=envs[0])
        assert f"exists   {name}" in created.stdout, created.stdout + created.stderr
        start_consumer(stack, envs[0])
        ours, plain = (
            send(stack, worker, env, COUNTDOWN) for env, worker in zip(envs, workers, strict=True)
        )
        yield ours, plain


@pytest.fixture
def older(local_aws: LocalAws, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Site]:
    """The guide's app with sqsdelay on an older Celery; the tasks are on their way."""
    celery = packages.older_celery(request.param)
    env = environment(local_aws, tmp_path / "app", queue="older", visibility=LONG_VISIBILITY)
    endpoint = Endpoint.parse(env["QUEUE"])
    create_endpoint(local_aws.client("sqs"), endpoint, hop_seconds=HOP)
    with ExitStack() as stack:
        start_consumer(stack, env)
        env["PYTHONPATH"] = f"{celery}{os.pathsep}{ROOT}"
        worker = stack.enter_context(running(*WORKER, env=env, program=CELERY))
        worker.wait_for(f"v{request.param}")
        yield send(stack, worker, env, SHORT_COUNTDOWN)


def drained(local_aws: LocalAws, queue: str) -> bool:
    """Whether nothing waits in the queue or its delay queue, or is in flight."""
    client = local_aws.client("sqs")
    urls = [client.get_queue_url(QueueName=n)["QueueUrl"] for n in (queue, f"{queue}-delay.fifo")]

    def empty() -> bool:
        counts: list[str] = []
        for url in urls:
            answer = client.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])
            counts += [n for k, n in answer["Attributes"].items() if k.startswith("Approximate")]
        return set(counts) == {"0"}

    return wait_for(empty)


def ran_once_and_not_early(local_aws: LocalAws, ours: Site, countdown: float) -> None:
    assert ours.sending.end() == 0, ours.sending.text
    (sent,) = ours.told(ours.sending, "due")
    (answer,) = ours.told(ours.sending, "results")
    names = [f"countdown-{n}" for n in range(3)]
    assert answer["results"] == [*names, "eta", "stubborn", "second", "a+b!"]
    assert drained(local_aws, ours.queue), ours.worker.text
    ran = {run["ran"]: run["at"] for run in ours.ran()}
    retries = [f"stubborn-{n}" for n in range(3)]
    expected = [*names, "eta", *retries, "first", "second", "a", "b", "a+b!"]
    assert Counter(run["ran"] for run in ours.ran()) == Counter(expected)
    for name in [*names, "eta"]:
        assert ran[name] >= sent["due"], name
    for earlier, later in (*pairwise(retries), ("first", "second")):
        assert ran[later] - ran[earlier] >= countdown / 2, later
    assert len(ours.held()) > 5
    assert not any(ours.held())


def test_delayed_tasks_run_once_and_not_early(
    local_aws: LocalAws, sites: tuple[Site, Site]
) -> None:
    """Countdown, eta, retries, a chain and a chord: all run once, none early, none kept in memory."""
    ours, _ = sites
    ran_once_and_not_early(local_aws, ours, COUNTDOWN)
    ours.worker.process.send_signal(signal.SIGTERM)
    assert ours.worker.end() == 0, ours.worker.text


def test_the_task_still_knows_its_eta(sites: tuple[Site, Site]) -> None:
    """`request.eta` and the task's id are what the sender gave, as without sqsdelay."""
    ours, plain = sites
    for site in (ours, plain):
        site.sending.end()
        (sent,) = site.told(site.sending, "due")
        notes = {run["id"]: run["eta"] for run in site.ran() if "id" in run}
        assert set(sent["ids"]) <= set(notes)
        assert all(notes[task_id] is not None for task_id in sent["ids"])


def test_plain_celery_holds_them_and_runs_them_again(sites: tuple[Site, Site]) -> None:
    """The same tasks without sqsdelay: kept in memory, delivered again, run more than once."""
    _, plain = sites
    assert plain.sending.end() == 0, plain.sending.text
    runs: Counter[str] = Counter()
    deadline = time.monotonic() + PATIENCE_SECONDS
    while len(runs) < 4 or min(runs.values()) < 2:
        assert time.monotonic() < deadline, plain.worker.text
        runs = Counter(run["ran"] for run in plain.ran())
        time.sleep(0.2)
    held = [ids for ids in plain.held() if ids]
    assert any(len(ids) > len(set(ids)) for ids in held), "several copies of one task, all waiting"


@pytest.mark.parametrize(
    "older", ["5.5.3", pytest.param("5.6.3", marks=pytest.mark.nightly)], indirect=True
)
def test_older_celerys(local_aws: LocalAws, older: Site) -> None:
    """The same tasks on the last Celery of each older series."""
    ran_once_and_not_early(local_aws, older, SHORT_COUNTDOWN)
