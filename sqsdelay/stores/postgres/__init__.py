"""A delayed message store and an inbox in PostgreSQL (psycopg)."""
