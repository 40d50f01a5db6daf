"""A delayed message store and an inbox in a SQLite file."""

from sqsdelay.stores.sqlite.sqlite_store import SqliteInbox, SqliteStore

__all__ = ["SqliteInbox", "SqliteStore"]
