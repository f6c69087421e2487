-- One migrator at a time: the second waits here until the first has committed, and then finds nothing to do. Functions may
-- name each other in any order, so their bodies are checked when they run.
-- Names in views and in functions of one expression are found now, once for all: by nobody's path but this.
SET LOCAL search_path = pg_catalog, pg_temp;
SET LOCAL check_function_bodies = off;
SELECT pg_advisory_xact_lock(7260, 1);
CREATE SCHEMA IF NOT EXISTS posthouse;
CREATE TABLE IF NOT EXISTS posthouse.schema_version (
    one     boolean PRIMARY KEY DEFAULT true CHECK (one),
    version int NOT NULL,
    oldest  int NOT NULL
);
