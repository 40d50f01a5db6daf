-- How a table of the SQLite store or inbox is made. {table_name} is its name as text.

-- name: exists
-- Whether the table is there, and that of versions.
SELECT count(*) FILTER (WHERE lower(name) = lower({table_name})), count(*) FILTER (WHERE name = 'sqsdelay.versions')
FROM sqlite_master WHERE type = 'table'

-- name: version
SELECT version FROM "sqsdelay.versions" WHERE table_name = {table_name}

-- name: record_in
CREATE TABLE IF NOT EXISTS "sqsdelay.versions" (table_name TEXT PRIMARY KEY NOT NULL, version INTEGER NOT NULL)

-- name: record_version
INSERT OR REPLACE INTO "sqsdelay.versions" VALUES ({table_name}, {version})
