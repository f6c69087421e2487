-- The second half of from_*.sql: moves what is in the temporary table `moving`, and compares before and after. Nothing to change here.

-- What was moved, by its old name. It makes a second run harmless, whatever has happened to the messages meanwhile; and the way
-- back needs it. Drop it with the old tables.
SET LOCAL client_min_messages = warning;
CREATE TABLE IF NOT EXISTS outbox_moved (
    source     text NOT NULL,
    old_id     text NOT NULL,
    message_id uuid NOT NULL,
    -- pending, in flight, sent, failed; merged: another row with the same dedupe key stands for it.
    fate       text NOT NULL,
    -- How many of the message's attempts both sides know.
    attempts   int NOT NULL,
    moved_at   timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (source, old_id)
);

ALTER TABLE moving ADD COLUMN again boolean, ADD COLUMN here boolean;
UPDATE moving m SET
    again = EXISTS (SELECT FROM outbox_moved d WHERE d.source = m.source AND d.old_id = m.old_id),
    here = EXISTS (SELECT FROM posthouse.messages v WHERE v.id = m.id);
ANALYZE moving;

-- Messages of a key are sent in the order of their arrival here, so nothing may be there before what comes first.
DO $$
DECLARE
    r record;
BEGIN
    SELECT m.old_id, b.id, b.order_key INTO r FROM moving m
    JOIN posthouse.backlog b ON b.namespace = m.namespace AND b.tenant = m.tenant AND b.order_key = m.order_key
    WHERE m.fate IN ('pending', 'in flight') AND NOT m.again AND NOT m.here
      AND NOT EXISTS (SELECT FROM moving e WHERE e.id = b.id AND e.place < m.place) LIMIT 1;
    IF FOUND THEN
        RAISE 'nothing was moved; old row % of the order key % would come after message %, which is here already', r.old_id, r.order_key, r.id
            USING HINT = 'let the old relay send what is older than the first message here, then stop it and run this again';
    END IF;
END $$;

DO $$
DECLARE
    r record;
    made uuid;
    state text;
    expected text;
    problem text; said text; detail text; hint text;
BEGIN
    -- What was sent first: a row that repeats it must find it done. What failed last: a row that repeats it is a new try.
    FOR r IN SELECT * FROM moving m WHERE NOT m.again ORDER BY CASE m.fate WHEN 'sent' THEN 1 WHEN 'failed' THEN 3 ELSE 2 END, m.place LOOP
        made := posthouse.enqueue_bytes(
            r.topic, r.payload, r.content_type, tenant => r.tenant, namespace => r.namespace, order_key => r.order_key, dedupe_key => r.dedupe_key,
            headers => r.headers, id => r.id, ordering => 'relaxed');
        IF made = r.id THEN
            state := posthouse.import_history(r.id, 'import from ' || r.source, r.attempts, r.created_at, r.due_at);
        ELSE
            SELECT v.state INTO state FROM posthouse.messages v WHERE v.id = made;
        END IF;
        expected := CASE r.fate WHEN 'sent' THEN 'done' WHEN 'failed' THEN 'dead' ELSE 'pending' END;
        IF state <> expected AND (made = r.id OR r.fate = 'sent') THEN
            RAISE 'it is %, but message % is %', r.fate, made, state
                USING HINT = 'no relay may work on a message before it is moved; and whoever enqueues on both sides uses the same id';
        END IF;
        INSERT INTO outbox_moved (source, old_id, message_id, fate, attempts)
        VALUES (r.source, r.old_id, made, CASE WHEN made = r.id THEN r.fate ELSE 'merged' END, CASE WHEN made = r.id THEN jsonb_array_length(r.attempts) ELSE 0 END);
    END LOOP;
EXCEPTION WHEN OTHERS THEN
    -- Which row it was is what one needs to know.
    GET STACKED DIAGNOSTICS problem = RETURNED_SQLSTATE, said = MESSAGE_TEXT, detail = PG_EXCEPTION_DETAIL, hint = PG_EXCEPTION_HINT;
    RAISE 'nothing was moved; old row %: %', r.old_id, said USING ERRCODE = problem,
        DETAIL = coalesce(nullif(detail, ''), format('fate %s, topic %s, dedupe_key %s', r.fate, r.topic, r.dedupe_key)),
        HINT = coalesce(nullif(hint, ''), 'correct the row, or how it is read, and run this again');
END $$;

-- Before and after.
CREATE TEMP TABLE compared ON COMMIT DROP AS
SELECT m.fate, count(*) AS old_rows, count(*) FILTER (WHERE m.again) AS moved_before, count(*) FILTER (WHERE d.old_id IS NOT NULL AND NOT m.again) AS moved_now,
       count(*) FILTER (WHERE NOT m.again AND d.fate = 'merged') AS merged,
       coalesce(sum(jsonb_array_length(m.attempts)) FILTER (WHERE NOT m.again AND d.fate <> 'merged'), 0) AS old_attempts,
       coalesce(sum(a.n) FILTER (WHERE NOT m.again AND d.fate <> 'merged'), 0) AS attempts_here
FROM moving m
LEFT JOIN outbox_moved d ON d.source = m.source AND d.old_id = m.old_id
LEFT JOIN LATERAL (SELECT count(*) AS n FROM posthouse.attempts a WHERE a.message_id = d.message_id) a ON true
GROUP BY m.fate;

DO $$
BEGIN
    IF EXISTS (SELECT FROM compared c WHERE c.old_rows <> c.moved_before + c.moved_now OR c.old_attempts <> c.attempts_here) THEN
        RAISE 'before and after differ; nothing was moved: %', (SELECT string_agg(c::text, ' ') FROM compared c);
    END IF;
END $$;

SELECT * FROM compared ORDER BY fate;
