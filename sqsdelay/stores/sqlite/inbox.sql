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

-- name: begin
-- A row comes back to the one who has claimed the message.
INSERT INTO {table} (message_id, claim, until_ms) VALUES (:message_id, :claim, :until_ms)
ON CONFLICT (message_id) DO UPDATE SET claim = excluded.claim, until_ms = excluded.until_ms
WHERE {table}.until_ms <= :now_ms
RETURNING message_id

-- name: find
SELECT claim FROM {table} WHERE message_id = :message_id

-- name: done
INSERT INTO {table} (message_id, claim, until_ms) VALUES (:message_id, NULL, :until_ms)
ON CONFLICT (message_id) DO UPDATE SET claim = NULL, until_ms = excluded.until_ms

-- name: release
DELETE FROM {table} WHERE message_id = :message_id AND claim = :claim

-- name: first
INSERT INTO {table} (message_id, claim, until_ms) VALUES (:message_id, NULL, :until_ms)
ON CONFLICT (message_id) DO UPDATE SET claim = NULL, until_ms = excluded.until_ms
WHERE {table}.until_ms <= :now_ms

-- name: forget
DELETE FROM {table} WHERE message_id IN (
    SELECT message_id FROM {table} WHERE until_ms <= :now_ms ORDER BY until_ms LIMIT :limit
)
