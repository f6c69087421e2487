-- For migrations from another outbox (docs/migrating.md).

CREATE OR REPLACE FUNCTION posthouse.time_field(p_in text, p_object jsonb, p_field text) RETURNS timestamptz
LANGUAGE plpgsql STABLE SET search_path = posthouse, pg_temp AS $$
DECLARE
    t timestamptz;
BEGIN
    IF p_object -> p_field IS NULL THEN RETURN NULL; END IF;
    t := text_field(p_in, p_object, p_field)::timestamptz;
    IF isfinite(t) IS NOT FALSE THEN RETURN t; END IF;
    RAISE '%: must be finite', p_in || p_field USING ERRCODE = 'P7006';
EXCEPTION WHEN data_exception THEN
    RAISE '%: is not a time; write it as in "2030-01-31T12:00:00Z"', p_in || p_field USING ERRCODE = 'P7006';
END $$;

-- One attempt that another outbox made, checked. Clocks of applications differ a little: what ended after now ended now, and nothing
-- began after its end. Without a beginning, it began when it ended.
CREATE OR REPLACE FUNCTION posthouse.read_attempt(
    p_at bigint, p_attempt jsonb, p_now timestamptz,
    OUT outcome smallint, OUT worker text, OUT started_at timestamptz, OUT finished_at timestamptz, OUT code text, OUT error text, OUT receipt text)
LANGUAGE plpgsql STABLE SET search_path = posthouse, pg_temp AS $$
DECLARE
    known CONSTANT text[] := ARRAY['outcome', 'worker', 'started_at', 'finished_at', 'code', 'error', 'receipt'];
    inside CONSTANT text := format('attempts[%s].', p_at);
BEGIN
    PERFORM check_fields('attempts', p_at, p_attempt, known);
    outcome := CASE text_field(inside, p_attempt, 'outcome') WHEN 'delivered' THEN 1 WHEN 'duplicate' THEN 2 WHEN 'retry' THEN 4 WHEN 'rejected' THEN 5 WHEN 'lease_expired' THEN 6 END;
    IF outcome IS NULL THEN
        RAISE '%outcome: must be delivered, duplicate, retry, rejected or lease_expired', inside USING ERRCODE = 'P7006';
    END IF;
    finished_at := time_field(inside, p_attempt, 'finished_at');
    IF finished_at IS NULL THEN
        RAISE '%finished_at: must not be NULL', inside USING ERRCODE = 'P7006';
    END IF;
    finished_at := least(finished_at, p_now);
    started_at := least(time_field(inside, p_attempt, 'started_at'), finished_at);
    worker := coalesce(text_field(inside, p_attempt, 'worker'), 'unknown');
    PERFORM check_name(inside || 'worker', worker, 1, 255);
    code := clean(text_field(inside, p_attempt, 'code'), 64);
    error := clean(text_field(inside, p_attempt, 'error'), 512);
    receipt := clean_receipt(text_field(inside, p_attempt, 'receipt'));
END $$;

-- Whether this very transaction enqueued a message that it sees: who wrote it has not ended, and only we see what we have not
-- committed. Asked only for what was made since we began: of an older one the number may have been used twice.
CREATE OR REPLACE FUNCTION posthouse.is_own(p_xmin xid, p_created_at timestamptz) RETURNS boolean
LANGUAGE sql VOLATILE SET search_path = posthouse, pg_temp AS $$
    SELECT CASE WHEN p_created_at < now() OR o.ahead > 2147483647 THEN false ELSE pg_xact_status((o.own + o.ahead)::text::xid8) = 'in progress' END
    -- Numbers of 32 bits go round, those of 64 do not. Ours is the first, and those of our savepoints come after it.
    FROM (SELECT c.own, (p_xmin::text::bigint - c.own) & 4294967295 AS ahead FROM (SELECT pg_current_xact_id()::text::bigint AS own) c) o
$$;

-- Takes out a message that was enqueued in this transaction. Nobody else has seen it, so no lock on its key is needed: a migration has
-- more keys than the server has locks.
CREATE OR REPLACE FUNCTION posthouse.take_own(m posthouse.message, OUT message posthouse.message, OUT pos bigint, OUT max_attempts smallint, OUT blocks boolean, OUT blocking boolean)
LANGUAGE plpgsql SET search_path = posthouse, pg_temp AS $$
#variable_conflict use_column
BEGIN
    take_own.message := m; take_own.blocks := false;
    IF m.order_key IS NOT NULL THEN
        DELETE FROM keyed k WHERE k.lane = lane(m.namespace, m.tenant) AND k.key_hash = key_hash(m.namespace, m.tenant, m.order_key) AND k.key = m.order_key AND k.pos = m.seq
        RETURNING k.pos, k.max_attempts, k.blocks INTO take_own.pos, take_own.max_attempts, take_own.blocks;
    ELSE
        WITH s AS (DELETE FROM sched s WHERE s.seq = m.seq RETURNING s.max_attempts),
             r AS (DELETE FROM ready r WHERE r.lane = lane(m.namespace, m.tenant) AND r.pos = m.seq AND r.pos = r.seq RETURNING r.max_attempts),
             w AS (DELETE FROM ready r WHERE r.seq = m.seq AND r.pos <> r.seq RETURNING r.max_attempts)
        SELECT x.max_attempts INTO take_own.max_attempts FROM (TABLE s UNION ALL TABLE r UNION ALL TABLE w) x;
    END IF;
    take_own.blocking := take_own.blocks;
END $$;

-- Notes that a message is older than its number says: lists by time rely on numbers and times that rise together. Ten thousand numbers
-- at once, so that a large import does not write the one record again for each message.
CREATE OR REPLACE FUNCTION posthouse.note_import(p_seq bigint) RETURNS void
LANGUAGE sql SET search_path = posthouse, pg_temp AS $$
    UPDATE settings s SET imported_from = least(s.imported_from, p_seq), imported_to = greatest(s.imported_to, p_seq + 10000)
    WHERE s.imported_from IS NULL OR p_seq NOT BETWEEN s.imported_from AND s.imported_to
$$;

-- Gives a message the past that it had in another outbox: when it was created, when it is due, and the attempts that were made there, in
-- order. Only one that is pending and was never claimed here can have it; any other is left as it is, so that a migration can be run
-- again. Answers its state now.
--
-- It is done if any attempt delivered it, dead if the last one was rejected, and else pending, with at least one attempt left: nothing
-- dies of being moved.
CREATE OR REPLACE FUNCTION posthouse.import_history(
    id uuid, actor text, attempts jsonb DEFAULT '[]', created_at timestamptz DEFAULT NULL, due_at timestamptz DEFAULT NULL)
RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = posthouse, pg_temp
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off AS $$
#variable_conflict use_column
DECLARE
    t CONSTANT timestamptz := clock();
    v record;
    x record;
    m message;
    n CONSTANT int := jsonb_array_length(CASE jsonb_typeof(import_history.attempts) WHEN 'array' THEN import_history.attempts END);
    budget smallint;
    outcomes smallint[];
    ended timestamptz;
    due timestamptz;
BEGIN
    IF n IS NULL THEN
        RAISE 'attempts: is not a JSON array' USING ERRCODE = 'P7006';
    ELSIF n > 1000 THEN
        RAISE 'attempts: has % elements, at most 1000 are allowed', n USING ERRCODE = 'P7006';
    ELSIF NOT isfinite(import_history.created_at) THEN
        RAISE 'created_at: must be finite' USING ERRCODE = 'P7006';
    ELSIF import_history.due_at > t + interval '3660 days' THEN
        RAISE 'due_at: must be at most ten years from now' USING ERRCODE = 'P7006';
    END IF;
    PERFORM pg_current_xact_id();
    SELECT q.state, q.epoch INTO v FROM messages q WHERE q.id = import_history.id;
    IF v.state <> 'pending' OR v.epoch > 0 THEN RETURN v.state; END IF;
    SELECT q.* INTO m FROM message q WHERE q.id = import_history.id AND is_own(q.xmin, q.created_at);
    IF FOUND THEN
        SELECT * INTO x FROM take_own(m);
    ELSE
        -- It refuses what is not there, or moved meanwhile.
        SELECT * INTO x FROM take_out(import_history.id, 'import', actor, ARRAY['pending']);
    END IF;
    budget := greatest(x.max_attempts, n + 1);
    IF import_history.created_at < (x.message).created_at THEN
        PERFORM note_import((x.message).seq);
    END IF;
    UPDATE message q SET created_at = least(q.created_at, import_history.created_at) WHERE q.seq = (x.message).seq RETURNING q.* INTO m;
    WITH a AS (
        INSERT INTO attempt (seq, started_at, finished_at, token, epoch, generation, attempt, outcome, max_attempts, worker, code, error, receipt)
        SELECT m.seq, g.started_at, g.finished_at, gen_random_uuid(), e.o, 1, e.o, g.outcome, budget, g.worker, g.code, g.error, g.receipt
        FROM jsonb_array_elements(import_history.attempts) WITH ORDINALITY e(attempt, o) CROSS JOIN LATERAL read_attempt(e.o - 1, e.attempt, t) g
        RETURNING attempt.epoch, attempt.outcome, attempt.finished_at)
    SELECT array_agg(a.outcome ORDER BY a.epoch), max(a.finished_at) INTO outcomes, ended FROM a;
    due := greatest(coalesce(import_history.due_at, t), m.created_at);
    IF outcomes && ARRAY[1, 2]::smallint[] THEN
        v.state := 'done';
        PERFORM end_entry_by_receipt(m, (SELECT a.receipt FROM attempt a WHERE a.seq = m.seq AND a.outcome IN (1, 2) ORDER BY a.epoch LIMIT 1));
    ELSIF outcomes[n] = 5 THEN
        v.state := 'dead';
        IF x.blocking THEN
            PERFORM put_keyed(m, x.pos, 'infinity', NULL, n, n, 1, budget, x.blocks);
        END IF;
        INSERT INTO dead (seq, at, epoch, attempts, generation, max_attempts, reason, on_dead, blocking)
        VALUES (m.seq, ended, n, n, 1, budget, 2, x.blocks, x.blocking);
    ELSIF m.order_key IS NOT NULL THEN
        PERFORM put_keyed(m, x.pos, due, m.deliver_by, n, n, 1, budget, x.blocks);
    ELSIF due <= t THEN
        INSERT INTO ready (lane, pos, seq, due_at, deliver_by, epoch, attempts, bytes, max_attempts)
        VALUES (lane(m.namespace, m.tenant), nextval('message_seq_seq'), m.seq, due, m.deliver_by, n, n, octet_length(m.payload), budget);
    ELSE
        INSERT INTO sched (seq, due_at, lane, deliver_by, epoch, attempts, bytes, max_attempts)
        VALUES (m.seq, due, lane(m.namespace, m.tenant), m.deliver_by, n, n, octet_length(m.payload), budget);
    END IF;
    IF n > 0 THEN
        PERFORM write_audit(m.id, actor, 'import', format('%s attempts of another outbox; %s', n, v.state));
    END IF;
    PERFORM ring(t);
    RETURN v.state;
END $$;
