-- Queries of the PostgreSQL store. {table}, {index} and {marks} are quoted names.

-- name: set_up
-- held_until_ms: not claimable before, after a failure. Claims themselves are row locks.
CREATE TABLE IF NOT EXISTS {table} (
    message_id text COLLATE "C" PRIMARY KEY,
    destination text NOT NULL,
    due_ms bigint NOT NULL,
    body bytea NOT NULL,
    headers text NOT NULL,
    failures integer NOT NULL DEFAULT 0,
    held_until_ms bigint NOT NULL DEFAULT 0
)

-- name: set_up_index
CREATE INDEX IF NOT EXISTS {index} ON {table} (due_ms, message_id)

-- name: set_up_marks
-- due_ms: the new due time, NULL for a cancellation.
CREATE TABLE IF NOT EXISTS {marks} (
    message_id text COLLATE "C" PRIMARY KEY,
    due_ms bigint,
    until_ms bigint NOT NULL
)

-- name: lock_set_up
-- CREATE … IF NOT EXISTS of two processes at once can fail; one after the other cannot.
SELECT pg_advisory_xact_lock(hashtextextended(%(channel)s, 0))

-- name: exists
SELECT 1 FROM {table} LIMIT 0

-- name: store
-- Wake the dispatchers only where they may sleep too long: when the new message is due before all
-- others, or when what is due first may be removed at this moment and the new one is due soon.
-- The notification is part of the transaction: it comes once the row can be seen.
INSERT INTO {table} (message_id, destination, due_ms, body, headers, failures)
VALUES (%s, %s, %s, %b, %s, %s)
ON CONFLICT (message_id) DO NOTHING
RETURNING CASE WHEN due_ms < coalesce((
    SELECT CASE WHEN head.due_ms <= %s THEN %s ELSE head.due_ms END
    FROM {table} AS head ORDER BY head.due_ms LIMIT 1
), due_ms + 1) THEN pg_notify(%s, '') END

-- name: store_many
-- The same for many, with one notification at most.
WITH stored AS (
    INSERT INTO {table} (message_id, destination, due_ms, body, headers, failures)
    SELECT * FROM unnest(%s::text[], %s::text[], %s::bigint[], %b::bytea[], %s::text[], %s::integer[])
    ON CONFLICT (message_id) DO NOTHING
    RETURNING message_id, due_ms
),
notified AS MATERIALIZED (
    SELECT pg_notify(%s, '') FROM (SELECT min(due_ms) AS due_ms FROM stored) AS earliest
    WHERE due_ms < coalesce((
        SELECT CASE WHEN head.due_ms <= %s THEN %s ELSE head.due_ms END
        FROM {table} AS head ORDER BY head.due_ms LIMIT 1
    ), due_ms + 1)
)
SELECT message_id, (SELECT count(*) FROM notified) FROM stored

-- name: claim
-- Lock the earliest due messages that nobody holds; the locks end with the transaction.
SELECT message_id, destination, due_ms, body, headers, failures FROM {table}
WHERE due_ms <= %(due_by_ms)s AND held_until_ms <= %(now_ms)s
ORDER BY due_ms, message_id LIMIT %(limit)s
FOR UPDATE SKIP LOCKED

-- name: remove
DELETE FROM {table} WHERE message_id = ANY(%(ids)s) RETURNING message_id

-- name: hold
-- Not claimable until then; %(failed)s is 1 to count a failure, else 0.
UPDATE {table} SET failures = failures + %(failed)s, held_until_ms = %(until_ms)s
WHERE message_id = ANY(%(ids)s) RETURNING message_id

-- name: next_due
SELECT due_ms FROM {table} WHERE held_until_ms <= %(now_ms)s ORDER BY due_ms LIMIT 1

-- name: pending_count
SELECT count(*) FROM {table}

-- name: pending
SELECT message_id, destination, due_ms, body, headers, failures FROM {table}
WHERE (due_ms, message_id) > (%(after_ms)s, %(after_id)s)
ORDER BY due_ms, message_id LIMIT %(limit)s

-- name: find
SELECT message_id, destination, due_ms, body, headers, failures FROM {table}
WHERE message_id = %(id)s

-- name: cancel
-- A message that a dispatcher has locked is being sent: too late, and nothing to wait for.
DELETE FROM {table} WHERE message_id = ANY(ARRAY(
    SELECT message_id FROM {table} WHERE message_id = ANY(%(ids)s) FOR UPDATE SKIP LOCKED
))
RETURNING message_id

-- name: reschedule
UPDATE {table} SET due_ms = %(due_ms)s, held_until_ms = 0
WHERE message_id = ANY(ARRAY(
    SELECT message_id FROM {table} WHERE message_id = %(message_id)s FOR UPDATE SKIP LOCKED
))
RETURNING pg_notify(%(channel)s, '')

-- name: forget_marks
DELETE FROM {marks} WHERE until_ms <= %(now_ms)s

-- name: mark
-- A message that was cancelled is not moved any more. Given one id twice, it is as in two calls.
INSERT INTO {marks} (message_id, due_ms, until_ms)
SELECT DISTINCT ON (message_id) message_id, due_ms, %(until_ms)s
FROM unnest(%(ids)s::text[], %(dues)s::bigint[]) WITH ORDINALITY AS given (message_id, due_ms, place)
ORDER BY message_id, due_ms IS NOT NULL, place DESC
ON CONFLICT (message_id) DO UPDATE SET due_ms = excluded.due_ms, until_ms = excluded.until_ms
WHERE {marks}.due_ms IS NOT NULL OR excluded.due_ms IS NULL

-- name: marks
SELECT message_id, due_ms FROM {marks} WHERE message_id = ANY(%(ids)s) AND until_ms > %(now_ms)s

-- name: now
SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint
