-- Queries of the SQLite inbox. {table} and {until_name} are quoted names.

-- name: set_up
-- claim: whose lease it is until until_ms; NULL when the message was processed, known until until_ms.
CREATE TABLE {table} (
    message_id TEXT PRIMARY KEY NOT NULL,
    claim TEXT,
    until_ms INTEGER NOT NULL
)

-- name: set_up_index
CREATE INDEX {until_name} ON {table} (until_ms)

-- name: forget
DELETE FROM {table} WHERE message_id IN (
    SELECT message_id FROM {table} WHERE until_ms <= :now_ms ORDER BY until_ms LIMIT :limit
)
