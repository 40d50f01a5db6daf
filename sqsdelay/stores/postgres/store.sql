-- Queries of the PostgreSQL store. {table}, {amendments} and {…_index} are quoted names, {now} is the database's clock in
-- epoch milliseconds (or in tests what %(now_ms)s gives).
-- A row is new (held_until_ms = 0), and then in two indexes by due time, or held after a failure, and then in one
-- of its own: claims read no row that cannot be claimed, and what is new goes before what failed.

-- name: set_up
-- held_until_ms: not claimable before, after a failure; 0 when it has not failed. Claims themselves are row locks.
-- moving: it was taken, to be sent another way.
CREATE TABLE {table} (
    message_id text COLLATE "C" PRIMARY KEY
        CONSTRAINT sqsdelay_message_id CHECK (length(message_id) BETWEEN 1 AND 250),
    destination text NOT NULL CONSTRAINT sqsdelay_destination CHECK (destination <> ''),
    due_ms bigint NOT NULL CONSTRAINT sqsdelay_due_ms CHECK (due_ms BETWEEN 0 AND 253402300799000),
    body bytea NOT NULL,
    headers text NOT NULL,
    failures integer NOT NULL DEFAULT 0 CONSTRAINT sqsdelay_failures CHECK (failures >= 0),
    held_until_ms bigint NOT NULL DEFAULT 0 CONSTRAINT sqsdelay_held CHECK (held_until_ms >= 0),
    moving boolean NOT NULL DEFAULT false
)

-- name: set_up_index
CREATE INDEX {due_index} ON {table} (due_ms, message_id) WHERE held_until_ms = 0

-- name: set_up_destinations_index
-- With destinations out of reach, claims go from one of the others to the next.
CREATE INDEX {destination_index} ON {table} (destination COLLATE "C", due_ms) WHERE held_until_ms = 0

-- name: set_up_held_index
CREATE INDEX {held_index} ON {table} (destination COLLATE "C", held_until_ms) WHERE held_until_ms > 0

-- name: set_up_amendments
-- due_ms: the new due time, NULL for a cancellation. until_ms: an amendment's lifetime after it was left.
-- cancelled_ms: on a new due time, when the message was cancelled before.
CREATE TABLE {amendments} (
    message_id text COLLATE "C" PRIMARY KEY,
    due_ms bigint,
    until_ms bigint NOT NULL,
    cancelled_ms bigint
)

-- name: exists
SELECT 1 FROM {table} LIMIT 0

-- name: store
-- Wake the dispatchers only where they may sleep too long: when the new message is due before all others
-- that are due from now on. What is due already may be removed at this moment; and what was removed is due
-- before now, so that the look does not walk through it where a long snapshot elsewhere keeps it in the
-- index. What is due later than the longest poll wakes nobody. The notification is part of the transaction: it comes once the row
-- can be seen.
INSERT INTO {table} ({columns})
VALUES (%(message_id)s, %(destination)s, %(due_ms)s, %(body)b, %(headers)s, %(failures)s)
ON CONFLICT (message_id) DO NOTHING
RETURNING CASE WHEN due_ms <= {now} + {soon_ms} THEN
    CASE WHEN due_ms <= coalesce((
        SELECT head.due_ms - 1 FROM {table} AS head
        WHERE head.held_until_ms = 0 AND head.due_ms > {now} ORDER BY head.due_ms LIMIT 1
    ), due_ms) THEN pg_notify({prefix}, '') END
END

-- name: store_far
-- What wakes nobody, by whichever clock.
INSERT INTO {table} ({columns})
VALUES (%(message_id)s, %(destination)s, %(due_ms)s, %(body)b, %(headers)s, %(failures)s)
ON CONFLICT (message_id) DO NOTHING

-- name: store_many
-- The same for many, with one notification at most. In binary: psycopg quotes each item of an array
-- that is sent as text, which took as long as storing it.
WITH stored AS (
    INSERT INTO {table} ({columns})
    SELECT * FROM unnest(
        %(message_id)b::text[], %(destination)b::text[], %(due_ms)b::bigint[], %(body)b::bytea[],
        %(headers)b::text[], %(failures)b::integer[]
    )
    ON CONFLICT (message_id) DO NOTHING
    RETURNING message_id, due_ms
),
notified AS MATERIALIZED (
    SELECT CASE WHEN due_ms <= {now} + {soon_ms} THEN
        CASE WHEN due_ms <= coalesce((
            SELECT head.due_ms - 1 FROM {table} AS head
            WHERE head.held_until_ms = 0 AND head.due_ms > {now} ORDER BY head.due_ms LIMIT 1
        ), due_ms) THEN pg_notify({prefix}, '') END
    END
    FROM (SELECT min(due_ms) AS due_ms FROM stored) AS earliest
)
SELECT message_id, (SELECT count(*) FROM notified) FROM stored

-- name: claim
-- Lock the earliest due messages that are new and that nobody has locked; the locks end with the transaction.
SELECT {columns}, held_until_ms, ctid::text FROM {table}
WHERE held_until_ms = 0 AND due_ms BETWEEN %(from_ms)s AND %(due_by_ms)s
ORDER BY due_ms, message_id LIMIT %(limit)s
FOR UPDATE SKIP LOCKED

-- name: claim_except
-- The same without some destinations, and without reading past what is due for them: from one of the others to
-- the next, with an equal share for each. The query claim_held is this one for what failed before and may be tried
-- again: {at} is held_until_ms there, {kept} those that are held, {until} now. first_at: of the earliest of all, also
-- where somebody else has all of them (a row of NULL): there may be destinations behind that were not looked at.
WITH RECURSIVE found(destination) AS (
    (
        SELECT destination COLLATE "C" FROM {table} WHERE {kept}
        ORDER BY destination COLLATE "C" LIMIT 1
    )
    UNION ALL
    SELECT (
        SELECT destination COLLATE "C" FROM {table}
        WHERE {kept} AND destination COLLATE "C" > found.destination
        ORDER BY destination COLLATE "C" LIMIT 1
    ) FROM found WHERE found.destination IS NOT NULL
),
well AS MATERIALIZED (
    SELECT found.destination, count(*) OVER () AS destinations, min(head.at) OVER () AS first_at
    FROM found CROSS JOIN LATERAL (
        SELECT {at} AS at FROM {table}
        WHERE (destination COLLATE "C", {at}) >= (found.destination, %(from_ms)s::bigint)
          AND (destination COLLATE "C", {at}) <= (found.destination, {until}::bigint)
          AND {kept} AND {due}
        ORDER BY destination COLLATE "C", {at} LIMIT 1
    ) AS head
    WHERE found.destination <> ALL(%(except_destinations)s::text[])
    ORDER BY head.at LIMIT %(limit)s
)
SELECT share.*, well.first_at FROM well LEFT JOIN LATERAL (
    SELECT {columns}, held_until_ms, ctid::text FROM {table}
    WHERE (destination COLLATE "C", {at}) >= (well.destination, %(from_ms)s::bigint)
      AND (destination COLLATE "C", {at}) <= (well.destination, {until}::bigint)
      AND {kept} AND {due}
    ORDER BY destination COLLATE "C", {at} LIMIT greatest(1, %(limit)s / well.destinations)
    FOR UPDATE SKIP LOCKED
) AS share ON true
ORDER BY share.due_ms, share.message_id

-- name: claim_never_due
-- One row that a due time beyond the year 9999 keeps from ever being due, so that it is put aside: a program may
-- write one where the constraints were dropped.
SELECT {columns}, held_until_ms, ctid::text FROM {table}
WHERE held_until_ms = 0 AND due_ms > 253402300799000
ORDER BY due_ms, message_id LIMIT 1
FOR UPDATE SKIP LOCKED

-- name: claim_ids
-- Lock messages by their ids, unless they are locked, or were taken.
SELECT {columns}, held_until_ms, ctid::text FROM {table}
WHERE message_id = ANY(%(ids)b::text[]) AND NOT moving
FOR UPDATE SKIP LOCKED

-- name: remove
DELETE FROM {table} WHERE message_id = ANY(%(ids)b::text[]) RETURNING message_id

-- name: remove_places
-- The same for rows that this transaction has locked and not written: it saves finding each again.
-- Where a table was partitioned by hand, rows of two partitions may lie at the same place.
DELETE FROM {table} WHERE ctid = ANY(%(places)s::tid[]) AND tableoid = {table_name}::regclass

-- name: hold
-- Not claimable until then; %(failed)s is 1 to count a failure, else 0. A message that was taken is taken over.
UPDATE {table}
SET failures = failures + %(failed)s, held_until_ms = greatest(1, {now} + %(hold_ms)s), moving = false
WHERE message_id = ANY(%(ids)s) RETURNING message_id

-- name: next_due
SELECT least(
    (
        SELECT due_ms FROM {table} WHERE held_until_ms = 0 AND due_ms >= %(from_ms)s
        ORDER BY due_ms, message_id LIMIT 1
    ),
    (
        SELECT due_ms FROM {table}
        WHERE held_until_ms > 0 AND held_until_ms BETWEEN %(held_from_ms)s AND {now} LIMIT 1
    )
)

-- name: next_due_except
WITH RECURSIVE found(destination) AS (
    (
        SELECT destination COLLATE "C" FROM {table} WHERE {kept}
        ORDER BY destination COLLATE "C" LIMIT 1
    )
    UNION ALL
    SELECT (
        SELECT destination COLLATE "C" FROM {table}
        WHERE {kept} AND destination COLLATE "C" > found.destination
        ORDER BY destination COLLATE "C" LIMIT 1
    ) FROM found WHERE found.destination IS NOT NULL
)
SELECT least(
    (
        SELECT min(head.due_ms) FROM found CROSS JOIN LATERAL (
            SELECT due_ms FROM {table}
            WHERE (destination COLLATE "C", due_ms) >= (found.destination, %(from_ms)s::bigint)
              AND destination COLLATE "C" <= found.destination AND {kept}
            ORDER BY destination COLLATE "C", due_ms LIMIT 1
        ) AS head
        WHERE found.destination <> ALL(%(except_destinations)s::text[])
    ),
    (
        SELECT due_ms FROM {table}
        WHERE held_until_ms > 0 AND held_until_ms BETWEEN %(held_from_ms)s AND {now}
          AND destination <> ALL(%(except_destinations)s::text[]) LIMIT 1
    )
)

-- name: cancel
-- A message that a dispatcher has locked is being sent, one that was taken has perhaps been: too late, and nothing
-- to wait for.
DELETE FROM {table} WHERE message_id = ANY(ARRAY(
    SELECT message_id FROM {table} WHERE message_id = ANY(%(ids)s) AND NOT moving FOR UPDATE SKIP LOCKED
))
RETURNING message_id

-- name: reschedule
UPDATE {table} SET due_ms = %(due_ms)s, held_until_ms = 0
WHERE message_id = ANY(ARRAY(
    SELECT message_id FROM {table} WHERE message_id = %(message_id)s AND NOT moving FOR UPDATE SKIP LOCKED
))
RETURNING pg_notify({prefix}, '')

-- name: take
-- Held until it is due, and for a lease at least: whoever takes it sends it, and then removes it.
UPDATE {table} SET moving = true, held_until_ms = greatest(due_ms, {now} + {taken_ms})
WHERE message_id = ANY(ARRAY(
    SELECT message_id FROM {table}
    WHERE held_until_ms = 0 AND (due_ms, message_id) > (%(after_ms)s, %(after_id)s)
      AND due_ms <= 253402300799000
    ORDER BY due_ms, message_id LIMIT %(limit)s FOR UPDATE SKIP LOCKED
))
RETURNING {columns}

-- name: taken
UPDATE {table} SET held_until_ms = greatest(due_ms, {now} + {taken_ms})
WHERE message_id = ANY(ARRAY(
    SELECT message_id FROM {table}
    WHERE held_until_ms > 0 AND moving AND (due_ms, message_id) > (%(after_ms)s, %(after_id)s)
    ORDER BY due_ms, message_id LIMIT %(limit)s FOR UPDATE SKIP LOCKED
))
RETURNING {columns}

-- name: remove_taken
DELETE FROM {table} WHERE message_id = ANY(ARRAY(
    SELECT message_id FROM {table} WHERE message_id = ANY(%(ids)s) AND moving FOR UPDATE SKIP LOCKED
))
RETURNING message_id

-- name: put_back
UPDATE {table} SET moving = false, held_until_ms = 0 WHERE message_id = ANY(ARRAY(
    SELECT message_id FROM {table} WHERE message_id = ANY(%(ids)s) AND moving FOR UPDATE SKIP LOCKED
))
RETURNING pg_notify({prefix}, '')

-- name: now
SELECT {now}
