-- Queries of the SQLite store. {table}, {due_name}, {destination_name}, {held_name} and {amendments} are quoted names; lists of ids are JSON arrays.
-- A row is new (held_until_ms = 0), and then in two indexes by due time, or held after a failure, and then
-- in one of its own: claims read no row that cannot be claimed, and what is new goes before what failed.

-- name: set_up
-- held_until_ms: not claimable before, after a failure; 0 when it has not failed.
-- claim: whose lease it is until leased_until_ms, and for how many milliseconds it was taken; as wide as a
-- free row's ({free}), so that SQLite writes the page they are on, and not the body. moving: 1 when it was taken, to be sent another way.
CREATE TABLE {table} (
    message_id TEXT PRIMARY KEY NOT NULL
        CHECK (typeof(message_id) = 'text' AND length(message_id) BETWEEN 1 AND 250),
    destination TEXT NOT NULL CHECK (typeof(destination) = 'text' AND destination <> ''),
    due_ms INTEGER NOT NULL
        CHECK (typeof(due_ms) = 'integer' AND due_ms BETWEEN 0 AND 253402300799000),
    body BLOB NOT NULL CHECK (typeof(body) = 'blob'),
    headers TEXT NOT NULL CHECK (typeof(headers) = 'text'),
    failures INTEGER NOT NULL DEFAULT 0 CHECK (typeof(failures) = 'integer' AND failures >= 0),
    held_until_ms INTEGER NOT NULL DEFAULT 0 CHECK (held_until_ms >= 0),
    claim TEXT,
    leased_until_ms INTEGER NOT NULL DEFAULT 0,
    moving INTEGER NOT NULL DEFAULT 0
)

-- name: set_up_index
CREATE INDEX {due_name} ON {table} (due_ms, message_id) WHERE held_until_ms = 0

-- name: set_up_destinations_index
-- With destinations out of reach, claims go from one of the others to the next.
CREATE INDEX {destination_name} ON {table} (destination, due_ms) WHERE held_until_ms = 0

-- name: set_up_held_index
CREATE INDEX {held_name} ON {table} (destination, held_until_ms) WHERE held_until_ms > 0

-- name: set_up_amendments
-- due_ms: the new due time, NULL for a cancellation. until_ms: an amendment's lifetime after it was left.
-- cancelled_ms: on a new due time, when the message was cancelled before.
CREATE TABLE {amendments} (
    message_id TEXT PRIMARY KEY NOT NULL,
    due_ms INTEGER,
    until_ms INTEGER NOT NULL,
    cancelled_ms INTEGER
)

-- name: store
INSERT INTO {table} ({columns}, claim, leased_until_ms)
VALUES (?, ?, ?, ?, ?, ?, 'free----------------------------000000000', -1000000000000)
ON CONFLICT (message_id) DO NOTHING

-- name: first_due
SELECT due_ms FROM {table} WHERE held_until_ms = 0 AND leased_until_ms <= :now_ms
ORDER BY due_ms LIMIT 1

-- name: claim
-- Lease the earliest due messages that are new and that nobody has leased.
UPDATE {table} SET claim = :claim, leased_until_ms = :until_ms
WHERE rowid IN (
    SELECT row FROM (
        SELECT row, sum(bytes) OVER (ROWS UNBOUNDED PRECEDING) - bytes AS before FROM (
            SELECT rowid AS row, coalesce(length(body), 0) AS bytes FROM {table}
            WHERE held_until_ms = 0 AND due_ms <= :due_by_ms AND leased_until_ms <= :now_ms
            ORDER BY due_ms, message_id LIMIT :limit
        )
    )
    WHERE before < {claim_bytes}
)
RETURNING {columns}

-- name: claim_except
-- The same without some destinations, and without reading past what is due for them: from one of the
-- others to the next, with an equal share for each. The query claim_held is this one for what failed before and may
-- be tried again: {at} is held_until_ms there, {kept} those that are held, {until} now.
WITH RECURSIVE found(destination) AS (
    SELECT min(destination) FROM {table} WHERE {kept}
    UNION ALL
    SELECT (SELECT min(destination) FROM {table} WHERE {kept} AND destination > found.destination)
    FROM found WHERE found.destination IS NOT NULL
),
head AS (
    SELECT destination, (
        SELECT {at} FROM {table}
        WHERE {kept} AND destination = found.destination AND {at} <= {until}
          AND (due_ms <= :due_by_ms OR due_ms > 253402300799000) AND leased_until_ms <= :now_ms
        ORDER BY {at} LIMIT 1
    ) AS at
    FROM found
    WHERE destination NOT IN (SELECT value FROM json_each(:except_destinations))
),
well AS MATERIALIZED (
    SELECT destination FROM head WHERE at IS NOT NULL ORDER BY at LIMIT :limit
),
share AS MATERIALIZED (
    SELECT (
        SELECT json_group_array(row) FROM (
            SELECT rowid AS row FROM {table}
            WHERE {kept} AND destination = well.destination AND {at} <= {until}
              AND (due_ms <= :due_by_ms OR due_ms > 253402300799000) AND leased_until_ms <= :now_ms
            ORDER BY {at} LIMIT max(1, :limit / (SELECT count(*) FROM well))
        )
    ) AS rows
    FROM well
)
UPDATE {table} SET claim = :claim, leased_until_ms = :until_ms
WHERE rowid IN (
    SELECT row FROM (
        SELECT row, sum(bytes) OVER (ROWS UNBOUNDED PRECEDING) - bytes AS before FROM (
            SELECT each.value AS row,
                (SELECT coalesce(length(body), 0) FROM {table} WHERE rowid = each.value) AS bytes
            FROM share, json_each(share.rows) AS each
        )
    )
    WHERE before < {claim_bytes}
)
RETURNING {columns}

-- name: claim_never_due
-- One row that a due time of no message (text, which sorts behind all numbers, or a number beyond the year
-- 9999) keeps from ever being due, so that it is put aside: a program may write one with constraints off.
UPDATE {table} SET claim = :claim, leased_until_ms = :until_ms
WHERE rowid IN (
    SELECT rowid FROM {table}
    WHERE held_until_ms = 0 AND due_ms > 253402300799000 AND leased_until_ms <= :now_ms LIMIT 1
)
RETURNING {columns}

-- name: claim_ids
-- Lease messages by their ids, unless they are leased, or were taken.
UPDATE {table} SET claim = :claim, leased_until_ms = :until_ms
WHERE rowid IN (
    SELECT row FROM (
        SELECT row, sum(bytes) OVER (ROWS UNBOUNDED PRECEDING) - bytes AS before FROM (
            SELECT rowid AS row, coalesce(length(body), 0) AS bytes FROM {table}
            WHERE message_id IN (SELECT value FROM json_each(:ids)) AND leased_until_ms <= :now_ms AND moving = 0
        )
    )
    WHERE before < {claim_bytes}
)
RETURNING {columns}

-- name: end_leases_ahead
-- A lease by a clock that is ahead ends as if it had been taken now; its holder, if it lives, renews it.
UPDATE {table} SET leased_until_ms = :now_ms + CAST(substr(claim, 33) AS INTEGER)
WHERE leased_until_ms > :now_ms + CAST(substr(claim, 33) AS INTEGER)
  AND (held_until_ms = 0 OR held_until_ms > 0) AND due_ms <= :due_by_ms

-- name: renew
UPDATE {table} SET leased_until_ms = :until_ms
WHERE message_id IN (SELECT value FROM json_each(:ids)) AND claim = :claim

-- name: release
UPDATE {table} SET {free}
WHERE message_id IN (SELECT value FROM json_each(:ids)) AND claim = :claim

-- name: remove
DELETE FROM {table}
WHERE message_id IN (SELECT value FROM json_each(:ids)) AND claim = :claim
RETURNING message_id

-- name: hold
-- Not claimable until then; :failed is 1 to count a failure, else 0. A message that was taken is taken over.
UPDATE {table}
SET failures = failures + :failed, held_until_ms = max(1, :now_ms + :hold_ms), {free}, moving = 0
WHERE message_id IN (SELECT value FROM json_each(:ids)) AND claim = :claim
RETURNING message_id

-- name: next_due
SELECT min(due_ms) FROM (
    SELECT * FROM (
        SELECT due_ms FROM {table} WHERE held_until_ms = 0 AND leased_until_ms <= :now_ms
        ORDER BY due_ms LIMIT 1
    )
    UNION ALL
    SELECT * FROM (
        SELECT due_ms FROM {table}
        WHERE held_until_ms > 0 AND held_until_ms <= :now_ms AND leased_until_ms <= :now_ms LIMIT 1
    )
)

-- name: next_due_except
WITH RECURSIVE found(destination) AS (
    SELECT min(destination) FROM {table} WHERE held_until_ms = 0
    UNION ALL
    SELECT (
        SELECT min(destination) FROM {table}
        WHERE held_until_ms = 0 AND destination > found.destination
    )
    FROM found WHERE found.destination IS NOT NULL
)
SELECT min(due_ms) FROM (
    SELECT (
        SELECT due_ms FROM {table}
        WHERE held_until_ms = 0 AND destination = found.destination AND leased_until_ms <= :now_ms
        ORDER BY due_ms LIMIT 1
    ) AS due_ms
    FROM found
    WHERE destination NOT IN (SELECT value FROM json_each(:except_destinations))
    UNION ALL
    SELECT * FROM (
        SELECT due_ms FROM {table}
        WHERE held_until_ms > 0 AND held_until_ms <= :now_ms AND leased_until_ms <= :now_ms
          AND destination NOT IN (SELECT value FROM json_each(:except_destinations))
        LIMIT 1
    )
)

-- name: cancel
-- A message under a living lease is being sent, one that was taken has perhaps been: too late.
DELETE FROM {table}
WHERE message_id IN (SELECT value FROM json_each(:ids)) AND moving = 0
  AND leased_until_ms <= :now_ms
RETURNING message_id

-- name: reschedule
UPDATE {table} SET due_ms = :due_ms, held_until_ms = 0, {free}
WHERE message_id = :message_id AND moving = 0 AND leased_until_ms <= :now_ms
RETURNING message_id

-- name: take
-- Held until it is due, and for a lease at least: whoever takes it sends it, and then removes it.
UPDATE {table} SET moving = 1, held_until_ms = max(due_ms, :until_ms)
WHERE message_id IN (
    SELECT message_id FROM {table}
    WHERE held_until_ms = 0 AND leased_until_ms <= :now_ms
      AND (due_ms, message_id) > (:after_ms, :after_id) AND due_ms <= 253402300799000
    ORDER BY due_ms, message_id LIMIT :limit
)
RETURNING {columns}

-- name: taken
UPDATE {table} SET held_until_ms = max(due_ms, :until_ms)
WHERE message_id IN (
    SELECT message_id FROM {table}
    WHERE held_until_ms > 0 AND moving = 1 AND leased_until_ms <= :now_ms
      AND (due_ms, message_id) > (:after_ms, :after_id)
    ORDER BY due_ms, message_id LIMIT :limit
)
RETURNING {columns}

-- name: remove_taken
DELETE FROM {table}
WHERE message_id IN (SELECT value FROM json_each(:ids)) AND moving = 1 AND leased_until_ms <= :now_ms
RETURNING message_id

-- name: put_back
UPDATE {table} SET moving = 0, held_until_ms = 0
WHERE message_id IN (SELECT value FROM json_each(:ids)) AND moving = 1 AND leased_until_ms <= :now_ms
