-- Locks free messages without a key, each lane its share first, and answers where they are. The first message of a claim
-- (p_first) is taken whatever it weighs. Those of topics that the
-- claimer cannot send are parked, so that they do not stand in the way of the rest.
CREATE OR REPLACE FUNCTION posthouse.pick_ready(
    p_most int, p_max_bytes bigint, p_weigh boolean, p_first boolean, p_namespaces text[], p_tenant text, p_not_topics text[], p_lanes bigint[], p_floors bigint[], p_lo bigint, p_hi bigint,
    OUT picks tid[], OUT bytes bigint)
LANGUAGE plpgsql SET search_path = posthouse, pg_temp
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off AS $$
#variable_conflict use_column
DECLARE
    picky CONSTANT boolean := p_namespaces IS NOT NULL OR p_tenant IS NOT NULL OR cardinality(p_not_topics) > 0;
    ranges record;
    lanes bigint[] := p_lanes;
    floors bigint[] := p_floors;
    fresh bigint[];
    share int;
    blocked tid[];
BEGIN
    SELECT r.los, r.his INTO ranges FROM lane_ranges(p_namespaces) r;
    IF p_tenant IS NOT NULL THEN
        lanes := tenant_lanes(p_namespaces, p_tenant);
        floors := array_fill(0::bigint, ARRAY[cardinality(lanes)]);
    ELSIF cardinality(p_lanes) = 0 THEN
        lanes := ready_lanes(ranges.los, ranges.his, least(p_most, 64));
        floors := array_fill(0::bigint, ARRAY[cardinality(lanes)]);
    ELSE
        -- The new ones first: they have waited longest for a claim.
        fresh := new_lanes(lanes, p_lo, p_hi, ranges.los, ranges.his, p_most);
        lanes := fresh || lanes;
        floors := array_fill(0::bigint, ARRAY[cardinality(fresh)]) || floors;
    END IF;
    IF lanes = '{}' THEN RETURN; END IF;
    share := greatest(1, p_most / cardinality(lanes));

    IF cardinality(lanes) = 1 AND NOT picky AND NOT p_weigh THEN
        SELECT array_agg(q.c), sum(q.bytes) INTO picks, bytes FROM (
            SELECT q.ctid AS c, q.bytes FROM ready q WHERE q.lane = lanes[1] AND q.pos > floors[1] ORDER BY q.lane, q.pos LIMIT p_most FOR UPDATE SKIP LOCKED) q;
        RETURN;
    END IF;

    -- Each lane its share; then, if there is room, the lanes that have more. The order of taking is by rank within the lane,
    -- so that a limit in bytes cuts all lanes alike. A picky claim looks at ten times what it wants, not further.
    WITH seen AS MATERIALIZED (
        SELECT x.c, x.bytes, x.seq, x.pos, u.o, row_number() OVER (PARTITION BY u.o ORDER BY x.pos) AS rank
        FROM unnest(lanes, floors) WITH ORDINALITY u(l, f, o)
        CROSS JOIN LATERAL (
            SELECT q.ctid AS c, q.bytes, q.seq, q.pos FROM ready q WHERE q.lane = u.l AND q.pos > u.f ORDER BY q.lane, q.pos
            LIMIT CASE WHEN picky THEN least(5000, 10 * p_most) ELSE p_most END FOR UPDATE SKIP LOCKED) x),
    judged AS MATERIALIZED (
        SELECT s.*, CASE WHEN NOT picky THEN 1
                         WHEN m.namespace <> ALL (coalesce(p_namespaces, ARRAY[m.namespace])) OR m.tenant <> coalesce(p_tenant, m.tenant) THEN 0
                         WHEN m.topic = ANY (p_not_topics) THEN 2
                         ELSE 1 END AS verdict
        FROM seen s LEFT JOIN LATERAL (SELECT m.* FROM message m WHERE picky AND m.seq = s.seq OFFSET 0) m ON true),
    ranked AS (
        SELECT j.c, j.bytes, sum(j.bytes) OVER w AS weight, row_number() OVER w AS n
        FROM judged j WHERE j.verdict = 1
        WINDOW w AS (ORDER BY (j.rank > share), j.rank, j.o ROWS UNBOUNDED PRECEDING))
    SELECT (SELECT array_agg(r.c) FROM ranked r WHERE r.n <= p_most AND (r.weight <= p_max_bytes OR r.n = 1 AND p_first)),
           (SELECT sum(r.bytes) FROM ranked r WHERE r.n <= p_most AND (r.weight <= p_max_bytes OR r.n = 1 AND p_first)),
           (SELECT array_agg(j.c) FROM judged j WHERE j.verdict = 2)
    INTO picks, bytes, blocked;
    IF blocked IS NOT NULL THEN
        WITH d AS (DELETE FROM ready r WHERE r.ctid = ANY (blocked) RETURNING r.*)
        INSERT INTO parked (seq, topic, due_at, lane, deliver_by, released, epoch, attempts, generation, bytes, max_attempts, releases)
        SELECT d.seq, m.topic, d.due_at, d.lane, d.deliver_by, d.released, d.epoch, d.attempts, d.generation, d.bytes, d.max_attempts, d.releases
        FROM d CROSS JOIN LATERAL (SELECT m.* FROM message m WHERE m.seq = d.seq OFFSET 0) m;
    END IF;
END $$;
