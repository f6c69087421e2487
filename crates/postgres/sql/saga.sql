-- Sagas. What becomes of one is decided by the library; these functions perform it, for whoever knows the revision on which it was decided. A saga is locked
-- before any lease, and several by id, so that nobody waits in a circle.

-- Enqueues those of these messages that belong to what has won. The lists are those of enqueue_many; p_of says to which each message belongs.
CREATE OR REPLACE FUNCTION posthouse.saga_send(
    p_won bigint[], p_of bigint[], p_id uuid[], p_tenant text[], p_namespace text[], p_topic text[], p_content_type text[], p_payload bytea[], p_digest bytea[],
    p_order_key text[], p_dedupe_key text[], p_headers text[], p_delay_ms bigint[], p_deliver_ms bigint[], p_max_attempts bigint[],
    p_block boolean[], p_keep boolean[], p_relaxed boolean[], p_kind bigint[], p_parent uuid[], p_destination text[])
RETURNS void
LANGUAGE plpgsql SET search_path = posthouse, pg_temp AS $$
DECLARE
    w CONSTANT int[] := ARRAY(SELECT o FROM unnest(p_of) WITH ORDINALITY u(item, o) WHERE u.item = ANY (p_won) ORDER BY o);
BEGIN
    IF w = '{}' THEN RETURN; END IF;
    IF cardinality(w) < cardinality(p_id) THEN
        SELECT array_agg(p_id[o] ORDER BY k), array_agg(p_tenant[o] ORDER BY k), array_agg(p_namespace[o] ORDER BY k), array_agg(p_topic[o] ORDER BY k),
               array_agg(p_content_type[o] ORDER BY k), array_agg(p_payload[o] ORDER BY k), array_agg(p_digest[o] ORDER BY k), array_agg(p_headers[o] ORDER BY k),
               array_agg(p_delay_ms[o] ORDER BY k), CASE WHEN count(p_deliver_ms[o]) > 0 THEN array_agg(p_deliver_ms[o] ORDER BY k) END, array_agg(p_max_attempts[o] ORDER BY k), array_agg(p_relaxed[o] ORDER BY k), array_agg(p_kind[o] ORDER BY k),
               array_agg(p_parent[o] ORDER BY k)
        INTO p_id, p_tenant, p_namespace, p_topic, p_content_type, p_payload, p_digest, p_headers, p_delay_ms, p_deliver_ms, p_max_attempts, p_relaxed, p_kind, p_parent
        FROM unnest(w) WITH ORDINALITY u(o, k);
    END IF;
    -- Their ids were made for them, so nobody else has them; and they have no keys.
    PERFORM write_messages(NULL, 'saga', p_id, p_tenant, p_namespace, p_topic, p_content_type, p_payload, p_digest, NULL, NULL, p_headers, p_delay_ms, p_deliver_ms, p_max_attempts,
                         NULL, NULL, p_relaxed, p_kind, p_parent, NULL, false);
END $$;

-- Refuses a start that the library would not make (P7006): a producer that may start sagas must not be able to send a step of another saga, nor to write a
-- row that lists cannot show. The arguments are those of saga_start.
CREATE OR REPLACE FUNCTION posthouse.check_start(
    p_saga uuid[], p_text text[], p_version bigint[], p_hash bytea[], p_carrier uuid[], p_log_what text[], p_log_step text[], p_log_detail text[],
    p_of bigint[], p_id uuid[], p_tenant text[], p_namespace text[], p_order_key text[], p_dedupe_key text[], p_headers text[], p_kind bigint[], p_parent uuid[], p_destination text[])
RETURNS void
LANGUAGE plpgsql STABLE SET search_path = posthouse, pg_temp AS $$
DECLARE
    names CONSTANT text[] := '{namespace,tenant,name,key,definition,state,reason,snapshot}';
    ticket jsonb;
BEGIN
    IF array_dims(p_saga) <> '[1:1]' OR p_saga[1] IS NULL OR p_saga IS NULL THEN
        RAISE 'id: must be one UUID' USING ERRCODE = 'P7006';
    ELSIF array_dims(p_text) <> '[1:8]' OR p_text IS NULL THEN
        RAISE 'text: must have 8 elements: %', array_to_string(names, ', ') USING ERRCODE = 'P7006';
    END IF;
    FOR at IN 1..8 LOOP
        IF p_text[at] IS NULL AND at <> 7 THEN
            RAISE '%: must not be NULL', names[at] USING ERRCODE = 'P7006';
        ELSIF at <= 4 THEN
            PERFORM check_name(names[at], p_text[at], CASE at WHEN 2 THEN 0 ELSE 1 END, 255);
        ELSIF at IN (5, 8) THEN
            BEGIN
                IF json_typeof(p_text[at]::json) <> 'object' THEN
                    RAISE '%: is not a JSON object', names[at] USING ERRCODE = 'P7006';
                END IF;
            EXCEPTION WHEN data_exception THEN
                RAISE '%: is not JSON', names[at] USING ERRCODE = 'P7006';
            END;
        END IF;
    END LOOP;
    IF p_text[6] NOT IN ('running', 'compensating', 'held', 'completed', 'compensated', 'abandoned') THEN
        RAISE 'state: "%" is no state of a saga', left(p_text[6], 64) USING ERRCODE = 'P7006';
    ELSIF p_text[7] NOT IN ('unknown', 'retries_exhausted', 'rejected', 'compensation_failed', 'operator', 'no_handler', 'output') THEN
        RAISE 'reason: "%" is no reason for which a saga is held', left(p_text[7], 64) USING ERRCODE = 'P7006';
    ELSIF p_version[1] NOT BETWEEN 1 AND 2147483647 OR p_version[1] IS NULL THEN
        RAISE 'version: must be between 1 and 2147483647' USING ERRCODE = 'P7006';
    ELSIF octet_length(p_hash[1]) <> 32 OR octet_length(p_hash[2]) <> 32 OR p_hash[1] IS NULL OR p_hash[2] IS NULL THEN
        RAISE 'hash: must be two hashes of 32 bytes, of the definition and of the input' USING ERRCODE = 'P7006';
    ELSIF NOT p_carrier <@ p_id OR p_carrier IS NULL OR p_id IS NULL OR array_position(p_carrier, NULL) IS NOT NULL THEN
        RAISE 'messages: those that are under way for the saga must be among those that are sent with it' USING ERRCODE = 'P7006';
    ELSIF cardinality(p_of) <> cardinality(p_id) OR p_of IS NULL OR 1 <> ANY (p_of) OR array_position(p_of, NULL) IS NOT NULL THEN
        RAISE 'messages: each must be of the first saga' USING ERRCODE = 'P7006';
    ELSIF cardinality(p_log_step) <> cardinality(p_log_what) OR cardinality(p_log_detail) <> cardinality(p_log_what) OR array_position(p_log_what, NULL) IS NOT NULL
          OR array_position(p_log_detail, NULL) IS NOT NULL OR p_log_what IS NULL OR p_log_step IS NULL OR p_log_detail IS NULL THEN
        RAISE 'log: must be as many steps and details as things that happened, none of these NULL' USING ERRCODE = 'P7006';
    END IF;
    FOR at IN 1..cardinality(p_id) LOOP
        IF p_parent[at] <> p_saga[1] OR p_parent[at] IS NULL THEN
            RAISE 'parent: each message of a start must be of the saga that is started' USING ERRCODE = 'P7006';
        ELSIF p_kind[at] NOT IN (2, 4) THEN
            RAISE 'kind: a saga starts with steps (2) and timers (4)' USING ERRCODE = 'P7006';
        ELSIF p_namespace[at] <> p_text[1] OR p_tenant[at] <> p_text[2] THEN
            RAISE '%: each message of a start must have that of the saga', CASE WHEN p_namespace[at] <> p_text[1] THEN 'namespace' ELSE 'tenant' END USING ERRCODE = 'P7006';
        ELSIF p_order_key[at] IS NOT NULL OR p_dedupe_key[at] IS NOT NULL OR p_destination[at] IS NOT NULL THEN
            RAISE 'messages: those of a saga have no order_key, dedupe_key or destination' USING ERRCODE = 'P7006';
        END IF;
        BEGIN
            ticket := (p_headers[at]::jsonb ->> 'posthouse-step')::jsonb;
        EXCEPTION WHEN data_exception THEN
            RAISE 'headers: "posthouse-step" is not JSON' USING ERRCODE = 'P7006';
        END;
        -- The key by which a participant knows the step begins with the saga's id.
        IF p_kind[at] = 2 AND ticket IS NULL OR (starts_with(ticket ->> 'key', p_saga[1]::text || ':') AND ticket ->> 'saga' = p_text[3]) IS NOT TRUE AND ticket IS NOT NULL THEN
            RAISE 'headers: "posthouse-step" must be of the saga that is started' USING ERRCODE = 'P7006';
        END IF;
    END LOOP;
END $$;

-- How long until these times (milliseconds since 1970) by the store's clock, or NULL if there are none. The messages of a change say when they lapse, not how long that is
-- away: a change is written later than it was decided on, and a deadline does not move by that.
CREATE OR REPLACE FUNCTION posthouse.ms_until(p_times bigint[]) RETURNS bigint[]
LANGUAGE plpgsql SET search_path = posthouse, pg_temp AS $$
DECLARE
    now_ms CONSTANT numeric := extract(epoch FROM clock()) * 1000;
BEGIN
    RETURN CASE WHEN p_times IS NOT NULL THEN ARRAY(SELECT floor(u.at - now_ms)::bigint FROM unnest(p_times) WITH ORDINALITY u(at, o) ORDER BY u.o) END;
END $$;

-- Starts a saga in the caller's transaction, unless its key is taken. p_text: namespace, tenant, name, key, definition, state, reason, snapshot. p_hash: of
-- the definition, of the input. Answers {new}, {existing, id}, {mismatch, id} or {version}: the definition is known with another content.
CREATE OR REPLACE FUNCTION posthouse.saga_start(
    p_saga uuid[], p_text text[], p_version bigint[], p_hash bytea[], p_carrier uuid[], p_log_what text[], p_log_step text[], p_log_detail text[],
    p_of bigint[], p_id uuid[], p_tenant text[], p_namespace text[], p_topic text[], p_content_type text[], p_payload bytea[], p_digest bytea[],
    p_order_key text[], p_dedupe_key text[], p_headers text[], p_delay_ms bigint[], p_deliver_ms bigint[], p_max_attempts bigint[],
    p_block boolean[], p_keep boolean[], p_relaxed boolean[], p_kind bigint[], p_parent uuid[], p_destination text[])
RETURNS text[]
LANGUAGE plpgsql SECURITY DEFINER SET search_path = posthouse, pg_temp AS $$
#variable_conflict use_column
DECLARE
    t CONSTANT timestamptz := clock();
    d saga_definition;
    s saga;
    number bigint;
BEGIN
    PERFORM check_start(p_saga, p_text, p_version, p_hash, p_carrier, p_log_what, p_log_step, p_log_detail, p_of, p_id, p_tenant, p_namespace, p_order_key, p_dedupe_key,
                        p_headers, p_kind, p_parent, p_destination);
    IF p_text[2] = '' AND (SELECT x.require_tenant FROM settings x) THEN
        RAISE 'tenant: is empty, and this store requires one' USING ERRCODE = 'P7006';
    END IF;
    -- Insert or find, in two statements: one alone would answer nothing when a rival commits in between.
    FOR look IN 1..2 LOOP
        SELECT x.* INTO d FROM saga_definition x WHERE x.namespace = p_text[1] AND x.name = p_text[3] AND x.version = p_version[1];
        EXIT WHEN FOUND OR look = 2;
        -- A saga of another version may have the key.
        SELECT x.* INTO s FROM saga x WHERE x.namespace = p_text[1] AND x.tenant = p_text[2] AND x.name = p_text[3] AND x.key = p_text[4];
        EXIT WHEN FOUND;
        INSERT INTO saga_definition (namespace, name, version, hash, body) VALUES (p_text[1], p_text[3], p_version[1], p_hash[1], p_text[5]) ON CONFLICT DO NOTHING;
    END LOOP;
    IF d.n IS NOT NULL AND d.hash = p_hash[1] THEN
        INSERT INTO saga (id, revision, created_at, updated_at, definition, lines, paused, state, reason, namespace, tenant, name, key, digest, carriers, snapshot)
        VALUES (p_saga[1], 1, t, t, d.n, cardinality(p_log_what), false, p_text[6], p_text[7], p_text[1], p_text[2], p_text[3], p_text[4], p_hash[2], p_carrier, p_text[8])
        ON CONFLICT (namespace, tenant, name, key) DO NOTHING
        RETURNING seq INTO number;
    END IF;
    IF number IS NULL THEN
        SELECT x.* INTO s FROM saga x WHERE x.namespace = p_text[1] AND x.tenant = p_text[2] AND x.name = p_text[3] AND x.key = p_text[4];
        IF s.id IS NOT NULL THEN
            RETURN ARRAY[CASE WHEN s.digest = p_hash[2] THEN 'existing' ELSE 'mismatch' END, s.id::text];
        END IF;
        IF d.hash <> p_hash[1] THEN RETURN '{version}'; END IF;
        RAISE 'a saga of the same key was removed at this moment' USING ERRCODE = '40001';
    END IF;
    INSERT INTO saga_log (saga, n, at, revision, actor, what, step, detail)
    SELECT number, l.o, t, 1, 'start', l.what, l.step, l.detail FROM unnest(p_log_what, p_log_step, p_log_detail) WITH ORDINALITY l(what, step, detail, o);
    PERFORM saga_send('{1}', p_of, p_id, p_tenant, p_namespace, p_topic, p_content_type, p_payload, p_digest, p_order_key, p_dedupe_key, p_headers, p_delay_ms, p_deliver_ms,
                      p_max_attempts, p_block, p_keep, p_relaxed, p_kind, p_parent, p_destination);
    RETURN '{new}';
END $$;

-- Sagas as they are, with where their messages stand; and what the store allows.
CREATE OR REPLACE FUNCTION posthouse.saga_load(p_saga uuid[])
RETURNS TABLE (o bigint, id uuid, seq bigint, namespace text, tenant text, name text, version int, key text, state text, reason text, paused boolean, revision bigint,
               created_at timestamptz, updated_at timestamptz, finished_at timestamptz, body text, snapshot text,
               message uuid[], standing text[], epoch bigint[], attempts bigint[], now timestamptz, payload_bytes int)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = posthouse, pg_temp
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off AS $$
#variable_conflict use_column
DECLARE
    t CONSTANT timestamptz := clock();
    limits settings;
BEGIN
    SELECT * INTO limits FROM settings;
    RETURN QUERY
    SELECT i.o, s.id, s.seq, s.namespace, s.tenant, s.name, d.version, s.key, s.state, s.reason, s.paused, s.revision, s.created_at, s.updated_at, s.finished_at,
           d.body, s.snapshot, l.message, l.standing, l.epoch, l.attempts, t, limits.payload_bytes
    FROM unnest(p_saga) WITH ORDINALITY i(id, o)
    CROSS JOIN LATERAL (SELECT s.* FROM saga s WHERE s.id = i.id OFFSET 0) s
    CROSS JOIN LATERAL (SELECT d.version, d.body FROM saga_definition d WHERE d.n = s.definition OFFSET 0) d
    CROSS JOIN LATERAL (
        SELECT array_agg(m.id) AS message, array_agg(v.state) AS standing, array_agg(v.epoch::bigint) AS epoch, array_agg(v.attempts::bigint) AS attempts
        FROM unnest(s.carriers) c
        CROSS JOIN LATERAL (SELECT m.id, m.seq FROM message m WHERE m.id = c OFFSET 0) m
        CROSS JOIN LATERAL (SELECT v.state, v.epoch, v.attempts FROM live v WHERE v.seq = m.seq OFFSET 0) v) l;
END $$;

-- Takes messages back, if each stands as it stood; else none of them. What somebody just claims is waited for, and then it does not.
CREATE OR REPLACE FUNCTION posthouse.saga_withdraw(p_id uuid[], p_epoch bigint[]) RETURNS boolean
LANGUAGE plpgsql SET search_path = posthouse, pg_temp
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off AS $$
#variable_conflict use_column
DECLARE
    w record;
    v record;
BEGIN
    FOR w IN SELECT m.seq, i.epoch FROM unnest(p_id, p_epoch) i(id, epoch) LEFT JOIN LATERAL (SELECT m.seq FROM message m WHERE m.id = i.id OFFSET 0) m ON true ORDER BY m.seq LOOP
        SELECT l.* INTO v FROM live l WHERE l.seq = w.seq;
        IF NOT FOUND OR v.epoch <> w.epoch OR v.state NOT IN ('pending', 'dead', 'quarantined') THEN
            RAISE EXCEPTION 'stale' USING ERRCODE = 'P7012';
        END IF;
        CASE v.place
            WHEN 'ready' THEN DELETE FROM ready x WHERE x.ctid = v.c AND x.seq = v.seq AND x.epoch = v.epoch;
            WHEN 'sched' THEN DELETE FROM sched x WHERE x.ctid = v.c AND x.seq = v.seq AND x.epoch = v.epoch;
            WHEN 'parked' THEN DELETE FROM parked x WHERE x.ctid = v.c AND x.seq = v.seq AND x.epoch = v.epoch;
            ELSE DELETE FROM dead x WHERE x.ctid = v.c AND x.seq = v.seq AND x.epoch = v.epoch;
        END CASE;
        IF NOT FOUND THEN
            RAISE EXCEPTION 'stale' USING ERRCODE = 'P7012';
        END IF;
        INSERT INTO resolved (seq, at, epoch, attempts, generation, max_attempts) VALUES (v.seq, clock(), v.epoch, v.attempts, v.generation, v.max_attempts);
    END LOOP;
    RETURN true;
EXCEPTION WHEN SQLSTATE 'P7012' THEN
    RETURN false;
END $$;

-- Which of these are still as they were decided on: the numbers of those that are. Locks the sagas, and takes back what is to be taken back. Of several of
-- one saga only the first.
CREATE OR REPLACE FUNCTION posthouse.saga_stands(p_asked bigint[], p_saga uuid[], p_revision bigint[], p_back_of bigint[], p_back uuid[], p_back_epoch bigint[]) RETURNS bigint[]
LANGUAGE plpgsql SET search_path = posthouse, pg_temp
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off AS $$
#variable_conflict use_column
DECLARE
    fresh bigint[];
    w record;
BEGIN
    fresh := ARRAY(
        SELECT min(a) FROM unnest(p_asked) a CROSS JOIN LATERAL (SELECT s.id FROM saga s WHERE s.id = p_saga[a] AND s.revision = p_revision[a] OFFSET 0) s GROUP BY s.id);
    FOR w IN SELECT b.item, array_agg(b.id) AS ids, array_agg(b.epoch) AS epochs FROM unnest(p_back_of, p_back, p_back_epoch) b(item, id, epoch) WHERE b.item = ANY (fresh) GROUP BY 1 ORDER BY 1 LOOP
        IF NOT saga_withdraw(w.ids, w.epochs) THEN fresh := array_remove(fresh, w.item); END IF;
    END LOOP;
    RETURN fresh;
END $$;

-- Writes what was decided, for those that have won. The lists are joined by hashing, and taken apart once: looked up one by one they cost as much as all the
-- rest. The saga itself is found through a list of one, which cannot be hashed.
CREATE OR REPLACE FUNCTION posthouse.saga_write(
    p_won bigint[], p_saga uuid[], p_state text[], p_why text[], p_paused boolean[], p_ended boolean[], p_snapshot text[], p_actor text[], p_audit text[], p_audit_note text[],
    p_carrier_of bigint[], p_carrier uuid[], p_log_of bigint[], p_log_what text[], p_log_step text[], p_log_detail text[])
RETURNS void
LANGUAGE plpgsql SET search_path = posthouse, pg_temp
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = on SET enable_mergejoin = off SET jit = off AS $$
#variable_conflict use_column
DECLARE
    t CONSTANT timestamptz := clock();
BEGIN
    WITH c AS MATERIALIZED (SELECT c.item, array_agg(c.id) AS ids FROM unnest(p_carrier_of, p_carrier) c(item, id) GROUP BY c.item),
    l AS MATERIALIZED (
        SELECT l.item, l.what, l.step, l.detail, row_number() OVER (PARTITION BY l.item ORDER BY l.k DESC) - 1 AS behind, count(*) OVER (PARTITION BY l.item) AS n
        FROM unnest(p_log_of, p_log_what, p_log_step, p_log_detail) WITH ORDINALITY l(item, what, step, detail, k)),
    i AS MATERIALIZED (
        SELECT i.*, coalesce(c.ids, '{}') AS carriers, coalesce(l.n, 0) AS lines
        FROM unnest(p_saga, p_state, p_why, p_paused, p_ended, p_snapshot, p_actor) WITH ORDINALITY i(saga, state, why, paused, ended, snapshot, actor, o)
        JOIN unnest(p_won) w(o) ON w.o = i.o
        LEFT JOIN c ON c.item = i.o
        LEFT JOIN l ON l.item = i.o AND l.behind = 0),
    u AS (
        UPDATE saga s SET
            revision = s.revision + 1, updated_at = t, finished_at = CASE WHEN i.ended THEN coalesce(s.finished_at, t) END, state = i.state, reason = i.why,
            paused = i.paused, snapshot = i.snapshot, carriers = i.carriers, lines = s.lines + i.lines
        FROM i WHERE s.id = ANY (ARRAY[i.saga])
        RETURNING s.seq, s.revision, s.lines, i.o, i.actor)
    INSERT INTO saga_log (saga, n, at, revision, actor, what, step, detail)
    SELECT u.seq, u.lines - l.behind, t, u.revision, u.actor, l.what, l.step, l.detail FROM u JOIN l ON l.item = u.o;
    INSERT INTO audit (at, message_id, actor, action, note)
    SELECT t, p_saga[w.o], p_actor[w.o], p_audit[w.o], coalesce(p_audit_note[w.o], '') FROM unnest(p_won) w(o) WHERE p_audit[w.o] IS NOT NULL;
END $$;

-- Ends leases on messages of sagas: `settle`, with what becomes of the sagas, and what is sent next. p_deliver_ms holds times (`ms_until`). Answers for each: settled, repeated, lost or stale.
CREATE OR REPLACE FUNCTION posthouse.saga_settle(
    p_seq bigint[], p_token uuid[], p_epoch bigint[], p_outcome bigint[], p_next bigint[], p_reason bigint[], p_delay bigint[],
    p_budget bigint[], p_code text[], p_error text[], p_receipt text[], p_keeps bytea[], p_blocks boolean[],
    p_saga uuid[], p_revision bigint[], p_state text[], p_why text[], p_paused boolean[], p_ended boolean[], p_snapshot text[], p_actor text[], p_audit text[], p_audit_note text[],
    p_carrier_of bigint[], p_carrier uuid[], p_back_of bigint[], p_back uuid[], p_back_epoch bigint[], p_log_of bigint[], p_log_what text[], p_log_step text[], p_log_detail text[],
    p_of bigint[], p_id uuid[], p_tenant text[], p_namespace text[], p_topic text[], p_content_type text[], p_payload bytea[], p_digest bytea[],
    p_order_key text[], p_dedupe_key text[], p_headers text[], p_delay_ms bigint[], p_deliver_ms bigint[], p_max_attempts bigint[],
    p_block boolean[], p_keep boolean[], p_relaxed boolean[], p_kind bigint[], p_parent uuid[], p_destination text[])
RETURNS text[]
LANGUAGE plpgsql SECURITY DEFINER SET search_path = posthouse, pg_temp
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off AS $$
#variable_conflict use_column
DECLARE
    n CONSTANT int := cardinality(p_seq);
    t timestamptz;
    held bigint[];
    fresh bigint[];
    go bigint[];
    won bigint[];
    answers text[];
BEGIN
    PERFORM FROM saga s WHERE s.id = ANY (p_saga) ORDER BY s.id FOR UPDATE;
    PERFORM open_lots(p_seq, p_token, 6 = ANY (p_outcome));
    t := clock();
    -- Who has lost his lease is told so, whatever became of the saga. What ran out is left to whoever has it locked.
    held := ARRAY(
        SELECT i.o FROM unnest(p_seq, p_token, p_outcome) WITH ORDINALITY i(seq, token, outcome, o)
        CROSS JOIN LATERAL (SELECT l.until FROM leased l WHERE l.seq = i.seq AND l.token = i.token OFFSET 0) l
        WHERE CASE WHEN i.outcome = 6 THEN l.until <= t ELSE l.until > t END);
    fresh := saga_stands(held, p_saga, p_revision, p_back_of, p_back, p_back_epoch);
    go := ARRAY(SELECT o FROM generate_series(1, n) o WHERE o <> ALL (held) OR o = ANY (fresh) ORDER BY p_seq[o]);
    IF go <> '{}' THEN
        answers := settle(
            ARRAY(SELECT p_seq[o] FROM unnest(go) o), ARRAY(SELECT p_token[o] FROM unnest(go) o), ARRAY(SELECT p_epoch[o] FROM unnest(go) o),
            ARRAY(SELECT p_outcome[o] FROM unnest(go) o), ARRAY(SELECT p_next[o] FROM unnest(go) o), ARRAY(SELECT p_reason[o] FROM unnest(go) o),
            ARRAY(SELECT p_delay[o] FROM unnest(go) o), ARRAY(SELECT p_budget[o] FROM unnest(go) o), ARRAY(SELECT p_code[o] FROM unnest(go) o),
            ARRAY(SELECT p_error[o] FROM unnest(go) o), ARRAY(SELECT p_receipt[o] FROM unnest(go) o), NULL, ARRAY(SELECT p_blocks[o] FROM unnest(go) o));
    END IF;
    won := ARRAY(SELECT go[k] FROM generate_series(1, cardinality(go)) k WHERE answers[k] = 'settled');
    -- What was taken back for one that has not won must not stay so; nor has one won whose saga nobody looked at, because its lease was renewed in this moment.
    IF EXISTS (SELECT FROM unnest(p_back_of) b WHERE b = ANY (fresh) AND b <> ALL (won)) OR EXISTS (SELECT FROM unnest(won) w WHERE w <> ALL (fresh)) THEN
        RAISE 'a lease was lost while its saga was being written' USING ERRCODE = 'P7010';
    END IF;
    PERFORM saga_write(won, p_saga, p_state, p_why, p_paused, p_ended, p_snapshot, p_actor, p_audit, p_audit_note, p_carrier_of, p_carrier, p_log_of, p_log_what, p_log_step, p_log_detail);
    PERFORM saga_send(won, p_of, p_id, p_tenant, p_namespace, p_topic, p_content_type, p_payload, p_digest, p_order_key, p_dedupe_key, p_headers, p_delay_ms, ms_until(p_deliver_ms),
                      p_max_attempts, p_block, p_keep, p_relaxed, p_kind, p_parent, p_destination);
    RETURN ARRAY(SELECT coalesce(answers[array_position(go, o::bigint)], 'stale') FROM generate_series(1, n) o ORDER BY o);
END $$;

-- Changes one saga without a settlement: for an operator's verb, or for an answer after its lease. p_deliver_ms holds times (`ms_until`). Answers {settled} or {stale}.
CREATE OR REPLACE FUNCTION posthouse.saga_change(
    p_saga uuid[], p_revision bigint[], p_state text[], p_why text[], p_paused boolean[], p_ended boolean[], p_snapshot text[], p_actor text[], p_audit text[], p_audit_note text[],
    p_carrier_of bigint[], p_carrier uuid[], p_back_of bigint[], p_back uuid[], p_back_epoch bigint[], p_log_of bigint[], p_log_what text[], p_log_step text[], p_log_detail text[],
    p_of bigint[], p_id uuid[], p_tenant text[], p_namespace text[], p_topic text[], p_content_type text[], p_payload bytea[], p_digest bytea[],
    p_order_key text[], p_dedupe_key text[], p_headers text[], p_delay_ms bigint[], p_deliver_ms bigint[], p_max_attempts bigint[],
    p_block boolean[], p_keep boolean[], p_relaxed boolean[], p_kind bigint[], p_parent uuid[], p_destination text[])
RETURNS text[]
LANGUAGE plpgsql SECURITY DEFINER SET search_path = posthouse, pg_temp AS $$
BEGIN
    PERFORM FROM saga s WHERE s.id = ANY (p_saga) ORDER BY s.id FOR UPDATE;
    IF saga_stands('{1}', p_saga, p_revision, p_back_of, p_back, p_back_epoch) = '{}' THEN RETURN '{stale}'; END IF;
    PERFORM saga_write('{1}', p_saga, p_state, p_why, p_paused, p_ended, p_snapshot, p_actor, p_audit, p_audit_note, p_carrier_of, p_carrier, p_log_of, p_log_what, p_log_step, p_log_detail);
    PERFORM saga_send('{1}', p_of, p_id, p_tenant, p_namespace, p_topic, p_content_type, p_payload, p_digest, p_order_key, p_dedupe_key, p_headers, p_delay_ms, ms_until(p_deliver_ms),
                      p_max_attempts, p_block, p_keep, p_relaxed, p_kind, p_parent, p_destination);
    RETURN '{settled}';
END $$;

-- Sagas as operators see them. Neither their input nor what steps answered is part of it.
CREATE OR REPLACE VIEW posthouse.sagas AS
    SELECT s.id, s.seq, s.namespace, s.tenant, s.name, d.version, s.key, s.state, s.reason, s.paused, s.revision, s.created_at, s.updated_at, s.finished_at
    FROM posthouse.saga s JOIN posthouse.saga_definition d ON d.n = s.definition;

-- Their logs.
CREATE OR REPLACE VIEW posthouse.saga_history AS
    SELECT s.id AS saga, l.n, l.revision, l.at, l.actor, l.what, l.step, l.detail FROM posthouse.saga_log l JOIN posthouse.saga s ON s.seq = l.saga;

-- Whether a dead letter is there because a saga waits for a person: it stays for as long as that does.
CREATE OR REPLACE FUNCTION posthouse.is_held_for_saga(p_seq bigint) RETURNS boolean
LANGUAGE plpgsql STABLE SET search_path = posthouse, pg_temp AS $$
BEGIN
    RETURN EXISTS (
        SELECT FROM message m JOIN saga s ON s.id = m.parent
        WHERE m.seq = p_seq AND m.kind >= 2 AND s.finished_at IS NULL AND m.id = ANY (s.carriers));
END $$;

-- Removes sagas that ended at the cutoff or before, with their logs; at most p_most.
CREATE OR REPLACE FUNCTION posthouse.prune_sagas(p_cutoff timestamptz, p_most int) RETURNS bigint
LANGUAGE plpgsql SET search_path = posthouse, pg_temp AS $$
#variable_conflict use_column
DECLARE
    over CONSTANT bigint[] := ARRAY(SELECT s.seq FROM saga s WHERE s.finished_at <= p_cutoff ORDER BY s.finished_at LIMIT p_most FOR UPDATE SKIP LOCKED);
BEGIN
    DELETE FROM saga_log l WHERE l.saga = ANY (over);
    DELETE FROM saga s WHERE s.seq = ANY (over);
    RETURN cardinality(over);
END $$;

-- A step comes to a participant, or is to be undone, in the caller's transaction. Waits for another in which it does. Answers {first}, {before} or {undone};
-- of an undoing {now}, {before} or {never}.
CREATE OR REPLACE FUNCTION posthouse.step_once(p_consumer text[], p_key text[], p_undo boolean[]) RETURNS text[]
LANGUAGE plpgsql SECURITY DEFINER SET search_path = posthouse, pg_temp AS $$
DECLARE
    known boolean;
BEGIN
    INSERT INTO step (consumer, key, undone, at) VALUES (p_consumer[1], p_key[1], p_undo[1], clock()) ON CONFLICT DO NOTHING;
    IF FOUND THEN RETURN CASE WHEN p_undo[1] THEN '{never}' ELSE '{first}' END; END IF;
    SELECT s.undone INTO known FROM step s WHERE s.consumer = p_consumer[1] AND s.key = p_key[1] FOR UPDATE;
    IF NOT FOUND THEN RAISE 'what was known of the step was removed at this moment' USING ERRCODE = '40001'; END IF;
    IF NOT p_undo[1] THEN RETURN CASE WHEN known THEN '{undone}' ELSE '{before}' END; END IF;
    IF known THEN RETURN '{before}'; END IF;
    -- It is remembered from now on, as long as anything is.
    UPDATE step s SET undone = true, at = clock() WHERE s.consumer = p_consumer[1] AND s.key = p_key[1];
    RETURN '{now}';
END $$;

-- The same for participants in any language: whether to do a step that comes under this key. first: do it; before: it was done; undone: refuse it.
CREATE OR REPLACE FUNCTION posthouse.inbox_do_once(consumer text, key text) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = posthouse, pg_temp AS $$
BEGIN
    PERFORM check_step(consumer, key);
    RETURN (step_once(ARRAY[consumer], ARRAY[key], '{f}'))[1];
END $$;

-- Whether to undo a step that is done under this key. now: undo it; before: it was undone; never: it did not come, and is refused if it does.
CREATE OR REPLACE FUNCTION posthouse.inbox_undo_once(consumer text, key text) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = posthouse, pg_temp AS $$
BEGIN
    PERFORM check_step(consumer, key);
    RETURN (step_once(ARRAY[consumer], ARRAY[key], '{t}'))[1];
END $$;

CREATE OR REPLACE FUNCTION posthouse.check_step(p_consumer text, p_key text) RETURNS void
LANGUAGE plpgsql IMMUTABLE SET search_path = posthouse, pg_temp AS $$
BEGIN
    IF p_consumer IS NULL OR p_key IS NULL THEN
        RAISE '%: must not be NULL', CASE WHEN p_consumer IS NULL THEN 'consumer' ELSE 'key' END USING ERRCODE = 'P7006';
    END IF;
    PERFORM check_name('consumer', p_consumer, 1, 255);
    PERFORM check_name('key', p_key, 1, 255);
END $$;

-- Removes what participants heard of at the cutoff or before; at most p_most.
CREATE OR REPLACE FUNCTION posthouse.prune_steps(p_cutoff timestamptz, p_most int) RETURNS bigint
LANGUAGE plpgsql SET search_path = posthouse, pg_temp AS $$
DECLARE
    gone bigint;
BEGIN
    DELETE FROM step s WHERE s.ctid = ANY (ARRAY(SELECT q.ctid FROM step q WHERE q.at <= p_cutoff ORDER BY q.at LIMIT p_most FOR UPDATE SKIP LOCKED));
    GET DIAGNOSTICS gone = ROW_COUNT;
    RETURN gone;
END $$;
