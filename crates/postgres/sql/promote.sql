-- Messages whose time has come, or that are to be given up, go into the line; keys whose head's time has come are visited by claims
-- again. Only in the lanes that the claim may look into: those of its tenant (p_own), or those in its ranges. Each lane its share, so
-- that one tenant's flood does not stand before another's; and the oldest, of all or of each namespace, because not every lane is
-- visited when there are very many.
CREATE OR REPLACE FUNCTION posthouse.promote(p_now timestamptz, p_batch int, p_own bigint[], p_los bigint[], p_his bigint[]) RETURNS void
LANGUAGE plpgsql SET search_path = posthouse, pg_temp
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off AS $$
DECLARE
    -- A claim of everything: only here is there one range, and it is the whole.
    everything CONSTANT boolean := p_own IS NULL AND p_los = ARRAY[-9223372036854775808];
    spaces CONSTANT bigint[] := CASE WHEN p_own IS NULL AND NOT everything THEN ARRAY(SELECT l >> 32 FROM unnest(p_los) l) ELSE '{}' END;
    most CONSTANT int := greatest(1000, p_batch * 2);
    most_keys CONSTANT int := greatest(64, p_batch);
    lanes bigint[] := p_own;
    share int;
BEGIN
    IF spaces <> '{}' AND NOT EXISTS (
        SELECT FROM unnest(spaces) n(space)
        WHERE EXISTS (SELECT FROM sched s WHERE s.lane >> 32 = n.space AND least(s.due_at, s.deliver_by) <= p_now)
           OR EXISTS (SELECT FROM keyed k WHERE k.wait = 1 AND k.lane >> 32 = n.space AND least(k.due_at, k.deliver_by) <= p_now)) THEN RETURN; END IF;
    IF p_own IS NULL THEN
        lanes := lanes_of(3, p_los, p_his, 256);
    END IF;
    IF lanes = '{}' THEN RETURN; END IF;
    PERFORM pg_current_xact_id();
    share := greatest(1, most / cardinality(lanes));
    WITH d AS (
        DELETE FROM sched s WHERE s.ctid = ANY (ARRAY(
            SELECT x.c FROM unnest(lanes) u(l) CROSS JOIN LATERAL (
                SELECT q.ctid AS c FROM sched q WHERE q.lane = u.l AND least(q.due_at, q.deliver_by) <= p_now
                ORDER BY q.lane, least(q.due_at, q.deliver_by) LIMIT share FOR UPDATE SKIP LOCKED) x)
        || ARRAY(SELECT q.ctid FROM sched q WHERE everything AND least(q.due_at, q.deliver_by) <= p_now
                 ORDER BY least(q.due_at, q.deliver_by) LIMIT most / 2 FOR UPDATE SKIP LOCKED)
        || ARRAY(
            SELECT x.c FROM unnest(spaces) n(space) CROSS JOIN LATERAL (
                SELECT q.ctid AS c FROM sched q WHERE q.lane >> 32 = n.space AND least(q.due_at, q.deliver_by) <= p_now
                ORDER BY q.lane >> 32, least(q.due_at, q.deliver_by) LIMIT greatest(1, most / 2 / cardinality(spaces)) FOR UPDATE SKIP LOCKED) x))
        RETURNING s.*)
    INSERT INTO ready (lane, pos, seq, due_at, deliver_by, released, epoch, attempts, generation, bytes, max_attempts, releases)
    SELECT d.lane, nextval('message_seq_seq'), d.seq, d.due_at, d.deliver_by, d.released, d.epoch, d.attempts, d.generation, d.bytes, d.max_attempts, d.releases FROM d;
    -- Fewer keys: each is locked until the claim commits. One that somebody else has locked does not count: there is a fence for
    -- the planner, so that the lock is tried for one after the other until there are enough.
    UPDATE keyed k SET wait = 0, line = nextval('message_seq_seq') WHERE k.ctid = ANY (ARRAY(
        SELECT x.c FROM (
            SELECT x.c FROM unnest(lanes) u(l) CROSS JOIN LATERAL (
                SELECT x.c FROM (
                    SELECT q.ctid AS c, q.key_hash FROM keyed q WHERE q.wait = 1 AND q.lane = u.l AND least(q.due_at, q.deliver_by) <= p_now
                    ORDER BY q.lane, least(q.due_at, q.deliver_by) LIMIT 2000) x
                WHERE pg_try_advisory_xact_lock(key_lock(x.key_hash)) LIMIT greatest(1, most_keys / cardinality(lanes))) x
            UNION ALL
            (SELECT x.c FROM (
                SELECT q.ctid AS c, q.key_hash FROM keyed q WHERE everything AND q.wait = 1 AND least(q.due_at, q.deliver_by) <= p_now
                ORDER BY least(q.due_at, q.deliver_by) LIMIT 2000) x
             WHERE pg_try_advisory_xact_lock(key_lock(x.key_hash)) LIMIT most_keys)
            UNION ALL
            SELECT x.c FROM unnest(spaces) n(space) CROSS JOIN LATERAL (
                SELECT x.c FROM (
                    SELECT q.ctid AS c, q.key_hash FROM keyed q WHERE q.wait = 1 AND q.lane >> 32 = n.space AND least(q.due_at, q.deliver_by) <= p_now
                    ORDER BY q.lane >> 32, least(q.due_at, q.deliver_by) LIMIT 2000) x
                WHERE pg_try_advisory_xact_lock(key_lock(x.key_hash)) LIMIT greatest(1, most_keys / cardinality(spaces))) x) x));
END $$;

-- Parked messages of topics that this claimer can send go back into the line, and keys whose head is of such a topic are visited
-- again: p_most of each, each lane and topic its share. Answers where the messages are now, for the claim to take them at once.
CREATE OR REPLACE FUNCTION posthouse.unpark(p_most int, p_not_topics text[], p_own bigint[], p_los bigint[], p_his bigint[], p_left bigint[]) RETURNS tid[]
LANGUAGE plpgsql SET search_path = posthouse, pg_temp
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off AS $$
DECLARE
    lanes bigint[] := p_own;
    lane_list bigint[];
    topics text[];
    share int;
    places tid[];
BEGIN
    IF p_own IS NULL THEN
        lanes := lanes_of(4, p_los, p_his, 64, p_left);
    END IF;
    IF lanes = '{}' THEN RETURN '{}'; END IF;
    -- In each lane a loose scan over its topics, of which there are few; at most so many in all.
    SELECT array_agg(x.l), array_agg(x.topic) INTO lane_list, topics FROM (
        SELECT u.l, w.topic
        FROM unnest(lanes) u(l)
        CROSS JOIN LATERAL (
            WITH RECURSIVE walk(topic) AS (
                SELECT next_topic(u.l, '')
                UNION ALL
                SELECT next_topic(u.l, walk.topic) FROM walk WHERE walk.topic IS NOT NULL)
            SELECT walk.topic FROM walk WHERE walk.topic IS NOT NULL) w
        WHERE w.topic <> ALL (p_not_topics)
        LIMIT p_most) x;
    IF lane_list IS NULL THEN RETURN '{}'; END IF;
    PERFORM pg_current_xact_id();
    share := greatest(1, p_most / cardinality(lane_list));
    WITH d AS (
        DELETE FROM parked p WHERE p.ctid = ANY (ARRAY(
            SELECT x.c FROM unnest(lane_list, topics) u(l, topic) CROSS JOIN LATERAL (
                SELECT q.ctid AS c FROM parked q WHERE q.lane = u.l AND q.topic = u.topic ORDER BY q.lane, q.topic, q.seq LIMIT share FOR UPDATE SKIP LOCKED) x))
        RETURNING p.*),
    r AS (
        INSERT INTO ready (lane, pos, seq, due_at, deliver_by, released, epoch, attempts, generation, bytes, max_attempts, releases)
        SELECT d.lane, nextval('message_seq_seq'), d.seq, d.due_at, d.deliver_by, d.released, d.epoch, d.attempts, d.generation, d.bytes, d.max_attempts, d.releases
        FROM (SELECT d.* FROM d ORDER BY d.seq) d
        RETURNING ready.ctid AS c)
    SELECT array_agg(r.c) INTO places FROM r;
    UPDATE keyed k SET wait = 0, topic = NULL, line = nextval('message_seq_seq') WHERE k.ctid = ANY (ARRAY(
        SELECT x.c FROM unnest(lane_list, topics) u(l, topic) CROSS JOIN LATERAL (
            SELECT x.c FROM (
                SELECT q.ctid AS c, q.key_hash FROM keyed q WHERE q.wait = 3 AND q.lane = u.l AND q.topic = u.topic ORDER BY q.lane, q.topic, q.seq LIMIT 2000) x
            WHERE pg_try_advisory_xact_lock(key_lock(x.key_hash)) LIMIT share) x));
    RETURN coalesce(places, '{}');
END $$;

-- The next topic that was left in a lane. Pinned by its callers.
CREATE OR REPLACE FUNCTION posthouse.next_topic(p_lane bigint, p_after text) RETURNS text
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN least(
        (SELECT q.topic FROM posthouse.parked q WHERE q.lane = p_lane AND q.topic > p_after ORDER BY q.lane, q.topic, q.seq LIMIT 1),
        (SELECT q.topic FROM posthouse.keyed q WHERE q.wait = 3 AND q.lane = p_lane AND q.topic > p_after ORDER BY q.lane, q.topic, q.seq LIMIT 1));
END $$;
