-- The statements that give PUBLIC the right to execute the plain arithmetic, and take it from every other function, where that is not so already.
-- The views need the arithmetic: PostgreSQL checks the right to execute a function in a view for the role that reads the view.
SELECT CASE WHEN f.open THEN format('GRANT EXECUTE ON FUNCTION %s TO PUBLIC', f.name) ELSE format('REVOKE ALL ON FUNCTION %s FROM PUBLIC', f.name) END
FROM (
    SELECT p.oid::regprocedure AS name, p.proname = ANY ('{lane,key_hash,prefixed,digest,outcome_word,reason_word,kind_word}') AS open,
           EXISTS (SELECT FROM aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) a WHERE a.grantee = 0) AS is_open
    FROM pg_proc p WHERE p.pronamespace = to_regnamespace(trim(trailing '.' FROM 'posthouse.'))) f
WHERE f.open <> f.is_open
