"""A delayed message store and an inbox in PostgreSQL (psycopg)."""

from sqsdelay.stores.postgres.postgres_store import PostgresInbox, PostgresStore

__all__ = ["PostgresInbox", "PostgresStore"]
