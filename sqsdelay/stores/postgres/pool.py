"""Connections to a PostgreSQL database: pooled, opened when first needed, errors translated."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Generator, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any, Final

import psycopg
from psycopg import IsolationLevel
from psycopg_pool import ConnectionPool

from sqsdelay.errors import InvalidSetting, StoreError, StoreMissing, StoreUnavailable
from sqsdelay.limits import MAX_POSTGRES_NAME_BYTES, POSTGRES_ANSWER_SECONDS
from sqsdelay.ports.forks import in_each_child
from sqsdelay.stores.postgres.row_places import RowPlaces, RowPlacesDumper
from sqsdelay.stores.schema_version import mismatch

DEFAULT_SCHEMA: Final = "public"
DEFAULT_CONNECTIONS: Final = 8
_CONNECT_SECONDS: Final = 5.0
_UNFIT: Final = re.compile("[\0\ud800-\udfff]")

Connection = psycopg.Connection[tuple[Any, ...]]

CLIENT_SETTINGS: Final[dict[str, Any]] = {
    "autocommit": True,
    "connect_timeout": int(_CONNECT_SECONDS),
    # A server that has gone silent is noticed in seconds, not after the system's minutes.
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 10_000,
}

SERVER_SETTINGS: Final = {
    # A client that has lost its power keeps its row locks for these 8 s, not for two hours.
    "tcp_keepalives_idle": "4",
    "tcp_keepalives_interval": "1",
    "tcp_keepalives_count": "4",
    "tcp_user_timeout": "8000",
    # To compile a claim takes longer than to run it.
    "jit": "off",
    # While a table is almost empty, the planner would read and sort it whole, and keep that plan for
    # the session: when a million rows arrive, each claim reads them all.
    "enable_seqscan": "off",
}
_SESSION: Final = ";".join(
    f"SET {name} = {value}"
    for name, value in {
        **SERVER_SETTINGS,
        # As a database's default, another level makes claims fail that have been sent.
        "default_transaction_isolation": "'read committed'",
    }.items()
)
_TRANSACTION: Final = ";".join(
    f"SET LOCAL {name} = {value}" for name, value in SERVER_SETTINGS.items()
)


class TimedConnection(psycopg.Connection[tuple[Any, ...]]):
    """Gives up a server that says nothing for `POSTGRES_ANSWER_SECONDS`.

    Keepalives notice a host that is gone, not a proxy or a stopped server whose host lives on; psycopg
    itself waits for an answer without end.
    """

    patient = False
    """Whether statements may take as long as they take."""

    def wait(self, gen: Generator[Any, Any, Any], *args: Any, **kwargs: Any) -> Any:
        return super().wait(gen if self.patient else self._timed(gen), *args, **kwargs)

    def _timed(self, talk: Generator[Any, Any, Any]) -> Generator[Any, Any, Any]:
        heard = time.monotonic()
        try:
            state = next(talk)
            while True:
                ready = yield state
                if ready:
                    heard = time.monotonic()
                elif time.monotonic() - heard > POSTGRES_ANSWER_SECONDS:
                    # Whatever it would answer still belongs to this statement.
                    self.pgconn.finish()
                    raise psycopg.OperationalError(f"no answer for {POSTGRES_ANSWER_SECONDS:g} s")
                state = talk.send(ready)
        except StopIteration as end:
            return end.value


def begin_session(connection: Connection) -> bool:
    """Make a new connection ours; False behind a pooler, where a session is not ours to change.

    PgBouncer gives its clients a process id of its own making. In transaction mode, what is set or
    prepared on a session would meet other clients, and not meet us again.
    """
    connection.isolation_level = IsolationLevel.READ_COMMITTED
    row = connection.execute("SELECT pg_backend_pid()").fetchone()
    if row is None or row[0] != connection.info.backend_pid:
        connection.prepare_threshold = None
        return False
    connection.execute(_SESSION)
    return True


def _is_open(connection: Connection) -> bool:
    """False if the server has closed it: without asking, which would take a round trip.

    A server that vanished without closing is told by the keepalives.
    """
    try:
        # The first may read the server's last words only; what follows them is the end.
        connection.pgconn.consume_input()
        connection.pgconn.consume_input()
    except psycopg.Error:
        return False
    return True


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
            raise InvalidSetting(
                "the PostgreSQL connection string is not valid; use e.g. "
                "postgresql://user:password@host:5432/db, with %40 for an @ in the password"
            ) from None
        self._make_pool = partial(
            ConnectionPool[TimedConnection],
            conninfo,
            connection_class=TimedConnection,
            min_size=1,
            max_size=connections,
            open=False,
            timeout=_CONNECT_SECONDS,
            reconnect_timeout=_CONNECT_SECONDS,
            kwargs=CLIENT_SETTINGS,
            configure=self._configure,
            name=f"sqsdelay-{table}",
        )
        self._inherited: list[ConnectionPool[TimedConnection]] = []
        self._pool: ConnectionPool[TimedConnection] = self._make_pool()
        self._opening = threading.Lock()
        self._own_sessions = True
        in_each_child(self, PostgresPool._begin_anew)

    def _begin_anew(self) -> None:
        """The parent's connections are kept, unused: closing one would end the parent's session."""
        self._inherited.append(self._pool)
        self._pool = self._make_pool()
        self._opening = threading.Lock()
        self._own_sessions = True

    def _configure(self, connection: Connection) -> None:
        if not begin_session(connection):
            self._own_sessions = False
        connection.adapters.register_dumper(RowPlaces, RowPlacesDumper)

    def taken(self) -> TimedConnection:
        """A connection, to be given back.

        Raises:
            StoreUnavailable
        """
        try:
            if self._pool.closed:
                with self._opening:
                    self._pool.open()
            # psycopg_pool's own check waits a second after the first dead connection it finds.
            while not _is_open(connection := self._pool.getconn()):
                self._pool.putconn(connection)
            return connection
        except psycopg.Error as error:
            raise self.error(error) from error

    def give_back(self, connection: TimedConnection) -> None:
        """One that broke, or was left inside a transaction, the pool replaces."""
        self._pool.putconn(connection)

    @contextmanager
    def setting_up(self) -> Iterator[Connection]:
        """A connection that waits as long as it takes: to index a long table takes minutes."""
        connection = self.taken()
        connection.patient = True
        try:
            with self.translated():
                yield connection
        finally:
            connection.patient = False
            self.give_back(connection)

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
    def statement(self) -> Iterator[Connection]:
        """A connection whose statements each commit by themselves, or at the context's end."""
        with self.connection() as connection, self.committed(connection):
            yield connection

    def committed(self, connection: Connection) -> AbstractContextManager[object]:
        """Commits what is done within it at the latest when it ends, at READ COMMITTED."""
        return nullcontext() if self._own_sessions else connection.transaction()

    def begun(self, connection: Connection) -> None:
        """To be called at the start of a transaction that may be open while its client vanishes."""
        if not self._own_sessions:
            connection.execute(_TRANSACTION)

    @contextmanager
    def translated(self) -> Iterator[None]:
        """PostgreSQL's errors as StoreError."""
        try:
            yield
        except psycopg.Error as error:
            # Without its cause, whose DETAIL quotes a row: its body, and whatever it holds.
            raise self.error(error) from None

    def error(self, error: psycopg.Error) -> StoreError:
        """The error to raise for one of PostgreSQL's."""
        if isinstance(error, psycopg.errors.UndefinedTable):
            return StoreMissing(
                f"table {self._table} does not exist; {self._remedy}, or correct the name"
            )
        if isinstance(error, psycopg.errors.UndefinedColumn):
            return mismatch(self._table, self._remedy, error)
        text = f"PostgreSQL store {self._table}: {driver_text(error)}"
        if isinstance(error, psycopg.OperationalError | psycopg.InterfaceError):
            return StoreUnavailable(text)
        return StoreError(text)

    def close(self) -> None:
        """Close all connections; nothing can be asked any more."""
        self._pool.close()


def driver_text(error: psycopg.Error) -> str:
    """What the server says is wrong, without DETAIL and CONTEXT, which quote the row."""
    primary = error.diag.message_primary
    return str(error) if primary is None else f"{primary} (SQLSTATE {error.sqlstate})"


def check_name(name: str) -> None:
    """Refuse a name PostgreSQL would cut off or cannot hold.

    Raises:
        ConfigurationError
    """
    size = len(name.encode("utf-8", "surrogatepass"))
    if not 1 <= size <= MAX_POSTGRES_NAME_BYTES or _UNFIT.search(name):
        raise InvalidSetting(
            f"{name!r} has {size} bytes; a PostgreSQL name has 1 to {MAX_POSTGRES_NAME_BYTES} in UTF-8 "
            "and no NUL; give another table="
        )
