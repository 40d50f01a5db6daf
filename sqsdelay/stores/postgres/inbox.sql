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

-- name: forget
DELETE FROM {table} WHERE message_id = ANY(ARRAY(
    SELECT message_id FROM {table} WHERE until_ms <= %(now_ms)s ORDER BY until_ms LIMIT %(limit)s
    FOR UPDATE SKIP LOCKED
))
