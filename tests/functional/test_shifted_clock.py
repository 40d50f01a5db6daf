"""``--delay`` on a machine whose clock is wrong: it counts from the clock that releases."""

from __future__ import annotations

import json
import os
import subprocess
import time
import uuid
from collections.abc import Callable
from contextlib import closing
from datetime import datetime
from functools import partial
from pathlib import Path

import pytest

from sqsdelay.core.delay import SystemClock
from sqsdelay.stores.postgres.postgres_store import PostgresStore
from sqsdelay.stores.shared import StoreClock
from sqsdelay.testing import InMemoryStore
from sqsdelay.testing.local_aws import LocalAws
from tests.services.processes import run

BEHIND_SECONDS = 600
Run = Callable[..., subprocess.CompletedProcess[str]]


def fall_behind() -> None:
    """For a command on a machine that is ten minutes behind; requests are signed with the right time."""
    right = time.time_ns
    time.time_ns = lambda: right() - BEHIND_SECONDS * 10**9


def behind(environment: dict[str, str]) -> Run:
    """Runs the command there."""
    return partial(run, env=environment, before=fall_behind)


def due(there: Run, *store: str) -> dict[str, float]:
    """When each pending message is due, epoch seconds."""
    listed = there("pending", "orders", "--json", *store)
    assert listed.returncode == 0, listed.stderr
    messages = [json.loads(line) for line in listed.stdout.splitlines()]
    return {m["message_id"]: datetime.fromisoformat(m["due"]).timestamp() for m in messages}


class Spell:
    """When a command ran, by the right clock."""

    def __enter__(self) -> Spell:
        self.began = time.time()
        return self

    def __exit__(self, *_: object) -> None:
        self.ended = time.time()

    def has_two_minutes_to(self, due: float) -> bool:
        """Counted from some time while it ran. When in its second, and while it was on its way, the broker
        wrote its ``Date`` is not known: the latest counts."""
        return self.began + 120 <= due <= self.ended + 122 + self.ended - self.began


@pytest.mark.parametrize("kind", ["sqlite", pytest.param("postgresql", marks=pytest.mark.nightly)])
def test_a_delay_counts_from_the_brokers_clock(
    kind: str, local_aws: LocalAws, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """A message of two minutes was released within seconds; a line of a file, and a move, likewise."""
    store: tuple[str, ...]
    if kind == "sqlite":
        store = ("--store", f"sqlite:///{tmp_path}/store.db")
    else:
        url = request.getfixturevalue("postgres")
        store = ("--store", f"{url}?table=orders.{uuid.uuid4().hex[:12]}")
    there = behind(local_aws.environment())
    lines = tmp_path / "messages.jsonl"
    lines.write_text('{"body": "x", "delay": "2m", "message_id": "line"}\n')
    one = ("send", "orders", "--store-only", "--body", "x", "--message-id")
    spells: dict[str, Spell] = {}
    for name, arguments in (
        ("", ("store", "create", "orders")),
        ("sent", (*one, "sent", "--delay", "2m")),
        ("line", ("send", "orders", "--store-only", "--file", str(lines))),
        ("", (*one, "moved", "--delay", "9h")),
        ("moved", ("reschedule", "orders", "moved", "--delay", "2m")),
    ):
        with Spell() as spells[name]:
            done = there(*arguments, *store)
        assert done.returncode == 0, done.stderr
        assert done.stderr in {"", "1 sent, 0 not sent\n"}
    told = due(there, *store)
    assert set(told) == {"sent", "line", "moved"}
    for name, each in told.items():
        assert spells[name].has_two_minutes_to(each), name


def test_released_to_rabbitmq_the_databases_clock_counts(postgres: str) -> None:
    """SQS is not asked: there may be none."""
    store = ("--store", f"{postgres}?table=orders.{uuid.uuid4().hex[:12]}")
    there = behind({"AWS_ENDPOINT_URL": "http://127.0.0.1:9", "AWS_DEFAULT_REGION": "us-east-1"})
    assert there("store", "create", "orders", *store).returncode == 0
    send = ("send", "orders", "--store-only", "--body", "x", "--delay", "2m", *store)
    with Spell() as spell:
        done = there(*send, "--to", "amqp://guest:guest@127.0.0.1/")
    assert done.returncode == 0, done.stderr
    [(message_id, told)] = due(there, *store).items()
    assert spell.has_two_minutes_to(told)
    done = there("cancel", "orders", message_id, *store, "--to", "amqp://guest:guest@127.0.0.1/")
    assert (done.returncode, done.stderr) == (0, "")


def test_without_aws_settings_the_stores_clock_counts_and_says_so(postgres: str) -> None:
    """A machine that knows no AWS cannot mean SQS; one that does is told what is wrong."""
    store = ("--store", f"{postgres}?table=orders.{uuid.uuid4().hex[:12]}")
    nowhere = {"AWS_CONFIG_FILE": os.devnull, "AWS_EC2_METADATA_DISABLED": "true"}
    there = behind(nowhere)
    assert there("store", "create", "orders", *store).returncode == 0
    with Spell() as spell:
        done = there("send", "orders", "--store-only", "--body", "x", "--delay", "2m", *store)
    assert done.returncode == 0, done.stderr
    assert "counts from the store's clock, because SQS cannot be reached" in done.stderr
    [told] = due(there, *store).values()
    assert spell.has_two_minutes_to(told)


def test_the_databases_clock_as_the_dispatcher_reads_it(postgres: str) -> None:
    """A dispatcher whose machine is behind, too, measures with the database's clock."""

    class Behind(SystemClock):
        def now_ms(self) -> int:
            return super().now_ms() - BEHIND_SECONDS * 1000

    with closing(PostgresStore(postgres, endpoint="orders", table="orders")) as store:
        store.set_up()
        clock = StoreClock(store, Behind())
        before = SystemClock().now_ms()
        told = clock.now_ms()
        assert before - 1 <= told <= SystemClock().now_ms()
        assert before <= clock.latest_ms()


def test_a_file_store_goes_by_the_machines_clock() -> None:
    """There is no other."""

    class Fixed(SystemClock):
        def now_ms(self) -> int:
            return 7

    clock = StoreClock(InMemoryStore(Fixed()), Fixed())
    assert (clock.now_ms(), clock.latest_ms()) == (7, 7)
