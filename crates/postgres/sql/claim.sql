-- Claiming. The planner is pinned in each function: a generic plan made on empty tables, or a hash join over a million
-- pending messages, costs more than any choice of tables. Nothing is pinned on the caller's connection.
--
-- A table is looked up for the rows of a list by LATERAL (... OFFSET 0), never by a plain join: while its statistics say that
-- it is nearly empty, a plain join may walk the whole table and look into the list for each of its rows, and that plan stays
-- when the table has grown (seen: 39 seconds for a claim).

-- Messages whose time has come go into the line.
CREATE OR REPLACE FUNCTION posthouse.promote(p_now timestamptz, p_most int) RETURNS void
LANGUAGE plpgsql SET search_path = posthouse, pg_temp
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off AS $$
BEGIN
    IF NOT EXISTS (SELECT FROM sched s WHERE s.due_at <= p_now) THEN RETURN; END IF;
    PERFORM pg_current_xact_id();
    WITH d AS (
        DELETE FROM sched s WHERE s.ctid = ANY (ARRAY(
            SELECT q.ctid FROM sched q WHERE q.due_at <= p_now ORDER BY q.due_at LIMIT p_most FOR UPDATE SKIP LOCKED))
        RETURNING s.*)
    INSERT INTO ready (lane, pos, seq, due_at, deliver_by, released, epoch, attempts, generation, bytes, max_attempts, releases)
    SELECT d.lane, nextval('message_seq_seq'), d.seq, d.due_at, d.deliver_by, d.released, d.epoch, d.attempts, d.generation, d.bytes, d.max_attempts, d.releases FROM d;
END $$;

-- Parked messages of topics that this claimer can send go back into the line.
CREATE OR REPLACE FUNCTION posthouse.unpark(p_not_topics text[], p_most int) RETURNS void
LANGUAGE plpgsql SET search_path = posthouse, pg_temp
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off AS $$
BEGIN
    IF NOT EXISTS (SELECT FROM parked) THEN RETURN; END IF;
    PERFORM pg_current_xact_id();
    -- A loose scan over the topics, of which there are few.
    WITH RECURSIVE topics(topic) AS (
        (SELECT p.topic FROM parked p ORDER BY p.topic, p.seq LIMIT 1)
        UNION ALL
        SELECT (SELECT p.topic FROM parked p WHERE p.topic > w.topic ORDER BY p.topic, p.seq LIMIT 1) FROM topics w WHERE w.topic IS NOT NULL),
    d AS (
        DELETE FROM parked p WHERE p.ctid = ANY (ARRAY(
            SELECT x.c FROM topics w CROSS JOIN LATERAL (
                SELECT q.ctid AS c FROM parked q WHERE q.topic = w.topic ORDER BY q.topic, q.seq LIMIT p_most FOR UPDATE SKIP LOCKED) x
            WHERE w.topic IS NOT NULL AND w.topic <> ALL (p_not_topics)))
        RETURNING p.*)
    INSERT INTO ready (lane, pos, seq, due_at, deliver_by, released, epoch, attempts, generation, bytes, max_attempts, releases)
    SELECT d.lane, nextval('message_seq_seq'), d.seq, d.due_at, d.deliver_by, d.released, d.epoch, d.attempts, d.generation, d.bytes, d.max_attempts, d.releases FROM d;
END $$;

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

-- Up to p_most lanes of `keyed`, from a random one on, so that no tenant is always first.
CREATE OR REPLACE FUNCTION posthouse.keyed_lanes(p_los bigint[], p_his bigint[], p_most int) RETURNS bigint[]
LANGUAGE plpgsql SET search_path = posthouse, pg_temp
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET enable_sort = off SET jit = off AS $$
DECLARE
    start CONSTANT bigint := ((random() - 0.5) * 18446744073709549568)::bigint;
    found_lanes bigint[];
BEGIN
    SELECT array_agg(w.lane) INTO found_lanes FROM (
        SELECT w.lane
        FROM unnest(ARRAY[start, -9223372036854775808], ARRAY[9223372036854775807, start - 1]) part(lo, hi)
        CROSS JOIN unnest(p_los, p_his) r(lo, hi)
        CROSS JOIN LATERAL (
            WITH RECURSIVE walk(lane) AS (
                (SELECT k.lane FROM keyed k WHERE k.lane BETWEEN greatest(part.lo, r.lo) AND least(part.hi, r.hi) ORDER BY k.lane, k.key_hash, k.key, k.pos LIMIT 1)
                UNION ALL
                SELECT (SELECT k.lane FROM keyed k WHERE k.lane > walk.lane AND k.lane <= least(part.hi, r.hi) ORDER BY k.lane, k.key_hash, k.key, k.pos LIMIT 1)
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
    start CONSTANT bigint := ((random() - 0.5) * 18446744073709549568)::bigint;
    found_lanes bigint[];
BEGIN
    SELECT array_agg(w.lane) INTO found_lanes FROM (
        SELECT w.lane
        FROM unnest(ARRAY[start, -9223372036854775808], ARRAY[9223372036854775807, start - 1]) part(lo, hi)
        CROSS JOIN unnest(p_los, p_his) r(lo, hi)
        CROSS JOIN LATERAL (
            WITH RECURSIVE walk(lane) AS (
                (SELECT k.lane FROM ready k WHERE k.lane BETWEEN greatest(part.lo, r.lo) AND least(part.hi, r.hi) ORDER BY k.lane, k.pos LIMIT 1)
                UNION ALL
                SELECT (SELECT k.lane FROM ready k WHERE k.lane > walk.lane AND k.lane <= least(part.hi, r.hi) ORDER BY k.lane, k.pos LIMIT 1)
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

-- Grants leases: what the relay calls. p_lanes (sorted) and p_floors are what this claimer knows of lanes with work and of
-- the places it has passed in each; both may be empty. p_lo and p_hi bound where it looks for more lanes. NULL namespaces,
-- tenant and bytes mean any.
CREATE OR REPLACE FUNCTION posthouse.grant_leases(
    p_batch int, p_worker text, p_token uuid, p_lease_ms bigint, p_max_bytes bigint, p_namespaces text[], p_tenant text,
    p_not_topics text[], p_lanes bigint[], p_floors bigint[], p_lo bigint, p_hi bigint)
RETURNS TABLE (
    seq bigint, lane bigint, pos bigint, id uuid, epoch int, attempt int, generation int, max_attempts int, releases int, blocks boolean,
    tenant text, namespace text, topic text, order_key text, content_type text, payload bytea, headers jsonb, deliver_ms bigint,
    kind smallint, parent uuid, destination text)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = posthouse, pg_temp
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET enable_sort = off SET jit = off AS $$
#variable_conflict use_column
DECLARE
    t CONSTANT timestamptz := clock();
    until CONSTANT timestamptz := t + p_lease_ms * interval '1 millisecond';
    left_rows int := p_batch;
    left_bytes bigint := coalesce(p_max_bytes, 9223372036854775807);
    picks tid[];
    picked_bytes bigint;
    half CONSTANT int := (p_batch + 1) / 2;
    granted int;
    lapsed int := 0;
BEGIN
    PERFORM promote(t, p_batch * 2);
    PERFORM unpark(p_not_topics, p_batch);
    -- Keyed and unkeyed messages share a batch evenly; what one leaves, the other takes. Messages that lapsed take up no
    -- room: the unkeyed ones are asked for again, a few times.
    -- Keys are asked for runs of some length first, because a key costs more than a message; then for whatever there is.
    FOR round IN 1..8 LOOP
        EXIT WHEN left_rows = 0 OR left_bytes <= 0;
        IF round IN (1, 7, 8) THEN
            SELECT k.picks, k.bytes INTO picks, picked_bytes
            FROM pick_keyed(CASE round WHEN 1 THEN half ELSE left_rows END, CASE round WHEN 8 THEN 1 ELSE 8 END, p_token, t, left_bytes, left_rows = p_batch, p_namespaces, p_tenant, p_not_topics) k;
            CONTINUE WHEN picks IS NULL;
            RETURN QUERY
            WITH d AS (DELETE FROM keyed k WHERE k.ctid = ANY (picks) RETURNING k.*),
            l AS (
                INSERT INTO leased (seq, token, until, started_at, lane, deliver_by, pos, epoch, attempts, generation, bytes, key_hash, max_attempts, releases, blocks, worker, key)
                SELECT d.seq, p_token, until, t, d.lane, d.deliver_by, d.pos, d.epoch + 1, d.attempts + 1, d.generation, d.bytes, d.key_hash, d.max_attempts, d.releases, d.blocks, p_worker, d.key FROM d),
            h AS (INSERT INTO deadline (until, token, seqs) SELECT until, p_token, array_agg(d.seq) FROM d HAVING count(*) > 0)
            SELECT d.seq, d.lane, d.pos, m.id, d.epoch + 1, d.attempts + 1, d.generation, d.max_attempts::int, d.releases::int, d.blocks,
                   m.tenant, m.namespace, m.topic, m.order_key, m.content_type, m.payload, m.headers, ms_between(t, d.deliver_by), m.kind, m.parent, m.destination
            FROM d CROSS JOIN LATERAL (SELECT m.* FROM message m WHERE m.seq = d.seq OFFSET 0) m ORDER BY d.pos;
        ELSIF round = 2 OR lapsed > 0 THEN
            SELECT k.picks, k.bytes INTO picks, picked_bytes
            FROM pick_ready(left_rows, left_bytes, p_max_bytes IS NOT NULL, left_rows = p_batch, p_namespaces, p_tenant, p_not_topics, p_lanes, p_floors, p_lo, p_hi) k;
            IF picks IS NULL THEN lapsed := 0; CONTINUE; END IF;
            RETURN QUERY
            WITH d AS (DELETE FROM ready r WHERE r.ctid = ANY (picks) RETURNING r.*),
            -- Past its deliver-by: it ends here, unsent and without a grant.
            x AS (
                INSERT INTO dead (seq, at, epoch, attempts, generation, max_attempts, reason, on_dead, blocking)
                SELECT d.seq, t, d.epoch, d.attempts, d.generation, d.max_attempts, 3, false, false FROM d WHERE d.deliver_by <= t),
            l AS (
                INSERT INTO leased (seq, token, until, started_at, lane, deliver_by, epoch, attempts, generation, bytes, max_attempts, releases, worker)
                SELECT d.seq, p_token, until, t, d.lane, d.deliver_by, d.epoch + 1, d.attempts + 1, d.generation, d.bytes, d.max_attempts, d.releases, p_worker
                FROM d WHERE (d.deliver_by <= t) IS NOT TRUE),
            h AS (INSERT INTO deadline (until, token, seqs) SELECT until, p_token, array_agg(d.seq) FROM d WHERE (d.deliver_by <= t) IS NOT TRUE HAVING count(*) > 0)
            SELECT d.seq, d.lane, d.pos, m.id, d.epoch + 1, d.attempts + 1, d.generation, d.max_attempts::int, d.releases::int, false,
                   m.tenant, m.namespace, m.topic, m.order_key, m.content_type, m.payload, m.headers, ms_between(t, d.deliver_by), m.kind, m.parent, m.destination
            FROM d CROSS JOIN LATERAL (SELECT m.* FROM message m WHERE m.seq = d.seq OFFSET 0) m WHERE (d.deliver_by <= t) IS NOT TRUE ORDER BY d.pos;
        ELSE
            CONTINUE;
        END IF;
        GET DIAGNOSTICS granted = ROW_COUNT;
        lapsed := cardinality(picks) - granted;
        left_rows := left_rows - granted;
        left_bytes := left_bytes - picked_bytes;
    END LOOP;
END $$;

CREATE OR REPLACE FUNCTION posthouse.ms_between(p_from timestamptz, p_to timestamptz) RETURNS bigint
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT (extract(epoch FROM p_to - p_from) * 1000)::bigint
$$;

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
        lanes := keyed_lanes(ranges.los, ranges.his, 64);
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

-- The safe floor: (S, X). Once no transaction older than X is open, none can still commit a place of S or below. X is an
-- own transaction id, not pg_snapshot_xmax: a running writer may be above that.
CREATE OR REPLACE FUNCTION posthouse.sample_floor(OUT s bigint, OUT x bigint, OUT oldest bigint)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = posthouse, pg_temp AS $$
BEGIN
    SELECT q.last_value INTO s FROM message_seq_seq q;
    x := pg_current_xact_id()::text::bigint;
    oldest := pg_snapshot_xmin(pg_current_snapshot())::text::bigint;
END $$;
