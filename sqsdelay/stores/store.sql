-- Queries that the SQLite and the PostgreSQL store have in common. {table} and {amendments} are quoted names, {ids} is
-- a condition on a list of ids, {now} the time in epoch milliseconds. PostgreSQL's driver is given :name as %(name)s.

-- name: pending_count
SELECT count(*) FROM {table}

-- name: count_due
SELECT (
    SELECT count(*) FROM {table}
    WHERE held_until_ms = 0 AND due_ms >= :from_ms AND due_ms < :before_ms
) + (
    SELECT count(*) FROM {table}
    WHERE held_until_ms > 0 AND due_ms >= :from_ms AND due_ms < :before_ms
)

-- name: pending
SELECT * FROM (
    SELECT * FROM (
        SELECT {columns} FROM {table}
        WHERE held_until_ms = 0 AND (due_ms, message_id) > (:after_ms, :after_id)
          AND due_ms < :before_ms
        ORDER BY due_ms, message_id LIMIT :limit
    ) AS not_held
    UNION ALL
    SELECT * FROM (
        SELECT {columns} FROM {table}
        WHERE held_until_ms > 0 AND (due_ms, message_id) > (:after_ms, :after_id)
          AND due_ms < :before_ms
        ORDER BY due_ms, message_id LIMIT :limit
    ) AS held
) AS page
ORDER BY due_ms, message_id LIMIT :limit

-- name: find
SELECT {columns} FROM {table}
WHERE message_id = :id

-- name: known_ids
-- What claim_ids passed over because somebody has it. In PostgreSQL for a moment also a claim that came too late for
-- it, which has locked its new version and then found that it is held.
SELECT message_id FROM {table} WHERE message_id {ids} AND NOT moving

-- name: forget_amendments
DELETE FROM {amendments} WHERE until_ms <= {now}

-- name: amend
-- {amended} reads a JSON array of rows: one statement for all. What was cancelled is not rescheduled: a new due time
-- keeps when that was.
INSERT INTO {amendments} (message_id, due_ms, until_ms, cancelled_ms)
SELECT {amended} WHERE true
ON CONFLICT (message_id) DO UPDATE SET
    cancelled_ms = CASE
        WHEN excluded.due_ms IS NULL THEN NULL
        WHEN excluded.cancelled_ms IS NOT NULL THEN excluded.cancelled_ms
        WHEN {amendments}.due_ms IS NULL THEN {amendments}.until_ms - :lifetime_ms
        ELSE {amendments}.cancelled_ms
    END,
    due_ms = excluded.due_ms, until_ms = excluded.until_ms

-- name: all_amendments
SELECT message_id, due_ms, until_ms, cancelled_ms FROM {amendments}
WHERE message_id > :after_id AND until_ms > {now} ORDER BY message_id LIMIT :limit

-- name: amendments
SELECT message_id, due_ms, until_ms, cancelled_ms FROM {amendments}
WHERE message_id {ids} AND until_ms > {now}
