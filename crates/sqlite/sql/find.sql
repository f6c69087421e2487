SELECT
    raw_id, seq, tenant, namespace, topic, order_key, dedupe_key, state, reason, attempts, max_attempts, epoch, generation,
    worker, lease_until, due_at, deliver_by, created_at, updated_at, finished_at, last_code, last_error, content_type,
    bytes, digest, kind, parent, note, destination
FROM posthouse_messages
WHERE raw_id = ?1;
