"""Dispatchers killed (SIGKILL) at every step: nothing is lost, and no more is repeated than the mode
allows. Real processes, real databases."""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from multiprocessing.context import ForkServerProcess
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import NamedTuple

import psycopg
import pytest

from sqsdelay.stores import open_store
from sqsdelay.testing.local_aws import LocalAws
from tests.acceptance.dispatcher_process import (
    AFTER_CLAIM,
    BEFORE_COMMIT,
    BEFORE_REMOVAL,
    DURING_SEND,
    main,
)
from tests.messages import a_message
from tests.patience import PATIENCE_SECONDS, wait_for
from tests.services.postgres import database
from tests.services.processes import FORKS

LEASE_SECONDS = 3.0
"""Long enough for a busy machine to hold up the renewal by a living dispatcher."""
BATCH = 50


class Dispatching(NamedTuple):
    """A process, and whether it has come so far that SIGTERM ends it in peace."""

    process: ForkServerProcess
    ready: Event

    def ended(self) -> int | None:
        """Its exit code."""
        self.process.join(PATIENCE_SECONDS)
        return self.process.exitcode


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
    ) -> Dispatching:
        given = {
            "store": self.url,
            "file": str(self.file),
            "step": step,
            "exactly_once": exactly_once,
            "batch": BATCH,
            "lease_seconds": LEASE_SECONDS,
            "send_seconds": send_seconds,
            "environment": dict(os.environ),
        }
        ready = FORKS.Event()
        process = FORKS.Process(target=main, args=(given, ready.set))
        process.start()
        return Dispatching(process, ready)

    def wait_until_empty(self, seconds: float = PATIENCE_SECONDS) -> None:
        with closing(open_store(self.url, endpoint="orders")) as store:
            wait_for(lambda: not store.pending_count(), "some are still pending", seconds)

    def sent(self) -> Counter[str]:
        return Counter(self.file.read_text().split() if self.file.exists() else [])

    def effects(self) -> Counter[str]:
        if self.url.startswith("sqlite"):
            with closing(sqlite3.connect(self.folder / "store.db")) as connection:
                return Counter(row[0] for row in connection.execute("SELECT id FROM effects"))
        with psycopg.connect(self.url) as connection:
            return Counter(row[0] for row in connection.execute("SELECT id FROM effects"))


@contextmanager
def ended(*dispatching: Dispatching) -> Iterator[None]:
    """Processes that end with the block: by SIGTERM, in peace."""
    try:
        yield
    finally:
        for each in dispatching:
            assert each.ready.wait(PATIENCE_SECONDS)
            each.process.terminate()
        codes = [each.ended() for each in dispatching]
        assert codes == [0] * len(dispatching)


@pytest.fixture
def sqlite(tmp_path: Path) -> Scene:
    with closing(sqlite3.connect(tmp_path / "store.db")) as connection:
        connection.execute("CREATE TABLE effects (id TEXT)")
    return Scene(f"sqlite:///{tmp_path}/store.db", tmp_path)


@pytest.fixture
def postgresql(postgres: str, tmp_path: Path) -> Iterator[Scene]:
    with database(postgres) as url:
        with psycopg.connect(url) as own:
            own.execute("CREATE TABLE effects (id text)")
        yield Scene(url, tmp_path)


@pytest.fixture
def dynamodb(aws_here: LocalAws, tmp_path: Path) -> Scene:
    return Scene(f"dynamodb://killed-{uuid.uuid4().hex[:12]}", tmp_path)


def killed_once(scene: Scene, step: str, *, exactly_once: bool = False) -> set[str]:
    """A dispatcher dies at a step, and another one empties the store."""
    names = scene.fill(BATCH)
    assert scene.dispatcher(step=step, exactly_once=exactly_once).ended() == -signal.SIGKILL
    with ended(scene.dispatcher(exactly_once=exactly_once)):
        scene.wait_until_empty()
    return names


REPEATED = {AFTER_CLAIM: 0, DURING_SEND: BATCH // 2, BEFORE_REMOVAL: BATCH, BEFORE_COMMIT: 0}
"""Messages that were sent and not removed, hence are sent again, by the step."""
BY_DAY = {
    (False, "postgresql"): (DURING_SEND, BEFORE_COMMIT),
    (False, "sqlite"): (AFTER_CLAIM, BEFORE_REMOVAL),
    (False, "dynamodb"): (BEFORE_REMOVAL,),
    (True, "postgresql"): (AFTER_CLAIM, BEFORE_COMMIT),
    (True, "sqlite"): (DURING_SEND, BEFORE_REMOVAL),
}
"""What is tried by day, exactly once or not, on each store; by night every step is."""


def killed(*, exactly_once: bool) -> pytest.MarkDecorator:
    """Each store and step."""
    cases = [
        pytest.param(kind, step, marks=[] if step in steps else [pytest.mark.nightly])
        for (once, kind), steps in BY_DAY.items()
        for step in REPEATED
        if once == exactly_once
    ]
    return pytest.mark.parametrize(("kind", "step"), cases)


@killed(exactly_once=False)
def test_killed(kind: str, step: str, request: pytest.FixtureRequest) -> None:
    """PostgreSQL's row locks fall with the connection: what was sent and not committed is sent again.
    Elsewhere the lease runs out; a removal is committed by itself, so that nothing follows it."""
    scene: Scene = request.getfixturevalue(kind)
    names = killed_once(scene, step)
    sent = scene.sent()
    assert set(sent) == names
    uncommitted = kind == "postgresql" and step == BEFORE_COMMIT
    repeated = sum(count - 1 for count in sent.values())
    assert repeated == (BATCH if uncommitted else REPEATED[step])


@killed(exactly_once=True)
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

    def start() -> Dispatching:
        return scene.dispatcher(exactly_once=exactly_once, send_seconds=0.04)

    running = [start() for _ in range(dispatchers)]
    made = 0
    with closing(open_store(scene.url, endpoint="orders")) as store:
        time.sleep(1)
        while made < kills and store.pending_count():
            victim = chance.randrange(dispatchers)
            running[victim].process.kill()
            running[victim].ended()
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
