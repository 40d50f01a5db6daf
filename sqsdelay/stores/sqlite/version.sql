-- Schema versions of the tables in a SQLite file, beside whatever else it holds.

-- name: set_up
CREATE TABLE IF NOT EXISTS "sqsdelay.versions" (
    table_name TEXT PRIMARY KEY NOT NULL,
    version INTEGER NOT NULL
)

-- name: known
SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'sqsdelay.versions'

-- name: find
SELECT version FROM "sqsdelay.versions" WHERE table_name = ?

-- name: record
INSERT INTO "sqsdelay.versions" (table_name, version) VALUES (?, ?)
ON CONFLICT (table_name) DO UPDATE SET version = excluded.version
