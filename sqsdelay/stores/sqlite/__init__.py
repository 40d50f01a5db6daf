"""A delayed message store and an inbox in a SQLite file."""
