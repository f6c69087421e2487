-- The ledger for other languages: the verbs of a holder, each in the caller's own transaction. Whoever has lost the entry, or has ended it before, is told P7002, which
-- ends the transaction: what was to go with it must not be committed.

CREATE OR REPLACE FUNCTION posthouse.check_hold(p_scope text, p_key text, p_token uuid, p_tenant text) RETURNS void
LANGUAGE plpgsql IMMUTABLE SET search_path = posthouse, pg_temp AS $$
BEGIN
    IF p_token IS NULL OR p_tenant IS NULL THEN
        RAISE '%: must not be NULL', CASE WHEN p_token IS NULL THEN 'token' ELSE 'tenant' END USING ERRCODE = 'P7006';
    END IF;
    PERFORM check_name('tenant', p_tenant, 0, 255), check_name('scope', coalesce(p_scope, ''), 1, 255), check_name('key', coalesce(p_key, ''), 1, 255);
END $$;

CREATE OR REPLACE FUNCTION posthouse.check_done(p_scope text, p_answer text) RETURNS void
LANGUAGE plpgsql IMMUTABLE SET search_path = posthouse, pg_temp AS $$
BEGIN
    IF p_answer <> 'done' THEN
        RAISE 'the hold on an entry of "%" is lost, or was ended before', p_scope USING ERRCODE = 'P7002', HINT = 'roll back, and begin again to be told how it ended';
    END IF;
END $$;

CREATE OR REPLACE FUNCTION posthouse.check_answer(p_http_status int, p_headers jsonb) RETURNS void
LANGUAGE plpgsql IMMUTABLE SET search_path = posthouse, pg_temp AS $$
BEGIN
    IF p_http_status NOT BETWEEN 100 AND 999 THEN
        RAISE 'http_status: must be between 100 and 999' USING ERRCODE = 'P7006';
    ELSIF jsonb_typeof(p_headers) <> 'object' OR p_headers @? '$.* ? (@.type() <> "string")' OR octet_length(p_headers::text) > 16384 THEN
        RAISE 'headers: must be a JSON object of texts, of at most 16384 bytes' USING ERRCODE = 'P7006';
    END IF;
END $$;

-- It is done. Of an answer with more than keep_bytes only the digest is kept.
CREATE OR REPLACE FUNCTION posthouse.ledger_finish(
    scope text, key text, token uuid, result bytea DEFAULT '', http_status int DEFAULT NULL, headers jsonb DEFAULT NULL, tenant text DEFAULT '', keep_bytes int DEFAULT 4096) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = posthouse, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    fits boolean;
BEGIN
    PERFORM check_hold(scope, key, token, tenant), check_answer(http_status, headers);
    IF result IS NULL THEN
        RAISE 'result: must not be NULL' USING ERRCODE = 'P7006';
    ELSIF keep_bytes IS NULL OR keep_bytes NOT BETWEEN 0 AND 16777216 THEN
        RAISE 'keep_bytes: must be between 0 and 16777216' USING ERRCODE = 'P7006';
    END IF;
    fits := octet_length(result) <= keep_bytes;
    PERFORM check_done(scope, conclude(tenant, scope, key, token, 1, http_status, CASE WHEN fits THEN nullif(headers, '{}') END, CASE WHEN fits THEN result END, sha256(prefixed(result)), NULL));
END $$;

-- It is not done: for good, and whoever asks again is told so; or, when it may be tried again, the key is free at once.
CREATE OR REPLACE FUNCTION posthouse.ledger_fail(
    scope text, key text, token uuid, error text DEFAULT NULL, retryable boolean DEFAULT false, http_status int DEFAULT NULL, tenant text DEFAULT '') RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = posthouse, pg_temp AS $$
#variable_conflict use_variable
BEGIN
    PERFORM check_hold(scope, key, token, tenant), check_answer(http_status, NULL);
    IF retryable IS NULL THEN
        RAISE 'retryable: must not be NULL' USING ERRCODE = 'P7006';
    END IF;
    PERFORM check_done(scope, conclude(tenant, scope, key, token, CASE WHEN retryable THEN 0 ELSE 2 END, CASE WHEN NOT retryable THEN http_status END, NULL, NULL, NULL, clean(error, 512)));
END $$;

-- He goes on for so long from now.
CREATE OR REPLACE FUNCTION posthouse.ledger_renew(scope text, key text, token uuid, lease_seconds double precision DEFAULT 30, tenant text DEFAULT '') RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = posthouse, pg_temp AS $$
#variable_conflict use_variable
BEGIN
    PERFORM check_hold(scope, key, token, tenant);
    IF lease_seconds IS NULL OR NOT (lease_seconds >= 0.001 AND lease_seconds <= 86400) THEN
        RAISE 'lease_seconds: must be between 0.001 and 86400' USING ERRCODE = 'P7006';
    END IF;
    PERFORM check_done(scope, (renew_entry(ARRAY[tenant, scope, key], ARRAY[token], ARRAY[(lease_seconds * 1000)::bigint]))[1]);
END $$;

-- He has come to a point from which another one could go on: the next holder is told the last.
CREATE OR REPLACE FUNCTION posthouse.ledger_checkpoint(scope text, key text, token uuid, name text, tenant text DEFAULT '') RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = posthouse, pg_temp AS $$
#variable_conflict use_variable
BEGIN
    PERFORM check_hold(scope, key, token, tenant), check_name('name', coalesce(name, ''), 1, 255);
    PERFORM check_done(scope, (reach_in(ARRAY[tenant, scope, key], ARRAY[token], ARRAY[name]))[1]);
END $$;

-- Enqueues a message under the entry, and leaves the entry to it: the key is busy until the message has ended, and its end is the entry's. Answers the message's id.
CREATE OR REPLACE FUNCTION posthouse.ledger_leave(
    scope text, key text, token uuid, topic text, payload jsonb, tenant text DEFAULT '', namespace text DEFAULT 'default', order_key text DEFAULT NULL, headers jsonb DEFAULT NULL,
    delay interval DEFAULT NULL, deliver_in interval DEFAULT NULL, max_attempts int DEFAULT NULL, on_dead text DEFAULT 'pass') RETURNS uuid
LANGUAGE plpgsql SECURITY DEFINER SET search_path = posthouse, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    own CONSTANT uuid := new_id();
    print bytea;
    body CONSTANT bytea := convert_to(payload::text, 'UTF8');
    bound jsonb;
BEGIN
    PERFORM check_hold(scope, key, token, tenant);
    PERFORM check_words('', 'refuse', on_dead, 'strict');
    IF headers ? 'posthouse-ledger' THEN
        RAISE 'headers: "posthouse-ledger" is reserved for the relay' USING ERRCODE = 'P7006';
    END IF;
    SELECT l.fingerprint INTO print FROM ledger l WHERE l.tenant = ledger_leave.tenant AND l.scope = ledger_leave.scope AND l.key = ledger_leave.key AND l.token = ledger_leave.token;
    IF NOT FOUND THEN PERFORM check_done(scope, 'lost'); END IF;
    bound := jsonb_build_object('scope', scope, 'key', key, 'fingerprint', encode(print, 'hex'));
    PERFORM write_messages(
        NULL, 'library', ARRAY[own], ARRAY[tenant], ARRAY[namespace], ARRAY[topic], ARRAY['application/json'], ARRAY[body], ARRAY[digest('application/json', body)],
        CASE WHEN order_key IS NOT NULL THEN ARRAY[order_key] END, NULL,
        ARRAY[(CASE WHEN jsonb_typeof(headers) <> 'object' THEN headers ELSE coalesce(headers, '{}') || jsonb_build_object('posthouse-ledger', bound::text) END)::text],
        CASE WHEN delay <> interval '0' THEN ARRAY[interval_ms(delay)] END,
        CASE WHEN deliver_in IS NOT NULL THEN ARRAY[interval_ms(deliver_in)] END,
        CASE WHEN max_attempts IS NOT NULL THEN ARRAY[max_attempts::bigint] END,
        ARRAY[on_dead = 'block'], NULL, NULL, NULL, NULL, NULL, false);
    PERFORM check_done(scope, (leave_in(ARRAY[tenant, scope, key], ARRAY[token], ARRAY[own]))[1]);
    RETURN own;
END $$;

-- Whether a consumer has this message for the first time, in the transaction of whatever it does then.
CREATE OR REPLACE FUNCTION posthouse.inbox_once(consumer text, message_id uuid) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = posthouse, pg_temp AS $$
#variable_conflict use_variable
BEGIN
    PERFORM check_name('consumer', coalesce(consumer, ''), 1, 255);
    IF message_id IS NULL THEN
        RAISE 'message_id: must not be NULL' USING ERRCODE = 'P7006';
    END IF;
    RETURN (once_in(ARRAY[consumer], ARRAY[message_id]))[1] = 'first';
END $$;
