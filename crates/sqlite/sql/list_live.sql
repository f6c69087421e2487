-- By a state that has tables of its own: read those instead of every message. The condition on ?6 in each branch is
-- the same for all its records, so the branches of other states are not read.
SELECT
    raw_id, seq, tenant, namespace, topic, order_key, dedupe_key, state, reason, attempts, max_attempts, epoch, generation,
    worker, lease_until, due_at, deliver_by, created_at, updated_at, finished_at, last_code, last_error, content_type,
    bytes, digest, kind, parent, note
FROM posthouse_messages
WHERE seq IN (
    SELECT seq FROM posthouse_dead WHERE state = ?6
    UNION ALL
    SELECT seq FROM posthouse_leased WHERE ?6 = 'leased'
    UNION ALL
    SELECT seq FROM posthouse_ready WHERE ?6 = 'pending'
    UNION ALL
    SELECT seq FROM posthouse_sched WHERE ?6 = 'pending'
    UNION ALL
    SELECT seq FROM posthouse_keyed WHERE ?6 = 'pending'
)
    AND seq < ?1
    AND (?2 IS NULL OR namespace = ?2)
    AND (?3 IS NULL OR tenant = ?3)
    AND (?4 IS NULL OR topic = ?4)
    AND (?5 IS NULL OR order_key = ?5)
    AND (?6 IS NULL OR state = ?6)
ORDER BY seq DESC
LIMIT ?7;
