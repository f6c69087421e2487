-- Locks free messages without a key, each lane its share first, and answers where they are. The first message of a claim
-- (p_first) is taken whatever it weighs. Those of topics that the claimer cannot send are parked, so that they do not stand in
-- the way of the rest. `more` says that free ones may be left: behind so many that were parked, or because they were too large. Those that were too large are locked
-- until commit, and another claim may pass them meanwhile: the first of them in each lane is told. `few` says that those that were taken are of few
-- lanes for so many, `others` that lanes were found that the claimer did not know: there may be more of them.
CREATE OR REPLACE FUNCTION posthouse.pick_ready(
    p_most int, p_max_bytes bigint, p_first boolean, p_namespaces text[], p_tenant text, p_not_topics text[],
    p_own bigint[], p_los bigint[], p_his bigint[], p_lanes bigint[], p_floors bigint[], p_lo bigint, p_hi bigint, p_left bigint[],
    OUT picks tid[], OUT bytes bigint, OUT more boolean, OUT few boolean, OUT others boolean, OUT left_lanes bigint[], OUT left_places bigint[])
LANGUAGE plpgsql SET search_path = posthouse, pg_temp
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off AS $$
#variable_conflict use_column
DECLARE
    picky CONSTANT boolean := p_namespaces IS NOT NULL OR p_tenant IS NOT NULL OR cardinality(p_not_topics) > 0;
    lanes bigint[] := p_lanes;
    floors bigint[] := p_floors;
    -- How far to look in each lane.
    ends bigint[];
    fresh bigint[];
    share int;
    wanted int := p_most;
    taken tid[];
    taken_bytes bigint;
    gave int;
    givers int;
    first boolean := p_first;
    room int;
    start int;
BEGIN
    more := false;
    others := false;
    IF p_own IS NOT NULL THEN
        lanes := p_own;
        floors := array_fill(0::bigint, ARRAY[cardinality(lanes)]);
    ELSIF cardinality(p_lanes) = 0 THEN
        -- More than are wanted: others may be there before.
        room := least(greatest(p_most, 16), 256);
        lanes := lanes_of(1, p_los, p_his, room, p_left);
        floors := array_fill(0::bigint, ARRAY[cardinality(lanes)]);
        others := cardinality(lanes) = room;
    ELSE
        -- The new ones first: they have waited longest for a claim.
        IF p_left = '{}' THEN
            fresh := new_lanes(lanes, p_lo, p_hi, p_los, p_his, p_most);
        ELSE
            fresh := new_lanes_but(p_left, lanes, p_lo, p_hi, p_los, p_his, p_most);
            SELECT coalesce(array_agg(u.l ORDER BY u.o), '{}'), coalesce(array_agg(u.f ORDER BY u.o), '{}') INTO lanes, floors
            FROM unnest(p_lanes, p_floors) WITH ORDINALITY u(l, f, o) WHERE (u.l & 4294967295) <> ALL (p_left);
        END IF;
        -- Where there are few gaps, as between neighbours, there may be many more.
        IF cardinality(fresh) BETWEEN 1 AND 16 THEN
            fresh := fresh || more_lanes(fresh, lanes, p_hi, p_his, p_left, least(p_most, 128) - cardinality(fresh));
        END IF;
        others := fresh <> '{}';
        -- The known ones from any of them on: whoever comes first has what is left over of shares, and a limit in bytes.
        start := floor(random() * cardinality(lanes))::int;
        lanes := lanes[start + 1:] || lanes[:start];
        floors := floors[start + 1:] || floors[:start];
        IF cardinality(fresh) + cardinality(lanes) <= p_most THEN
            lanes := fresh || lanes;
            floors := array_fill(0::bigint, ARRAY[cardinality(fresh)]) || floors;
        ELSE
            -- Not all of them have a turn: by turns, so that neither keep the others away.
            SELECT array_agg(u.l ORDER BY u.o, u.known), array_agg(u.f ORDER BY u.o, u.known) INTO lanes, floors
            FROM (SELECT x.l, 0::bigint AS f, x.o, false AS known FROM unnest(fresh) WITH ORDINALITY x(l, o)
                  UNION ALL SELECT y.l, y.f, y.o, true FROM unnest(lanes, floors) WITH ORDINALITY y(l, f, o)) u;
        END IF;
    END IF;
    IF lanes = '{}' THEN RETURN; END IF;
    -- Where there may not be room for all in bytes: no more than there should be room for, by what is first in line, because whatever is locked and not taken is kept from others.
    IF p_max_bytes < wanted * 65536::bigint THEN
        SELECT least(wanted, greatest(1, floor(p_max_bytes / greatest(1, avg(x.bytes))))) INTO room FROM (
            SELECT x.bytes FROM unnest(lanes, floors) WITH ORDINALITY u(l, f, o)
            CROSS JOIN LATERAL (SELECT q.bytes FROM ready q WHERE q.lane = u.l AND q.pos > u.f ORDER BY q.lane, q.pos LIMIT 4) x
            LIMIT 16) x HAVING count(*) > 0;
        more := coalesce(room < wanted, false);
        wanted := coalesce(room, wanted);
    END IF;
    IF cardinality(lanes) = 1 AND NOT picky THEN
        SELECT array_agg(q.c), sum(q.bytes), true INTO picks, bytes, few FROM (
            SELECT q.ctid AS c, q.bytes FROM ready q WHERE q.lane = lanes[1] AND q.pos > floors[1] ORDER BY q.lane, q.pos LIMIT wanted FOR UPDATE SKIP LOCKED) q;
        IF coalesce(bytes, 0) <= p_max_bytes THEN RETURN; END IF;
        -- Together they are too large: they are weighed one by one.
        picks := NULL;
    END IF;
    IF cardinality(p_not_topics) > 0 THEN
        ends := park(lanes, floors, p_not_topics, p_namespaces, p_tenant, least(5000, greatest(100, greatest(2000, 10 * p_most) / cardinality(lanes))));
        more := more OR ends <> array_fill(9223372036854775807, ARRAY[cardinality(lanes)]);
    END IF;

    -- Each lane its share; what is left over is shared among the lanes that have more, until there is enough, or no more. Nothing is locked that is not taken, but for its
    -- size: what is locked here, another claim passes. The order of taking is by rank within the lane, so that a limit in bytes cuts all lanes alike.
    bytes := 0;
    LOOP
        share := greatest(1, wanted / cardinality(lanes));
        WITH seen AS MATERIALIZED (
            SELECT x.c, x.bytes, x.pos, x.o, row_number() OVER (PARTITION BY x.o ORDER BY x.pos) AS rank FROM (
                SELECT x.c, x.bytes, x.pos, u.o
                FROM unnest(lanes, floors, ends) WITH ORDINALITY u(l, f, e, o)
                CROSS JOIN LATERAL (
                    SELECT q.ctid AS c, q.bytes, q.pos FROM ready q
                    WHERE q.lane = u.l AND q.pos > u.f AND (u.e IS NULL OR q.pos <= u.e)
                      AND (NOT picky OR EXISTS (SELECT FROM message m WHERE m.seq = q.seq
                            AND m.namespace = ANY (coalesce(p_namespaces, ARRAY[m.namespace])) AND m.tenant = coalesce(p_tenant, m.tenant) AND m.topic <> ALL (p_not_topics)))
                    ORDER BY q.lane, q.pos LIMIT share FOR UPDATE SKIP LOCKED) x
                -- Lane by lane, one message after the other: whoever comes after the last one wanted is not locked.
                LIMIT wanted) x),
        weighed AS (
            SELECT s.*, pick_ready.bytes + sum(s.bytes) OVER w <= p_max_bytes OR row_number() OVER w = 1 AND first AS fits FROM seen s
            WINDOW w AS (ORDER BY s.rank, s.o ROWS UNBOUNDED PRECEDING)),
        taken AS (SELECT array_agg(w.c) AS c, sum(w.bytes) AS bytes FROM weighed w WHERE w.fits),
        heavy AS (SELECT w.o, min(w.pos) AS pos FROM weighed w WHERE NOT w.fits GROUP BY w.o),
        rich AS (SELECT s.o, max(s.pos) AS pos FROM seen s GROUP BY s.o HAVING count(*) = share)
        SELECT t.c, t.bytes, (SELECT array_agg(lanes[h.o] ORDER BY h.o) FROM heavy h), (SELECT array_agg(h.pos ORDER BY h.o) FROM heavy h),
               (SELECT array_agg(lanes[r.o] ORDER BY r.o) FROM rich r), (SELECT array_agg(r.pos ORDER BY r.o) FROM rich r), (SELECT array_agg(ends[r.o] ORDER BY r.o) FROM rich r),
               (SELECT count(*) FROM seen s WHERE s.rank = 1)
        INTO taken, taken_bytes, left_lanes, left_places, lanes, floors, ends, gave FROM taken t;
        givers := coalesce(givers, gave);
        picks := picks || taken;
        bytes := bytes + coalesce(taken_bytes, 0);
        wanted := wanted - coalesce(cardinality(taken), 0);
        first := false;
        IF left_lanes IS NOT NULL THEN more := true; EXIT; END IF;
        EXIT WHEN wanted = 0 OR lanes IS NULL;
    END LOOP;
    few := 8 * givers <= cardinality(picks);
END $$;

-- Takes messages of left topics out of the first p_window of each lane, and answers how far that went: to a place in the line, or
-- to its end.
CREATE OR REPLACE FUNCTION posthouse.park(p_lanes bigint[], p_floors bigint[], p_not_topics text[], p_namespaces text[], p_tenant text, p_window int) RETURNS bigint[]
LANGUAGE plpgsql SET search_path = posthouse, pg_temp
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off AS $$
#variable_conflict use_column
DECLARE
    ends bigint[];
    out_of_the_way tid[];
BEGIN
    WITH seen AS MATERIALIZED (
        SELECT u.o, x.c, x.pos, m.topic, m.namespace, m.tenant
        FROM unnest(p_lanes, p_floors) WITH ORDINALITY u(l, f, o)
        LEFT JOIN LATERAL (SELECT q.ctid AS c, q.pos, q.seq FROM ready q WHERE q.lane = u.l AND q.pos > u.f ORDER BY q.lane, q.pos LIMIT p_window) x ON true
        LEFT JOIN LATERAL (SELECT m.topic, m.namespace, m.tenant FROM message m WHERE m.seq = x.seq OFFSET 0) m ON true)
    SELECT (SELECT array_agg(e.pos ORDER BY e.o) FROM (
                SELECT s.o, CASE WHEN count(s.pos) < p_window THEN 9223372036854775807 ELSE max(s.pos) END AS pos FROM seen s GROUP BY s.o) e),
           ARRAY(SELECT s.c FROM seen s WHERE s.topic = ANY (p_not_topics) AND s.namespace = ANY (coalesce(p_namespaces, ARRAY[s.namespace])) AND s.tenant = coalesce(p_tenant, s.tenant))
    INTO ends, out_of_the_way;
    IF out_of_the_way = '{}' THEN RETURN ends; END IF;
    WITH d AS (
        DELETE FROM ready r WHERE r.ctid = ANY (ARRAY(
            SELECT q.ctid FROM ready q WHERE q.ctid = ANY (out_of_the_way) FOR UPDATE SKIP LOCKED))
        RETURNING r.*)
    INSERT INTO parked (seq, topic, due_at, lane, deliver_by, released, epoch, attempts, generation, bytes, max_attempts, releases)
    SELECT d.seq, m.topic, d.due_at, d.lane, d.deliver_by, d.released, d.epoch, d.attempts, d.generation, d.bytes, d.max_attempts, d.releases
    FROM d CROSS JOIN LATERAL (SELECT m.topic FROM message m WHERE m.seq = d.seq OFFSET 0) m;
    RETURN ends;
END $$;
