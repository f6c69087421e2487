-- Each function, view and trigger of the schema as the catalogue shows it, as a hash. One function has one name here.
SELECT d.name, sha256(convert_to(d.text, 'UTF8'))
FROM (
    SELECT 'function ' || p.proname, string_agg(pg_get_functiondef(p.oid), chr(10) ORDER BY p.oid::regprocedure::text)
    FROM pg_proc p WHERE p.pronamespace = to_regnamespace(trim(trailing '.' FROM 'posthouse.')) AND p.prokind = 'f' GROUP BY p.proname
    UNION ALL
    SELECT 'view ' || c.relname, pg_get_viewdef(c.oid) || coalesce(c.reloptions::text, '')
    FROM pg_class c WHERE c.relnamespace = to_regnamespace(trim(trailing '.' FROM 'posthouse.')) AND c.relkind = 'v'
    UNION ALL
    SELECT 'trigger ' || t.tgname, pg_get_triggerdef(t.oid) || t.tgenabled::text
    FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid WHERE c.relnamespace = to_regnamespace(trim(trailing '.' FROM 'posthouse.')) AND NOT t.tgisinternal) d (name, text)
