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
