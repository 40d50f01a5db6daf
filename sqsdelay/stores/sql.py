"""What the stores in SQLite and PostgreSQL do alike: a method is one query of the dialect's own book."""

from __future__ import annotations

import json
import re
from abc import abstractmethod
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from importlib.resources import files
from typing import Any, ClassVar, Final

from sqsdelay.core import stored_message
from sqsdelay.core.stored_message import Amendment, StoredMessage, from_rows
from sqsdelay.errors import ConfigurationError, StoreError, StoreMissing
from sqsdelay.receiving.deduplication import Copy
from sqsdelay.stores.shared import HoldingClaim, Pages, page_bounds

COLUMNS: Final = ("message_id", "destination", "due_ms", "body", "headers", "failures")
"""Of a message, in the order of `row_of` and of `from_store`."""

_NAME: Final = re.compile(r"^-- name: (\w+)$", re.MULTILINE)

UNFIT: Final = re.compile("[\0\ud800-\udfff]")
"""What no name holds."""

CLAIM_BYTES: Final = 64 << 20
"""A claim ends with the body that reaches it: 500 of 1 MiB took a gigabyte of memory."""


def read_queries(file_name: str) -> dict[str, str]:
    """The queries of one file, by name; ``-- name: x`` starts one, comments below it describe it."""
    text = (files("sqsdelay.stores") / file_name).read_text(encoding="utf-8")
    # Comments go, but for those that name a query.
    parts = _NAME.split(re.sub(r"^--(?! name: ).*\n?", "", text, flags=re.MULTILINE))[1:]
    return {name: query.strip() for name, query in zip(parts[::2], parts[1::2], strict=True)}


def row_of(message: StoredMessage) -> tuple[Any, ...]:
    """What a message is stored as."""
    m = message
    return m.message_id, m.destination, m.due_ms, m.body, m.headers(), m.failures


def found_among(message_ids: Sequence[str], returned: Iterable[str]) -> list[bool]:
    """Whether each id was returned."""
    found = set(returned)
    return [message_id in found for message_id in message_ids]


class SqlTable:
    r"""A table of a dialect: its queries by name, its connections, and a caller's.

    ``_SUFFIX``: how the table's name ends, behind the endpoint's. ``_QUERIES``: the file of its queries; one
    for both dialects, one of the same name in the folder ``_DIALECT``. ``_REMEDY``: how the table is made,
    for the error when it is missing. ``_DRIVER``: the class of a caller's connection; ``_ERROR`` the base of
    its errors. ``_BEGIN``: how a caller begins a transaction. ``_PARAMETER``: how the driver is given a
    parameter, with ``\1`` for the name."""

    _SUFFIX: ClassVar[str]
    _QUERIES: ClassVar[str]
    _REMEDY: ClassVar[str]
    _DRIVER: ClassVar[type[Any]]
    _ERROR: ClassVar[type[Exception]]
    _BEGIN: ClassVar[str]
    _DIALECT: ClassVar[str]
    _PARAMETER: ClassVar[str]
    _table: str
    _sql: dict[str, Any]
    _checked = False

    def _read_book(self, names: dict[str, str]) -> None:
        """Read the queries, with names and other pieces put in."""
        shared = {"columns": ", ".join(COLUMNS), "claim_bytes": str(CLAIM_BYTES)}
        self._names_in_queries, self._book = shared | names, dict[str, str]()
        for file in (
            self._QUERIES,
            f"{self._DIALECT}/table.sql",
            f"{self._DIALECT}/{self._QUERIES}",
        ):
            for name, query in read_queries(file).items():
                self._book[name] = re.sub(r"(?<!:):([a-z]\w*)", self._PARAMETER, query)
        self._sql = {name: self._query(name) for name in self._book}

    def _query(self, name: str, **more: str) -> Any:
        """A query of the book; in one pass, for a name may itself hold what looks like another's place."""
        names = self._names_in_queries | more
        return re.sub(r"\{(\w+)\}", lambda place: names[place[1]], self._book[name])

    @abstractmethod
    def _statement(self) -> AbstractContextManager[Any]:
        """A connection whose statements each commit by themselves."""

    @abstractmethod
    def _transaction(self, *, check: bool = True) -> AbstractContextManager[Any]:
        """A connection with a write transaction; ``check`` the table first."""

    @abstractmethod
    def _error(self, error: Any) -> StoreError:
        """The error to raise for one of the driver's."""

    @contextmanager
    def _translated(self) -> Iterator[None]:
        """The driver's errors as StoreError. Without their cause, for PostgreSQL's quotes a row."""
        try:
            yield
        except self._ERROR as error:
            raise self._error(error) from None

    @abstractmethod
    def _is_ours(self, connection: Any) -> bool:
        """Whether the table is there; raises SchemaMismatch if another sqsdelay made it."""

    @abstractmethod
    def _commits_at_once(self, transaction: Any) -> bool:
        """Whether a caller's connection has no transaction open, and would commit each statement."""

    def set_up(self) -> None:
        """Create the table, where it is missing, and write down its version. Where it is there already, only
        the version is read: whatever else takes a lock would wait behind open transactions, and every sender
        behind it. Raises SchemaMismatch: another sqsdelay made it."""
        with self._statement() as connection:
            if self._is_ours(connection):
                return
        with self._transaction(check=False) as connection:
            for step in ("lock", "set_up", "record"):
                if step == "set_up" and self._is_ours(connection):
                    return
                for name in (name for name in self._sql if name.startswith(step)):
                    connection.execute(self._sql[name], {})

    def _check(self, connection: Any) -> None:
        """Before the first use of all: raise StoreMissing or SchemaMismatch if this is no table of ours."""
        if not self._checked:
            if not self._is_ours(connection):
                raise self._missing()
            self._checked = True

    def _check_given(self, transaction: Any) -> None:
        if not isinstance(transaction, self._DRIVER):
            raise ConfigurationError(
                f"transaction is a {type(transaction).__name__}; give the "
                f"{self._DRIVER.__module__}.{self._DRIVER.__name__}"
            )

    def _missing(self) -> StoreMissing:
        return StoreMissing(
            f"table {self._table} does not exist; {self._REMEDY}, or correct the name"
        )


class SqlStore(SqlTable, Pages):
    """Everything but storing and claiming. A dialect adds the time, and how long a lease is."""

    _SUFFIX = "delayed"
    _QUERIES = "store.sql"
    _REMEDY = "run sqsdelay store create or set_up()"

    @abstractmethod
    def _times(self) -> dict[str, object]:
        """What queries may ask for besides their own arguments."""

    @abstractmethod
    def _names(self, names: Collection[str]) -> Any:
        """A list of names as a query takes it."""

    @abstractmethod
    def _store(self, messages: Sequence[StoredMessage]) -> list[bool]:
        """Store in a transaction of its own."""

    @abstractmethod
    def _insert(self, connection: Any, messages: Sequence[StoredMessage]) -> list[bool]:
        """Store in the connection's transaction."""

    def store(self, messages: Sequence[StoredMessage], *, transaction: Any = None) -> list[bool]:
        if transaction is None:
            return self._store(messages) if messages else []
        self._check_given(transaction)
        with self._translated():
            self._check(transaction)
            return self._insert(transaction, messages) if messages else []

    def _read(self, query: str, **arguments: object) -> list[Any]:
        """The rows of a query that only reads."""
        with self._statement() as connection:
            self._check(connection)
            rows: list[Any] = connection.execute(
                self._sql[query], self._times() | arguments
            ).fetchall()
            return rows

    def _changed(self, query: str, **arguments: object) -> list[Any]:
        """The rows that a query which writes gives back."""
        return self._read(query, **arguments)

    def _wake(self) -> None:
        """Where the query does not wake the dispatchers itself."""

    def next_due_ms(self, except_destinations: Collection[str] = ()) -> int | None:
        return self._next_due(except_destinations)

    def _next_due(self, except_destinations: Collection[str], **more: object) -> int | None:
        rows = self._read(
            "next_due_except" if except_destinations else "next_due",
            except_destinations=self._names(except_destinations),
            **more,
        )
        return None if not rows or rows[0][0] is None else stored_message.due_found(rows[0][0])

    def pending_count(self) -> int:
        return int(self._read("pending_count")[0][0])

    def count_due(self, from_ms: int, before_ms: int) -> int:
        return int(self._read("count_due", from_ms=from_ms, before_ms=before_ms)[0][0])

    def _page(self, limit: int, from_ms: int, from_id: str, before_ms: int) -> list[StoredMessage]:
        bounds = {"after_ms": from_ms, "after_id": from_id, "before_ms": before_ms}
        return from_rows(self._read("pending", **bounds, limit=limit))

    def find(self, message_id: str) -> StoredMessage | None:
        rows = self._read("find", id=message_id)
        return stored_message.from_store(*rows[0]) if rows else None

    def cancel(self, message_ids: Sequence[str]) -> list[bool]:
        return self._of("cancel", message_ids)

    def reschedule(self, message_id: str, due_ms: int) -> bool:
        stored_message.check_stored_due(due_ms)
        moved = self._changed("reschedule", message_id=message_id, due_ms=due_ms)
        self._wake()
        return bool(moved)

    def amend(self, amendments: Sequence[Amendment]) -> None:
        # In one order always: callers that amend the same messages at once do not deadlock.
        rows = [
            (message_id, a.due_ms, a.until_ms, a.cancelled_ms)
            for message_id, a in sorted(stored_message.latest_amendments(amendments).items())
        ]
        lifetime_ms = stored_message.AMENDMENT_LIFETIME_MS
        arguments = self._times() | {"rows": json.dumps(rows), "lifetime_ms": lifetime_ms}
        with self._transaction() as connection:
            connection.execute(self._sql["forget_amendments"], arguments)
            connection.execute(self._sql["amend"], arguments)

    def amendments(self, message_ids: Sequence[str]) -> dict[str, Amendment]:
        rows = self._read("amendments", ids=self._names(message_ids))
        return {row[0]: stored_message.amendment_from_row(*row) for row in rows}

    def all_amendments(self, limit: int, *, after_id: str = "") -> list[Amendment]:
        rows = self._read("all_amendments", after_id=after_id, limit=limit)
        return [stored_message.amendment_from_row(*row) for row in rows]

    def _busy(self, asked: Sequence[str], claimed: Sequence[StoredMessage]) -> frozenset[str]:
        """Which of the messages asked for are there, and were not claimed."""
        left = set(asked).difference(message.message_id for message in claimed)
        if not left:
            return frozenset()
        return frozenset(row[0] for row in self._read("known_ids", ids=self._names(left)))

    def take(
        self, limit: int, *, due_from_ms: int, after: tuple[int, str] | None = None
    ) -> list[StoredMessage]:
        return self._taken("take", limit, after, due_from_ms)

    def taken(self, limit: int, *, after: tuple[int, str] | None = None) -> list[StoredMessage]:
        return self._taken("taken", limit, after, None)

    def _taken(
        self, query: str, limit: int, after: tuple[int, str] | None, due_from_ms: int | None
    ) -> list[StoredMessage]:
        after_ms, after_id, _ = page_bounds(after, due_from_ms, None)
        rows = self._changed(query, after_ms=after_ms, after_id=after_id, limit=limit)
        return sorted(from_rows(rows), key=lambda message: (message.due_ms, message.message_id))

    def remove_taken(self, message_ids: Sequence[str]) -> list[bool]:
        return self._of("remove_taken", message_ids)

    def put_back(self, message_ids: Sequence[str]) -> None:
        self._changed("put_back", ids=self._names(message_ids))
        self._wake()

    def _of(self, query: str, message_ids: Sequence[str]) -> list[bool]:
        rows = self._changed(query, ids=self._names(message_ids))
        return found_among(message_ids, (row[0] for row in rows))


class SqlClaim(HoldingClaim):
    """Messages of a store that are claimed. A dialect adds how its queries are run, and savepoints."""

    def __init__(
        self, messages: list[StoredMessage], again: Iterable[str] = (), transaction: Any = None
    ) -> None:
        self.messages = messages
        self.again = frozenset(again)
        self.busy: frozenset[str] = frozenset()
        self.transaction = transaction

    @abstractmethod
    def _run(self, query: str, message_ids: Sequence[str], **arguments: object) -> list[Any]:
        """The rows of one of the store's queries, for some of the messages."""

    def remove(self, message_ids: Sequence[str]) -> list[bool]:
        return self._settle("remove", message_ids)

    def _hold(self, message_ids: Sequence[str], seconds: float, failed: int) -> list[bool]:
        return self._settle("hold", message_ids, failed=failed, hold_ms=round(1000 * seconds))

    def _settle(self, query: str, message_ids: Sequence[str], **arguments: object) -> list[bool]:
        rows = self._run(query, message_ids, **arguments)
        return found_among(message_ids, (row[0] for row in rows))


class SqlInbox(SqlTable):
    """An inbox."""

    _SUFFIX = "received"
    _QUERIES = "inbox.sql"
    _REMEDY = "call set_up()"

    def _run(self, query: str, **arguments: object) -> tuple[list[Any], int]:
        """The rows a query gives, and how many it changed."""
        with self._statement() as connection:
            self._check(connection)
            cursor = connection.execute(self._sql[query], arguments)
            return cursor.fetchall() if cursor.description else [], cursor.rowcount

    def first(self, message_id: str, *, transaction: Any, now_ms: int, until_ms: int) -> bool:
        self._check_given(transaction)
        if self._commits_at_once(transaction):
            raise ConfigurationError(
                f"the connection commits each statement and no transaction is open; {self._BEGIN}"
            )
        arguments = {"message_id": message_id, "now_ms": now_ms, "until_ms": until_ms}
        with self._translated():
            self._check(transaction)
            return bool(transaction.execute(self._sql["first"], arguments).rowcount == 1)

    def begin(self, message_id: str, *, claim: str, now_ms: int, until_ms: int) -> Copy:
        arguments = {"claim": claim, "now_ms": now_ms, "until_ms": until_ms}
        if self._run("begin", message_id=message_id, **arguments)[0]:
            return Copy.FIRST
        rows, _ = self._run("find", message_id=message_id)
        # A row that is gone was given up this moment: the copy comes back, and is the first then.
        return Copy.DUPLICATE if rows and rows[0][0] is None else Copy.IN_PROGRESS

    def done(self, message_id: str, *, until_ms: int) -> None:
        self._run("done", message_id=message_id, until_ms=until_ms)

    def release(self, message_id: str, *, claim: str) -> None:
        self._run("release", message_id=message_id, claim=claim)

    def forget(self, now_ms: int, *, limit: int) -> int:
        return self._run("forget", now_ms=now_ms, limit=limit)[1]
