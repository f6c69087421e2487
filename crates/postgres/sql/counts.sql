-- How many rows a table has, by its size now and how many are on a page: by the statistics, as the planner believes; and where there
-- are none yet, or from when it was empty, by what was just seen of it: p_seen rows from page to page.
CREATE OR REPLACE FUNCTION posthouse.guess(p_table regclass, p_seen bigint, p_first tid, p_last tid) RETURNS bigint
LANGUAGE sql STABLE SET search_path = posthouse, pg_temp AS $$
    SELECT greatest(p_seen, (CASE WHEN c.reltuples > 0 AND c.relpages > 0 THEN c.reltuples / c.relpages
                                  ELSE p_seen / ((p_last::text::point)[0] - (p_first::text::point)[0] + 1) END
                             * (pg_relation_size(c.oid) / current_setting('block_size')::int))::bigint)
    FROM pg_class c WHERE c.oid = p_table
$$;

-- How many messages there are, by where they stand: counted up to p_cap of a kind, a guess beyond. Where a table holds two kinds,
-- a guess splits it as those that were counted.
CREATE OR REPLACE FUNCTION posthouse.counts(
    p_cap int, OUT ready bigint, OUT ready_exact boolean, OUT scheduled bigint, OUT scheduled_exact boolean, OUT leased bigint, OUT leased_exact boolean,
    OUT done bigint, OUT done_exact boolean, OUT dead bigint, OUT dead_exact boolean, OUT quarantined bigint, OUT quarantined_exact boolean,
    OUT expired bigint, OUT blocked_keys bigint, OUT oldest_due timestamptz, OUT now timestamptz)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = posthouse, pg_temp SET enable_seqscan = on SET jit = off AS $$
#variable_conflict use_column
DECLARE
    t CONSTANT timestamptz := clock();
    r record; s record; p record; k record; l record; g record; d record; m record;
    scale double precision;
BEGIN
    IF p_cap IS NULL OR p_cap < 1 THEN
        RAISE 'cap: must be at least 1' USING ERRCODE = 'P7006';
    END IF;
    now := t;
    SELECT count(*) AS n, min(x.at) AS first, max(x.at) AS last, min(x.due_at) AS oldest INTO r FROM (SELECT x.due_at, x.ctid AS at FROM ready x LIMIT p_cap + 1) x;
    SELECT count(*) AS n, min(x.at) AS first, max(x.at) AS last, count(*) FILTER (WHERE x.due_at <= t) AS due, min(x.due_at) FILTER (WHERE x.due_at <= t) AS oldest INTO s FROM (SELECT x.due_at, x.ctid AS at FROM sched x LIMIT p_cap + 1) x;
    SELECT count(*) AS n, min(x.at) AS first, max(x.at) AS last, min(x.due_at) AS oldest INTO p FROM (SELECT x.due_at, x.ctid AS at FROM parked x LIMIT p_cap + 1) x;
    SELECT count(*) AS n, min(x.at) AS first, max(x.at) AS last, count(*) FILTER (WHERE x.due_at <= t) AS due, count(*) FILTER (WHERE x.due_at > t AND x.due_at < 'infinity') AS later,
           min(x.due_at) FILTER (WHERE x.due_at <= t) AS oldest
    INTO k FROM (SELECT x.due_at, x.ctid AS at FROM keyed x LIMIT p_cap + 1) x;
    SELECT count(*) AS n, min(x.at) AS first, max(x.at) AS last, count(*) FILTER (WHERE x.until <= t) AS over INTO l FROM (SELECT x.until, x.ctid AS at FROM leased x LIMIT p_cap + 1) x;
    SELECT coalesce(sum(x.n), 0)::bigint AS n, coalesce(sum(x.n) FILTER (WHERE x.until <= t), 0)::bigint AS over INTO g
    FROM (SELECT x.until, (SELECT sum(upper(r) - lower(r)) FROM unnest(x.seqs) r) AS n FROM lot x) x;
    SELECT count(*) AS n, min(x.at) AS first, max(x.at) AS last, count(*) FILTER (WHERE x.reason = 0) AS held INTO d FROM (SELECT x.reason, x.ctid AS at FROM dead x LIMIT p_cap + 1) x;
    SELECT count(*) AS n, min(x.at) AS first, max(x.at) AS last INTO m FROM (SELECT x.ctid AS at FROM message x LIMIT p_cap + 1) x;

    ready_exact := r.n <= p_cap AND s.n <= p_cap AND p.n <= p_cap AND k.n <= p_cap;
    scheduled_exact := s.n <= p_cap AND k.n <= p_cap;
    leased_exact := l.n <= p_cap;
    dead_exact := d.n <= p_cap;
    quarantined_exact := dead_exact;
    done_exact := m.n <= p_cap;
    ready := CASE WHEN r.n <= p_cap THEN r.n ELSE guess('ready', r.n, r.first, r.last) END + CASE WHEN p.n <= p_cap THEN p.n ELSE guess('parked', p.n, p.first, p.last) END;
    scale := CASE WHEN s.n <= p_cap THEN 1 ELSE guess('sched', s.n, s.first, s.last) / s.n::double precision END;
    ready := ready + (s.due * scale)::bigint;
    scheduled := ((s.n - s.due) * scale)::bigint;
    scale := CASE WHEN k.n <= p_cap THEN 1 ELSE guess('keyed', k.n, k.first, k.last) / k.n::double precision END;
    ready := ready + (k.due * scale)::bigint;
    scheduled := scheduled + (k.later * scale)::bigint;
    leased := CASE WHEN l.n <= p_cap THEN l.n ELSE guess('leased', l.n, l.first, l.last) END + g.n;
    expired := l.over + g.over;
    scale := CASE WHEN d.n <= p_cap THEN 1 ELSE guess('dead', d.n, d.first, d.last) / d.n::double precision END;
    quarantined := (d.held * scale)::bigint;
    dead := ((d.n - d.held) * scale)::bigint;
    done := greatest(0, CASE WHEN m.n <= p_cap THEN m.n ELSE guess('message', m.n, m.first, m.last) END - ready - scheduled - leased - dead - quarantined);
    SELECT count(*) INTO blocked_keys FROM (
        SELECT DISTINCT x.lane, x.key_hash, x.key FROM (SELECT x.lane, x.key_hash, x.key FROM keyed x WHERE x.wait = 1 AND x.due_at = 'infinity' LIMIT p_cap + 1) x) x;
    -- The oldest: by the head of each line, because places are given in the order in which messages fall due.
    SELECT min(x.due_at) INTO oldest_due FROM (
        SELECT h.due_at FROM unnest(lanes_of(1, ARRAY[-9223372036854775808], ARRAY[9223372036854775807], 256)) u(l)
        CROSS JOIN LATERAL (SELECT h.due_at FROM ready h WHERE h.lane = u.l ORDER BY h.lane, h.pos LIMIT 1) h
        UNION ALL (SELECT x.due_at FROM sched x WHERE x.due_at <= t ORDER BY x.due_at LIMIT 1)
        UNION ALL (SELECT x.due_at FROM keyed x WHERE x.wait = 1 AND x.due_at <= t ORDER BY x.due_at LIMIT 1)
        UNION ALL SELECT unnest(ARRAY[r.oldest, p.oldest, k.oldest])) x;
END $$;

-- The message that must end before this one: of its key, one in flight, or else the first.
CREATE OR REPLACE FUNCTION posthouse.ahead_of(p_id uuid) RETURNS uuid
LANGUAGE plpgsql SET search_path = posthouse, pg_temp AS $$
DECLARE
    m message;
    first bigint;
BEGIN
    SELECT q.* INTO m FROM message q WHERE q.id = p_id AND q.order_key IS NOT NULL;
    IF NOT FOUND THEN RETURN NULL; END IF;
    SELECT l.seq INTO first FROM leased l
    WHERE l.lane = lane(m.namespace, m.tenant) AND l.key_hash = key_hash(m.namespace, m.tenant, m.order_key) AND l.key = m.order_key AND l.key IS NOT NULL ORDER BY l.pos LIMIT 1;
    IF NOT FOUND THEN
        SELECT k.seq INTO first FROM keyed k
        WHERE k.lane = lane(m.namespace, m.tenant) AND k.key_hash = key_hash(m.namespace, m.tenant, m.order_key) AND k.key = m.order_key ORDER BY k.lane, k.key_hash, k.key, k.pos LIMIT 1;
    END IF;
    RETURN (SELECT q.id FROM message q WHERE q.seq = first AND q.seq <> m.seq);
END $$;

-- What bears on one message besides its view: what is ahead of it, whether it blocks its key, whether an operator declared it
-- delivered, and the time.
CREATE OR REPLACE FUNCTION posthouse.bearing(p_id uuid, OUT ahead uuid, OUT blocks boolean, OUT resolved boolean, OUT now timestamptz)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = posthouse, pg_temp AS $$
    SELECT ahead_of(m.id), coalesce(d.blocking, false), EXISTS (SELECT FROM resolved r WHERE r.seq = m.seq), clock()
    FROM message m LEFT JOIN dead d ON d.seq = m.seq WHERE m.id = p_id
$$;
