-- Queries of the PostgreSQL inbox. {table} and {until_index} are quoted names.

-- name: set_up
-- claim: whose lease it is until until_ms; NULL when the message was processed, known until until_ms.
CREATE TABLE {table} (
    message_id text COLLATE "C" PRIMARY KEY,
    claim text,
    until_ms bigint NOT NULL
)

-- name: set_up_index
CREATE INDEX {until_index} ON {table} (until_ms)

-- name: begin
-- A row comes back to the one who has claimed the message.
INSERT INTO {table} AS known (message_id, claim, until_ms)
VALUES (%(message_id)s, %(claim)s, %(until_ms)s)
ON CONFLICT (message_id) DO UPDATE SET claim = excluded.claim, until_ms = excluded.until_ms
WHERE known.until_ms <= %(now_ms)s
RETURNING message_id

-- name: find
SELECT claim FROM {table} WHERE message_id = %(message_id)s

-- name: done
INSERT INTO {table} (message_id, claim, until_ms) VALUES (%(message_id)s, NULL, %(until_ms)s)
ON CONFLICT (message_id) DO UPDATE SET claim = NULL, until_ms = excluded.until_ms

-- name: release
DELETE FROM {table} WHERE message_id = %(message_id)s AND claim = %(claim)s

-- name: first
-- A second transaction with the same message waits here for the first one's end.
INSERT INTO {table} AS known (message_id, claim, until_ms)
VALUES (%(message_id)s, NULL, %(until_ms)s)
ON CONFLICT (message_id) DO UPDATE SET claim = NULL, until_ms = excluded.until_ms
WHERE known.until_ms <= %(now_ms)s

-- name: forget
DELETE FROM {table} WHERE message_id = ANY(ARRAY(
    SELECT message_id FROM {table} WHERE until_ms <= %(now_ms)s ORDER BY until_ms LIMIT %(limit)s
    FOR UPDATE SKIP LOCKED
))
