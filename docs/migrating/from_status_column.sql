-- Moves an outbox with a status column, outbox (id, topic, payload, status, attempts, next_attempt_at, created_at), into Posthouse.
-- Read docs/migrating.md first. As the owner of the schema posthouse, with the old relays stopped:
--
--   psql -X -v ON_ERROR_STOP=1 -f docs/migrating/from_status_column.sql postgres://...
--
-- One transaction; run again, it moves nothing twice. It reads the old table and changes nothing in it.
BEGIN;

-- Nobody writes meanwhile. If this waits, somebody still works.
LOCK TABLE outbox IN SHARE ROW EXCLUSIVE MODE;

-- A word that we do not know is no reason to guess.
DO $$
DECLARE
    odd record;
BEGIN
    SELECT o.id, o.status INTO odd FROM outbox o WHERE o.status IS NULL OR lower(o.status::text) NOT IN ('pending', 'processing', 'sent', 'failed') LIMIT 1;
    IF FOUND THEN
        RAISE 'the status of row % is %: it must be pending, processing, sent or failed', odd.id, coalesce(odd.status::text, 'NULL');
    END IF;
END $$;

-- What is moved, in our words. This is the part to change when your columns have other names.
CREATE TEMP TABLE moving ON COMMIT DROP AS
WITH old AS (
    SELECT o.id::text AS old_id,
           -- A number becomes a UUID, the same one each time. If yours is a UUID already, write: o.id AS id
           md5('outbox/' || o.id)::uuid AS id,
           o.topic, o.payload::text AS body,
           CASE WHEN pg_typeof(o.payload)::text IN ('json', 'jsonb') THEN 'application/json' ELSE 'text/plain; charset=utf-8' END AS content_type,
           -- If messages must stay in order, what by? For instance: o.payload ->> 'account'
           NULL::text AS order_key,
           lower(o.status::text) AS status, least(greatest(coalesce(o.attempts, 0), 0), 999) AS tries, o.next_attempt_at, coalesce(o.created_at, now()) AS created_at,
           -- When it was sent, or given up; if you have a column for that, take it.
           coalesce(o.created_at, now()) AS ended_at,
           row_number() OVER (ORDER BY o.created_at NULLS LAST, o.id) AS place
    FROM outbox o)
SELECT 'outbox' AS source, o.old_id, o.id,
       CASE o.status WHEN 'processing' THEN 'in flight' ELSE o.status END AS fate, o.place,
       'default' AS namespace, '' AS tenant, o.topic, o.content_type,
       convert_to(coalesce(o.body, CASE o.content_type WHEN 'application/json' THEN 'null' ELSE '' END), 'UTF8') AS payload,
       o.order_key, 'outbox/' || o.old_id AS dedupe_key, NULL::jsonb AS headers, o.created_at, o.next_attempt_at AS due_at,
       -- The old table has a number where we have evidence: one attempt for each, of which nothing more is known.
       coalesce((SELECT jsonb_agg(jsonb_build_object(
                     'outcome', CASE WHEN i < n.of OR o.status = 'pending' THEN 'retry' WHEN o.status = 'processing' THEN 'lease_expired' WHEN o.status = 'sent' THEN 'delivered' ELSE 'rejected' END,
                     'worker', 'outbox', 'finished_at', o.ended_at, 'code', 'imported') ORDER BY i)
                 FROM generate_series(1, n.of) i), '[]') AS attempts
FROM old o CROSS JOIN LATERAL (SELECT CASE o.status WHEN 'pending' THEN o.tries ELSE greatest(o.tries, 1) END AS of) n
-- What ended longer ago than dedupe keys are kept stays behind as history, unless it was enqueued here too.
WHERE o.status IN ('pending', 'processing')
   OR o.ended_at > now() - coalesce((SELECT s.dedupe_lifetime FROM posthouse.settings s), interval '1000 years')
   OR EXISTS (SELECT FROM posthouse.messages v WHERE v.id = o.id);

\ir move.sql
COMMIT;
