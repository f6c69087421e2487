-- Entries of the ledger as operators see them. Neither the holder's token nor the body of an answer is part of it.
CREATE OR REPLACE VIEW posthouse.entries AS
    SELECT l.tenant, l.scope, l.key, (ARRAY['in_flight', 'succeeded', 'failed'])[l.status + 1] AS status, l.lease_until, l.message, l.checkpoint, l.http_status,
           octet_length(l.result)::bigint AS result_bytes, l.result_digest, l.error, l.fingerprint, l.created_at, l.updated_at, l.expires_at
    FROM posthouse.ledger l;

-- The keys of those that are wanted, by tenant, scope and key, from after p_after on: at most p_limit of them, among p_most. `looked_to` is the last one that was looked at,
-- if there may be more.
CREATE OR REPLACE FUNCTION posthouse.find_entries(
    p_tenant text, p_scope text, p_status text, p_after text[], p_limit int, p_most int,
    OUT tenants text[], OUT scopes text[], OUT keys text[], OUT looked_to text[])
LANGUAGE plpgsql SECURITY DEFINER SET search_path = posthouse, pg_temp
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET jit = off AS $$
#variable_conflict use_column
DECLARE
    e record;
    looked int := 0;
BEGIN
    tenants := '{}'; scopes := '{}'; keys := '{}';
    FOR e IN
        SELECT l.tenant, l.scope, l.key, (ARRAY['in_flight', 'succeeded', 'failed'])[l.status + 1] AS status
        FROM ledger l WHERE (l.tenant, l.scope, l.key) > (p_after[1], p_after[2], p_after[3]) ORDER BY l.tenant, l.scope, l.key LIMIT p_most
    LOOP
        EXIT WHEN e.tenant > p_tenant COLLATE "C";
        looked := looked + 1;
        IF (p_tenant IS NULL OR e.tenant = p_tenant) AND (p_scope IS NULL OR e.scope = p_scope) AND (p_status IS NULL OR e.status = p_status) THEN
            tenants := tenants || e.tenant; scopes := scopes || e.scope; keys := keys || e.key;
        END IF;
        IF cardinality(keys) = p_limit OR looked = p_most THEN
            looked_to := ARRAY[e.tenant, e.scope, e.key];
            EXIT;
        END IF;
    END LOOP;
END $$;
