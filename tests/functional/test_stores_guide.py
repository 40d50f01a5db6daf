"""docs/stores.md does what it says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from sqsdelay.circuit_breaker import DEFAULT_FAILURES_PER_SECOND, DEFAULT_TRIGGER_SECONDS
from sqsdelay.cli.dispatch import EXIT_CRITICAL
from sqsdelay.dispatch_settings import DEFAULT_BATCH, DispatchSettings
from sqsdelay.endpoint import Endpoint
from sqsdelay.limits import MAX_DYNAMODB_ITEM_BYTES, MAX_POSTGRES_NAME_BYTES
from sqsdelay.sqs import create_endpoint
from sqsdelay.store import DelayedMessageStore
from sqsdelay.stores.dynamodb import DynamoDbStore
from sqsdelay.stores.lease import DEFAULT_LEASE_SECONDS
from sqsdelay.stores.postgres import PostgresStore
from sqsdelay.stores.sqlite import SqliteStore
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


def test_it_names_every_method() -> None:
    """The table beside NServiceBus's interface is complete."""
    methods = {
        name
        for name in vars(DelayedMessageStore)
        if not name.startswith("_") and name not in ("modes", "poll_seconds", "close")
    }
    table = GUIDE[GUIDE.index("`IDelayedMessageStore`") : GUIDE.index("## On Lambda")]
    assert methods <= set(re.findall(r"`([a-z_]+)`", table))
