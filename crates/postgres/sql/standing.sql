-- Whether there is a schema of this name, and something in it that is not ours: what has no version is not.
SELECT n.oid IS NOT NULL,
       (SELECT pg_catalog.min(x.name) FROM (
            SELECT c.relname::text, c.relnamespace FROM pg_catalog.pg_class c
            UNION ALL
            SELECT p.proname::text, p.pronamespace FROM pg_catalog.pg_proc p
            UNION ALL
            SELECT t.typname::text, t.typnamespace FROM pg_catalog.pg_type t) x (name, space)
        WHERE x.space = n.oid AND NOT EXISTS (
            SELECT FROM pg_catalog.pg_class v WHERE v.relnamespace = n.oid AND v.relname = 'schema_version'))
FROM (VALUES ($1::text)) a (name) LEFT JOIN pg_catalog.pg_namespace n ON n.nspname = a.name
