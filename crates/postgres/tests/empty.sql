-- Back to the beginning. Nothing is defined anew, so that connections of a pooler need not forget what they know; but what has become large is cut off,
-- because else claims would walk over what is not cleaned up yet.
BEGIN;
SET LOCAL session_replication_role = replica;
DO $$
DECLARE
    t record;
BEGIN
    FOR t IN SELECT relname, pg_relation_size(oid) > 131072 AS large FROM pg_class WHERE relnamespace = 'suite'::regnamespace AND relkind = 'r' LOOP
        IF t.large THEN
            EXECUTE format('TRUNCATE suite.%I', t.relname);
        ELSE
            EXECUTE format('DELETE FROM suite.%I', t.relname);
        END IF;
        EXECUTE format('INSERT INTO suite.%I OVERRIDING SYSTEM VALUE TABLE kept.%1$I', t.relname);
    END LOOP;
    PERFORM setval(oid::regclass, 1, false) FROM pg_class WHERE relnamespace = 'suite'::regnamespace AND relkind = 'S';
END $$;
COMMIT;
