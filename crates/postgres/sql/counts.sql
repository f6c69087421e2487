-- Where a bounded look at a table begins and ends: all of its pages, or its first and its last p_pages / 2. Rows that are deleted and
-- kept by a held snapshot cost a look as much as live ones, and pages are the only bound that counts both.
CREATE OR REPLACE FUNCTION posthouse.pages_of(p_table regclass, p_pages int, OUT first_end tid, OUT last_begin tid, OUT whole boolean)
LANGUAGE sql STABLE SET search_path = posthouse, pg_temp AS $$
    SELECT format('(%s,0)', CASE WHEN x.n <= p_pages THEN 4294967294 ELSE p_pages / 2 END)::tid,
           format('(%s,0)', CASE WHEN x.n <= p_pages THEN 4294967294 ELSE x.n - p_pages / 2 END)::tid, x.n <= p_pages
    FROM (SELECT pg_relation_size(p_table) / current_setting('block_size')::bigint AS n) x
$$;

-- Counts messages by state, up to p_cap of each; NAME_exact is false where NAME is a lower bound. No statistics,
-- and one snapshot: the function is STABLE, so that a message that moves meanwhile is counted once.
--
-- Reads at most p_pages pages of each table (32 MiB), by the range of their rows' addresses. Of `message`, which has no mark for what is
-- done, it looks at the first 2 * p_cap rows and asks where each stands; a number below every one that waits or is leased (`low`) needs
-- only three look-ups.
CREATE OR REPLACE FUNCTION posthouse.counts(
    p_cap int, p_pages int DEFAULT 4096,
    OUT ready bigint, OUT ready_exact boolean, OUT scheduled bigint, OUT scheduled_exact boolean, OUT leased bigint, OUT leased_exact boolean,
    OUT done bigint, OUT done_exact boolean, OUT dead bigint, OUT dead_exact boolean, OUT quarantined bigint, OUT quarantined_exact boolean,
    OUT expired bigint, OUT expired_exact boolean, OUT blocked_keys bigint, OUT blocked_keys_exact boolean, OUT oldest_due timestamptz, OUT now timestamptz)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = posthouse, pg_temp
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off AS $$
#variable_conflict use_column
DECLARE
    t CONSTANT timestamptz := clock();
    looks CONSTANT bigint := 2 * p_cap::bigint;
    low bigint;
    w record;
    r record; s record; p record; k record; l record; g record; d record;
BEGIN
    IF p_cap IS NULL OR p_cap < 1 THEN
        RAISE 'cap: must be at least 1' USING ERRCODE = 'P7006';
    ELSIF p_pages IS NULL OR p_pages < 2 THEN
        RAISE 'pages: must be at least 2' USING ERRCODE = 'P7006';
    END IF;
    now := t;
    w := pages_of('ready', p_pages);
    SELECT w.whole AS whole, count(*) AS n, min(x.seq) AS low, min(x.due_at) AS oldest INTO r
    FROM (SELECT x.seq, x.due_at FROM ready x WHERE x.ctid < w.first_end UNION ALL SELECT x.seq, x.due_at FROM ready x WHERE x.ctid >= w.last_begin) x;
    w := pages_of('sched', p_pages);
    SELECT w.whole AS whole, count(*) FILTER (WHERE x.due_at <= t) AS due, count(*) FILTER (WHERE x.due_at > t) AS later, min(x.due_at) FILTER (WHERE x.due_at <= t) AS oldest INTO s
    FROM (SELECT x.due_at FROM sched x WHERE x.ctid < w.first_end UNION ALL SELECT x.due_at FROM sched x WHERE x.ctid >= w.last_begin) x;
    w := pages_of('parked', p_pages);
    SELECT w.whole AS whole, count(*) AS n, min(x.due_at) AS oldest INTO p
    FROM (SELECT x.due_at FROM parked x WHERE x.ctid < w.first_end UNION ALL SELECT x.due_at FROM parked x WHERE x.ctid >= w.last_begin) x;
    -- A dead or quarantined message that blocks its key is here too, due at infinity.
    w := pages_of('keyed', p_pages);
    SELECT w.whole AS whole, count(*) FILTER (WHERE x.due_at <= t) AS due, count(*) FILTER (WHERE x.due_at > t AND x.due_at < 'infinity') AS later,
           min(x.seq) FILTER (WHERE x.due_at < 'infinity') AS low, min(x.due_at) FILTER (WHERE x.due_at <= t) AS oldest,
           count(DISTINCT (x.lane, x.key_hash, x.key)) FILTER (WHERE x.wait = 1 AND x.due_at = 'infinity') AS blocked INTO k
    FROM (SELECT x.* FROM keyed x WHERE x.ctid < w.first_end UNION ALL SELECT x.* FROM keyed x WHERE x.ctid >= w.last_begin) x;
    w := pages_of('leased', p_pages);
    SELECT w.whole AS whole, count(*) AS n, count(*) FILTER (WHERE x.until <= t) AS over, min(x.seq) AS low INTO l
    FROM (SELECT x.seq, x.until FROM leased x WHERE x.ctid < w.first_end UNION ALL SELECT x.seq, x.until FROM leased x WHERE x.ctid >= w.last_begin) x;
    w := pages_of('lot', p_pages);
    SELECT w.whole AS whole, coalesce(sum(x.n), 0)::bigint AS n, coalesce(sum(x.n) FILTER (WHERE x.until <= t), 0)::bigint AS over, min(x.low) AS low INTO g
    FROM (SELECT y.until, lower(y.span) AS low, (SELECT sum(upper(i) - lower(i)) FROM unnest(y.seqs) i) AS n
          FROM (SELECT y.until, y.span, y.seqs FROM lot y WHERE y.ctid < w.first_end UNION ALL SELECT y.until, y.span, y.seqs FROM lot y WHERE y.ctid >= w.last_begin) y) x;
    w := pages_of('dead', p_pages);
    SELECT w.whole AS whole, count(*) FILTER (WHERE x.reason <> 0) AS n, count(*) FILTER (WHERE x.reason = 0) AS held INTO d
    FROM (SELECT x.reason FROM dead x WHERE x.ctid < w.first_end UNION ALL SELECT x.reason FROM dead x WHERE x.ctid >= w.last_begin) x;
    IF r.whole AND k.whole AND l.whole AND g.whole THEN
        low := coalesce(least(r.low, k.low, l.low, g.low), 9223372036854775807);
    END IF;
    w := pages_of('message', p_pages);
    -- OFFSET 0: each look-up stays one, and is not made a join over all.
    SELECT count(*) INTO done FROM (
        SELECT FROM (SELECT x.seq FROM message x WHERE x.ctid < w.first_end LIMIT looks) x
        WHERE NOT EXISTS (SELECT FROM dead y WHERE y.seq = x.seq OFFSET 0) AND NOT EXISTS (SELECT FROM sched y WHERE y.seq = x.seq OFFSET 0)
          AND NOT EXISTS (SELECT FROM parked y WHERE y.seq = x.seq OFFSET 0) AND (x.seq < low OR NOT EXISTS (SELECT FROM live y WHERE y.seq = x.seq OFFSET 0))
        LIMIT p_cap + 1) x;
    done_exact := w.whole AND done <= p_cap AND (SELECT count(*) FROM (SELECT FROM message x WHERE x.ctid < w.first_end LIMIT looks + 1) x) <= looks;

    ready := r.n + s.due + p.n + k.due;
    ready_exact := r.whole AND s.whole AND p.whole AND k.whole AND ready <= p_cap;
    scheduled := s.later + k.later;
    scheduled_exact := s.whole AND k.whole AND scheduled <= p_cap;
    leased := l.n + g.n;
    leased_exact := l.whole AND g.whole AND leased <= p_cap;
    expired := l.over + g.over;
    expired_exact := l.whole AND g.whole AND expired <= p_cap;
    dead := d.n;
    dead_exact := d.whole AND dead <= p_cap;
    quarantined := d.held;
    quarantined_exact := d.whole AND quarantined <= p_cap;
    blocked_keys := k.blocked;
    blocked_keys_exact := k.whole AND blocked_keys <= p_cap;
    SELECT least(ready, p_cap), least(scheduled, p_cap), least(leased, p_cap), least(expired, p_cap), least(done, p_cap), least(dead, p_cap), least(quarantined, p_cap), least(blocked_keys, p_cap)
    INTO ready, scheduled, leased, expired, done, dead, quarantined, blocked_keys;
    oldest_due := least(r.oldest, s.oldest, p.oldest, k.oldest);
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
