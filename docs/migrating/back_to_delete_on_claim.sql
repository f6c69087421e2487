-- The way back: from Posthouse to payment_outbox_pending and payment_outbox_attempts. As the owner of the schema posthouse, with the
-- new relays stopped and producers that no longer enqueue here:
--
--   psql -X -v ON_ERROR_STOP=1 -f docs/migrating/back_to_delete_on_claim.sql postgres://...
--
-- One transaction; run again, it changes nothing. What waits becomes a pending row again and leaves Posthouse; what ended here is
-- deleted from the pending rows; the attempts made here are appended to the old ones.
BEGIN;
LOCK TABLE payment_outbox_pending, payment_outbox_attempts, outbox_moved IN SHARE ROW EXCLUSIVE MODE;

DO $$
DECLARE
    held record;
BEGIN
    PERFORM posthouse.repair_expired_leases(100000);
    SELECT b.worker, max(b.lease_until) AS until INTO held FROM posthouse.backlog b WHERE b.namespace = 'payments' AND b.state = 'leased' GROUP BY b.worker LIMIT 1;
    IF FOUND THEN
        RAISE 'worker % holds leases until %: stop it, wait for them to end, and run this again', held.worker, held.until;
    END IF;
END $$;

CREATE TEMP TABLE going ON COMMIT DROP AS
SELECT v.id, v.state, v.due_at, v.created_at, v.topic, v.dedupe_key, b.headers, convert_from(b.payload, 'UTF8')::jsonb AS payload, coalesce(d.attempts, 0) AS known
FROM posthouse.messages v JOIN posthouse.message b ON b.id = v.id
LEFT JOIN outbox_moved d ON d.source = 'payment_outbox' AND d.old_id = v.id::text
WHERE v.namespace = 'payments';
ANALYZE going;

CREATE TEMP TABLE gone ON COMMIT DROP AS
SELECT g.id, a.*, row_number() OVER (PARTITION BY g.id ORDER BY a.epoch) AS n
FROM going g CROSS JOIN LATERAL (
    SELECT a.epoch, a.outcome, a.started_at, a.finished_at, a.code, a.error, a.receipt FROM posthouse.attempts a WHERE a.message_id = g.id ORDER BY a.epoch OFFSET g.known) a;

-- If your `state` is an enumeration, cast the words to it, here and below.
INSERT INTO payment_outbox_attempts (
    outbox_id, instruction_id, participant_id, sequence_id, idempotency_key, rail_type, payload, attempt_no, state, claimed_at, completed_at, rail_reference, error_code, error_message, created_at)
SELECT g.id, g.headers ->> 'instruction-id', g.headers ->> 'participant-id', (g.headers ->> 'sequence-id')::bigint, substr(g.dedupe_key, length(g.headers ->> 'instruction-id') + 2), g.topic, g.payload,
       coalesce((SELECT max(o.attempt_no) FROM payment_outbox_attempts o WHERE o.outbox_id = g.id), 0) + a.n,
       CASE a.outcome WHEN 'delivered' THEN 'DISPATCHED' WHEN 'duplicate' THEN 'DISPATCHED' WHEN 'rejected' THEN 'FAILED' WHEN 'lease_expired' THEN 'ZOMBIE_REQUEUE' ELSE 'RETRYABLE' END,
       a.started_at, a.finished_at, a.receipt, a.code, a.error, a.finished_at
FROM gone a JOIN going g ON g.id = a.id;

-- Dead without an attempt that says so: the budget was spent, or somebody cancelled it.
INSERT INTO payment_outbox_attempts (
    outbox_id, instruction_id, participant_id, sequence_id, idempotency_key, rail_type, payload, attempt_no, state, claimed_at, completed_at, error_code, created_at)
SELECT g.id, g.headers ->> 'instruction-id', g.headers ->> 'participant-id', (g.headers ->> 'sequence-id')::bigint, substr(g.dedupe_key, length(g.headers ->> 'instruction-id') + 2), g.topic, g.payload,
       coalesce(o.attempt_no, 0) + 1, 'FAILED', now(), now(), v.reason, now()
FROM going g JOIN posthouse.messages v ON v.id = g.id
LEFT JOIN LATERAL (SELECT o.attempt_no, o.state::text AS word FROM payment_outbox_attempts o WHERE o.outbox_id = g.id ORDER BY o.attempt_no DESC LIMIT 1) o ON true
WHERE g.state = 'dead' AND o.word IS DISTINCT FROM 'FAILED';

-- What ended here, or is held here, must not be sent there; nor must a row that another stands for.
DELETE FROM payment_outbox_pending p WHERE EXISTS (SELECT FROM going g WHERE g.id = p.outbox_id AND g.state <> 'pending')
    OR EXISTS (SELECT FROM outbox_moved d WHERE d.source = 'payment_outbox' AND d.fate = 'merged' AND d.old_id = p.outbox_id::text);

INSERT INTO payment_outbox_pending (outbox_id, instruction_id, participant_id, sequence_id, idempotency_key, rail_type, payload, attempt_count, next_attempt_at, created_at)
SELECT g.id, g.headers ->> 'instruction-id', g.headers ->> 'participant-id', (g.headers ->> 'sequence-id')::bigint, substr(g.dedupe_key, length(g.headers ->> 'instruction-id') + 2), g.topic, g.payload,
       coalesce((SELECT max(o.attempt_no) FROM payment_outbox_attempts o WHERE o.outbox_id = g.id), 0), g.due_at, g.created_at
FROM going g WHERE g.state = 'pending'
ON CONFLICT (outbox_id) DO UPDATE SET attempt_count = excluded.attempt_count, next_attempt_at = excluded.next_attempt_at;

INSERT INTO outbox_moved (source, old_id, message_id, fate, attempts)
SELECT 'payment_outbox', g.id::text, g.id, CASE g.state WHEN 'done' THEN 'sent' ELSE 'failed' END, 0 FROM going g WHERE g.state <> 'pending'
ON CONFLICT DO NOTHING;

\ir leave.sql
COMMIT;
