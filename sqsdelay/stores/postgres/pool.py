"""Connections to a PostgreSQL database, and a table in it: pooled, made, checked, errors translated."""

from __future__ import annotations

import hashlib
import logging
import re
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from typing import Any, ClassVar, Final

import psycopg
from psycopg import IsolationLevel, sql
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row
from psycopg_pool import ConnectionPool

from sqsdelay.core.limits import MAX_POSTGRES_NAME_BYTES, POSTGRES_ANSWER_SECONDS
from sqsdelay.core.readable import one_line
from sqsdelay.errors import InvalidSetting, StoreError, StoreUnavailable
from sqsdelay.ports import in_each_child
from sqsdelay.stores.shared import VERSION, check_version, mismatch
from sqsdelay.stores.sql import UNFIT, SqlTable

logger = logging.getLogger(__name__)

DEFAULT_SCHEMA: Final = "public"
DEFAULT_CONNECTIONS: Final = 8
_CONNECT_SECONDS: Final = 5.0
LOCK_SECONDS: Final = 5
"""Longest that a statement waits for a lock. Ours: claims, changes and inserts wait for no row's."""

_VERSION: Final = re.compile(r"sqsdelay schema (\d{1,9})", re.ASCII)

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
    # A claim's transaction is idle while its messages are sent: ended meanwhile, it sends them again.
    "idle_in_transaction_session_timeout": "0",
    # Behind ALTER TABLE or LOCK TABLE of a long transaction nothing is done: it is told, and tried again.
    "lock_timeout": f"{1000 * LOCK_SECONDS}",
    # To compile a claim takes longer than to run it.
    "jit": "off",
    # While a table is almost empty, the planner would read and sort it whole, and keep that plan for
    # the session: when a million rows arrive, each claim reads them all.
    "enable_seqscan": "off",
    # Claims that go from one destination to the next would sort all that is due instead.
    "enable_sort": "off",
}
_TRANSACTION: Final = ";".join(f"SET LOCAL {each} = {to}" for each, to in SERVER_SETTINGS.items())
# As a database's default, another level makes claims fail that have been sent.
_SESSION: Final = _TRANSACTION.replace(" LOCAL", "") + (
    ";SET default_transaction_isolation = 'read committed'"
)

_BLOCKING: Final = """
SELECT pid, format('session %%s (%%s, %%s, %%s, transaction of %%s s)', pid, usename,
    coalesce(nullif(application_name, ''), 'no application_name'), coalesce(state, 'state unknown'),
    coalesce(extract(epoch FROM clock_timestamp() - xact_start)::integer, 0))
FROM pg_stat_activity WHERE pid = ANY(pg_blocking_pids(%s)) ORDER BY xact_start
"""


class TimedConnection(psycopg.Connection[tuple[Any, ...]]):
    """Gives up a server that says nothing for `POSTGRES_ANSWER_SECONDS`, on a host that keepalives find
    alive. Before a wait for a lock is given up, ``on_silence`` is called with its session's process id."""

    on_silence: Callable[[int], None] | None = None

    def wait(self, gen: Generator[Any, Any, Any], *args: Any, **kwargs: Any) -> Any:
        return super().wait(self._timed(gen), *args, **kwargs)

    def _timed(self, talk: Generator[Any, Any, Any]) -> Generator[Any, Any, Any]:
        heard = time.monotonic()
        told = False
        try:
            state = next(talk)
            while True:
                ready = yield state
                if ready:
                    heard = time.monotonic()
                elif not told and time.monotonic() - heard > LOCK_SECONDS - 1:
                    told = True
                    if self.on_silence is not None:
                        self.on_silence(self.info.backend_pid)
                elif time.monotonic() - heard > POSTGRES_ANSWER_SECONDS:
                    # Whatever it would answer still belongs to this statement.
                    self.pgconn.finish()
                    raise psycopg.OperationalError(f"no answer for {POSTGRES_ANSWER_SECONDS:g} s")
                state = talk.send(ready)
        except StopIteration as end:
            return end.value


class Locked(StoreUnavailable):
    """Somebody else's transaction has locked the whole table."""


def begin_session(connection: Connection) -> bool:
    """Make a new connection ours; False behind a pooler, whose sessions meet other clients, and not us again.
    PgBouncer gives its clients a process id of its own making."""
    connection.isolation_level = IsolationLevel.READ_COMMITTED
    row = connection.execute("SELECT pg_backend_pid()").fetchone()
    if row is None or row[0] != connection.info.backend_pid:
        connection.prepare_threshold = None
        return False
    connection.execute(_SESSION)
    return True


def _is_open(connection: Connection) -> bool:
    """False if the server has closed it: without asking, which would take a round trip."""
    try:
        # The first may read the server's last words only; what follows them is the end.
        connection.pgconn.consume_input()
        connection.pgconn.consume_input()
    except psycopg.Error:
        return False
    return True


def driver_text(error: psycopg.Error) -> str:
    """What the server says is wrong, without DETAIL and CONTEXT, which quote the row."""
    primary = error.diag.message_primary
    return str(error) if primary is None else f"{primary} (SQLSTATE {error.sqlstate})"


class PostgresTable(SqlTable):
    """A table, and its version in the comment of one of its indexes, which backups keep. Its connections are
    in autocommit mode, for the threads of this process."""

    _DIALECT, _PARAMETER = "postgres", r"%(\1)s"
    _DRIVER, _ERROR = psycopg.Connection, psycopg.Error
    _BEGIN = "use it within connection.transaction()"
    _INDEX: ClassVar[str]
    """How the name of the index ends whose comment tells the version."""

    def __init__(
        self,
        conninfo: str,
        *,
        endpoint: str,
        table: str | None = None,
        schema: str = DEFAULT_SCHEMA,
        connections: int = DEFAULT_CONNECTIONS,
    ) -> None:
        table = table or f"{endpoint}.{self._SUFFIX}"
        for name in (schema, table):
            size = len(name.encode("utf-8", "surrogatepass"))
            if not 1 <= size <= MAX_POSTGRES_NAME_BYTES or UNFIT.search(name):
                raise InvalidSetting(
                    f"{name!r} has {size} bytes; a PostgreSQL name has 1 to {MAX_POSTGRES_NAME_BYTES} in "
                    "UTF-8 and no NUL; give another table="
                )
        try:
            psycopg.conninfo.conninfo_to_dict(conninfo)
        except (psycopg.Error, ValueError):
            # Without its cause: libpq repeats the part it does not understand, which may be a password.
            raise InvalidSetting(
                "the PostgreSQL connection string is not valid; use e.g. "
                "postgresql://user:password@host:5432/db, with %40 for an @ in the password"
            ) from None
        self._conninfo, self._schema, self._table = conninfo, schema, table
        digest = hashlib.sha256(f"{schema}\0{table}".encode()).hexdigest()[:32]
        # An index lives in its table's schema, and its name may not be cut off either.
        self._prefix = f"sqsdelay_{digest}"
        index = self._identifier(f"{self._prefix}_{self._INDEX}")
        names = {
            "table": self._identifier(table),
            "table_name": sql.Literal(self._identifier(table)).as_string(None),
            "amendments": self._identifier(f"{self._prefix}_amendments"),
            "prefix": f"'{self._prefix}'",
            "qualified_index": index,
            "index_name": sql.Literal(index).as_string(None),
            "version": f"'sqsdelay schema {VERSION}'",
        }
        for name in ("due", "destination", "held", "until"):
            names[f"{name}_index"] = f'"{self._prefix}_{name}"'
        self._read_book(self._pieces() | names)
        self._blocking: set[int] = set()
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
        self._pools: list[ConnectionPool[TimedConnection]] = []
        self._begin_anew()
        in_each_child(self, PostgresTable._begin_anew)

    def _pieces(self) -> dict[str, str]:
        """What queries have in common, besides the names of tables and indexes."""
        return {}

    def _query(self, name: str, **more: str) -> bytes:
        return str(super()._query(name, **more)).encode()

    def _begin_anew(self) -> None:
        """A child keeps its parent's connections, unused: closing one would end the parent's session."""
        self._pool = self._make_pool()
        self._pools.append(self._pool)
        self._own_sessions = True

    def _configure(self, connection: TimedConnection) -> None:
        if begin_session(connection):
            connection.on_silence = self._tell_what_blocks
        else:
            self._own_sessions = False

    def _tell_what_blocks(self, session: int) -> None:
        """Warn of the sessions whose locks this one waits for, once for the same ones."""
        blocking: dict[int, str] = {}
        with suppress(psycopg.Error), psycopg.connect(self._conninfo, **CLIENT_SETTINGS) as other:
            blocking = dict(other.execute(_BLOCKING, [session]).fetchall())
        if blocking and not blocking.keys() <= self._blocking:
            logger.warning(
                "PostgreSQL store %s waits for a lock, and tries again until it gets it: blocked by %s; end "
                "that transaction, or SELECT pg_terminate_backend(…)",
                self._table,
                ", ".join(map(one_line, blocking.values())),
            )
        self._blocking = set(blocking)

    @contextmanager
    def _statement(self) -> Iterator[Connection]:
        """A connection; one that broke, or is left inside a transaction, the pool replaces."""
        with self._translated():
            if self._pool.closed:
                self._pool.open()
            # psycopg_pool's own check waits a second after the first dead connection it finds.
            while not _is_open(connection := self._pool.getconn()):
                self._pool.putconn(connection)
            try:
                # A pooler's session has no level of ours: READ COMMITTED comes with a transaction.
                with nullcontext() if self._own_sessions else connection.transaction():
                    yield connection
            finally:
                self._pool.putconn(connection)

    @contextmanager
    def _transaction(self, *, check: bool = True) -> Iterator[Connection]:
        with (
            self._statement() as connection,
            connection.transaction() if self._own_sessions else nullcontext(),
        ):
            if not self._own_sessions:
                # It may be open while its client vanishes.
                connection.execute(_TRANSACTION)
            if check:
                self._check(connection)
            yield connection

    def _error(self, error: psycopg.Error) -> StoreError:
        if isinstance(error, psycopg.errors.UndefinedTable):
            return self._missing()
        if isinstance(error, psycopg.errors.UndefinedColumn):
            return mismatch(self._table, driver_text(error))
        text = f"PostgreSQL store {self._table}: {driver_text(error)}"
        if isinstance(error, psycopg.errors.LockNotAvailable):
            return Locked(text)
        if isinstance(error, psycopg.OperationalError | psycopg.InterfaceError):
            return StoreUnavailable(text)
        return StoreError(text)

    def _identifier(self, name: str) -> str:
        # psycopg reads %s in a query's text, so a percent sign of a name is written twice.
        return sql.Identifier(self._schema, name).as_string(None).replace("%", "%%")

    def _is_ours(self, connection: psycopg.Connection[Any]) -> bool:
        # The caller's connection may make rows of another shape.
        cursor = connection.cursor(row_factory=tuple_row)
        row = cursor.execute(self._sql["version"], {}).fetchone()
        exists, comment = row or (False, None)
        if exists:
            told = _VERSION.fullmatch(comment or "")
            check_version(None if told is None else int(told[1]), self._table)
        return bool(exists)

    def _commits_at_once(self, transaction: psycopg.Connection[Any]) -> bool:
        idle = transaction.info.transaction_status == TransactionStatus.IDLE
        return transaction.autocommit and idle

    def close(self) -> None:
        """Close all connections."""
        self._pool.close()
