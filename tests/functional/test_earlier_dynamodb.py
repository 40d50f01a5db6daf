"""A live DynamoDB table of the earlier layout is moved over with nothing lost."""

from __future__ import annotations

import time
import uuid
import zlib
from collections.abc import Iterator
from typing import Any

import pytest
from typer.testing import CliRunner

from sqsdelay.cli import app
from sqsdelay.core.stored_message import AMENDMENT_LIFETIME_MS, Amendment, StoredMessage
from sqsdelay.stores.dynamodb import DynamoDbStore
from sqsdelay.testing.local_aws import LocalAws


@pytest.fixture
def client(local_aws: LocalAws, monkeypatch: pytest.MonkeyPatch) -> Any:
    for name, value in local_aws.environment().items():
        monkeypatch.setenv(name, value)
    return local_aws.client("dynamodb")


@pytest.fixture
def old(client: Any) -> str:
    """An empty table as the earlier layout had it."""
    name = f"old-{uuid.uuid4().hex[:12]}"
    keys = ("store_key", "store_shard", "store_due")
    client.create_table(
        TableName=name,
        KeySchema=[{"AttributeName": "store_key", "KeyType": "HASH"}],
        AttributeDefinitions=[{"AttributeName": key, "AttributeType": "S"} for key in keys],
        GlobalSecondaryIndexes=[
            {
                "IndexName": "due",
                "KeySchema": [
                    {"AttributeName": "store_shard", "KeyType": "HASH"},
                    {"AttributeName": "store_due", "KeyType": "RANGE"},
                ],
                "Projection": {"ProjectionType": "INCLUDE", "NonKeyAttributes": ["held_until_ms"]},
            }
        ],
        BillingMode="PAY_PER_REQUEST",
    )
    return name


@pytest.fixture
def new(client: Any) -> Iterator[DynamoDbStore]:
    store = DynamoDbStore(f"new-{uuid.uuid4().hex[:12]}", endpoint="orders", client=client)
    store.set_up()
    yield store
    store.close()


def put(client: Any, table: str, name: str, due_ms: int, **more: Any) -> StoredMessage:
    """A message as the earlier layout stored it."""
    shard = zlib.crc32(name.encode()) % 8
    client.put_item(
        TableName=table,
        Item={
            "store_key": {"S": f"orders/{name}"},
            "store_shard": {"S": f"orders/{shard}"},
            "store_due": {"S": f"{due_ms:015d}#{name}"},
            "held_until_ms": {"N": "0"},
            "message_id": {"S": name},
            "destination": {"S": "orders"},
            "due_ms": {"N": str(due_ms)},
            "body": {"B": f"body of {name}".encode()},
            "headers": {"S": '{"group_id": "g"}'},
            "failures": {"N": "1"},
            **more,
        },
    )
    return StoredMessage(
        message_id=name,
        destination="orders",
        due_ms=due_ms,
        body=f"body of {name}".encode(),
        group_id="g",
        failures=1,
    )


def put_amendment(client: Any, table: str, name: str, **numbers: int) -> None:
    """An amendment as the earlier layout stored it; at first without ``at_ms``."""
    client.put_item(
        TableName=table,
        Item={
            "store_key": {"S": f"#mark/orders/{name}"},
            "message_id": {"S": name},
            **{field: {"N": str(value)} for field, value in numbers.items()},
        },
    )


def test_a_live_table_is_moved_over(client: Any, old: str, new: DynamoDbStore) -> None:
    """Near and far messages and amendments; what its dispatcher has in hand stays its own. Repeatable."""
    now_ms = time.time_ns() // 1_000_000
    dues = [now_ms - 5000, now_ms + 60_000, *(now_ms + n * 86_400_000 for n in range(1, 150))]
    kept = [put(client, old, f"m{n}", due_ms) for n, due_ms in enumerate(dues)]
    lease = {"claimed_by": {"S": "x"}, "held_until_ms": {"N": str(now_ms + 60_000)}}
    put(client, old, "in-hand", now_ms, **lease)
    until_s = now_ms // 1000 + 86_400
    left_ms = until_s * 1000 - AMENDMENT_LIFETIME_MS
    put_amendment(client, old, "cancelled", expires_at=until_s)
    put_amendment(
        client, old, "moved", expires_at=until_s, at_ms=now_ms, due_ms=7, cancelled_ms=now_ms - 5
    )
    command = ["store", "migrate", "orders", "--store", f"dynamodb://{old}"]
    command += ["--to", f"dynamodb://{new._table.name}"]
    preview = CliRunner().invoke(app, command)
    assert preview.exit_code == 0, preview.output
    assert "152 would be migrated" in preview.stdout
    assert new.pending_count() == 0
    done = CliRunner().invoke(app, [*command, "--live"])
    assert done.exit_code == 0, done.output
    assert "151 migrated, 1 sent-not-removed" in done.stderr
    assert new.pending(1000) == kept
    assert new.amendments(["cancelled", "moved"]) == {
        "cancelled": Amendment(message_id="cancelled", at_ms=left_ms),
        "moved": Amendment(message_id="moved", at_ms=now_ms, due_ms=7, cancelled_ms=now_ms - 5),
    }
    left = client.scan(TableName=old, FilterExpression="attribute_exists(body)")["Items"]
    assert [item["message_id"]["S"] for item in left] == ["in-hand"]
    again = CliRunner().invoke(app, [*command, "--live"])
    assert "1 sent-not-removed" in again.stderr
    assert new.pending_count() == 151


def test_a_file_is_stored_again_without_look_ups(client: Any) -> None:
    """What was stored before is told from another message of its id, though no id is looked up."""
    table = f"plain-{uuid.uuid4().hex[:12]}"
    store = ["--store", f"dynamodb://{table}?lookup=off"]
    assert CliRunner().invoke(app, ["store", "create", "orders", *store]).exit_code == 0
    command = ["store", "send", "orders", *store, "--message-id", "order-7"]
    command += ["--due-at", "2040-01-31T09:00:00Z", "--body"]
    said = [CliRunner().invoke(app, [*command, body]) for body in ("x", "x", "another")]
    assert [each.exit_code for each in said] == [0, 0, 1], said[1].output
    assert "already stored" in said[1].stdout
    assert "use a different id" in said[2].stderr
    client.delete_table(TableName=table)
