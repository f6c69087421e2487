-- The live record of each message, wherever it is. A message without one is done. Made for looking up by number: `ready` and
-- `keyed` are not indexed by it, so they are asked for the place of the message, from inside (OFFSET 0), or a plan could walk them whole.
CREATE OR REPLACE VIEW posthouse.live AS
    SELECT m.seq, 'pending' AS state, 'ready' AS place, r.c, r.due_at, r.deliver_by, r.released, r.epoch, r.attempts, r.generation, r.max_attempts,
           NULL::text AS worker, NULL::timestamptz AS until, NULL::timestamptz AS started_at, NULL::smallint AS reason, NULL::timestamptz AS at, NULL::text AS note, false AS blocking
    FROM posthouse.message m CROSS JOIN LATERAL (
        SELECT r.*, r.ctid AS c FROM posthouse.ready r WHERE r.lane = posthouse.lane(m.namespace, m.tenant) AND r.pos = m.seq AND r.pos = r.seq OFFSET 0) r
    UNION ALL
    SELECT r.seq, 'pending', 'ready', r.ctid, r.due_at, r.deliver_by, r.released, r.epoch, r.attempts, r.generation, r.max_attempts, NULL, NULL, NULL, NULL, NULL, NULL, false
    FROM posthouse.ready r WHERE r.pos <> r.seq
    UNION ALL
    SELECT s.seq, 'pending', 'sched', s.ctid, s.due_at, s.deliver_by, s.released, s.epoch, s.attempts, s.generation, s.max_attempts, NULL, NULL, NULL, NULL, NULL, NULL, false
    FROM posthouse.sched s
    UNION ALL
    SELECT p.seq, 'pending', 'parked', p.ctid, p.due_at, p.deliver_by, p.released, p.epoch, p.attempts, p.generation, p.max_attempts, NULL, NULL, NULL, NULL, NULL, NULL, false
    FROM posthouse.parked p
    UNION ALL
    SELECT m.seq, 'pending', 'keyed', k.c, k.due_at, k.deliver_by, k.released, k.epoch, k.attempts, k.generation, k.max_attempts, NULL, NULL, NULL, NULL, NULL, NULL, false
    FROM posthouse.message m CROSS JOIN LATERAL (
        SELECT k.*, k.ctid AS c FROM posthouse.keyed k
        WHERE k.lane = posthouse.lane(m.namespace, m.tenant) AND k.key_hash = posthouse.key_hash(m.namespace, m.tenant, m.order_key) AND k.key = m.order_key AND k.pos = m.seq AND k.pos = k.seq
          AND k.due_at < 'infinity' OFFSET 0) k
    WHERE m.order_key IS NOT NULL
    UNION ALL
    SELECT k.seq, 'pending', 'keyed', k.ctid, k.due_at, k.deliver_by, k.released, k.epoch, k.attempts, k.generation, k.max_attempts, NULL, NULL, NULL, NULL, NULL, NULL, false
    FROM posthouse.keyed k WHERE k.pos <> k.seq AND k.due_at < 'infinity'
    UNION ALL
    SELECT l.seq, 'leased', 'leased', l.ctid, NULL, l.deliver_by, NULL, l.epoch, l.attempts, l.generation, l.max_attempts, l.worker, l.until, l.started_at, NULL, NULL, NULL, false
    FROM posthouse.leased l
    UNION ALL
    SELECT m.seq, 'leased', 'leased', l.c, NULL, NULL, NULL, 1, 1, 1, l.max_attempts, l.worker, l.until, l.started_at, NULL, NULL, NULL, false
    FROM posthouse.message m CROSS JOIN LATERAL (SELECT l.*, l.ctid AS c FROM posthouse.lot l WHERE l.span @> m.seq AND l.seqs @> m.seq OFFSET 0) l
    UNION ALL
    SELECT d.seq, CASE WHEN d.reason = 0 THEN 'quarantined' ELSE 'dead' END, 'dead', d.ctid, NULL, NULL, NULL, d.epoch, d.attempts, d.generation, d.max_attempts, NULL, NULL, NULL, d.reason, d.at, d.note, d.blocking
    FROM posthouse.dead d;

-- What operators and programs read. One page of it is a handful of index look-ups for each message.
CREATE OR REPLACE VIEW posthouse.messages AS
    SELECT m.id, m.seq, m.tenant, m.namespace, m.topic, m.order_key, m.dedupe_key,
           coalesce(v.state, 'done') AS state, posthouse.reason_word(v.reason) AS reason,
           coalesce(v.attempts, r.attempts, a.attempt, 0) AS attempts, coalesce(v.epoch, r.epoch, a.epoch, 0)::bigint AS epoch,
           coalesce(v.generation, r.generation, a.generation, 1) AS generation,
           v.worker, v.until AS lease_until, v.due_at, m.created_at,
           greatest(m.created_at, a.finished_at, v.started_at, v.at, o.at) AS updated_at,
           CASE WHEN v.seq IS NULL THEN coalesce(r.at, a.finished_at, m.created_at) ELSE v.at END AS finished_at,
           a.code AS last_code, a.error AS last_error, m.digest,
           coalesce(v.max_attempts, r.max_attempts, a.max_attempts, 0)::int AS max_attempts, CASE WHEN v.at IS NULL AND v.seq IS NOT NULL AND m.kind <> 2 THEN v.deliver_by ELSE m.deliver_by END AS deliver_by,
           m.content_type, octet_length(m.payload)::bigint AS bytes, posthouse.kind_word(m.kind) AS kind, m.parent, v.note, m.destination
    FROM posthouse.message m
    LEFT JOIN LATERAL (SELECT l.* FROM posthouse.live l WHERE l.seq = m.seq OFFSET 0) v ON true
    LEFT JOIN LATERAL (SELECT x.* FROM posthouse.attempt x WHERE x.seq = m.seq ORDER BY x.epoch DESC LIMIT 1) a ON true
    LEFT JOIN posthouse.resolved r ON r.seq = m.seq
    LEFT JOIN LATERAL (SELECT max(x.at) AS at FROM posthouse.audit x WHERE x.message_id = m.id AND x.action <> 'outbox_flush_conflict') o ON true;

CREATE OR REPLACE VIEW posthouse.attempts AS
    SELECT m.id AS message_id, a.epoch::bigint AS epoch, a.generation, a.attempt, a.worker, posthouse.outcome_word(a.outcome) AS outcome,
           a.code, a.error, a.receipt, a.started_at, a.finished_at, a.finished_at - a.started_at AS duration,
           -- A token may hold other messages of its claim still: it is for those alone who may read the tables.
           CASE WHEN (SELECT has_table_privilege('posthouse.attempt'::regclass, 'SELECT')) THEN a.token END AS token
    FROM posthouse.attempt a JOIN posthouse.message m ON m.seq = a.seq;

-- What waits or is in flight, for whoever watches: reading it costs what the backlog costs, however many messages have ended. The
-- message itself is looked up only if a query asks for one of its columns.
CREATE OR REPLACE VIEW posthouse.backlog AS
    SELECT m.id, m.tenant, m.namespace, m.topic, m.order_key, m.created_at, b.state, b.due_at, b.worker, b.started_at, b.lease_until, b.attempts, b.max_attempts
    FROM (
        SELECT r.seq, 'pending' AS state, r.due_at, NULL::text AS worker, NULL::timestamptz AS started_at, NULL::timestamptz AS lease_until, r.attempts, r.max_attempts::int FROM posthouse.ready r
        UNION ALL
        SELECT s.seq, 'pending', s.due_at, NULL, NULL, NULL, s.attempts, s.max_attempts FROM posthouse.sched s
        UNION ALL
        SELECT p.seq, 'pending', p.due_at, NULL, NULL, NULL, p.attempts, p.max_attempts FROM posthouse.parked p
        UNION ALL
        SELECT k.seq, 'pending', k.due_at, NULL, NULL, NULL, k.attempts, k.max_attempts FROM posthouse.keyed k WHERE k.due_at < 'infinity'
        UNION ALL
        SELECT l.seq, 'leased', NULL, l.worker, l.started_at, l.until, l.attempts, l.max_attempts FROM posthouse.leased l
        UNION ALL
        SELECT s, 'leased', NULL, l.worker, l.started_at, l.until, 1, l.max_attempts
        FROM posthouse.lot l CROSS JOIN LATERAL unnest(l.seqs) r CROSS JOIN LATERAL generate_series(lower(r), upper(r) - 1) s) b
    LEFT JOIN posthouse.message m ON m.seq = b.seq;
