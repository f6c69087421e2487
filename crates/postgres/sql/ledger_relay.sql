-- The entry of a message: what is asked before a send, and what becomes of the entry when the message ends. The rules are those of the core, and a test
-- compares them. Which entry it is stands with the message's headers, under a name that nobody else may write.

-- The entry as it counts now: nothing, if it is past its retention, or was let go of before anything was done under it.
CREATE OR REPLACE FUNCTION posthouse.live_entry(p_tenant text, p_scope text, p_key text, p_now timestamptz) RETURNS posthouse.ledger
LANGUAGE plpgsql SET search_path = posthouse, pg_temp AS $$
DECLARE
    e ledger;
BEGIN
    SELECT l.* INTO e FROM ledger l WHERE l.tenant = p_tenant AND l.scope = p_scope AND l.key = p_key
      AND (l.status = 0 AND (l.lease_until > p_now OR l.lease_until IS NULL AND l.message IS NOT NULL) OR (l.expires_at <= p_now) IS NOT TRUE)
      AND NOT (l.status = 0 AND l.lease_until IS NULL AND l.message IS NULL AND l.checkpoint IS NULL);
    RETURN e;
END $$;

-- Under which entry a message is sent, as it stands with its headers; nothing, if that cannot be read: what somebody else has written there must be in nobody's way.
CREATE OR REPLACE FUNCTION posthouse.binding(p_headers jsonb) RETURNS jsonb
LANGUAGE plpgsql IMMUTABLE SET search_path = posthouse, pg_temp AS $$
DECLARE
    b jsonb;
BEGIN
    IF NOT p_headers ? 'posthouse-ledger' OR p_headers IS NULL THEN RETURN NULL; END IF;
    BEGIN
        b := (p_headers ->> 'posthouse-ledger')::jsonb;
    EXCEPTION WHEN data_exception THEN
        RETURN NULL;
    END;
    IF octet_length(b ->> 'scope') BETWEEN 1 AND 255 AND octet_length(b ->> 'key') BETWEEN 1 AND 255 AND b ->> 'fingerprint' ~ '^[0-9a-f]{64}$' THEN
        RETURN b;
    END IF;
    RETURN NULL;
END $$;

-- A message has an entry from now on, until it ends. What counted of the entry stays; p_was is that.
CREATE OR REPLACE FUNCTION posthouse.give_entry(m posthouse.message, p_binding jsonb, p_was posthouse.ledger, p_now timestamptz) RETURNS void
LANGUAGE sql SET search_path = posthouse, pg_temp AS $$
    INSERT INTO ledger AS l (tenant, scope, key, fingerprint, status, message, checkpoint, retention, created_at, updated_at)
    VALUES (m.tenant, p_binding ->> 'scope', p_binding ->> 'key', decode(p_binding ->> 'fingerprint', 'hex'), 0, m.id, (p_was).checkpoint,
            coalesce((p_was).retention, interval '24 hours'), coalesce((p_was).created_at, p_now), p_now)
    ON CONFLICT ON CONSTRAINT ledger_pkey DO UPDATE SET
        fingerprint = excluded.fingerprint, status = 0, token = NULL, lease_until = NULL, message = excluded.message, checkpoint = excluded.checkpoint,
        http_status = NULL, headers = NULL, result = NULL, result_digest = NULL, error = NULL, retention = excluded.retention,
        created_at = excluded.created_at, updated_at = excluded.updated_at, expires_at = NULL
$$;

-- Whether a message may be sent, by whoever holds it: `send`; `done`, with the answer, because it was done; `conflict`, because its key was used for something else;
-- or `wait`, for so many seconds. What has no entry in the ledger may.
CREATE OR REPLACE FUNCTION posthouse.ledger_clear(
    id uuid, lease_token uuid,
    OUT answer text, OUT retry_after double precision, OUT http_status int, OUT headers jsonb, OUT result bytea, OUT result_digest bytea, OUT error text)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = posthouse, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    m message;
    b jsonb;
    e ledger;
    t timestamptz;
BEGIN
    PERFORM check_lease(id, lease_token, '');
    SELECT q.* INTO m FROM message q WHERE q.id = ledger_clear.id;
    IF NOT FOUND THEN
        RAISE 'the lease on message % is lost', id USING ERRCODE = 'P7002', HINT = 'the message is gone';
    END IF;
    b := binding(m.headers);
    answer := 'send';
    IF b IS NULL THEN RETURN; END IF;
    FOR look IN 1..2 LOOP
        t := clock();
        e := live_entry(m.tenant, b ->> 'scope', b ->> 'key', t);
        IF e.status = 0 AND e.lease_until IS NULL AND e.message = m.id THEN
            RETURN;
        ELSIF e.fingerprint <> decode(b ->> 'fingerprint', 'hex') THEN
            answer := 'conflict';
            RETURN;
        ELSIF e.status = 1 THEN
            answer := 'done'; http_status := e.http_status; headers := e.headers; result := e.result; result_digest := e.result_digest; error := e.error;
            RETURN;
        ELSIF e.status = 0 AND e.lease_until > t THEN
            answer := 'wait'; retry_after := least(extract(epoch FROM e.lease_until - t), 60);
            RETURN;
        ELSIF e.status = 0 AND e.lease_until IS NULL AND e.message IS NOT NULL THEN
            -- Nobody knows how long that takes: the longer it has, the longer it may.
            answer := 'wait'; retry_after := least(greatest(extract(epoch FROM t - e.updated_at), 1), 60);
            RETURN;
        ELSIF e.status = 2 AND e.message = m.id THEN
            -- It was this one that failed it: whoever asks has lost his lease, or it would be open again.
            answer := 'wait'; retry_after := 0;
            RETURN;
        END IF;
        EXIT WHEN look = 2;
        -- It is free. Under its lock, and as the last one left it? Nor is it for who has lost his lease: nobody would ever end it. The lease stays as it is until this is
        -- committed, so that whoever ends the message finds it.
        IF is_in_hand(m.tenant, b ->> 'scope', b ->> 'key') THEN
            answer := 'wait'; retry_after := 0.05;
            RETURN;
        END IF;
        PERFORM FROM leased l WHERE l.seq = m.seq AND l.token = lease_token FOR SHARE SKIP LOCKED;
        IF NOT FOUND THEN
            PERFORM FROM lot l WHERE l.token = lease_token AND l.seqs @> m.seq FOR SHARE SKIP LOCKED;
            IF NOT FOUND THEN
                -- Somebody is just settling it, or others that stand with it; or it is lost.
                answer := 'wait';
                retry_after := CASE WHEN EXISTS (SELECT FROM leased l WHERE l.seq = m.seq AND l.token = lease_token) OR EXISTS (SELECT FROM lot l WHERE l.token = lease_token AND l.seqs @> m.seq) THEN 0.05 ELSE 0 END;
                RETURN;
            END IF;
        END IF;
    END LOOP;
    PERFORM give_entry(m, b, e, t);
END $$;

-- A message has ended. Its failure is that of the entry which it has, and of no other: whoever has it goes on, and what nobody has stays free. Its success counts also after a failure, and after
-- whoever held it meanwhile; but what succeeded is never taken back, and the entry of something else is not touched.
--
-- The entry that a message has is nobody else's to write, so it needs no lock but its row's: settlements and claims wait for no transaction of a holder, and take no place in the
-- server's table of locks. Only a success under an entry that the message does not have waits for whoever writes it.
CREATE OR REPLACE FUNCTION posthouse.end_entry(m posthouse.message, p_succeeded boolean, p_http_status int, p_headers jsonb, p_result bytea, p_digest bytea, p_error text) RETURNS void
LANGUAGE plpgsql SET search_path = posthouse, pg_temp AS $$
DECLARE
    b CONSTANT jsonb := binding(m.headers);
    e ledger;
    t timestamptz := clock();
BEGIN
    IF b IS NULL THEN RETURN; END IF;
    FOR look IN 1..2 LOOP
        UPDATE ledger l SET
            status = CASE WHEN p_succeeded THEN 1 ELSE 2 END, token = NULL, http_status = p_http_status, headers = p_headers, result = p_result, result_digest = p_digest, error = p_error,
            updated_at = t, expires_at = t + l.retention
        WHERE l.tenant = m.tenant AND l.scope = b ->> 'scope' AND l.key = b ->> 'key' AND l.status = 0 AND l.lease_until IS NULL AND l.message = m.id;
        IF FOUND OR NOT p_succeeded THEN RETURN; END IF;
        e := live_entry(m.tenant, b ->> 'scope', b ->> 'key', t);
        IF e.status = 1 OR e.fingerprint <> decode(b ->> 'fingerprint', 'hex') THEN RETURN; END IF;
        EXIT WHEN look = 2;
        -- Somebody else has it, or nobody: what he does just now comes first.
        PERFORM pg_advisory_xact_lock(entry_lock(m.tenant, b ->> 'scope', b ->> 'key'));
        PERFORM FROM ledger l WHERE l.tenant = m.tenant AND l.scope = b ->> 'scope' AND l.key = b ->> 'key' FOR UPDATE;
        t := clock();
    END LOOP;
    PERFORM give_entry(m, b, e, t);
    UPDATE ledger l SET
        status = 1, http_status = p_http_status, headers = p_headers, result = p_result, result_digest = p_digest, error = p_error, expires_at = t + l.retention
    WHERE l.tenant = m.tenant AND l.scope = b ->> 'scope' AND l.key = b ->> 'key';
END $$;

-- The same of a message that was delivered, and of whose answer there is only what was said about it.
CREATE OR REPLACE FUNCTION posthouse.end_entry_by_receipt(m posthouse.message, p_receipt text) RETURNS void
LANGUAGE sql SET search_path = posthouse, pg_temp AS $$
    SELECT end_entry(m, true, NULL, NULL, r.body, sha256(prefixed(r.body)), NULL) FROM (SELECT convert_to(coalesce(p_receipt, ''), 'UTF8') AS body) r
$$;

-- A message that failed its entry is tried again: it has the entry again.
CREATE OR REPLACE FUNCTION posthouse.reopen_entry(m posthouse.message) RETURNS void
LANGUAGE plpgsql SET search_path = posthouse, pg_temp AS $$
DECLARE
    b CONSTANT jsonb := binding(m.headers);
BEGIN
    IF b IS NULL THEN RETURN; END IF;
    UPDATE ledger l SET
        status = 0, token = NULL, lease_until = NULL, http_status = NULL, headers = NULL, result = NULL, result_digest = NULL, error = NULL, updated_at = clock(), expires_at = NULL
    WHERE l.tenant = m.tenant AND l.scope = b ->> 'scope' AND l.key = b ->> 'key' AND l.status = 2 AND l.message = m.id;
END $$;

-- With which status a service would tell how a message died.
CREATE OR REPLACE FUNCTION posthouse.status_of_death(p_reason int, p_code text) RETURNS int
LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN CASE
        WHEN p_code = 'IDEMPOTENCY_CONFLICT' THEN 409
        WHEN p_reason = 2 THEN CASE WHEN p_code ~ '^http_[45][0-9][0-9]$' THEN right(p_code, 3)::int ELSE 422 END
        WHEN p_reason = 3 THEN 410
        WHEN p_reason = 1 AND p_code LIKE '%timeout%' THEN 504
        ELSE 502 END;

-- Whatever makes a message dead ends its entry: a settlement, a lease that ran out, a deliver-by, an operator. Of the last attempt's words only those count that made it so.
CREATE OR REPLACE FUNCTION posthouse.entry_dies() RETURNS trigger
LANGUAGE plpgsql SET search_path = posthouse, pg_temp AS $$
DECLARE
    m message;
    a attempt;
BEGIN
    SELECT q.* INTO m FROM message q WHERE q.seq = NEW.seq AND q.headers ? 'posthouse-ledger';
    IF NOT FOUND THEN RETURN NULL; END IF;
    IF NEW.reason IN (1, 2, 4) THEN
        SELECT q.* INTO a FROM attempt q WHERE q.seq = NEW.seq AND q.epoch = NEW.epoch;
    END IF;
    PERFORM end_entry(m, false, status_of_death(NEW.reason, a.code), NULL, NULL, NULL, coalesce(a.error, a.code, reason_word(NEW.reason)));
    RETURN NULL;
END $$;
CREATE OR REPLACE TRIGGER entry_dies AFTER INSERT ON posthouse.dead FOR EACH ROW WHEN (NEW.reason <> 0) EXECUTE FUNCTION posthouse.entry_dies();

-- `settle`, where messages that are done have entries in the ledger (p_bound), with what is kept of their answers.
CREATE OR REPLACE FUNCTION posthouse.settle_bound(
    p_seq bigint[], p_token uuid[], p_epoch bigint[], p_outcome bigint[], p_next bigint[], p_reason bigint[], p_delay_ms bigint[],
    p_max_attempts bigint[], p_code text[], p_error text[], p_receipt text[], p_keeps bytea[], p_blocks boolean[],
    p_bound boolean[], p_http_status bigint[], p_headers text[], p_result bytea[], p_digest bytea[], p_kept boolean[])
RETURNS text[]
LANGUAGE plpgsql SECURITY DEFINER SET search_path = posthouse, pg_temp AS $$
DECLARE
    answers CONSTANT text[] := settle(p_seq, p_token, p_epoch, p_outcome, p_next, p_reason, p_delay_ms, p_max_attempts, p_code, p_error, p_receipt, p_keeps, p_blocks);
    m message;
BEGIN
    FOR i IN 1..cardinality(p_seq) LOOP
        CONTINUE WHEN NOT p_bound[i] OR p_next[i] <> 1 OR answers[i] <> 'settled';
        SELECT q.* INTO m FROM message q WHERE q.seq = p_seq[i];
        PERFORM end_entry(m, true, p_http_status[i]::int, p_headers[i]::jsonb, CASE WHEN p_kept[i] THEN p_result[i] END, p_digest[i], NULL);
    END LOOP;
    RETURN answers;
END $$;

-- Its holder leaves an entry to a message that his transaction has enqueued under it.
CREATE OR REPLACE FUNCTION posthouse.leave_in(p_key text[], p_token uuid[], p_message uuid[]) RETURNS text[]
LANGUAGE plpgsql SECURITY DEFINER SET search_path = posthouse, pg_temp AS $$
DECLARE
    e record;
BEGIN
    -- Any other would never end it.
    IF NOT EXISTS (SELECT FROM message m WHERE m.id = p_message[1] AND m.tenant = p_key[1] AND is_own(m.xmin, m.created_at) AND binding(m.headers) @> jsonb_build_object('scope', p_key[2], 'key', p_key[3])) THEN
        RAISE 'message_id: is not of a message that was enqueued under this entry' USING ERRCODE = 'P7006';
    END IF;
    SELECT h.* INTO e FROM held_entry(p_key[1], p_key[2], p_key[3], p_token[1]) h;
    IF NOT e.held THEN RETURN '{lost}'; END IF;
    UPDATE ledger l SET token = NULL, lease_until = NULL, message = p_message[1], updated_at = e.t, expires_at = NULL
    WHERE l.tenant = p_key[1] AND l.scope = p_key[2] AND l.key = p_key[3];
    RETURN '{done}';
END $$;
