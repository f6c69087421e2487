-- The lowest lane from p_lo to p_hi that has something of a kind: 1 ready, 2 keys that claims visit, 3 waiting for their time,
-- 4 of a topic that was left; NULL any. Keys that claims visit have a floor. It pins nothing of its own, because that would cost more than the look: its callers do.
CREATE OR REPLACE FUNCTION posthouse.next_lane(p_kind int, p_lo bigint, p_hi bigint, p_floor bigint DEFAULT 0) RETURNS bigint
LANGUAGE plpgsql STABLE AS $$
BEGIN
    -- One look for each kind, and not one at all of them: what is not asked for would be set up all the same.
    IF p_kind = 1 THEN
        RETURN (SELECT q.lane FROM posthouse.ready q WHERE q.lane BETWEEN p_lo AND p_hi ORDER BY q.lane, q.pos LIMIT 1);
    ELSIF p_kind = 2 THEN
        RETURN (SELECT q.lane FROM posthouse.keyed q WHERE q.wait = 0 AND q.lane BETWEEN p_lo AND p_hi AND q.line > p_floor ORDER BY q.lane, q.key_hash, q.key, q.pos LIMIT 1);
    ELSIF p_kind = 3 THEN
        RETURN least(
            (SELECT q.lane FROM posthouse.sched q WHERE q.lane BETWEEN p_lo AND p_hi ORDER BY q.lane, least(q.due_at, q.deliver_by) LIMIT 1),
            (SELECT q.lane FROM posthouse.keyed q WHERE q.wait = 1 AND q.lane BETWEEN p_lo AND p_hi ORDER BY q.lane, least(q.due_at, q.deliver_by) LIMIT 1));
    ELSIF p_kind = 4 THEN
        RETURN least(
            (SELECT q.lane FROM posthouse.parked q WHERE q.lane BETWEEN p_lo AND p_hi ORDER BY q.lane, q.topic, q.seq LIMIT 1),
            (SELECT q.lane FROM posthouse.keyed q WHERE q.wait = 3 AND q.lane BETWEEN p_lo AND p_hi ORDER BY q.lane, q.topic, q.seq LIMIT 1));
    END IF;
    RETURN least(posthouse.next_lane(1, p_lo, p_hi), posthouse.next_lane(2, p_lo, p_hi), posthouse.next_lane(3, p_lo, p_hi), posthouse.next_lane(4, p_lo, p_hi));
END $$;

-- The first lane of the next namespace; nothing after the last.
CREATE OR REPLACE FUNCTION posthouse.after_space(p_lane bigint) RETURNS bigint
LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN CASE WHEN p_lane >> 32 < 2147483647 THEN ((p_lane >> 32) + 1) << 32 END;

-- The lanes of a kind from p_lo to p_hi, one after the other. Inlined into its callers, so that they stop it when they have enough.
CREATE OR REPLACE FUNCTION posthouse.walk_lanes(p_kind int, p_lo bigint, p_hi bigint, p_floor bigint) RETURNS TABLE (lane bigint)
LANGUAGE sql STABLE
BEGIN ATOMIC
    WITH RECURSIVE walk(lane) AS (
        SELECT posthouse.next_lane(p_kind, p_lo, p_hi, p_floor)
        UNION ALL
        SELECT posthouse.next_lane(p_kind, w.lane + 1, p_hi, p_floor) FROM walk w WHERE w.lane < p_hi)
    SELECT w.lane FROM walk w WHERE w.lane IS NOT NULL;
END;

-- The first lane of each namespace, in the same way.
CREATE OR REPLACE FUNCTION posthouse.walk_spaces(p_kind int, p_lo bigint, p_hi bigint, p_floor bigint) RETURNS TABLE (lane bigint)
LANGUAGE sql STABLE
BEGIN ATOMIC
    WITH RECURSIVE walk(lane) AS (
        SELECT posthouse.next_lane(p_kind, p_lo, p_hi, p_floor)
        UNION ALL
        SELECT posthouse.next_lane(p_kind, posthouse.after_space(w.lane), p_hi, p_floor) FROM walk w WHERE w.lane IS NOT NULL)
    SELECT w.lane FROM walk w WHERE w.lane IS NOT NULL;
END;

-- The ranges of lanes that a claim may look into: everything, or one range for each namespace.
CREATE OR REPLACE FUNCTION posthouse.lane_ranges(p_namespaces text[], OUT los bigint[], OUT his bigint[])
LANGUAGE plpgsql IMMUTABLE SET search_path = posthouse, pg_temp AS $$
BEGIN
    IF p_namespaces IS NULL THEN
        los := ARRAY[-9223372036854775808];
        his := ARRAY[9223372036854775807];
    ELSE
        SELECT array_agg(s.lo), array_agg(s.lo | 4294967295) INTO los, his
        FROM (SELECT DISTINCT (lane(ns, '') >> 32) << 32 AS lo FROM unnest(p_namespaces) ns) s;
    END IF;
END $$;

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

-- The same without the lanes of tenants that are left, by the lower halves of their lanes. Such a lane counts as known, or it would
-- hide what is behind it in its gap: in the namespaces of the known lanes at once, in others when it is found.
CREATE OR REPLACE FUNCTION posthouse.new_lanes_but(p_left bigint[], p_known bigint[], p_lo bigint, p_hi bigint, p_los bigint[], p_his bigint[], p_most int) RETURNS bigint[]
LANGUAGE plpgsql SET search_path = posthouse, pg_temp AS $$
DECLARE
    spaces bigint[] := ARRAY(SELECT DISTINCT k >> 32 FROM unnest(p_known) k);
    known bigint[];
    found_lanes bigint[];
    unknown bigint[];
BEGIN
    -- Ends: each turn but the last adds a namespace.
    LOOP
        known := ARRAY(SELECT k FROM unnest(p_known) k
                       UNION SELECT s << 32 | h FROM unnest(spaces) s, unnest(p_left) h WHERE s << 32 | h BETWEEN p_lo AND p_hi ORDER BY 1);
        found_lanes := new_lanes(known, p_lo, p_hi, p_los, p_his, p_most + cardinality(known));
        unknown := ARRAY(SELECT DISTINCT l >> 32 FROM unnest(found_lanes) l WHERE (l & 4294967295) = ANY (p_left));
        IF unknown = '{}' THEN RETURN found_lanes[:p_most]; END IF;
        spaces := spaces || unknown;
    END LOOP;
END $$;

-- More lanes of `ready` in the gaps in which these were found: the first one of each namespace behind it, and of the same namespace from a random tenant on and around.
-- Without it neighbours that are known would hide all others, but for one before and one behind them.
CREATE OR REPLACE FUNCTION posthouse.more_lanes(p_found bigint[], p_known bigint[], p_hi bigint, p_his bigint[], p_left bigint[], p_most int) RETURNS bigint[]
LANGUAGE plpgsql SET search_path = posthouse, pg_temp
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET enable_sort = off SET jit = off AS $$
DECLARE
    known CONSTANT bigint[] := p_known || p_found;
    each CONSTANT int := greatest(1, p_most / cardinality(p_found));
    found_lanes bigint[];
BEGIN
    SELECT array_agg(w.lane) INTO found_lanes
    FROM unnest(p_found) f(lane)
    CROSS JOIN LATERAL (SELECT coalesce((SELECT min(k) - 1 FROM unnest(known) k WHERE k > f.lane), p_hi) AS hi OFFSET 0) gap
    CROSS JOIN LATERAL (SELECT least(gap.hi, f.lane | 4294967295) AS last OFFSET 0) space
    CROSS JOIN LATERAL (SELECT f.lane + 1 + floor(random() * (space.last - f.lane))::bigint AS lane OFFSET 0) start
    CROSS JOIN LATERAL (
        SELECT w.lane FROM (
            -- Where namespaces are asked for, each was looked into by itself.
            SELECT w.lane
            FROM walk_spaces(1, CASE WHEN p_his = '{9223372036854775807}' THEN after_space(f.lane) END, gap.hi, 0) s
            CROSS JOIN LATERAL (
                SELECT w.lane FROM walk_lanes(1, s.lane, least(gap.hi, s.lane | 4294967295), 0) w WHERE (w.lane & 4294967295) <> ALL (p_left) LIMIT 1) w
            UNION ALL
            SELECT w.lane
            FROM (VALUES (start.lane, space.last), (f.lane + 1, start.lane - 1)) part(lo, hi)
            CROSS JOIN LATERAL walk_lanes(1, part.lo, part.hi, 0) w WHERE (w.lane & 4294967295) <> ALL (p_left)) w
        LIMIT each) w;
    RETURN coalesce(found_lanes, '{}');
END $$;

-- Up to p_most lanes of one kind, from a random tenant of each namespace on, so that nobody is always first; without those of tenants
-- that are left, by the lower halves of their lanes.
CREATE OR REPLACE FUNCTION posthouse.lanes_of(p_kind int, p_los bigint[], p_his bigint[], p_most int, p_left bigint[] DEFAULT '{}', p_floor bigint DEFAULT 0) RETURNS bigint[]
LANGUAGE plpgsql SET search_path = posthouse, pg_temp
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET enable_sort = off SET jit = off AS $$
DECLARE
    spaces bigint[];
    found_lanes bigint[];
BEGIN
    -- Mostly there are none, and that is seen at once.
    IF cardinality(p_los) = 1 AND next_lane(p_kind, p_los[1], p_his[1], p_floor) IS NULL THEN RETURN '{}'; END IF;
    -- The namespaces with work: a loose scan over the upper halves of the lanes.
    SELECT array_agg(n.space) INTO spaces FROM (
        SELECT w.lane >> 32 AS space FROM unnest(p_los, p_his) r(lo, hi)
        CROSS JOIN LATERAL (SELECT w.lane FROM walk_spaces(p_kind, r.lo, r.hi, p_floor) w LIMIT p_most) w
        ORDER BY random()) n;
    IF spaces IS NULL THEN RETURN '{}'; END IF;
    -- In each, from a random tenant on and around: the lanes of a namespace fill one narrow range of all lanes, so the start
    -- must be drawn within it.
    SELECT array_agg(w.lane) INTO found_lanes FROM (
        SELECT w.lane
        FROM unnest(spaces) WITH ORDINALITY n(space, o)
        CROSS JOIN LATERAL (SELECT n.space << 32 AS first, (n.space << 32) | (random() * 4294967295)::bigint AS start OFFSET 0) s
        CROSS JOIN LATERAL (VALUES (s.start, s.first | 4294967295), (s.first, s.start - 1)) part(lo, hi)
        CROSS JOIN LATERAL walk_lanes(p_kind, part.lo, part.hi, p_floor) w
        WHERE (w.lane & 4294967295) <> ALL (p_left)
        LIMIT p_most) w;
    RETURN coalesce(found_lanes, '{}');
END $$;

-- The lanes of one tenant, in any order, so that no namespace is always first: in the namespaces given, or in every one that has work of any kind.
CREATE OR REPLACE FUNCTION posthouse.tenant_lanes(p_namespaces text[], p_tenant text) RETURNS bigint[]
LANGUAGE plpgsql SET search_path = posthouse, pg_temp
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET enable_sort = off SET jit = off AS $$
DECLARE
    found_lanes bigint[];
BEGIN
    IF p_namespaces IS NOT NULL THEN
        RETURN ARRAY(SELECT l.lane FROM (SELECT DISTINCT lane(ns, p_tenant) AS lane FROM unnest(p_namespaces) ns) l ORDER BY random());
    END IF;
    SELECT array_agg((w.lane >> 32) << 32 | tenant_half(p_tenant) ORDER BY random()) INTO found_lanes FROM walk_spaces(NULL, -9223372036854775808, 9223372036854775807, 0) w;
    RETURN coalesce(found_lanes, '{}');
END $$;

-- What is at the floors of a claimer or below them, in the lanes that it knows: the first place in each. A claim that failed may have left it there.
CREATE OR REPLACE FUNCTION posthouse.below_floors(p_lanes bigint[], p_floors bigint[]) RETURNS TABLE (lane bigint, pos bigint)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = posthouse, pg_temp
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    SELECT u.l, x.pos FROM unnest(p_lanes, p_floors) u(l, f)
    CROSS JOIN LATERAL (SELECT q.pos FROM ready q WHERE q.lane = u.l AND q.pos <= u.f ORDER BY q.lane, q.pos LIMIT 1) x;
END $$;
