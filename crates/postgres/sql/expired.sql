-- Leases that ran out, by number from above p_after; of one tenant alone, or of all. Hints whose leases have all ended are cleared
-- away, and hints whose leases were renewed move to the next deadline; looking for one tenant's moves only hints that are its own.
-- A lease that somebody has locked, as a handler's own transaction does, is left, and does not count.
CREATE OR REPLACE FUNCTION posthouse.expired(p_after bigint, p_most int, p_tenant text DEFAULT NULL)
RETURNS TABLE (seq bigint, id uuid, token uuid, epoch int, attempts int, generation int, max_attempts int, releases int, blocks boolean, kind smallint, bound boolean, parent uuid)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = posthouse, pg_temp
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off AS $$
#variable_conflict use_column
DECLARE
    t CONSTANT timestamptz := clock();
    over bigint[] := '{}';
    found record;
BEGIN
    PERFORM open_over(t, p_after, p_most, tenant_half(p_tenant));
    -- So many hints are visited that cleared ones do not make it look done; bounded all the same.
    FOR round IN 1..20 LOOP
        SELECT x.seqs, x.visited INTO found FROM ran_out_by(t, p_after, p_most - cardinality(over), tenant_half(p_tenant)) x;
        over := over || found.seqs;
        EXIT WHEN found.visited < 5000 OR cardinality(over) >= p_most;
    END LOOP;
    IF p_tenant IS NOT NULL AND cardinality(over) < p_most THEN
        -- In hints of claims for all, there may be some of this tenant's. Those who claim for all tidy them up.
        over := over || ARRAY(
            SELECT l.seq FROM (SELECT d.token, d.seqs FROM deadline d WHERE d.half IS NULL AND d.until <= t ORDER BY d.half, d.until LIMIT 20000) d
            CROSS JOIN LATERAL (SELECT l.seq FROM leased l WHERE l.seq = ANY (d.seqs) AND l.token = d.token AND l.until <= t AND l.seq > p_after
                                AND l.lane & 4294967295 = tenant_half(p_tenant) FOR UPDATE SKIP LOCKED) l);
    END IF;
    RETURN QUERY
    SELECT l.seq, m.id, l.token, l.epoch, l.attempts, l.generation, l.max_attempts::int, l.releases::int, l.blocks, m.kind, coalesce(m.headers ? 'posthouse-ledger', false), m.parent
    FROM (SELECT l.* FROM leased l WHERE l.seq = ANY (over) AND l.until <= t
            AND (p_tenant IS NULL OR EXISTS (SELECT FROM message m WHERE m.seq = l.seq AND m.tenant = p_tenant)) ORDER BY l.seq LIMIT p_most) l
    CROSS JOIN LATERAL (SELECT m.id, m.kind, m.headers, m.parent FROM message m WHERE m.seq = l.seq OFFSET 0) m ORDER BY l.seq;
END $$;

-- One round of it over 5,000 hints: of claims for one tenant (p_half), or of all. Answers leases that are locked now.
CREATE OR REPLACE FUNCTION posthouse.ran_out_by(p_now timestamptz, p_after bigint, p_most int, p_half bigint, OUT seqs bigint[], OUT visited int)
LANGUAGE plpgsql SET search_path = posthouse, pg_temp
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off AS $$
#variable_conflict use_column
DECLARE
    h record;
    held record;
BEGIN
    seqs := '{}';
    visited := 0;
    FOR h IN
        SELECT d.c, d.token, d.seqs FROM (
            SELECT d.ctid AS c, d.token, d.seqs FROM deadline d WHERE p_half IS NULL AND d.until <= p_now ORDER BY d.until LIMIT 5000 FOR UPDATE SKIP LOCKED) d
        UNION ALL
        SELECT d.c, d.token, d.seqs FROM (
            SELECT d.ctid AS c, d.token, d.seqs FROM deadline d WHERE d.half = p_half AND d.until <= p_now ORDER BY d.half, d.until LIMIT 5000 FOR UPDATE SKIP LOCKED) d
    LOOP
        visited := visited + 1;
        SELECT min(l.until) AS first, array_agg(l.seq) AS seqs INTO held FROM leased l WHERE l.seq = ANY (h.seqs) AND l.token = h.token;
        IF held.seqs IS NULL THEN
            DELETE FROM deadline d WHERE d.ctid = h.c;
        ELSIF held.first > p_now THEN
            UPDATE deadline d SET until = held.first, seqs = held.seqs WHERE d.ctid = h.c;
        ELSE
            seqs := ran_out_by.seqs || ARRAY(SELECT l.seq FROM leased l WHERE l.seq = ANY (held.seqs) AND l.token = h.token AND l.until <= p_now AND l.seq > p_after FOR UPDATE SKIP LOCKED);
        END IF;
        EXIT WHEN cardinality(ran_out_by.seqs) >= p_most;
    END LOOP;
END $$;

-- Settles what ran out, of one tenant or of all, and answers how many. For workers in any language and for operators. What becomes of a message of a saga is
-- decided by the library: it is left to relays.
CREATE OR REPLACE FUNCTION posthouse.repair_expired_leases(max_rows int DEFAULT 1000, tenant text DEFAULT NULL) RETURNS int
LANGUAGE plpgsql SECURITY DEFINER SET search_path = posthouse, pg_temp
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off AS $$
#variable_conflict use_variable
DECLARE
    e record;
    answers text[];
    mine bigint[] := '{}';
    after bigint := -1;
BEGIN
    IF max_rows IS NULL OR max_rows NOT BETWEEN 1 AND 100000 THEN
        RAISE 'max_rows: must be between 1 and 100000' USING ERRCODE = 'P7006';
    END IF;
    -- Those of sagas are passed: there may be more of them than of others.
    WHILE cardinality(mine) < max_rows LOOP
        SELECT array_agg(x.seq) FILTER (WHERE x.kind < 2) AS seqs, max(x.seq) AS last INTO e FROM expired(after, max_rows, tenant) x;
        EXIT WHEN e.last IS NULL;
        after := e.last;
        mine := mine || coalesce(e.seqs, '{}');
    END LOOP;
    SELECT array_agg(x.seq) AS seqs, array_agg(x.token) AS tokens, array_agg(x.epoch::bigint) AS epochs, array_agg(6::bigint) AS outcomes,
           array_agg(d.next::bigint) AS nexts, array_agg(d.reason::bigint) AS reasons, array_agg(0::bigint) AS delays,
           array_agg(x.max_attempts::bigint) AS budgets, array_agg('lease_expired'::text) AS codes
    INTO e FROM (SELECT l.* FROM leased l WHERE l.seq = ANY (mine[1:max_rows]) ORDER BY l.seq) x
    CROSS JOIN LATERAL decide('lease_expired', x.attempts, x.max_attempts::int, x.releases::int, NULL, 0.5) d;
    IF e.seqs IS NULL THEN RETURN 0; END IF;
    answers := settle(e.seqs, e.tokens, e.epochs, e.outcomes, e.nexts, e.reasons, e.delays, e.budgets, e.codes, NULL, NULL);
    RETURN (SELECT count(*) FROM unnest(answers) a WHERE a = 'settled');
END $$;

-- The same of leases that were looked for before. Whoever calls it says which, and nothing else: what has not run out stays.
CREATE OR REPLACE FUNCTION posthouse.settle_expired(p_seq bigint[], p_token uuid[], p_epoch bigint[]) RETURNS text[]
LANGUAGE plpgsql SECURITY DEFINER SET search_path = posthouse, pg_temp
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off AS $$
#variable_conflict use_column
DECLARE
    n CONSTANT int := cardinality(p_seq);
    e record;
BEGIN
    -- What becomes of a message of a saga is not for whoever calls this to say.
    IF EXISTS (SELECT FROM unnest(p_seq) s CROSS JOIN LATERAL (SELECT FROM message m WHERE m.seq = s AND m.kind >= 2 OFFSET 0) m) THEN
        RAISE 'outcome: a message of a saga is taken back by a relay' USING ERRCODE = 'P7006';
    END IF;
    PERFORM open_lots(p_seq, p_token, true);
    SELECT array_agg(coalesce(d.next, 2)::bigint ORDER BY i.o) AS nexts, array_agg(d.reason::bigint ORDER BY i.o) AS reasons, array_agg(l.max_attempts::bigint ORDER BY i.o) AS budgets
    INTO e FROM unnest(p_seq, p_token) WITH ORDINALITY i(seq, token, o)
    LEFT JOIN LATERAL (SELECT l.* FROM leased l WHERE l.seq = i.seq AND l.token = i.token OFFSET 0) l ON true
    LEFT JOIN LATERAL decide('lease_expired', l.attempts, l.max_attempts::int, l.releases::int, NULL, 0.5) d ON true;
    RETURN settle(p_seq, p_token, p_epoch, array_fill(6::bigint, ARRAY[n]), e.nexts, e.reasons, array_fill(0::bigint, ARRAY[n]),
                  e.budgets, array_fill('lease_expired'::text, ARRAY[n]), NULL, NULL);
END $$;
