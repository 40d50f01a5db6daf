-- Queries that the SQLite and the PostgreSQL inbox have in common. {table} is a quoted name.

-- name: begin
-- A row comes back to the one who has claimed the message.
INSERT INTO {table} AS known (message_id, claim, until_ms) VALUES (:message_id, :claim, :until_ms)
ON CONFLICT (message_id) DO UPDATE SET claim = excluded.claim, until_ms = excluded.until_ms
WHERE known.until_ms <= :now_ms
RETURNING message_id

-- name: find
SELECT claim FROM {table} WHERE message_id = :message_id

-- name: done
INSERT INTO {table} (message_id, claim, until_ms) VALUES (:message_id, NULL, :until_ms)
ON CONFLICT (message_id) DO UPDATE SET claim = NULL, until_ms = excluded.until_ms

-- name: release
DELETE FROM {table} WHERE message_id = :message_id AND claim = :claim

-- name: first
-- In PostgreSQL a second transaction with the same message waits here for the first one's end.
INSERT INTO {table} AS known (message_id, claim, until_ms) VALUES (:message_id, NULL, :until_ms)
ON CONFLICT (message_id) DO UPDATE SET claim = NULL, until_ms = excluded.until_ms
WHERE known.until_ms <= :now_ms
