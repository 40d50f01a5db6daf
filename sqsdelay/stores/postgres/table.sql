-- How a table of the PostgreSQL store or inbox is made. {qualified_index} and {version} are what record_version writes.

-- name: version
-- Whether the table is there, and the comment that tells its version. Without a table of its own in FROM, the
-- query would not learn of what another session created since the last one.
SELECT count(*) > 0, obj_description(to_regclass({index_name}), 'pg_class')
FROM pg_class WHERE oid = to_regclass({table_name})

-- name: lock_briefly
SET LOCAL lock_timeout = '10s'

-- name: lock_names
-- CREATE of two processes at once can fail; one after the other cannot.
SELECT pg_advisory_xact_lock(hashtextextended({prefix}, 0))

-- name: record_version
-- The index's comment: only the owner writes it, everybody may read it, and backups keep it.
COMMENT ON INDEX {qualified_index} IS {version}
