SELECT
    raw_id, seq, tenant, namespace, topic, order_key, dedupe_key, state, reason, attempts, max_attempts, epoch, generation,
    worker, lease_until, due_at, deliver_by, created_at, updated_at, finished_at, last_code, last_error, content_type,
    bytes, digest, kind, parent, note
FROM posthouse_messages
WHERE seq < ?1
    AND (?2 IS NULL OR namespace = ?2)
    AND (?3 IS NULL OR tenant = ?3)
    AND (?4 IS NULL OR topic = ?4)
    AND (?5 IS NULL OR order_key = ?5)
    AND (?6 IS NULL OR state = ?6)
ORDER BY seq DESC
LIMIT ?7;
