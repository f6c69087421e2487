-- The messages of a page, by their numbers.
SELECT
    raw_id, seq, tenant, namespace, topic, order_key, dedupe_key, state, reason, attempts, max_attempts, epoch, generation,
    worker, lease_until, due_at, deliver_by, created_at, updated_at, finished_at, last_code, last_error, content_type,
    bytes, digest, kind, parent, note, destination
FROM posthouse_messages
WHERE seq IN (SELECT value FROM json_each(?1));
