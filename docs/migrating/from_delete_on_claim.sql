-- Moves an outbox that deletes a row when it is claimed (payment_outbox_pending, payment_outbox_attempts) into Posthouse. Read
-- docs/migrating.md first. As the owner of the schema posthouse, with the old relays stopped:
--
--   psql -X -v ON_ERROR_STOP=1 -f docs/migrating/from_delete_on_claim.sql postgres://...
--
-- One transaction; run again, it moves nothing twice. It reads the old tables and changes nothing in them.
BEGIN;

-- Nobody writes meanwhile. If this waits, somebody still works.
LOCK TABLE payment_outbox_pending, payment_outbox_attempts IN SHARE ROW EXCLUSIVE MODE;

-- A claim of the last two minutes may still be in somebody's hands.
DO $$
DECLARE
    fresh record;
BEGIN
    SELECT a.outbox_id, a.claimed_at INTO fresh FROM payment_outbox_attempts a
    WHERE a.state::text = 'DISPATCHING' AND a.claimed_at > now() - interval '2 minutes'
      AND NOT EXISTS (SELECT FROM payment_outbox_attempts b WHERE b.outbox_id = a.outbox_id AND b.attempt_no > a.attempt_no) LIMIT 1;
    IF FOUND THEN
        RAISE 'the old relay claimed % at %: stop it, wait two minutes, and run this again', fresh.outbox_id, fresh.claimed_at;
    END IF;
END $$;

-- What is moved, in our words. This is the part to change when your columns have other names.
CREATE TEMP TABLE moving ON COMMIT DROP AS
WITH step AS (
    SELECT a.*, a.state::text AS word, lag(a.state::text) OVER w AS word_before, lead(a.state::text) OVER w AS word_after,
           lag(a.claimed_at) OVER w AS claimed_before, lead(a.claimed_at) OVER w AS claimed_after, lead(a.outbox_id) OVER w IS NULL AS last
    FROM payment_outbox_attempts a WINDOW w AS (PARTITION BY a.outbox_id ORDER BY a.attempt_no, a.created_at)),
past AS (
    SELECT s.outbox_id, bool_or(s.word = 'DISPATCHED') AS sent, bool_or(s.last AND s.word = 'FAILED') AS failed, max(coalesce(s.completed_at, s.created_at, s.claimed_at, now())) AS ended_at,
           jsonb_agg(jsonb_build_object(
               'outcome', CASE s.word
                   WHEN 'DISPATCHED' THEN 'delivered'
                   -- What failed and is pending again was tried again: not the end of it.
                   WHEN 'FAILED' THEN CASE WHEN s.last AND p.outbox_id IS NULL THEN 'rejected' ELSE 'retry' END
                   WHEN 'RETRYABLE' THEN 'retry'
                   WHEN 'DISPATCHING' THEN 'lease_expired'
                   WHEN 'ZOMBIE_REQUEUE' THEN 'lease_expired' END,
               'worker', 'payment_outbox',
               'started_at', CASE WHEN s.word <> 'DISPATCHING' AND s.word_before = 'DISPATCHING' THEN s.claimed_before ELSE s.claimed_at END,
               -- Nobody wrote down when a claim without an outcome was given up: after two minutes, or when the next one came.
               'finished_at', CASE WHEN s.word = 'DISPATCHING' THEN least(coalesce(s.claimed_at, s.created_at) + interval '2 minutes', s.claimed_after, now())
                                   ELSE coalesce(s.completed_at, s.created_at, s.claimed_at, now()) END,
               'code', s.error_code, 'error', s.error_message, 'receipt', s.rail_reference) ORDER BY s.attempt_no, s.created_at) AS attempts
    FROM step s LEFT JOIN payment_outbox_pending p ON p.outbox_id = s.outbox_id
    -- A claim and the outcome that follows it are one attempt.
    WHERE NOT (s.word = 'DISPATCHING' AND s.word_after IS NOT NULL AND s.word_after <> 'DISPATCHING')
    GROUP BY s.outbox_id),
body AS (
    SELECT p.outbox_id, p.instruction_id, p.participant_id, p.sequence_id, p.idempotency_key, p.rail_type, p.payload, p.created_at, p.next_attempt_at, true AS pending
    FROM payment_outbox_pending p
    UNION ALL
    -- Deleted when it was claimed: the attempts have a copy.
    (SELECT DISTINCT ON (a.outbox_id) a.outbox_id, a.instruction_id, a.participant_id, a.sequence_id, a.idempotency_key, a.rail_type, a.payload,
            min(a.created_at) OVER (PARTITION BY a.outbox_id), NULL::timestamptz, false
     FROM payment_outbox_attempts a WHERE NOT EXISTS (SELECT FROM payment_outbox_pending p WHERE p.outbox_id = a.outbox_id)
     ORDER BY a.outbox_id, a.attempt_no DESC))
SELECT 'payment_outbox' AS source, b.outbox_id::text AS old_id, b.outbox_id AS id,
       CASE WHEN h.sent THEN 'sent' WHEN b.pending THEN 'pending' WHEN h.failed THEN 'failed' ELSE 'in flight' END AS fate,
       row_number() OVER (ORDER BY b.sequence_id NULLS LAST, b.created_at, b.outbox_id) AS place,
       'payments' AS namespace, '' AS tenant, b.rail_type AS topic, 'application/json' AS content_type, convert_to(coalesce(b.payload::text, 'null'), 'UTF8') AS payload,
       b.participant_id::text AS order_key, b.instruction_id::text || '/' || b.idempotency_key::text AS dedupe_key,
       jsonb_strip_nulls(jsonb_build_object('instruction-id', b.instruction_id::text, 'participant-id', b.participant_id::text, 'sequence-id', b.sequence_id::text)) AS headers,
       b.created_at, b.next_attempt_at AS due_at, coalesce(h.attempts, '[]') AS attempts
FROM body b LEFT JOIN past h ON h.outbox_id = b.outbox_id
-- What ended longer ago than dedupe keys are kept stays behind as history, unless it was enqueued here too.
WHERE b.pending OR NOT (coalesce(h.sent, false) OR coalesce(h.failed, false))
   OR h.ended_at > now() - coalesce((SELECT s.dedupe_lifetime FROM posthouse.settings s), interval '1000 years')
   OR EXISTS (SELECT FROM posthouse.messages v WHERE v.id = b.outbox_id);

\ir move.sql
COMMIT;
