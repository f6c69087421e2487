-- Names in views and in functions of one expression are found now, once for all: by this path, whoever migrates.
SET LOCAL search_path = pg_catalog, pg_temp;
-- One migrator at a time: the second waits here until the first has committed, and then finds nothing to do. Functions may
-- name each other in any order, so their bodies are checked when they run.
SET LOCAL check_function_bodies = off;
SELECT pg_advisory_xact_lock(7260, 1);
