-- Messages whose time has come go into the line; keys whose head's time has come are visited by claims again. Only in the lanes
-- that the claim may look into: those of its tenant (p_own), or those in its ranges. Each lane its share, so that one tenant's
-- flood does not stand before another's; a claim without a scope also takes the oldest, wherever they are, because it does not
-- visit every lane when there are very many.
CREATE OR REPLACE FUNCTION posthouse.promote(p_now timestamptz, p_batch int, p_own bigint[], p_los bigint[], p_his bigint[]) RETURNS void
LANGUAGE plpgsql SET search_path = posthouse, pg_temp
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off AS $$
DECLARE
    -- A claim of everything: only here is there one range, and it is the whole.
    everything CONSTANT boolean := p_own IS NULL AND p_los = ARRAY[-9223372036854775808];
    most CONSTANT int := greatest(1000, p_batch * 2);
    lanes bigint[] := p_own;
    oldest tid[];
    share int;
BEGIN
    IF p_own IS NULL THEN
        IF NOT EXISTS (SELECT FROM sched s WHERE s.due_at <= p_now) AND NOT EXISTS (SELECT FROM keyed k WHERE k.wait = 1 AND k.due_at <= p_now) THEN RETURN; END IF;
        lanes := lanes_of(3, p_los, p_his, CASE WHEN everything THEN 256 ELSE 1024 END);
    END IF;
    IF lanes = '{}' THEN RETURN; END IF;
    PERFORM pg_current_xact_id();
    share := greatest(1, most / cardinality(lanes));
    IF everything THEN
        oldest := ARRAY(SELECT q.ctid FROM sched q WHERE q.due_at <= p_now ORDER BY q.due_at LIMIT most / 2 FOR UPDATE SKIP LOCKED);
    END IF;
    WITH d AS (
        DELETE FROM sched s WHERE s.ctid = ANY (oldest || ARRAY(
            SELECT x.c FROM unnest(lanes) u(l) CROSS JOIN LATERAL (
                SELECT q.ctid AS c FROM sched q WHERE q.lane = u.l AND q.due_at <= p_now ORDER BY q.lane, q.due_at LIMIT share FOR UPDATE SKIP LOCKED) x))
        RETURNING s.*)
    INSERT INTO ready (lane, pos, seq, due_at, deliver_by, released, epoch, attempts, generation, bytes, max_attempts, releases)
    SELECT d.lane, nextval('message_seq_seq'), d.seq, d.due_at, d.deliver_by, d.released, d.epoch, d.attempts, d.generation, d.bytes, d.max_attempts, d.releases FROM d;
    -- Fewer keys: each is locked until the claim commits.
    UPDATE keyed k SET wait = 0 WHERE k.ctid = ANY (ARRAY(
        SELECT x.c FROM (
            SELECT x.c, x.key_hash FROM unnest(lanes) u(l) CROSS JOIN LATERAL (
                SELECT q.ctid AS c, q.key_hash FROM keyed q WHERE q.wait = 1 AND q.lane = u.l AND q.due_at <= p_now
                ORDER BY q.lane, q.due_at LIMIT greatest(1, greatest(64, p_batch) / cardinality(lanes))) x
            UNION ALL
            (SELECT q.ctid, q.key_hash FROM keyed q WHERE everything AND q.wait = 1 AND q.due_at <= p_now ORDER BY q.due_at LIMIT greatest(64, p_batch))
            OFFSET 0) x
        WHERE pg_try_advisory_xact_lock(key_lock(x.key_hash))));
END $$;

-- Parked messages of topics that this claimer can send go back into the line, and keys whose head is of such a topic are visited
-- again. Each lane and topic its share.
CREATE OR REPLACE FUNCTION posthouse.unpark(p_batch int, p_not_topics text[], p_own bigint[], p_los bigint[], p_his bigint[]) RETURNS void
LANGUAGE plpgsql SET search_path = posthouse, pg_temp
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off AS $$
DECLARE
    lanes bigint[] := p_own;
    lane_list bigint[];
    topics text[];
    share int;
BEGIN
    IF p_own IS NULL THEN
        lanes := lanes_of(4, p_los, p_his, 1024);
    END IF;
    IF lanes = '{}' THEN RETURN; END IF;
    -- In each lane a loose scan over its topics, of which there are few.
    SELECT array_agg(u.l), array_agg(w.topic) INTO lane_list, topics
    FROM unnest(lanes) u(l)
    CROSS JOIN LATERAL (
        WITH RECURSIVE walk(topic) AS (
            SELECT next_topic(u.l, '')
            UNION ALL
            SELECT next_topic(u.l, walk.topic) FROM walk WHERE walk.topic IS NOT NULL)
        SELECT walk.topic FROM walk WHERE walk.topic IS NOT NULL) w
    WHERE w.topic <> ALL (p_not_topics);
    IF lane_list IS NULL THEN RETURN; END IF;
    PERFORM pg_current_xact_id();
    share := greatest(1, p_batch / cardinality(lane_list));
    WITH d AS (
        DELETE FROM parked p WHERE p.ctid = ANY (ARRAY(
            SELECT x.c FROM unnest(lane_list, topics) u(l, topic) CROSS JOIN LATERAL (
                SELECT q.ctid AS c FROM parked q WHERE q.lane = u.l AND q.topic = u.topic ORDER BY q.lane, q.topic, q.seq LIMIT share FOR UPDATE SKIP LOCKED) x))
        RETURNING p.*)
    INSERT INTO ready (lane, pos, seq, due_at, deliver_by, released, epoch, attempts, generation, bytes, max_attempts, releases)
    SELECT d.lane, nextval('message_seq_seq'), d.seq, d.due_at, d.deliver_by, d.released, d.epoch, d.attempts, d.generation, d.bytes, d.max_attempts, d.releases FROM d;
    UPDATE keyed k SET wait = 0, topic = NULL WHERE k.ctid = ANY (ARRAY(
        SELECT x.c FROM (
            SELECT x.c, x.key_hash FROM unnest(lane_list, topics) u(l, topic) CROSS JOIN LATERAL (
                SELECT q.ctid AS c, q.key_hash FROM keyed q WHERE q.wait = 3 AND q.lane = u.l AND q.topic = u.topic ORDER BY q.lane, q.topic, q.seq LIMIT share) x
            OFFSET 0) x
        WHERE pg_try_advisory_xact_lock(key_lock(x.key_hash))));
END $$;

-- The next topic that was left in a lane. Pinned by its callers.
CREATE OR REPLACE FUNCTION posthouse.next_topic(p_lane bigint, p_after text) RETURNS text
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN least(
        (SELECT q.topic FROM posthouse.parked q WHERE q.lane = p_lane AND q.topic > p_after ORDER BY q.lane, q.topic, q.seq LIMIT 1),
        (SELECT q.topic FROM posthouse.keyed q WHERE q.wait = 3 AND q.lane = p_lane AND q.topic > p_after ORDER BY q.lane, q.topic, q.seq LIMIT 1));
END $$;
