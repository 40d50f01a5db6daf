"""Dispatchers killed (SIGKILL) at every step: nothing is lost, and no more is repeated than the mode
allows. Real processes, real databases."""

from __future__ import annotations

import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
import uuid
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import sql

from sqsdelay.stores import open_store
from sqsdelay.testing.local_aws import LocalAws
from tests.acceptance.dispatcher_process import (
    AFTER_CLAIM,
    BEFORE_COMMIT,
    BEFORE_REMOVAL,
    DURING_SEND,
)
from tests.messages import a_message
from tests.patience import PATIENCE_SECONDS

ROOT = Path(__file__).parents[2]
LEASE_SECONDS = 3.0
"""Long enough for a busy machine to hold up the renewal by a living dispatcher."""
BATCH = 50


@dataclass
class Scene:
    """A store with due messages, and what was delivered from it."""

    url: str
    folder: Path

    @property
    def file(self) -> Path:
        return self.folder / "sent"

    def fill(self, count: int) -> set[str]:
        now_ms = time.time_ns() // 1_000_000
        names = [f"m{n:05}" for n in range(count)]
        with closing(open_store(self.url, endpoint="orders")) as store:
            store.set_up()
            for start in range(0, count, 1000):
                store.store([a_message(name, now_ms) for name in names[start : start + 1000]])
        return set(names)

    def dispatcher(
        self, *, step: str | None = None, exactly_once: bool = False, send_seconds: float = 0
    ) -> subprocess.Popen[bytes]:
        given = {
            "store": self.url,
            "file": str(self.file),
            "step": step,
            "exactly_once": exactly_once,
            "batch": BATCH,
            "lease_seconds": LEASE_SECONDS,
            "send_seconds": send_seconds,
        }
        command = [sys.executable, "-m", "tests.acceptance.dispatcher_process", json.dumps(given)]
        return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE)

    def wait_until_empty(self, seconds: float = PATIENCE_SECONDS) -> None:
        deadline = time.monotonic() + seconds
        with closing(open_store(self.url, endpoint="orders")) as store:
            while store.pending_count():
                assert time.monotonic() < deadline, f"{store.pending_count()} still pending"
                time.sleep(0.05)

    def sent(self) -> Counter[str]:
        return Counter(self.file.read_text().split() if self.file.exists() else [])

    def effects(self) -> Counter[str]:
        if self.url.startswith("sqlite"):
            with closing(sqlite3.connect(self.folder / "store.db")) as connection:
                return Counter(row[0] for row in connection.execute("SELECT id FROM effects"))
        with psycopg.connect(self.url) as connection:
            return Counter(row[0] for row in connection.execute("SELECT id FROM effects"))


@contextmanager
def ended(*processes: subprocess.Popen[bytes]) -> Iterator[None]:
    """Processes that end with the block: by SIGTERM, in peace."""
    try:
        yield
    finally:
        for process in processes:
            assert process.stdout is not None
            # Once it has said so it hears SIGTERM.
            assert process.stdout.readline() == b"dispatching\n"
            process.terminate()
        codes = [process.wait(PATIENCE_SECONDS) for process in processes]
        for process in processes:
            process.communicate()
        assert codes == [0] * len(processes)


@pytest.fixture
def sqlite(tmp_path: Path) -> Scene:
    with closing(sqlite3.connect(tmp_path / "store.db")) as connection:
        connection.execute("CREATE TABLE effects (id TEXT)")
    return Scene(f"sqlite:///{tmp_path}/store.db", tmp_path)


@pytest.fixture
def postgresql(postgres: str, tmp_path: Path) -> Iterator[Scene]:
    """A database of its own on the test server."""
    name = f"killed_{uuid.uuid4().hex[:12]}"
    quoted = sql.Identifier(name)
    with psycopg.connect(postgres, autocommit=True) as connection:
        connection.execute(sql.SQL("CREATE DATABASE {}").format(quoted))
        url = postgres.rpartition("/")[0] + f"/{name}"
        with psycopg.connect(url) as own:
            own.execute("CREATE TABLE effects (id text)")
        yield Scene(url, tmp_path)
        connection.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(quoted))


@pytest.fixture
def dynamodb(local_aws: LocalAws, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scene:
    for name, value in local_aws.environment().items():
        monkeypatch.setenv(name, value)
    return Scene(f"dynamodb://killed-{uuid.uuid4().hex[:12]}", tmp_path)


def killed_once(scene: Scene, step: str, *, exactly_once: bool = False) -> set[str]:
    """A dispatcher dies at a step, and another one empties the store."""
    names = scene.fill(BATCH)
    with scene.dispatcher(step=step, exactly_once=exactly_once) as doomed:
        assert doomed.wait(PATIENCE_SECONDS) == -signal.SIGKILL
    with ended(scene.dispatcher(exactly_once=exactly_once)):
        scene.wait_until_empty()
    return names


def steps(uncommitted: int, by_day: Collection[str]) -> list[Any]:
    """Each step, and how many messages were sent and not removed, hence sent again."""
    every = {
        AFTER_CLAIM: 0,
        DURING_SEND: BATCH // 2,
        BEFORE_REMOVAL: BATCH,
        BEFORE_COMMIT: uncommitted,
    }
    return [
        pytest.param(step, repeated, marks=[] if step in by_day else [pytest.mark.nightly])
        for step, repeated in every.items()
    ]


@pytest.mark.parametrize(("step", "repeated"), steps(BATCH, by_day=(DURING_SEND, BEFORE_COMMIT)))
def test_killed_on_postgresql(postgresql: Scene, step: str, repeated: int) -> None:
    """The row locks fall with the connection: what was sent and not committed is sent again."""
    names = killed_once(postgresql, step)
    sent = postgresql.sent()
    assert set(sent) == names
    assert sum(count - 1 for count in sent.values()) == repeated


@pytest.mark.parametrize(("step", "repeated"), steps(0, by_day=(AFTER_CLAIM, BEFORE_REMOVAL)))
def test_killed_on_sqlite(sqlite: Scene, step: str, repeated: int) -> None:
    """The lease runs out; a removal is committed by itself, so that nothing follows it."""
    names = killed_once(sqlite, step)
    sent = sqlite.sent()
    assert set(sent) == names
    assert sum(count - 1 for count in sent.values()) == repeated


@pytest.mark.parametrize(("step", "repeated"), steps(0, by_day=(BEFORE_REMOVAL,)))
def test_killed_on_dynamodb(dynamodb: Scene, step: str, repeated: int) -> None:
    """The lease runs out, and the table has all that the dead dispatcher had not removed."""
    names = killed_once(dynamodb, step)
    sent = dynamodb.sent()
    assert set(sent) == names
    assert sum(count - 1 for count in sent.values()) == repeated


EXACTLY_ONCE = {"postgresql": (AFTER_CLAIM, BEFORE_COMMIT), "sqlite": (DURING_SEND, BEFORE_REMOVAL)}
"""What is tried by day."""


@pytest.mark.parametrize(
    ("kind", "step"),
    [
        pytest.param(kind, step.values[0], marks=step.marks)
        for kind, by_day in EXACTLY_ONCE.items()
        for step in steps(0, by_day)
    ],
)
def test_killed_in_exactly_once(kind: str, step: str, request: pytest.FixtureRequest) -> None:
    """Whatever the instant, each effect is there once: it commits with the removal or not at all."""
    scene: Scene = request.getfixturevalue(kind)
    names = killed_once(scene, step, exactly_once=True)
    assert scene.effects() == Counter(names)


def killed_again_and_again(
    scene: Scene, dispatchers: int, *, kills: int, exactly_once: bool = False
) -> int:
    """Empty the store while dispatchers, picked at random, are killed; returns the kills made."""
    chance = random.Random(1)

    def start() -> subprocess.Popen[bytes]:
        return scene.dispatcher(exactly_once=exactly_once, send_seconds=0.04)

    running = [start() for _ in range(dispatchers)]
    made = 0
    with closing(open_store(scene.url, endpoint="orders")) as store:
        time.sleep(1)
        while made < kills and store.pending_count():
            victim = chance.randrange(dispatchers)
            os.kill(running[victim].pid, signal.SIGKILL)
            running[victim].communicate(timeout=PATIENCE_SECONDS)
            made += 1
            running[victim] = start()
            time.sleep(0.3)
    with ended(*running):
        scene.wait_until_empty()
    return made


@pytest.mark.parametrize(
    ("kind", "dispatchers"),
    [pytest.param("postgresql", 4, marks=pytest.mark.nightly), ("sqlite", 2)],
)
def test_many_dispatchers_and_kills(
    kind: str, dispatchers: int, request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]
) -> None:
    """10,000 due messages: none lost, and at most a claim's worth repeated for each kill."""
    scene: Scene = request.getfixturevalue(kind)
    names = scene.fill(10_000)
    kills = killed_again_and_again(scene, dispatchers, kills=6)
    sent = scene.sent()
    repeated = sum(count - 1 for count in sent.values())
    with capsys.disabled():
        print(  # noqa: T201
            f"\n{kind}: {len(names)} messages, {kills} kills, {repeated} sent again"
        )
    assert kills >= 3
    assert set(sent) == names
    assert repeated <= kills * BATCH


def test_many_dispatchers_and_kills_in_exactly_once(postgresql: Scene) -> None:
    """10,000 due messages, three dispatchers, kills: each effect exactly once."""
    names = postgresql.fill(10_000)
    kills = killed_again_and_again(postgresql, 3, kills=5, exactly_once=True)
    assert kills >= 3
    assert postgresql.effects() == Counter(names)


def test_healthy_dispatchers_never_repeat(sqlite: Scene) -> None:
    """Leases shorter than a send are renewed while the dispatcher lives: nothing is sent twice."""
    names = sqlite.fill(4 * BATCH)
    first, second = (sqlite.dispatcher(send_seconds=2 * LEASE_SECONDS) for _ in range(2))
    with ended(first, second):
        sqlite.wait_until_empty()
    assert sqlite.sent() == Counter(names)
