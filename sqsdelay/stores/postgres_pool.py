"""Connections to a PostgreSQL database: pooled, opened when first needed, errors translated."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Final

import psycopg
from psycopg_pool import ConnectionPool

from sqsdelay.errors import ConfigurationError, StoreError, StoreMissing, StoreUnavailable
from sqsdelay.forks import in_each_child
from sqsdelay.limits import MAX_POSTGRES_NAME_BYTES

DEFAULT_SCHEMA: Final = "public"
DEFAULT_CONNECTIONS: Final = 8
_CONNECT_SECONDS: Final = 5.0
_UNFIT: Final = re.compile("[\0\ud800-\udfff]")

Connection = psycopg.Connection[tuple[Any, ...]]


class PostgresPool:
    """Connections in autocommit mode, for the threads of this process.

    Args:
        conninfo: a libpq connection string or ``postgresql://`` URL.
        table: named in errors.
        connections: the most that are open.
        remedy: how the table is made, for the error when it is missing.

    Raises:
        ConfigurationError: a bad ``conninfo``.
    """

    def __init__(self, conninfo: str, *, table: str, connections: int, remedy: str) -> None:
        self._table = table
        self._remedy = remedy
        try:
            psycopg.conninfo.conninfo_to_dict(conninfo)
        except (psycopg.Error, ValueError):
            # Without its cause: libpq repeats the part it does not understand, which may be a password.
            raise ConfigurationError(
                "the PostgreSQL connection string is not understood; write e.g. "
                "postgresql://user:password@host:5432/db, with %40 for an @ in the password"
            ) from None
        self._make_pool = partial(
            ConnectionPool,
            conninfo,
            min_size=1,
            max_size=connections,
            open=False,
            timeout=_CONNECT_SECONDS,
            reconnect_timeout=_CONNECT_SECONDS,
            kwargs={
                "autocommit": True,
                "connect_timeout": int(_CONNECT_SECONDS),
                # A server that has gone silent is noticed in seconds, not after the system's minutes.
                "keepalives_idle": 5,
                "keepalives_interval": 2,
                "keepalives_count": 3,
                "tcp_user_timeout": 10_000,
            },
            name=f"sqsdelay-{table}",
        )
        self._inherited: list[ConnectionPool] = []
        self._pool: ConnectionPool = self._make_pool()
        self._opening = threading.Lock()
        in_each_child(self, PostgresPool._begin_anew)

    def _begin_anew(self) -> None:
        """The parent's connections are kept, unused: closing one would end the parent's session."""
        self._inherited.append(self._pool)
        self._pool = self._make_pool()
        self._opening = threading.Lock()

    def taken(self) -> Connection:
        """A connection, to be given back.

        Raises:
            StoreUnavailable
        """
        try:
            if self._pool.closed:
                with self._opening:
                    self._pool.open()
            return self._pool.getconn()
        except psycopg.Error as error:
            raise self.error(error) from error

    def give_back(self, connection: Connection) -> None:
        """One that broke, or was left inside a transaction, the pool replaces."""
        self._pool.putconn(connection)

    @contextmanager
    def connection(self) -> Iterator[Connection]:
        """A connection for the time of the context, its errors translated."""
        connection = self.taken()
        try:
            with self.translated():
                yield connection
        finally:
            self.give_back(connection)

    @contextmanager
    def translated(self) -> Iterator[None]:
        """PostgreSQL's errors as StoreError."""
        try:
            yield
        except psycopg.Error as error:
            raise self.error(error) from error

    def error(self, error: psycopg.Error) -> StoreError:
        """The error to raise for one of PostgreSQL's."""
        if isinstance(error, psycopg.errors.UndefinedTable):
            return StoreMissing(
                f"table {self._table} does not exist; {self._remedy}, or correct the name"
            )
        text = f"PostgreSQL store {self._table}: {error}"
        if isinstance(error, psycopg.OperationalError | psycopg.InterfaceError):
            return StoreUnavailable(text)
        return StoreError(text)

    def close(self) -> None:
        """Close all connections; nothing can be asked any more."""
        self._pool.close()


def check_name(name: str) -> None:
    """Refuse a name PostgreSQL would cut off or cannot hold.

    Raises:
        ConfigurationError
    """
    size = len(name.encode("utf-8", "surrogatepass"))
    if not 1 <= size <= MAX_POSTGRES_NAME_BYTES or _UNFIT.search(name):
        raise ConfigurationError(
            f"{name!r} has {size} bytes; a PostgreSQL name has 1 to {MAX_POSTGRES_NAME_BYTES} in UTF-8 "
            "and no NUL; give another table="
        )
