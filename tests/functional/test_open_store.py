"""A store by its URL."""

from __future__ import annotations

import sys
import traceback
from contextlib import closing
from pathlib import Path

import pytest

from sqsdelay.core.message import Message
from sqsdelay.errors import ConfigurationError
from sqsdelay.stores import DynamoDbStore, open_place, open_store, to_store
from sqsdelay.stores.postgres.postgres_store import PostgresStore
from sqsdelay.stores.sqlite.sqlite_store import SqliteStore
from tests.patience import ended


def test_each_kind_by_its_scheme(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three slashes a relative path, four an absolute one, as elsewhere."""
    monkeypatch.chdir(tmp_path)
    for url, kind in (
        ("sqlite:///relative.db", SqliteStore),
        (f"sqlite:///{tmp_path}/with%20space.db", SqliteStore),
        ("postgresql://user:pw@host:5432/db", PostgresStore),
        ("dynamodb://parked", DynamoDbStore),
    ):
        with closing(open_store(url, endpoint="orders")) as store:
            assert isinstance(store, kind)
    assert {path.name for path in tmp_path.glob("*.db")} == {"relative.db", "with space.db"}


@pytest.mark.parametrize(
    "url", ["", "orders.db", "sqlite:", "sqlite://host/x.db", "mysql://x/y", "dynamodb://", "dynamodb://a/b"]
)  # fmt: skip
def test_what_is_no_store_is_refused(url: str) -> None:
    """With what one may write instead."""
    told = r"give sqlite:///FILE, postgresql://.* or scheduler://"
    with pytest.raises(ConfigurationError, match=told):
        open_store(url, endpoint="orders")


@pytest.mark.parametrize("mark", ["?", "#"])
def test_a_sqlite_file_is_not_cut_at_a_mark(tmp_path: Path, mark: str) -> None:
    """Another file than the one that was named would be opened."""
    with pytest.raises(ConfigurationError, match=r"write '[?]' in a file"):
        open_store(f"sqlite:///{tmp_path}/we{mark}ird.db", endpoint="orders")
    assert not list(tmp_path.iterdir())
    quoted = {"?": "%3F", "#": "%23"}[mark]
    open_store(f"sqlite:///{tmp_path}/we{quoted}ird.db", endpoint="orders").close()
    assert [path.name for path in tmp_path.iterdir()] == [f"we{mark}ird.db"]


def test_a_password_is_not_shown() -> None:
    """Error messages end up in logs."""
    for url in (
        "mysql://me:s3cret@host/db",
        "host=db password=s3cret",
        "postgresql:me:s3cret@host/db",
        "postgresql://me:s3%cret@host/db",
        "postgresql://me:s3cret@host:port/db?s3cret",
        "https://me:s3cret\u2100@host",
        "sqlite://me:s3cret@host/x.db",
        "dynamodb://me:s3cret@table",
    ):
        with pytest.raises(ConfigurationError) as raised:
            open_store(url, endpoint="orders").close()
        shown = "".join(traceback.format_exception(raised.value))
        assert "cret" not in shown.replace(url, ""), url
        assert "cret" not in str(raised.value), url


@pytest.mark.parametrize(
    "url",
    [
        "dynamodb://parked?table=b",
        "s3://bucket?table=b",
        "scheduler://g?role=arn:aws:iam::123456789012:role/r&table=b",
        "sqlite:///x.db?schema=app",
        "sqlite:///x.db?table=",
        "postgresql://host/db?schema=",
    ],
)
def test_a_setting_that_would_do_nothing_is_refused(url: str) -> None:
    """A table where the URL names it already, a schema where there are none, an empty name."""
    with pytest.raises(ConfigurationError, match=r"takes|not valid"):
        open_place(url, endpoint="orders")


def test_a_table_has_the_name_that_the_url_gives(tmp_path: Path) -> None:
    """Percent-encoded where it must be; two of them in one file are two stores."""
    url = f"sqlite:///{tmp_path}/x.db"
    with (
        closing(open_store(f"{url}?table=my%20own", endpoint="orders")) as own,
        closing(open_store(url, endpoint="orders")) as other,
    ):
        for store in (own, other):
            store.set_up()
        own.store([to_store(Message("x", delay=60, message_id="m"), "orders", now_ms=0)])
        assert (own.pending_count(), other.pending_count()) == (1, 0)


def test_a_driver_is_loaded_for_its_store_only() -> None:
    """SQLite needs neither psycopg nor boto3."""
    code = (
        "import sys; from sqsdelay.stores import open_store; "
        "open_store('sqlite:///:memory:', endpoint='orders').close(); "
        "print({'psycopg', 'boto3'} & set(sys.modules))"
    )
    done = ended([sys.executable, "-c", code], check=True)
    assert done.stdout == "set()\n"


def test_a_missing_driver_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the extra that brings it."""
    monkeypatch.setitem(sys.modules, "psycopg", None)
    monkeypatch.delitem(sys.modules, "sqsdelay.stores.postgres.postgres_store")
    with pytest.raises(ConfigurationError, match=r"pip install 'sqsdelay\[postgres\]'"):
        open_store("postgresql://host/db", endpoint="orders")
