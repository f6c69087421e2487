-- The ledger: the record under which an effect is done once. The rules are those of the core, and a test compares them.
--
-- Whoever writes an entry has its lock until commit, and whoever begins does not wait for that: somebody else is at it just now.

-- Without a path of its own, so that it costs no call: whoever asks has ours.
CREATE OR REPLACE FUNCTION posthouse.entry_lock(tenant text, scope text, key text) RETURNS bigint
LANGUAGE sql STABLE PARALLEL SAFE
    RETURN hashtextextended(tenant || E'\x1f' || scope || E'\x1f' || key, 2) # hashtextextended(current_schema(), 3);

-- Whether somebody has an entry in hand; if not, it is locked from now on. Nobody is waited for, also not who is just removing what is past its retention.
CREATE OR REPLACE FUNCTION posthouse.is_in_hand(p_tenant text, p_scope text, p_key text) RETURNS boolean
LANGUAGE plpgsql SET search_path = posthouse, pg_temp AS $$
BEGIN
    IF NOT pg_try_advisory_xact_lock(entry_lock(p_tenant, p_scope, p_key)) THEN RETURN true; END IF;
    PERFORM FROM ledger l WHERE l.tenant = p_tenant AND l.scope = p_scope AND l.key = p_key FOR UPDATE SKIP LOCKED;
    RETURN NOT FOUND AND EXISTS (SELECT FROM ledger l WHERE l.tenant = p_tenant AND l.scope = p_scope AND l.key = p_key);
END $$;

-- Begins. `answer` is acquired, replay, busy, failed or mismatch.
CREATE OR REPLACE FUNCTION posthouse.ledger_begin(
    scope text, key text, fingerprint bytea, tenant text DEFAULT '', lease_seconds double precision DEFAULT 30, retention_seconds double precision DEFAULT 86400,
    OUT answer text, OUT token uuid, OUT taken_over boolean, OUT checkpoint text, OUT retry_after double precision,
    OUT http_status int, OUT headers jsonb, OUT result bytea, OUT result_digest bytea, OUT error text)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = posthouse, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    t timestamptz := clock();
    e ledger;
    there boolean;
    held boolean;
    let_go boolean;
    lease interval;
    retention interval;
BEGIN
    IF tenant IS NULL THEN RAISE 'tenant: must not be NULL' USING ERRCODE = 'P7006'; END IF;
    PERFORM check_name('tenant', tenant, 0, 255), check_name('scope', coalesce(scope, ''), 1, 255), check_name('key', coalesce(key, ''), 1, 255);
    IF fingerprint IS NULL OR octet_length(fingerprint) <> 32 THEN
        RAISE 'fingerprint: must have 32 bytes' USING ERRCODE = 'P7006';
    ELSIF lease_seconds IS NULL OR NOT (lease_seconds >= 0.001 AND lease_seconds <= 86400) THEN
        RAISE 'lease_seconds: must be between 0.001 and 86400' USING ERRCODE = 'P7006';
    ELSIF retention_seconds IS NULL OR NOT (retention_seconds >= 0 AND retention_seconds <= 316224000) THEN
        RAISE 'retention_seconds: must be between 0 and ten years' USING ERRCODE = 'P7006';
    END IF;
    lease := make_interval(secs => lease_seconds);
    retention := make_interval(secs => retention_seconds);
    FOR look IN 1..3 LOOP
        SELECT l.* INTO e FROM ledger l WHERE l.tenant = ledger_begin.tenant AND l.scope = ledger_begin.scope AND l.key = ledger_begin.key;
        there := FOUND;
        held := coalesce(e.status = 0 AND (e.lease_until > t OR e.lease_until IS NULL AND e.message IS NOT NULL), false);
        IF there AND NOT held AND e.expires_at <= t THEN there := false; END IF;
        let_go := there AND e.status = 0 AND e.lease_until IS NULL AND e.message IS NULL;
        IF let_go AND e.checkpoint IS NULL THEN there := false; END IF;
        IF there AND e.fingerprint <> ledger_begin.fingerprint THEN
            answer := 'mismatch';
            RETURN;
        ELSIF there AND e.status <> 0 THEN
            answer := CASE e.status WHEN 1 THEN 'replay' ELSE 'failed' END;
            http_status := e.http_status; headers := e.headers; result := e.result; result_digest := e.result_digest; error := e.error;
            RETURN;
        ELSIF there AND held THEN
            answer := 'busy';
            retry_after := coalesce(extract(epoch FROM e.lease_until - t), 1);
            RETURN;
        END IF;
        EXIT WHEN look = 3 OR look = 2 AND e.tenant IS NOT NULL;
        -- It is free. Under its lock, and as the last one left it?
        IF (CASE WHEN e.tenant IS NULL THEN NOT pg_try_advisory_xact_lock(entry_lock(tenant, scope, key)) ELSE is_in_hand(tenant, scope, key) END) THEN
            answer := 'busy';
            retry_after := 0.05;
            RETURN;
        END IF;
        t := clock();
        CONTINUE WHEN e.tenant IS NOT NULL;
        -- Where nothing was, whoever inserts it has it.
        token := gen_random_uuid();
        INSERT INTO ledger (tenant, scope, key, fingerprint, status, token, lease_until, retention, created_at, updated_at, expires_at)
        VALUES (tenant, scope, key, fingerprint, 0, token, t + lease, retention, t, t, t + lease + retention) ON CONFLICT DO NOTHING;
        IF FOUND THEN
            answer := 'acquired';
            taken_over := false;
            RETURN;
        END IF;
        token := NULL;
    END LOOP;
    answer := 'acquired';
    token := gen_random_uuid();
    taken_over := there AND NOT let_go;
    checkpoint := CASE WHEN there THEN e.checkpoint END;
    INSERT INTO ledger AS l (tenant, scope, key, fingerprint, status, token, lease_until, checkpoint, retention, created_at, updated_at, expires_at)
    VALUES (tenant, scope, key, fingerprint, 0, token, t + lease, checkpoint, retention, t, t, t + lease + retention)
    ON CONFLICT ON CONSTRAINT ledger_pkey DO UPDATE SET
        fingerprint = excluded.fingerprint, status = 0, token = excluded.token, lease_until = excluded.lease_until, message = NULL, checkpoint = excluded.checkpoint,
        http_status = NULL, headers = NULL, result = NULL, result_digest = NULL, error = NULL, retention = excluded.retention,
        created_at = CASE WHEN there THEN l.created_at ELSE excluded.created_at END, updated_at = excluded.updated_at, expires_at = excluded.expires_at;
END $$;

-- What this token holds, under the lock of the entry until commit; the deadline is judged after that. Without a token it holds nothing.
CREATE OR REPLACE FUNCTION posthouse.held_entry(p_tenant text, p_scope text, p_key text, p_token uuid, OUT held boolean, OUT checkpoint text, OUT t timestamptz)
LANGUAGE plpgsql SET search_path = posthouse, pg_temp AS $$
BEGIN
    PERFORM pg_advisory_xact_lock(entry_lock(p_tenant, p_scope, p_key));
    t := clock();
    SELECT l.status = 0 AND (l.lease_until > t) IS TRUE, l.checkpoint INTO held, checkpoint
    FROM ledger l WHERE l.tenant = p_tenant AND l.scope = p_scope AND l.key = p_key AND l.token = p_token
    -- Nobody prunes it meanwhile.
    FOR UPDATE;
    held := coalesce(held, false);
END $$;

-- Its holder ends it: as succeeded (1), as failed (2), or by letting go of it (0). It is done; or he said so before; or it is lost, and nothing was changed. The deadline is judged
-- under the lock of the entry, which whoever writes it has until commit.
CREATE OR REPLACE FUNCTION posthouse.conclude(
    p_tenant text, p_scope text, p_key text, p_token uuid, p_status int, p_http_status int, p_headers jsonb, p_result bytea, p_digest bytea, p_error text) RETURNS text
LANGUAGE plpgsql SET search_path = posthouse, pg_temp AS $$
DECLARE
    t timestamptz;
    e ledger;
BEGIN
    PERFORM pg_advisory_xact_lock(entry_lock(p_tenant, p_scope, p_key));
    t := clock();
    UPDATE ledger l SET
        status = p_status, lease_until = NULL, http_status = p_http_status, headers = p_headers, result = p_result, result_digest = p_digest, error = p_error,
        updated_at = t, expires_at = t + l.retention
    WHERE l.tenant = p_tenant AND l.scope = p_scope AND l.key = p_key AND l.token = p_token AND l.status = 0 AND l.lease_until > t;
    IF FOUND THEN RETURN 'done'; END IF;
    SELECT l.* INTO e FROM ledger l WHERE l.tenant = p_tenant AND l.scope = p_scope AND l.key = p_key AND l.token = p_token;
    RETURN CASE WHEN e.status = p_status AND (p_status <> 0 OR e.lease_until IS NULL AND e.message IS NULL) THEN 'before' ELSE 'lost' END;
END $$;

-- The verbs of the library. Each takes its key as {tenant, scope, key}, and answers {done}, {before} or {lost}.
CREATE OR REPLACE FUNCTION posthouse.conclude_in(p_key text[], p_token uuid[], p_numbers bigint[], p_texts text[], p_result bytea[], p_digest bytea[]) RETURNS text[]
LANGUAGE plpgsql SECURITY DEFINER SET search_path = posthouse, pg_temp AS $$
BEGIN
    RETURN ARRAY[conclude(p_key[1], p_key[2], p_key[3], p_token[1], p_numbers[1]::int, p_numbers[2]::int, p_texts[1]::jsonb, p_result[1], p_digest[1], p_texts[2])];
END $$;

CREATE OR REPLACE FUNCTION posthouse.renew_entry(p_key text[], p_token uuid[], p_lease_ms bigint[]) RETURNS text[]
LANGUAGE plpgsql SECURITY DEFINER SET search_path = posthouse, pg_temp AS $$
DECLARE
    e record;
    until timestamptz;
BEGIN
    SELECT h.* INTO e FROM held_entry(p_key[1], p_key[2], p_key[3], p_token[1]) h;
    IF NOT e.held THEN RETURN '{lost}'; END IF;
    until := e.t + p_lease_ms[1] * interval '1 millisecond';
    UPDATE ledger l SET lease_until = until, updated_at = e.t, expires_at = until + l.retention WHERE l.tenant = p_key[1] AND l.scope = p_key[2] AND l.key = p_key[3];
    RETURN '{done}';
END $$;

CREATE OR REPLACE FUNCTION posthouse.reach_in(p_key text[], p_token uuid[], p_checkpoint text[]) RETURNS text[]
LANGUAGE plpgsql SECURITY DEFINER SET search_path = posthouse, pg_temp AS $$
DECLARE
    e record;
BEGIN
    PERFORM check_name('checkpoint', coalesce(p_checkpoint[1], ''), 1, 255);
    SELECT h.* INTO e FROM held_entry(p_key[1], p_key[2], p_key[3], p_token[1]) h;
    IF NOT e.held THEN RETURN '{lost}'; END IF;
    IF e.checkpoint = p_checkpoint[1] THEN RETURN '{before}'; END IF;
    UPDATE ledger l SET checkpoint = p_checkpoint[1], updated_at = e.t WHERE l.tenant = p_key[1] AND l.scope = p_key[2] AND l.key = p_key[3];
    RETURN '{done}';
END $$;

-- Whether a consumer has this message for the first time. Waits for another transaction in which it does.
CREATE OR REPLACE FUNCTION posthouse.once_in(p_consumer text[], p_message uuid[]) RETURNS text[]
LANGUAGE plpgsql SECURITY DEFINER SET search_path = posthouse, pg_temp AS $$
BEGIN
    PERFORM check_name('consumer', coalesce(p_consumer[1], ''), 1, 255);
    INSERT INTO inbox (consumer, message, at) VALUES (p_consumer[1], p_message[1], clock()) ON CONFLICT DO NOTHING;
    RETURN CASE WHEN FOUND THEN '{first}' ELSE '{again}' END;
END $$;

-- Entries past their retention, at most so many: none that somebody holds, or has in hand.
CREATE OR REPLACE FUNCTION posthouse.prune_entries(p_limit int) RETURNS bigint
LANGUAGE plpgsql SET search_path = posthouse, pg_temp AS $$
DECLARE
    t CONSTANT timestamptz := clock();
    gone bigint;
BEGIN
    DELETE FROM ledger l WHERE l.ctid = ANY (ARRAY(
        SELECT l.ctid FROM ledger l WHERE l.expires_at <= t AND NOT (l.status = 0 AND (l.lease_until > t) IS TRUE)
        ORDER BY l.expires_at LIMIT p_limit FOR UPDATE SKIP LOCKED));
    GET DIAGNOSTICS gone = ROW_COUNT;
    RETURN gone;
END $$;

-- What consumers had until then, of messages that nobody can deliver again, at most so many.
CREATE OR REPLACE FUNCTION posthouse.prune_inbox(p_until timestamptz, p_limit int) RETURNS bigint
LANGUAGE plpgsql SET search_path = posthouse, pg_temp AS $$
DECLARE
    gone bigint;
BEGIN
    DELETE FROM inbox i WHERE i.ctid = ANY (ARRAY(
        SELECT i.c FROM (SELECT i.ctid AS c, i.message FROM inbox i WHERE i.at <= p_until ORDER BY i.at LIMIT 10 * p_limit::bigint FOR UPDATE SKIP LOCKED) i
        WHERE NOT EXISTS (SELECT FROM message m WHERE m.id = i.message) LIMIT p_limit));
    GET DIAGNOSTICS gone = ROW_COUNT;
    RETURN gone;
END $$;
