-- Moves deadlines of leases that are still held. Answers for each: renewed, locked (a handler's own transaction has it: not
-- lost, and not moved) or lost. It never waits, so the clock is read after the locks are there. It never shortens a lease: the
-- hint that finds it when it runs out stands at its first deadline.
CREATE OR REPLACE FUNCTION posthouse.renew(p_seq bigint[], p_token uuid[], p_lease_ms bigint) RETURNS text[]
LANGUAGE plpgsql SECURITY DEFINER SET search_path = posthouse, pg_temp
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off AS $$
#variable_conflict use_column
DECLARE
    mine tid[];
    t timestamptz;
    renewed bigint[];
    together int8multirange;
BEGIN
    together := renew_lots(p_seq, p_token, p_lease_ms);
    mine := ARRAY(SELECT l.ctid FROM leased l JOIN unnest(p_seq, p_token) i(seq, token) ON l.seq = ANY (ARRAY[i.seq]) AND l.token = i.token
                  ORDER BY l.seq FOR UPDATE OF l SKIP LOCKED);
    t := clock();
    WITH u AS (
        UPDATE leased l SET until = greatest(l.until, t + p_lease_ms * interval '1 millisecond') WHERE l.ctid = ANY (mine) AND l.until > t RETURNING l.seq)
    SELECT coalesce(array_agg(u.seq), '{}') INTO renewed FROM u;
    RETURN ARRAY(
        SELECT CASE WHEN i.seq = ANY (renewed) AND l.token = i.token THEN 'renewed'
                    WHEN l.until > t AND l.token = i.token THEN 'locked'
                    WHEN together @> i.seq THEN 'renewed'
                    WHEN g.until > t THEN 'locked'
                    ELSE 'lost' END
        FROM unnest(p_seq, p_token) WITH ORDINALITY i(seq, token, o)
        LEFT JOIN LATERAL (SELECT l.* FROM leased l WHERE l.seq = i.seq OFFSET 0) l ON true
        LEFT JOIN LATERAL (SELECT g.until FROM lot g WHERE NOT together @> i.seq AND g.token = i.token AND g.seqs @> i.seq OFFSET 0) g ON true ORDER BY i.o);
END $$;

-- Moves one deadline, for workers in any language. Answers the new deadline; raises P7002 when the lease is lost.
CREATE OR REPLACE FUNCTION posthouse.renew_lease(id uuid, lease_token uuid, worker_id text, lease_seconds double precision) RETURNS timestamptz
LANGUAGE plpgsql SECURITY DEFINER SET search_path = posthouse, pg_temp
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off AS $$
#variable_conflict use_column
DECLARE
    own bigint;
    answer text;
BEGIN
    PERFORM check_lease(renew_lease.id, lease_token, worker_id);
    IF lease_seconds IS NULL OR NOT (lease_seconds >= 0.001 AND lease_seconds <= 86400) THEN
        RAISE 'lease_seconds: must be between 0.001 and 86400' USING ERRCODE = 'P7006';
    END IF;
    SELECT m.seq INTO own FROM message m WHERE m.id = renew_lease.id;
    PERFORM open_lots(ARRAY[own], ARRAY[lease_token], false);
    answer := (renew(ARRAY[own], ARRAY[lease_token], (lease_seconds * 1000)::bigint))[1];
    IF answer = 'lost' THEN
        RAISE 'the lease on message % is lost', renew_lease.id USING ERRCODE = 'P7002';
    END IF;
    RETURN (SELECT l.until FROM leased l WHERE l.seq = own AND l.token = lease_token);
END $$;
