-- Queries of the PostgreSQL inbox. {table}, {index} and {qualified_index} are quoted names.

-- name: lock_set_up
-- CREATE … IF NOT EXISTS of two processes at once can fail; one after the other cannot.
SELECT pg_advisory_xact_lock(hashtextextended(%(name)s, 0))

-- name: set_up
-- claim: whose lease it is until until_ms; NULL when the message was processed, known until until_ms.
CREATE TABLE IF NOT EXISTS {table} (
    message_id text COLLATE "C" PRIMARY KEY,
    claim text,
    until_ms bigint NOT NULL
)

-- name: set_up_index
CREATE INDEX IF NOT EXISTS {index} ON {table} (until_ms)

-- name: record_version
-- The index's comment: only the owner writes it, everybody may read it, and backups keep it.
COMMENT ON INDEX {qualified_index} IS {version}

-- name: version
SELECT obj_description(to_regclass(%(index)s), 'pg_class')

-- name: limit_waits
SET LOCAL lock_timeout = '10s'

-- name: begin
-- Changes a row for the one who has claimed the message.
INSERT INTO {table} AS known (message_id, claim, until_ms)
VALUES (%(message_id)s, %(claim)s, %(until_ms)s)
ON CONFLICT (message_id) DO UPDATE SET claim = excluded.claim, until_ms = excluded.until_ms
WHERE known.until_ms <= %(now_ms)s

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
