"""docs/stores.md does what it says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from sqsdelay.cli.dispatch import EXIT_CRITICAL
from sqsdelay.core.delay import due_at_ms, parse_due_at
from sqsdelay.core.endpoint import Endpoint
from sqsdelay.dispatching.circuit_breakers import (
    DEFAULT_FAILURES_PER_SECOND,
    DEFAULT_TRIGGER_SECONDS,
)
from sqsdelay.dispatching.dispatcher import DEFAULT_BATCH, MAX_POLL_SECONDS, DispatchSettings
from sqsdelay.errors import SchemaMismatch
from sqsdelay.limits import MAX_DYNAMODB_ITEM_BYTES, MAX_POSTGRES_NAME_BYTES
from sqsdelay.operating.listing import parse_cursor
from sqsdelay.ports.stores import DelayedMessageStore
from sqsdelay.sqs import create_endpoint
from sqsdelay.stores.dispatchers import DEFAULT_LEASE_SECONDS
from sqsdelay.stores.dynamodb import DynamoDbStore
from sqsdelay.stores.postgres.listener import POLL_SECONDS
from sqsdelay.stores.postgres.pool import SERVER_SETTINGS
from sqsdelay.stores.postgres.postgres_store import PostgresStore
from sqsdelay.stores.schema import VERSION, check_version
from sqsdelay.stores.sqlite.sqlite_store import SqliteStore
from sqsdelay.testing.local_aws import LocalAws

GUIDE = (Path(__file__).parents[2] / "docs/stores.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", GUIDE, re.DOTALL)


def test_its_python_runs(
    tmp_path: Path, local_aws: LocalAws, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Storing and cancelling, delivery inside a process, and an effect exactly once."""
    monkeypatch.chdir(tmp_path)
    for name, value in local_aws.environment().items():
        monkeypatch.setenv(name, value)
    create_endpoint(local_aws.client("sqs"), Endpoint.parse("orders"))
    names: dict[str, Any] = {}
    storing, delivering, exactly_once, contract = BLOCKS
    exec(storing, names)
    store = names["store"]
    assert store.pending_count() == 0
    exec(delivering, names)
    names["outbox"].close()
    assert [m.message_id for m in store.pending(10)] == ["order-7"]
    exec(exactly_once, names)
    for table in ("reminders (id)", "problems (id, reason)"):
        store._connection.execute(f"CREATE TABLE {table}")
    store.reschedule("order-7", 0)
    names["dispatcher"].start()
    names["dispatcher"].dispatch()
    assert store._connection.execute("SELECT id FROM reminders").fetchall() == [("order-7",)]
    assert store.pending_count() == 0
    store.close()
    assert "class TestMyStore(StoreContract)" in contract


def test_its_numbers_are_the_codes() -> None:
    """Defaults and limits stand once in the code; the guide repeats them."""
    settings = DispatchSettings()
    assert settings.number_of_retries == 0
    for number, text in (
        (DEFAULT_BATCH, "claims up to 500 due messages"),
        (PostgresStore.poll_seconds, "looks every 10 s (PostgreSQL)"),
        (DynamoDbStore.poll_seconds, "1 s (DynamoDB)"),
        (SqliteStore.poll_seconds, "0.5 s (SQLite)"),
        (DEFAULT_LEASE_SECONDS, "after the lease (60 s)"),
        (MAX_DYNAMODB_ITEM_BYTES // 1024, "400 KiB"),
        (MAX_POSTGRES_NAME_BYTES, "names end at 63 bytes"),
        (EXIT_CRITICAL, "| 75 | a circuit breaker"),
        (DEFAULT_TRIGGER_SECONDS, "while something is due | 30 s |"),
        (DEFAULT_FAILURES_PER_SECOND, "in a second than this | 1 |"),
    ):
        assert text in GUIDE
        assert f"{number:g}" in text


def test_what_it_says_of_postgresql() -> None:
    """Seconds of the server's keepalives, the pooler's poll and the longest poll; PgBouncer's own."""
    idle, interval, count = (
        int(SERVER_SETTINGS[f"tcp_keepalives_{name}"]) for name in ("idle", "interval", "count")
    )
    gone = idle + interval * count
    assert gone * 1000 == int(SERVER_SETTINGS["tcp_user_timeout"])
    assert f"asks after {idle} s and gives up after {gone} s" in GUIDE
    assert f"after {gone} s when its host lost its power" in GUIDE
    assert f"`tcp_keepidle={idle}`, `tcp_keepintvl={interval}` and `tcp_keepcnt={count}`" in GUIDE
    assert POLL_SECONDS == 1
    assert "looks every second" in GUIDE
    assert MAX_POLL_SECONDS == 3600
    assert "more than an hour to go" in GUIDE


def test_its_cursor_is_one(tmp_path: Path) -> None:
    """The page after the message stored above begins behind its due time and id."""
    due = re.search(r"--due-at (\S+) --message-id order-7", GUIDE)
    assert due is not None
    cursor = (due_at_ms(parse_due_at(due[1])), "order-7")
    found = re.findall(r"--after (\d\S+)", GUIDE)
    assert [parse_cursor(text) for text in found] == [cursor, cursor]


def test_what_it_says_of_versions() -> None:
    """The error it shows is the one that is raised."""
    with pytest.raises(SchemaMismatch) as raised:
        check_version(VERSION + 1, table="orders.delayed")
    assert f"\n{raised.value}\n" in GUIDE


def test_it_names_every_method() -> None:
    """The table beside NServiceBus's interface is complete."""
    methods = {
        name
        for name in vars(DelayedMessageStore)
        if not name.startswith("_") and name not in ("modes", "poll_seconds", "close")
    }
    table = GUIDE[GUIDE.index("`IDelayedMessageStore`") : GUIDE.index("## On Lambda")]
    assert methods <= set(re.findall(r"`([a-z_]+)`", table))
