-- Locks free keys and answers where the messages of their runs are; so many keys that runs of p_depth fill the batch. Claims and operators take a key by an advisory lock
-- until commit; a lock on its head would not do, because a relaxed producer or a retry can put another message before the
-- head at any time. Two statements on purpose: the second one's snapshot is taken under the lock, so it sees whatever the
-- last holder of the key committed.
CREATE OR REPLACE FUNCTION posthouse.pick_keyed(
    p_most int, p_depth int, p_token uuid, p_now timestamptz, p_max_bytes bigint, p_first boolean, p_namespaces text[], p_tenant text, p_not_topics text[],
    OUT picks tid[], OUT bytes bigint)
LANGUAGE plpgsql SET search_path = posthouse, pg_temp
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off AS $$
#variable_conflict use_column
DECLARE
    picky CONSTANT boolean := p_namespaces IS NOT NULL OR p_tenant IS NOT NULL OR cardinality(p_not_topics) > 0;
    start CONSTANT bigint := ((random() - 0.5) * 18446744073709549568)::bigint;
    ranges record;
    lanes bigint[];
    keys_each int;
    visits int;
    l bigint[]; h bigint[]; k text[]; p bigint[];
    share int;
BEGIN
    IF p_tenant IS NOT NULL THEN
        lanes := tenant_lanes(p_namespaces, p_tenant);
    ELSE
        SELECT r.los, r.his INTO ranges FROM lane_ranges(p_namespaces) r;
        lanes := keyed_lanes(ranges.los, ranges.his, 256);
    END IF;
    IF lanes = '{}' THEN RETURN; END IF;
    keys_each := greatest(1, p_most / p_depth / cardinality(lanes));
    visits := 4 * keys_each + greatest(64, 4096 / cardinality(lanes));

    -- Heads that lapsed make way for the next of their key: look again, a few times.
    FOR round IN 1..10 LOOP
        -- 1: in each lane, from a random key on and around, the heads of due and free keys; at most so many keys are visited.
        SELECT array_agg(x.lane), array_agg(x.key_hash), array_agg(x.key), array_agg(x.pos) INTO l, h, k, p FROM (
            SELECT c.lane, c.key_hash, c.key, c.pos
            FROM unnest(lanes) WITH ORDINALITY u(ln, o)
            CROSS JOIN LATERAL (
                SELECT c.lane, c.key_hash, c.key, c.pos FROM (
                    SELECT c.lane, c.key_hash, c.key, c.pos
                    FROM unnest(ARRAY[start, -9223372036854775808], ARRAY[9223372036854775807, start - 1]) part(lo, hi)
                    CROSS JOIN LATERAL (
                        WITH RECURSIVE walk(lane, key_hash, key, pos, seq, due_at, n) AS (
                            (SELECT q.lane, q.key_hash, q.key, q.pos, q.seq, q.due_at, 1 FROM keyed q
                             WHERE q.lane = u.ln AND q.key_hash >= part.lo AND q.key_hash <= part.hi ORDER BY q.lane, q.key_hash, q.key, q.pos LIMIT 1)
                            UNION ALL
                            SELECT x.lane, x.key_hash, x.key, x.pos, x.seq, x.due_at, walk.n + 1 FROM walk CROSS JOIN LATERAL (
                                SELECT q.lane, q.key_hash, q.key, q.pos, q.seq, q.due_at FROM keyed q
                                WHERE q.lane = u.ln AND (q.key_hash, q.key) > (walk.key_hash, walk.key) AND q.key_hash <= part.hi
                                ORDER BY q.lane, q.key_hash, q.key, q.pos LIMIT 1) x
                            WHERE walk.n < visits)
                        SELECT w.lane, w.key_hash, w.key, w.pos FROM walk w
                        WHERE w.due_at <= p_now
                          AND NOT EXISTS (SELECT FROM leased b WHERE b.lane = w.lane AND b.key_hash = w.key_hash AND b.key = w.key AND b.key IS NOT NULL AND b.token <> p_token)
                          AND (NOT picky OR EXISTS (SELECT FROM message m WHERE m.seq = w.seq
                                AND m.namespace = ANY (coalesce(p_namespaces, ARRAY[m.namespace])) AND m.tenant = coalesce(p_tenant, m.tenant) AND m.topic <> ALL (p_not_topics)))) c
                    -- A fence for the planner: the lock is tried last, for one key after the other, until there are enough.
                    OFFSET 0) c
                WHERE pg_try_advisory_xact_lock(key_lock(c.key_hash))
                LIMIT keys_each) c
            LIMIT p_most) x;
        IF l IS NULL THEN RETURN; END IF;
        EXIT WHEN NOT lapse_heads(l, h, k, p, p_now);
        l := NULL;
    END LOOP;
    IF l IS NULL THEN RETURN; END IF;
    share := greatest(1, least(p_depth, p_most), p_most / cardinality(l));

    -- 2: with a fresh snapshot, the run of due messages from each head on; nothing if the head is no longer the first of its
    -- key, or if any message of the key is leased by somebody else.
    WITH runs AS MATERIALIZED (
        SELECT y.c, y.bytes, y.rank, u.o
        FROM unnest(l, h, k, p) WITH ORDINALITY u(l, h, k, p, o)
        CROSS JOIN LATERAL (
            SELECT x.c, x.bytes, x.rank FROM (
                SELECT z.c, z.bytes, row_number() OVER w AS rank, min(z.pos) OVER () AS head,
                       bool_and(z.due_at <= p_now AND (z.deliver_by <= p_now) IS NOT TRUE
                                AND (NOT picky OR EXISTS (SELECT FROM message m WHERE m.seq = z.seq AND m.topic <> ALL (p_not_topics)))) OVER w AS run
                FROM (SELECT z.ctid AS c, z.seq, z.pos, z.due_at, z.deliver_by, z.bytes FROM keyed z
                      WHERE z.lane = u.l AND z.key_hash = u.h AND z.key = u.k ORDER BY z.lane, z.key_hash, z.key, z.pos LIMIT share) z
                WINDOW w AS (ORDER BY z.pos ROWS UNBOUNDED PRECEDING)) x
            WHERE x.run AND x.head = u.p) y
        WHERE NOT EXISTS (SELECT FROM leased b WHERE b.lane = u.l AND b.key_hash = u.h AND b.key = u.k AND b.key IS NOT NULL AND b.token <> p_token)),
    ranked AS (
        SELECT r.c, r.bytes, sum(r.bytes) OVER w AS weight, row_number() OVER w AS n FROM runs r
        WINDOW w AS (ORDER BY r.rank, r.o ROWS UNBOUNDED PRECEDING))
    SELECT array_agg(r.c), sum(r.bytes) INTO picks, bytes FROM ranked r WHERE r.n <= p_most AND (r.weight <= p_max_bytes OR r.n = 1 AND p_first);
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
            UPDATE keyed SET due_at = 'infinity' WHERE lane = head.lane AND key_hash = head.key_hash AND key = head.key AND pos = head.pos;
        ELSE
            DELETE FROM keyed WHERE lane = head.lane AND key_hash = head.key_hash AND key = head.key AND pos = head.pos;
        END IF;
    END LOOP;
    RETURN lapsed;
END $$;
