"""Parking as people run it: consumer and dispatcher processes, SQLite or DynamoDB, a local AWS."""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import Any

import pytest

from sqsdelay.testing.local_aws import LocalAws
from tests.patience import PATIENCE_SECONDS
from tests.services.processes import Running, run, running

HOP = "1"


class Site:
    """An endpoint and its store, and commands on them."""

    def __init__(self, aws: LocalAws, endpoint: str, store: str) -> None:
        self.endpoint = endpoint
        self.env = aws.environment() | {"SQSDELAY_STORE": store}
        self.ok("endpoint", "create", endpoint, "--hop", HOP)
        self.ok("store", "create", endpoint)

    def ok(self, *arguments: str) -> str:
        done = run(*arguments, env=self.env)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def send(self, message_id: str, delay: str, *more: str) -> None:
        name = ("--message-id", message_id, "--body", f"body of {message_id}")
        self.ok("send", self.endpoint, *name, "--delay", delay, "--hop", HOP, *more)

    def consuming(self, park_after: int) -> Any:
        hops = ("--hop", HOP, "--wait", "1", "--park-after", str(park_after), "--json")
        return running("consume", self.endpoint, *hops, env=self.env)

    def received(self, count: int, idle: int = PATIENCE_SECONDS) -> list[Any]:
        options = ("--count", str(count), "--idle", str(idle), "--delete", "--json")
        return [json.loads(x) for x in self.ok("receive", self.endpoint, *options).splitlines()]


@pytest.fixture
def site(tmp_path: Path, local_aws: LocalAws) -> Site:
    return Site(local_aws, f"orders-{uuid.uuid4().hex[:8]}", f"sqlite:///{tmp_path}/store.db")


@pytest.fixture
def fifo_site(local_aws: LocalAws) -> Site:
    """A FIFO endpoint with a DynamoDB table."""
    name = f"orders-{uuid.uuid4().hex[:8]}"
    return Site(local_aws, f"{name}.fifo", f"dynamodb://{name}.parked")


def statuses(worker: Running) -> list[str]:
    return [json.loads(line)["status"] for line in worker.lines if line.startswith("{")]


def test_sent_parked_dispatched_received(site: Site) -> None:
    """Through one hop, the store and a message timer: not early, with its id and body."""
    with site.consuming(3) as worker, running("dispatch", site.endpoint, env=site.env):
        worker.wait_for("consuming")
        site.send("m-1", "7s")
        worker.wait_for('"parked"')
        (message,) = site.received(1)
    assert statuses(worker) == ["parked"]
    assert (message["message_id"], message["body"]) == ("m-1", "body of m-1")
    assert message["late_ms"] >= 0


def test_a_fifo_queues_messages_wait_in_dynamodb(fifo_site: Site) -> None:
    """Parked, released to the due queue, and from there to the FIFO queue, not early; a cancelled one
    never."""
    site = fifo_site
    with site.consuming(3) as worker, running("dispatch", site.endpoint, env=site.env):
        worker.wait_for("consuming")
        site.send("gone", "1d", "--group", "customer-7")
        site.send("m-1", "7s", "--group", "customer-7")
        for name in ("gone", "m-1"):
            worker.wait_for(f'"{name}"')
        assert site.ok("cancel", site.endpoint, "gone") == "gone  cancelled\n"
        (message,) = site.received(1)
    assert message["message_id"] == "m-1"
    assert message["late_ms"] >= 0
    assert statuses(worker)[:2] == ["parked", "parked"]
    assert site.ok("pending", site.endpoint, "--json") == ""


def test_a_store_that_is_not_set_up_is_found_at_the_start(site: Site) -> None:
    """The consumer says what to do and ends, before it receives anything."""
    other = site.env | {"SQSDELAY_STORE": f"{site.env['SQSDELAY_STORE']}?table=other"}
    done = run("consume", site.endpoint, "--hop", HOP, env=other)
    assert done.returncode == 1
    assert "run sqsdelay store create" in done.stderr


def test_cancelled_and_moved_wherever_they_wait(site: Site) -> None:
    """Parked: at once. In the delay queue: at the next hop, as the exit code says."""
    for name in ("stays", "moves", "goes"):
        site.send(name, "8s")
    requested = run("cancel", site.endpoint, "goes", env=site.env)
    assert requested.returncode == 3
    assert "if it is in the delay queue, it will be cancelled at its next hop" in requested.stdout
    moved = run("reschedule", site.endpoint, "moves", "--delay", "1h", "--json", env=site.env)
    assert (moved.returncode, json.loads(moved.stdout)["change"]) == (3, "requested")
    with site.consuming(60) as worker, running("dispatch", site.endpoint, env=site.env):
        worker.wait_for('"cancelled"')
        worker.wait_for('"parked"')
        listed = site.ok("pending", site.endpoint, "--json")
        assert json.loads(listed)["message_id"] == "moves"
        assert site.ok("reschedule", site.endpoint, "moves", "--delay", "2h").startswith("moves  m")
        assert site.ok("cancel", site.endpoint, "moves") == "moves  cancelled\n"
        assert [m["message_id"] for m in site.received(2, idle=12)] == ["stays"]
