-- Names in views and in functions of one expression are found now, once for all: by this path, whoever migrates.
SET LOCAL search_path = pg_catalog, pg_temp;
-- Functions may name each other in any order, so their bodies are checked when they run.
SET LOCAL check_function_bodies = off;
-- Another migrator is waited for as long as it takes.
SET LOCAL lock_timeout = 0;
