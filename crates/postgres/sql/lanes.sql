-- The ranges of lanes that a claim may look into: everything, or one range for each namespace.
CREATE OR REPLACE FUNCTION posthouse.lane_ranges(p_namespaces text[], OUT los bigint[], OUT his bigint[])
LANGUAGE sql IMMUTABLE SET search_path = posthouse, pg_temp AS $$
    SELECT CASE WHEN p_namespaces IS NULL THEN ARRAY[-9223372036854775808] ELSE (SELECT array_agg((lane(ns, '') >> 32) << 32 ORDER BY ns) FROM unnest(p_namespaces) ns) END,
           CASE WHEN p_namespaces IS NULL THEN ARRAY[9223372036854775807] ELSE (SELECT array_agg(((lane(ns, '') >> 32) << 32) | 4294967295 ORDER BY ns) FROM unnest(p_namespaces) ns) END
$$;

-- Lanes of `ready` with work that the caller does not know yet: one from each gap between those it knows, within bounds. Asking only the
-- gaps keeps this from walking the entries that a long transaction elsewhere keeps from being cleaned up.
CREATE OR REPLACE FUNCTION posthouse.new_lanes(p_known bigint[], p_lo bigint, p_hi bigint, p_los bigint[], p_his bigint[], p_most int) RETURNS bigint[]
LANGUAGE plpgsql SET search_path = posthouse, pg_temp
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET enable_sort = off SET jit = off AS $$
DECLARE
    found_lanes bigint[];
BEGIN
    SELECT array_agg(x.lane) INTO found_lanes FROM (
        SELECT x.lane
        FROM unnest(p_los, p_his) r(lo, hi)
        -- The gaps: below the first known lane, between neighbours, above the last.
        CROSS JOIN unnest(p_lo || ARRAY(SELECT k + 1 FROM unnest(p_known) k), ARRAY(SELECT k - 1 FROM unnest(p_known) k) || p_hi) gap(lo, hi)
        CROSS JOIN LATERAL (
            SELECT q.lane FROM ready q WHERE q.lane >= greatest(r.lo, gap.lo) AND q.lane <= least(r.hi, gap.hi)
            ORDER BY q.lane, q.pos LIMIT 1) x
        LIMIT p_most) x;
    RETURN coalesce(found_lanes, '{}');
END $$;

-- Up to p_most lanes of `keyed`, from a random tenant of each namespace on, so that nobody is always first.
CREATE OR REPLACE FUNCTION posthouse.keyed_lanes(p_los bigint[], p_his bigint[], p_most int) RETURNS bigint[]
LANGUAGE plpgsql SET search_path = posthouse, pg_temp
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET enable_sort = off SET jit = off AS $$
DECLARE
    spaces bigint[];
    found_lanes bigint[];
BEGIN
    -- The namespaces with work: a loose scan over the upper halves of the lanes.
    SELECT array_agg(n.space) INTO spaces FROM (
        SELECT w.lane >> 32 AS space FROM unnest(p_los, p_his) r(lo, hi)
        CROSS JOIN LATERAL (
            WITH RECURSIVE walk(lane) AS (
                (SELECT k.lane FROM keyed k WHERE k.lane BETWEEN r.lo AND r.hi ORDER BY k.lane, k.key_hash, k.key, k.pos LIMIT 1)
                UNION ALL
                SELECT (SELECT k.lane FROM keyed k WHERE k.lane > ((walk.lane >> 32) << 32 | 4294967295) AND k.lane <= r.hi ORDER BY k.lane, k.key_hash, k.key, k.pos LIMIT 1)
                FROM walk WHERE walk.lane IS NOT NULL)
            SELECT walk.lane FROM walk WHERE walk.lane IS NOT NULL LIMIT p_most) w
        ORDER BY random()) n;
    IF spaces IS NULL THEN RETURN '{}'; END IF;
    -- In each, from a random tenant on and around: the lanes of a namespace fill one narrow range of all lanes, so the start
    -- must be drawn within it.
    SELECT array_agg(w.lane) INTO found_lanes FROM (
        SELECT w.lane
        FROM unnest(spaces) WITH ORDINALITY n(space, o)
        CROSS JOIN LATERAL (SELECT n.space << 32 AS first, (n.space << 32) | (random() * 4294967295)::bigint AS start OFFSET 0) s
        CROSS JOIN LATERAL (VALUES (s.start, s.first | 4294967295), (s.first, s.start - 1)) part(lo, hi)
        CROSS JOIN LATERAL (
            WITH RECURSIVE walk(lane) AS (
                (SELECT k.lane FROM keyed k WHERE k.lane BETWEEN part.lo AND part.hi ORDER BY k.lane, k.key_hash, k.key, k.pos LIMIT 1)
                UNION ALL
                SELECT (SELECT k.lane FROM keyed k WHERE k.lane > walk.lane AND k.lane <= part.hi ORDER BY k.lane, k.key_hash, k.key, k.pos LIMIT 1)
                FROM walk WHERE walk.lane IS NOT NULL)
            SELECT walk.lane FROM walk WHERE walk.lane IS NOT NULL LIMIT p_most) w
        LIMIT p_most) w;
    RETURN coalesce(found_lanes, '{}');
END $$;

-- The same for `ready`: for a claimer that knows no lanes.
CREATE OR REPLACE FUNCTION posthouse.ready_lanes(p_los bigint[], p_his bigint[], p_most int) RETURNS bigint[]
LANGUAGE plpgsql SET search_path = posthouse, pg_temp
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET enable_sort = off SET jit = off AS $$
DECLARE
    spaces bigint[];
    found_lanes bigint[];
BEGIN
    -- The namespaces with work: a loose scan over the upper halves of the lanes.
    SELECT array_agg(n.space) INTO spaces FROM (
        SELECT w.lane >> 32 AS space FROM unnest(p_los, p_his) r(lo, hi)
        CROSS JOIN LATERAL (
            WITH RECURSIVE walk(lane) AS (
                (SELECT k.lane FROM ready k WHERE k.lane BETWEEN r.lo AND r.hi ORDER BY k.lane, k.pos LIMIT 1)
                UNION ALL
                SELECT (SELECT k.lane FROM ready k WHERE k.lane > ((walk.lane >> 32) << 32 | 4294967295) AND k.lane <= r.hi ORDER BY k.lane, k.pos LIMIT 1)
                FROM walk WHERE walk.lane IS NOT NULL)
            SELECT walk.lane FROM walk WHERE walk.lane IS NOT NULL LIMIT p_most) w
        ORDER BY random()) n;
    IF spaces IS NULL THEN RETURN '{}'; END IF;
    -- In each, from a random tenant on and around: the lanes of a namespace fill one narrow range of all lanes, so the start
    -- must be drawn within it.
    SELECT array_agg(w.lane) INTO found_lanes FROM (
        SELECT w.lane
        FROM unnest(spaces) WITH ORDINALITY n(space, o)
        CROSS JOIN LATERAL (SELECT n.space << 32 AS first, (n.space << 32) | (random() * 4294967295)::bigint AS start OFFSET 0) s
        CROSS JOIN LATERAL (VALUES (s.start, s.first | 4294967295), (s.first, s.start - 1)) part(lo, hi)
        CROSS JOIN LATERAL (
            WITH RECURSIVE walk(lane) AS (
                (SELECT k.lane FROM ready k WHERE k.lane BETWEEN part.lo AND part.hi ORDER BY k.lane, k.pos LIMIT 1)
                UNION ALL
                SELECT (SELECT k.lane FROM ready k WHERE k.lane > walk.lane AND k.lane <= part.hi ORDER BY k.lane, k.pos LIMIT 1)
                FROM walk WHERE walk.lane IS NOT NULL)
            SELECT walk.lane FROM walk WHERE walk.lane IS NOT NULL LIMIT p_most) w
        LIMIT p_most) w;
    RETURN coalesce(found_lanes, '{}');
END $$;

-- The lanes of one tenant: in the namespaces given, or in every namespace that has work.
CREATE OR REPLACE FUNCTION posthouse.tenant_lanes(p_namespaces text[], p_tenant text) RETURNS bigint[]
LANGUAGE plpgsql SET search_path = posthouse, pg_temp
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET enable_sort = off SET jit = off AS $$
DECLARE
    own CONSTANT bigint := lane('', p_tenant) & 4294967295;
    found_lanes bigint[];
BEGIN
    IF p_namespaces IS NOT NULL THEN
        RETURN ARRAY(SELECT DISTINCT lane(ns, p_tenant) FROM unnest(p_namespaces) ns);
    END IF;
    -- A loose scan over the upper halves of the lanes; each step jumps over a whole namespace.
    WITH RECURSIVE r(lane) AS (
        (SELECT q.lane FROM ready q ORDER BY q.lane, q.pos LIMIT 1)
        UNION ALL
        SELECT (SELECT q.lane FROM ready q WHERE q.lane > ((r.lane >> 32) << 32 | 4294967295) ORDER BY q.lane, q.pos LIMIT 1) FROM r WHERE r.lane IS NOT NULL),
    k(lane) AS (
        (SELECT q.lane FROM keyed q ORDER BY q.lane, q.key_hash, q.key, q.pos LIMIT 1)
        UNION ALL
        SELECT (SELECT q.lane FROM keyed q WHERE q.lane > ((k.lane >> 32) << 32 | 4294967295) ORDER BY q.lane, q.key_hash, q.key, q.pos LIMIT 1) FROM k WHERE k.lane IS NOT NULL)
    SELECT array_agg(DISTINCT (x.lane >> 32) << 32 | own) INTO found_lanes
    FROM (SELECT r.lane FROM r UNION ALL SELECT k.lane FROM k) x WHERE x.lane IS NOT NULL;
    RETURN coalesce(found_lanes, '{}');
END $$;
