-- Remembers what a schema holds from its beginning.
CREATE SCHEMA kept;
DO $$
DECLARE t name;
BEGIN
    FOR t IN SELECT relname FROM pg_class WHERE relnamespace = 'suite'::regnamespace AND relkind = 'r' LOOP
        EXECUTE format('CREATE TABLE kept.%I AS TABLE suite.%1$I', t);
    END LOOP;
END $$;
