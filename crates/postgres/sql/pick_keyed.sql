-- Locks free keys and answers where the messages of their runs are; so many keys that runs of p_depth fill the batch. Claims and operators take a key by an advisory lock
-- until commit; a lock on its head would not do, because a relaxed producer or a retry can put another message before the
-- head at any time. Two statements on purpose: the second one's snapshot is taken under the lock, so it sees whatever the
-- last holder of the key committed. `more` says that nothing was found, but that there may be something: keys were put out of the way, or were another's when they were found.
-- `first_lapse` is the earliest deliver-by among the picks.
--
-- Whether a key is held is asked for each key by (SELECT true ... LIMIT 1) IS NULL. NOT EXISTS would become a join, which reads all that
-- is held, and all that ever was and is not cleaned up yet, for each claim.
-- p_floor is the floor of the keys: what is visited stands above it in its line, and so do leases that were granted in their first place; whatever else
-- a key has is found by indexes of its own, which are small. The oldest that are visited are looked at first. Where p_near, those are all. Else keys are found by going from key to key
-- as well, so that a key or a tenant with very many does not stand before the others: where there are several lanes, where few of the oldest are free, and now and then. Not always,
-- because that passes over all that is gone and not cleaned up yet.
CREATE OR REPLACE FUNCTION posthouse.pick_keyed(
    p_most int, p_depth int, p_token uuid, p_now timestamptz, p_max_bytes bigint, p_first boolean, p_namespaces text[], p_tenant text, p_not_topics text[],
    p_own bigint[], p_los bigint[], p_his bigint[], p_sweep boolean, p_left bigint[], p_floor bigint, p_near boolean,
    OUT picks tid[], OUT bytes bigint, OUT more boolean, OUT first_lapse timestamptz)
LANGUAGE plpgsql SET search_path = posthouse, pg_temp
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off AS $$
#variable_conflict use_column
DECLARE
    lanes bigint[];
    keys_each int;
    visits int;
    wanted int;
    window_of_oldest int := 1025;
    walks boolean;
    near_most int;
    others record;
    swept int;
    found_keys int;
    l bigint[]; h bigint[]; k text[]; p bigint[];
    share int;
BEGIN
    more := false;
    IF NOT p_near THEN
        lanes := coalesce(p_own, lanes_of(2, p_los, p_his, 256, p_left, p_floor));
        IF lanes = '{}' THEN RETURN; END IF;
        keys_each := greatest(1, p_most / p_depth / cardinality(lanes));
        visits := 4 * keys_each + greatest(64, 2048 / cardinality(lanes));
        wanted := least(keys_each * cardinality(lanes), p_most);
        window_of_oldest := greatest(256, 4 * wanted);
    ELSE
        wanted := greatest(1, p_most / p_depth);
    END IF;

    -- 1: heads of due and free keys. Those that lapsed make way for the next of their key: look again, a few times.
    FOR round IN 1..10 LOOP
        -- Who wants only one key tries one way or the other.
        walks := NOT p_near AND (cardinality(lanes) > 1 OR random() < 0.125);
        near_most := CASE WHEN p_near THEN p_most WHEN cardinality(lanes) > 1 THEN greatest(1, wanted / 2) ELSE wanted END;
        IF walks AND near_most >= p_most THEN
            near_most := CASE WHEN p_most > 1 THEN p_most - 1 ELSE (random() < 0.5)::int END;
        END IF;
        SELECT f.l, f.h, f.k, f.p INTO l, h, k, p
        FROM near_heads(near_most, p_token, p_now, p_namespaces, p_tenant, p_not_topics, p_own, p_los, p_his, p_left, p_floor, window_of_oldest, p_near) f;
        walks := walks OR NOT p_near AND coalesce(cardinality(l), 0) < least(16, wanted);
        IF walks AND coalesce(cardinality(l), 0) < p_most THEN
            SELECT f.* INTO others
            FROM free_heads(lanes, keys_each, p_most - coalesce(cardinality(l), 0), visits, p_token, p_now, p_namespaces, p_tenant, p_not_topics, p_floor, coalesce(h, '{}')) f;
            l := l || others.l; h := h || others.h; k := k || others.k; p := p || others.p;
        END IF;
        IF l IS NULL AND near_most = 0 THEN
            SELECT f.l, f.h, f.k, f.p INTO l, h, k, p
            FROM near_heads(1, p_token, p_now, p_namespaces, p_tenant, p_not_topics, p_own, p_los, p_his, p_left, p_floor, window_of_oldest, p_near) f;
        END IF;
        EXIT WHEN l IS NULL OR NOT lapse_heads(l, h, k, p, p_now);
        l := NULL;
        -- Behind so many that lapsed there may be others.
        more := round = 10;
    END LOOP;
    IF p_sweep THEN
        swept := 0;
        -- Where the very oldest cannot be claimed, it would keep the floor down.
        IF p_near AND coalesce(cardinality(l), 0) < wanted OR oldest_is_held(p_now, p_not_topics, p_own, p_los, p_his, p_left, p_floor) THEN
            swept := sweep_near(p_now, p_namespaces, p_tenant, p_not_topics, p_own, p_los, p_his, p_left, p_floor);
        END IF;
        IF walks AND coalesce(cardinality(l), 0) < wanted THEN
            swept := swept + sweep_keys(lanes, visits, p_now, p_namespaces, p_tenant, p_not_topics, p_floor);
        END IF;
        more := more OR l IS NULL AND swept > 0;
    END IF;
    IF l IS NULL THEN RETURN; END IF;
    share := greatest(1, least(p_depth, p_most), p_most / cardinality(l));

    -- 2: with a fresh snapshot, the run of due messages from each head on; nothing if the head is no longer the first of its
    -- key, or if any message of the key is leased by somebody else.
    WITH runs AS MATERIALIZED (
        SELECT y.c, y.bytes, y.deliver_by, y.rank, u.o
        FROM unnest(l, h, k, p) WITH ORDINALITY u(l, h, k, p, o)
        CROSS JOIN LATERAL (
            SELECT x.c, x.bytes, x.deliver_by, x.rank FROM (
                SELECT z.c, z.bytes, z.deliver_by, row_number() OVER w AS rank, min(z.pos) OVER () AS head,
                       bool_and(z.due_at <= p_now AND (z.deliver_by <= p_now) IS NOT TRUE
                                AND (cardinality(p_not_topics) = 0 OR EXISTS (SELECT FROM message m WHERE m.seq = z.seq AND m.topic <> ALL (p_not_topics)))) OVER w AS run
                FROM (
                    (SELECT z.ctid AS c, z.seq, z.pos, z.due_at, z.deliver_by, z.bytes FROM keyed z
                     WHERE z.lane = u.l AND z.key_hash = u.h AND z.key = u.k AND z.pos > p_floor ORDER BY z.lane, z.key_hash, z.key, z.pos LIMIT share)
                    UNION ALL
                    (SELECT z.ctid AS c, z.seq, z.pos, z.due_at, z.deliver_by, z.bytes FROM keyed z
                     WHERE z.lane = u.l AND ~z.key_hash = ~u.h AND z.key = u.k AND (z.wait <> 0 OR z.line <> z.pos) AND z.pos <= p_floor ORDER BY z.pos LIMIT share)
                    ORDER BY pos LIMIT share) z
                WINDOW w AS (ORDER BY z.pos ROWS UNBOUNDED PRECEDING)) x
            WHERE x.run AND x.head = u.p) y
        WHERE (SELECT true FROM leased b WHERE b.lane = u.l AND b.key_hash = u.h AND b.key = u.k AND b.key IS NOT NULL AND b.pos > p_floor AND b.token <> p_token ORDER BY b.pos LIMIT 1) IS NULL
          AND (SELECT true FROM leased b WHERE b.lane = u.l AND ~b.key_hash = ~u.h AND b.key = u.k AND b.key IS NOT NULL AND b.line <> b.pos AND b.token <> p_token ORDER BY b.pos LIMIT 1) IS NULL),
    ranked AS (
        SELECT r.c, r.bytes, r.deliver_by, sum(r.bytes) OVER w AS weight, row_number() OVER w AS n FROM runs r
        WINDOW w AS (ORDER BY r.rank, r.o ROWS UNBOUNDED PRECEDING))
    SELECT array_agg(r.c), sum(r.bytes), min(r.deliver_by), (SELECT count(DISTINCT r.o) FROM runs r) INTO picks, bytes, first_lapse, found_keys
    FROM ranked r WHERE r.n <= p_most AND (r.weight <= p_max_bytes OR r.n = 1 AND p_first);
    -- Those that another claim has just let go of are seen as it left them only now; behind them there may be others.
    more := more OR found_keys = 0;
    IF found_keys < cardinality(l) THEN
        -- Some turned out not to be free. Should the first of one be marked as behind another, nobody would ever come to it.
        PERFORM rouse(u.l, u.h, u.k) FROM unnest(l, h, k) u(l, h, k);
    END IF;
END $$;

-- The keys of a lane that claims visit, in a range of hashes, with the first record of each that is not out of the way; so many
-- at most. Inlined into its callers, so that they stop it when they have enough. What is below the floor is passed over in the index, without a look at the record.
CREATE OR REPLACE FUNCTION posthouse.walk_keys(p_lane bigint, p_lo bigint, p_hi bigint, p_visits int, p_floor bigint) RETURNS TABLE (key_hash bigint, key text, pos bigint, seq bigint, due_at timestamptz, deliver_by timestamptz)
LANGUAGE sql STABLE
BEGIN ATOMIC
    WITH RECURSIVE walk(key_hash, key, pos, seq, due_at, deliver_by, n) AS (
        (SELECT q.key_hash, q.key, q.pos, q.seq, q.due_at, q.deliver_by, 1 FROM posthouse.keyed q
         WHERE q.wait = 0 AND q.lane = p_lane AND q.key_hash >= p_lo AND q.key_hash <= p_hi AND q.line > p_floor ORDER BY q.lane, q.key_hash, q.key, q.pos LIMIT 1)
        UNION ALL
        SELECT x.key_hash, x.key, x.pos, x.seq, x.due_at, x.deliver_by, walk.n + 1 FROM walk CROSS JOIN LATERAL (
            SELECT q.key_hash, q.key, q.pos, q.seq, q.due_at, q.deliver_by FROM posthouse.keyed q
            WHERE q.wait = 0 AND q.lane = p_lane AND (q.key_hash, q.key) > (walk.key_hash, walk.key) AND q.key_hash <= p_hi AND q.line > p_floor
            ORDER BY q.lane, q.key_hash, q.key, q.pos LIMIT 1) x
        WHERE walk.n < p_visits)
    SELECT w.key_hash, w.key, w.pos, w.seq, w.due_at, w.deliver_by FROM walk w;
END;

-- In each lane, from a random key on and around, the heads of due and free keys, locked; at most so many keys are visited. Not those that are taken, by their hashes.
CREATE OR REPLACE FUNCTION posthouse.free_heads(
    p_lanes bigint[], p_each int, p_most int, p_visits int, p_token uuid, p_now timestamptz, p_namespaces text[], p_tenant text, p_not_topics text[], p_floor bigint, p_taken bigint[],
    OUT l bigint[], OUT h bigint[], OUT k text[], OUT p bigint[])
LANGUAGE plpgsql SET search_path = posthouse, pg_temp
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off AS $$
#variable_conflict use_column
DECLARE
    picky CONSTANT boolean := p_namespaces IS NOT NULL OR p_tenant IS NOT NULL OR cardinality(p_not_topics) > 0;
    start CONSTANT bigint := ((random() - 0.5) * 18446744073709549568)::bigint;
BEGIN
    SELECT array_agg(x.ln), array_agg(x.key_hash), array_agg(x.key), array_agg(x.pos) INTO l, h, k, p FROM (
        SELECT u.ln, c.key_hash, c.key, c.pos
        FROM unnest(p_lanes) u(ln)
        CROSS JOIN LATERAL (
            SELECT c.key_hash, c.key, c.pos FROM (
                SELECT c.key_hash, c.key, c.pos
                FROM unnest(ARRAY[start, -9223372036854775808], ARRAY[9223372036854775807, start - 1]) part(lo, hi)
                CROSS JOIN LATERAL (
                    SELECT w.key_hash, w.key, w.pos FROM walk_keys(u.ln, part.lo, part.hi, p_visits, p_floor) w
                    WHERE least(w.due_at, w.deliver_by) <= p_now AND w.key_hash <> ALL (p_taken)
                      AND (SELECT true FROM keyed f WHERE (f.wait <> 0 OR f.line <> f.pos) AND f.wait IN (1, 3) AND f.lane = u.ln AND ~f.key_hash = ~w.key_hash AND f.key = w.key AND f.pos < w.pos ORDER BY f.pos LIMIT 1) IS NULL
                      AND (SELECT true FROM leased b WHERE b.lane = u.ln AND b.key_hash = w.key_hash AND b.key = w.key AND b.key IS NOT NULL AND b.pos > p_floor AND b.token <> p_token ORDER BY b.pos LIMIT 1) IS NULL
                      AND (SELECT true FROM leased b WHERE b.lane = u.ln AND ~b.key_hash = ~w.key_hash AND b.key = w.key AND b.key IS NOT NULL AND b.line <> b.pos AND b.token <> p_token ORDER BY b.pos LIMIT 1) IS NULL
                      AND (NOT picky OR EXISTS (SELECT FROM message m WHERE m.seq = w.seq
                            AND m.namespace = ANY (coalesce(p_namespaces, ARRAY[m.namespace])) AND m.tenant = coalesce(p_tenant, m.tenant) AND (m.topic <> ALL (p_not_topics) OR w.deliver_by <= p_now)))) c
                -- A fence for the planner: the lock is tried last, for one key after the other, until there are enough.
                OFFSET 0) c
            WHERE pg_try_advisory_xact_lock(key_lock(c.key_hash))
            LIMIT p_each) c
        LIMIT p_most) x;
END $$;

-- The same of the oldest that are visited: the first of each key, the oldest of each lane first, and lanes by turns.
CREATE OR REPLACE FUNCTION posthouse.near_heads(
    p_most int, p_token uuid, p_now timestamptz, p_namespaces text[], p_tenant text, p_not_topics text[], p_own bigint[], p_los bigint[], p_his bigint[], p_left bigint[], p_floor bigint, p_window int, p_all boolean,
    OUT l bigint[], OUT h bigint[], OUT k text[], OUT p bigint[])
LANGUAGE plpgsql SET search_path = posthouse, pg_temp
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off AS $$
#variable_conflict use_column
DECLARE
    picky CONSTANT boolean := p_namespaces IS NOT NULL OR p_tenant IS NOT NULL OR cardinality(p_not_topics) > 0;
BEGIN
    WITH heads AS MATERIALIZED (SELECT * FROM near_keys(p_own, p_los, p_his, p_left, p_floor, p_window, p_all))
    SELECT array_agg(x.lane), array_agg(x.key_hash), array_agg(x.key), array_agg(x.pos) INTO l, h, k, p FROM (
        SELECT c.lane, c.key_hash, c.key, c.pos FROM (
            SELECT c.lane, c.key_hash, c.key, c.pos
            FROM (SELECT x.*, row_number() OVER (PARTITION BY x.lane ORDER BY x.line) AS rank FROM heads x ORDER BY rank, x.line) c
            WHERE least(c.due_at, c.deliver_by) <= p_now
              AND (SELECT true FROM keyed f WHERE (f.wait <> 0 OR f.line <> f.pos) AND f.wait IN (1, 3) AND f.lane = c.lane AND ~f.key_hash = ~c.key_hash AND f.key = c.key AND f.pos < c.pos ORDER BY f.pos LIMIT 1) IS NULL
              AND (SELECT true FROM leased b WHERE b.lane = c.lane AND b.key_hash = c.key_hash AND b.key = c.key AND b.key IS NOT NULL AND b.pos > p_floor AND b.token <> p_token ORDER BY b.pos LIMIT 1) IS NULL
              AND (SELECT true FROM leased b WHERE b.lane = c.lane AND ~b.key_hash = ~c.key_hash AND b.key = c.key AND b.key IS NOT NULL AND b.line <> b.pos AND b.token <> p_token ORDER BY b.pos LIMIT 1) IS NULL
              AND (NOT picky OR EXISTS (SELECT FROM message m WHERE m.seq = c.seq
                    AND m.namespace = ANY (coalesce(p_namespaces, ARRAY[m.namespace])) AND m.tenant = coalesce(p_tenant, m.tenant) AND (m.topic <> ALL (p_not_topics) OR c.deliver_by <= p_now)))
            -- A fence for the planner: the lock is tried last, for one key after the other, until there are enough.
            OFFSET 0) c
        WHERE pg_try_advisory_xact_lock(key_lock(c.key_hash))
        LIMIT p_most) x;
END $$;

-- The first record of each key among so many of the oldest that claims visit, in the lanes that a claim may look into. Unless those are all, one that came back
-- may stand before it in its key, and be behind in the line.
CREATE OR REPLACE FUNCTION posthouse.near_keys(p_own bigint[], p_los bigint[], p_his bigint[], p_left bigint[], p_floor bigint, p_window int, p_all boolean)
RETURNS TABLE (lane bigint, key_hash bigint, key text, pos bigint, seq bigint, line bigint, due_at timestamptz, deliver_by timestamptz)
LANGUAGE sql STABLE
BEGIN ATOMIC
    SELECT q.lane, q.key_hash, q.key, coalesce(f.pos, q.pos), coalesce(f.seq, q.seq), q.line, CASE WHEN f.pos IS NULL THEN q.due_at ELSE f.due_at END, CASE WHEN f.pos IS NULL THEN q.deliver_by ELSE f.deliver_by END
    FROM (
        SELECT DISTINCT ON (q.lane, q.key_hash, q.key) q.lane, q.key_hash, q.key, q.pos, q.seq, q.line, q.due_at, q.deliver_by
        FROM (SELECT q.lane, q.key_hash, q.key, q.pos, q.seq, q.line, q.due_at, q.deliver_by FROM posthouse.keyed q WHERE q.wait = 0 AND q.line > p_floor ORDER BY q.line LIMIT p_window) q
        WHERE (p_own IS NULL OR q.lane = ANY (p_own)) AND (q.lane & 4294967295) <> ALL (p_left)
          AND EXISTS (SELECT FROM unnest(p_los, p_his) r(lo, hi) WHERE q.lane BETWEEN r.lo AND r.hi)
        ORDER BY q.lane, q.key_hash, q.key, q.pos) q
    LEFT JOIN LATERAL (
        SELECT f.pos, f.seq, f.due_at, f.deliver_by FROM posthouse.keyed f
        WHERE NOT p_all AND (f.wait <> 0 OR f.line <> f.pos) AND f.wait = 0 AND f.lane = q.lane AND ~f.key_hash = ~q.key_hash AND f.key = q.key AND f.pos < q.pos
        ORDER BY f.pos LIMIT 1) f ON true;
END;

-- Puts keys out of the claims' way whose head is not due, or of a topic that is left: what is behind the head is not visited until
-- the head's time has come, or somebody comes who can send it. Not what is due in a moment: most of that was committed since the claim read the clock.
-- Bounded, because the rest can be done by the next claim. Answers how many records it put away.
CREATE OR REPLACE FUNCTION posthouse.sweep_keys(p_lanes bigint[], p_visits int, p_now timestamptz, p_namespaces text[], p_tenant text, p_not_topics text[], p_floor bigint) RETURNS int
LANGUAGE plpgsql SET search_path = posthouse, pg_temp
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off AS $$
#variable_conflict use_column
DECLARE
    start CONSTANT bigint := ((random() - 0.5) * 18446744073709549568)::bigint;
    l bigint[]; h bigint[]; k text[];
BEGIN
    SELECT array_agg(x.ln), array_agg(x.key_hash), array_agg(x.key) INTO l, h, k FROM (
        SELECT c.ln, c.key_hash, c.key FROM (
            SELECT u.ln, c.key_hash, c.key
            FROM unnest(p_lanes) u(ln)
            CROSS JOIN unnest(ARRAY[start, -9223372036854775808], ARRAY[9223372036854775807, start - 1]) part(lo, hi)
            CROSS JOIN LATERAL (
                SELECT w.key_hash, w.key
                FROM walk_keys(u.ln, part.lo, part.hi, p_visits, p_floor) w
                CROSS JOIN LATERAL (SELECT least(w.due_at, w.deliver_by) > p_now + interval '250 milliseconds' OR (SELECT true FROM keyed f WHERE (f.wait <> 0 OR f.line <> f.pos) AND f.wait IN (1, 3) AND f.lane = u.ln AND ~f.key_hash = ~w.key_hash AND f.key = w.key AND f.pos < w.pos ORDER BY f.pos LIMIT 1) IS NOT NULL AS held OFFSET 0) h
                WHERE (h.held OR cardinality(p_not_topics) > 0)
                  AND (h.held AND p_namespaces IS NULL AND p_tenant IS NULL OR EXISTS (SELECT FROM message m WHERE m.seq = w.seq
                        AND m.namespace = ANY (coalesce(p_namespaces, ARRAY[m.namespace])) AND m.tenant = coalesce(p_tenant, m.tenant) AND (h.held OR m.topic = ANY (p_not_topics))))) c
            OFFSET 0) c
        WHERE pg_try_advisory_xact_lock(key_lock(c.key_hash))
        LIMIT 512) x;
    RETURN put_away(l, h, k, p_now, p_not_topics, p_floor);
END $$;

-- The same where few are visited.
CREATE OR REPLACE FUNCTION posthouse.sweep_near(p_now timestamptz, p_namespaces text[], p_tenant text, p_not_topics text[], p_own bigint[], p_los bigint[], p_his bigint[], p_left bigint[], p_floor bigint) RETURNS int
LANGUAGE plpgsql SET search_path = posthouse, pg_temp
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off AS $$
#variable_conflict use_column
DECLARE
    l bigint[]; h bigint[]; k text[];
BEGIN
    SELECT array_agg(x.lane), array_agg(x.key_hash), array_agg(x.key) INTO l, h, k FROM (
        SELECT c.lane, c.key_hash, c.key FROM (
            SELECT w.lane, w.key_hash, w.key
            FROM near_keys(p_own, p_los, p_his, p_left, p_floor, 1025, false) w
            CROSS JOIN LATERAL (SELECT least(w.due_at, w.deliver_by) > p_now + interval '250 milliseconds' OR (SELECT true FROM keyed f WHERE (f.wait <> 0 OR f.line <> f.pos) AND f.wait IN (1, 3) AND f.lane = w.lane AND ~f.key_hash = ~w.key_hash AND f.key = w.key AND f.pos < w.pos ORDER BY f.pos LIMIT 1) IS NOT NULL AS held OFFSET 0) h
            WHERE (h.held OR cardinality(p_not_topics) > 0)
              AND (h.held AND p_namespaces IS NULL AND p_tenant IS NULL OR EXISTS (SELECT FROM message m WHERE m.seq = w.seq
                    AND m.namespace = ANY (coalesce(p_namespaces, ARRAY[m.namespace])) AND m.tenant = coalesce(p_tenant, m.tenant) AND (h.held OR m.topic = ANY (p_not_topics))))
            OFFSET 0) c
        WHERE pg_try_advisory_xact_lock(key_lock(c.key_hash))
        LIMIT 512) x;
    RETURN put_away(l, h, k, p_now, p_not_topics, p_floor);
END $$;

-- Whether the oldest record that claims visit is behind one that waits, or waits itself, in a lane that this claim may look into.
CREATE OR REPLACE FUNCTION posthouse.oldest_is_held(p_now timestamptz, p_not_topics text[], p_own bigint[], p_los bigint[], p_his bigint[], p_left bigint[], p_floor bigint) RETURNS boolean
LANGUAGE plpgsql STABLE SET search_path = posthouse, pg_temp AS $$
DECLARE
    o record;
BEGIN
    SELECT q.lane, q.key_hash, q.key, q.pos, q.seq, least(q.due_at, q.deliver_by) AS due INTO o FROM keyed q WHERE q.wait = 0 AND q.line > p_floor ORDER BY q.line LIMIT 1;
    IF NOT FOUND OR NOT (p_own IS NULL OR o.lane = ANY (p_own)) OR (o.lane & 4294967295) = ANY (p_left)
       OR NOT EXISTS (SELECT FROM unnest(p_los, p_his) r(lo, hi) WHERE o.lane BETWEEN r.lo AND r.hi) THEN RETURN false; END IF;
    RETURN (
        o.due > p_now + interval '250 milliseconds'
        OR (SELECT true FROM keyed f WHERE (f.wait <> 0 OR f.line <> f.pos) AND f.wait IN (1, 3) AND f.lane = o.lane AND ~f.key_hash = ~o.key_hash AND f.key = o.key AND f.pos < o.pos ORDER BY f.pos LIMIT 1) IS NOT NULL
        OR cardinality(p_not_topics) > 0 AND (SELECT m.topic = ANY (p_not_topics) FROM message m WHERE m.seq = o.seq));
END $$;

-- Puts these keys out of the way, whose locks the caller has; with a fresh snapshot.
CREATE OR REPLACE FUNCTION posthouse.put_away(p_lane bigint[], p_hash bigint[], p_key text[], p_now timestamptz, p_not_topics text[], p_floor bigint) RETURNS int
LANGUAGE plpgsql SET search_path = posthouse, pg_temp
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off AS $$
#variable_conflict use_column
DECLARE
    heads int;
    behind int;
BEGIN
    IF p_lane IS NULL THEN RETURN 0; END IF;
    PERFORM pg_current_xact_id();
    WITH heads AS MATERIALIZED (
        SELECT u.l, u.h, u.k, q.c, q.pos
        FROM unnest(p_lane, p_hash, p_key) u(l, h, k)
        CROSS JOIN LATERAL (
            (SELECT q.ctid AS c, q.pos, q.seq, q.due_at, q.deliver_by FROM keyed q WHERE q.lane = u.l AND q.key_hash = u.h AND q.key = u.k AND q.pos > p_floor
             ORDER BY q.lane, q.key_hash, q.key, q.pos LIMIT 1)
            UNION ALL
            (SELECT q.ctid AS c, q.pos, q.seq, q.due_at, q.deliver_by FROM keyed q WHERE q.lane = u.l AND ~q.key_hash = ~u.h AND q.key = u.k AND (q.wait <> 0 OR q.line <> q.pos) AND q.pos <= p_floor
             ORDER BY q.pos LIMIT 1)
            ORDER BY pos LIMIT 1) q
        CROSS JOIN LATERAL (SELECT m.topic FROM message m WHERE m.seq = q.seq OFFSET 0) m
        WHERE (q.deliver_by <= p_now) IS NOT TRUE AND (q.due_at > p_now OR m.topic = ANY (p_not_topics))),
    f AS (
        UPDATE keyed x SET wait = CASE WHEN x.due_at > p_now THEN 1 ELSE 3 END,
                           topic = CASE WHEN x.due_at <= p_now THEN (SELECT m.topic FROM message m WHERE m.seq = x.seq) END
        WHERE x.wait = 0 AND x.ctid = ANY (ARRAY(SELECT f.c FROM heads f))
        RETURNING 1),
    b AS (
        UPDATE keyed x SET wait = 2 WHERE x.ctid = ANY (ARRAY(
            SELECT y.c FROM heads f CROSS JOIN LATERAL (
                SELECT y.ctid AS c FROM keyed y WHERE y.wait = 0 AND y.lane = f.l AND y.key_hash = f.h AND y.key = f.k AND y.pos > f.pos AND y.line > p_floor
                ORDER BY y.lane, y.key_hash, y.key, y.pos LIMIT 64) y))
        RETURNING 1)
    SELECT (SELECT count(*) FROM f), (SELECT count(*) FROM b) INTO heads, behind;
    RETURN heads + behind;
END $$;

-- After the first of a key has gone, the next one is visited again. It may be a later one, if the next is visited anyway.
CREATE OR REPLACE FUNCTION posthouse.rouse(p_lane bigint, p_hash bigint, p_key text) RETURNS void
LANGUAGE plpgsql SET search_path = posthouse, pg_temp
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off AS $$
DECLARE
    next record;
BEGIN
    SELECT q.ctid AS c, q.wait, q.due_at INTO next FROM keyed q WHERE q.lane = p_lane AND ~q.key_hash = ~p_hash AND q.key = p_key AND (q.wait <> 0 OR q.line <> q.pos)
    ORDER BY q.pos LIMIT 1;
    IF next.wait = 2 OR next.wait = 1 AND next.due_at <= clock() THEN
        -- A number may be drawn only under a transaction's id.
        PERFORM pg_current_xact_id();
        UPDATE keyed k SET wait = 0, line = nextval('message_seq_seq') WHERE k.ctid = next.c;
    END IF;
END $$;

-- Heads past their deliver-by end here. One that blocks its key stays in it, due at infinity.
CREATE OR REPLACE FUNCTION posthouse.lapse_heads(p_lane bigint[], p_hash bigint[], p_key text[], p_pos bigint[], p_now timestamptz) RETURNS boolean
LANGUAGE plpgsql SET search_path = posthouse, pg_temp
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off AS $$
DECLARE
    head record;
    lapsed boolean := false;
BEGIN
    FOR head IN
        SELECT z.* FROM unnest(p_lane, p_hash, p_key, p_pos) u(l, h, k, p)
        CROSS JOIN LATERAL (SELECT z.* FROM keyed z WHERE z.lane = u.l AND z.key_hash = u.h AND z.key = u.k AND z.pos = u.p AND z.deliver_by <= p_now OFFSET 0) z
    LOOP
        lapsed := true;
        INSERT INTO dead (seq, at, epoch, attempts, generation, max_attempts, reason, on_dead, blocking)
        VALUES (head.seq, p_now, head.epoch, head.attempts, head.generation, head.max_attempts, 3, head.blocks, head.blocks);
        IF head.blocks THEN
            UPDATE keyed SET due_at = 'infinity', deliver_by = NULL, wait = 1, topic = NULL WHERE lane = head.lane AND key_hash = head.key_hash AND key = head.key AND pos = head.pos;
        ELSE
            DELETE FROM keyed WHERE lane = head.lane AND key_hash = head.key_hash AND key = head.key AND pos = head.pos;
            PERFORM rouse(head.lane, head.key_hash, head.key);
        END IF;
    END LOOP;
    RETURN lapsed;
END $$;
