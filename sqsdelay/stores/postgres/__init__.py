"""A delayed message store and an inbox in PostgreSQL (psycopg)."""

from sqsdelay.stores.postgres.inbox import PostgresInbox
from sqsdelay.stores.postgres.postgres_store import PostgresStore

__all__ = ["PostgresInbox", "PostgresStore"]
