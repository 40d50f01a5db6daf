"""What PostgreSQL says in an error, and what of it reaches errors and logs."""

from __future__ import annotations

import traceback
import uuid
from contextlib import closing

import psycopg
import pytest

from sqsdelay.core.stored_message import StoredMessage
from sqsdelay.errors import StoreError
from sqsdelay.stores.postgres.postgres_store import PostgresStore

SECRET = "card 4111 1111"


def test_a_rows_content_is_in_no_error(postgres: str) -> None:
    """DETAIL quotes the row that failed: its body, its attributes. The rest of the error stays."""
    table = f"orders_{uuid.uuid4().hex[:8]}"
    with closing(PostgresStore(postgres, endpoint="orders", table=table)) as store:
        store.set_up()
        with psycopg.connect(postgres, autocommit=True) as connection:
            connection.execute(f'ALTER TABLE "{table}" ADD CHECK (due_ms < 5)')
        message = StoredMessage(
            message_id="m-1", destination="orders", due_ms=1_000, body=SECRET.encode()
        )
        with pytest.raises(StoreError, match=r"violates check constraint.*SQLSTATE 23514") as told:
            store.store([message])
        shown = "".join(traceback.format_exception(told.value))
        assert "DETAIL" not in shown
        assert SECRET not in shown
        assert SECRET.encode().hex() not in shown
