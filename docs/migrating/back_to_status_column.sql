-- The way back: from Posthouse to outbox (id, topic, payload, status, attempts, next_attempt_at, created_at). As the owner of the
-- schema posthouse, with the new relays stopped and producers that no longer enqueue here:
--
--   psql -X -v ON_ERROR_STOP=1 -f docs/migrating/back_to_status_column.sql postgres://...
--
-- One transaction; run again, it changes nothing. What waits is pending there again and leaves Posthouse; what ended here is sent
-- or failed there.
BEGIN;
LOCK TABLE outbox, outbox_moved IN SHARE ROW EXCLUSIVE MODE;

DO $$
DECLARE
    held record;
BEGIN
    PERFORM posthouse.repair_expired_leases(100000);
    SELECT b.worker, max(b.lease_until) AS until INTO held FROM posthouse.backlog b WHERE b.namespace = 'default' AND b.state = 'leased' GROUP BY b.worker LIMIT 1;
    IF FOUND THEN
        RAISE 'worker % holds leases until %: stop it, wait for them to end, and run this again', held.worker, held.until;
    END IF;
END $$;

CREATE TEMP TABLE going ON COMMIT DROP AS
SELECT v.id, v.seq, v.state, v.due_at, v.created_at, v.topic, v.attempts, b.payload, o.id AS old_id
FROM posthouse.messages v JOIN posthouse.message b ON b.id = v.id
-- The same as in from_status_column.sql.
LEFT JOIN outbox o ON md5('outbox/' || o.id)::uuid = v.id
WHERE v.namespace = 'default';
ANALYZE going;

UPDATE outbox o SET
    status = CASE g.state WHEN 'pending' THEN 'pending' WHEN 'done' THEN 'sent' ELSE 'failed' END,
    attempts = greatest(o.attempts, g.attempts), next_attempt_at = coalesce(g.due_at, o.next_attempt_at)
FROM going g WHERE g.old_id = o.id;

-- A row that another stands for is over.
UPDATE outbox o SET status = 'failed' FROM outbox_moved d
WHERE d.source = 'outbox' AND d.fate = 'merged' AND d.old_id = o.id::text AND lower(o.status::text) IN ('pending', 'processing');

-- Enqueued here and still waiting. What was enqueued here and ended here stays here. If your payload is a text, leave out ::jsonb.
INSERT INTO outbox (topic, payload, status, attempts, next_attempt_at, created_at)
SELECT g.topic, convert_from(g.payload, 'UTF8')::jsonb, 'pending', g.attempts, g.due_at, g.created_at FROM going g WHERE g.state = 'pending' AND g.old_id IS NULL ORDER BY g.seq;

\ir leave.sql
COMMIT;
