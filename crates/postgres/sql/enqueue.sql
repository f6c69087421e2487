-- Refuses what no store may accept, naming the field. The Rust library refuses the same before it sends anything.
CREATE OR REPLACE FUNCTION posthouse.check_name(p_field text, p_value text, p_least int, p_most int) RETURNS void
LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    IF p_value IS NULL THEN RETURN; END IF;
    IF octet_length(p_value) < p_least THEN
        RAISE '%: is empty', p_field USING ERRCODE = 'P7006';
    ELSIF octet_length(p_value) > p_most THEN
        RAISE '%: has % bytes, at most % are allowed', p_field, octet_length(p_value), p_most USING ERRCODE = 'P7006';
    ELSIF p_value ~ '[\x01-\x1f\x7f-\x9f]' THEN
        RAISE '%: holds a control character', p_field USING ERRCODE = 'P7006';
    END IF;
END $$;

CREATE OR REPLACE FUNCTION posthouse.check_headers(p_headers jsonb) RETURNS void
LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
    h record;
BEGIN
    IF p_headers IS NULL THEN RETURN; END IF;
    IF jsonb_typeof(p_headers) <> 'object' THEN
        RAISE 'headers: is not a JSON object of texts' USING ERRCODE = 'P7006';
    END IF;
    IF (SELECT count(*) FROM jsonb_object_keys(p_headers)) > 64 THEN
        RAISE 'headers: at most 64 are allowed' USING ERRCODE = 'P7006';
    END IF;
    FOR h IN SELECT e.key, e.value, e.value #>> '{}' AS text FROM jsonb_each(p_headers) e LOOP
        IF h.key !~ '^[A-Za-z0-9!#$%&''*+.^_`|~-]{1,255}$' THEN
            RAISE 'headers: "%" is not a header name', left(h.key, 64) USING ERRCODE = 'P7006';
        ELSIF lower(h.key) ~ '^(posthouse-|webhook-)' OR lower(h.key) IN ('content-type', 'content-length', 'host', 'authorization', 'idempotency-key') THEN
            RAISE 'headers: "%" is reserved for the relay', h.key USING ERRCODE = 'P7006';
        ELSIF jsonb_typeof(h.value) <> 'string' OR octet_length(h.text) > 4096 OR h.text ~ '[\x01-\x08\x0a-\x1f\x7f-\x9f]' THEN
            RAISE 'headers: the value of "%" must be a text of at most 4096 bytes without control characters', h.key USING ERRCODE = 'P7006';
        END IF;
    END LOOP;
END $$;

-- Enqueues one message with any content, in the caller's transaction. Answers its id, or that of its twin.
CREATE OR REPLACE FUNCTION posthouse.enqueue_bytes(
    topic text, payload bytea, content_type text DEFAULT 'application/octet-stream', tenant text DEFAULT '',
    namespace text DEFAULT 'default', order_key text DEFAULT NULL, dedupe_key text DEFAULT NULL, headers jsonb DEFAULT NULL,
    delay interval DEFAULT NULL, deliver_in interval DEFAULT NULL, id uuid DEFAULT NULL, on_duplicate text DEFAULT 'refuse',
    max_attempts int DEFAULT NULL, on_dead text DEFAULT 'pass', ordering text DEFAULT 'strict')
RETURNS uuid
LANGUAGE plpgsql SECURITY DEFINER SET search_path = posthouse, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    limits settings;
    own uuid := coalesce(id, gen_random_uuid());
    twins uuid[];
    farthest CONSTANT interval := '3660 days';
BEGIN
    SELECT * INTO limits FROM settings;
    IF topic IS NULL OR payload IS NULL OR tenant IS NULL OR namespace IS NULL OR content_type IS NULL THEN
        RAISE '%: must not be NULL', CASE WHEN topic IS NULL THEN 'topic' WHEN payload IS NULL THEN 'payload' WHEN tenant IS NULL THEN 'tenant'
            WHEN namespace IS NULL THEN 'namespace' ELSE 'content_type' END USING ERRCODE = 'P7006';
    END IF;
    PERFORM check_name('topic', topic, 1, CASE WHEN topic ~ '^(http|bus|fn|custom):' THEN 2048 ELSE 255 END);
    IF topic ~ '^http:[^/]*//[^/?#]*@' THEN
        RAISE 'topic: holds a user name or password in its URL' USING ERRCODE = 'P7006';
    END IF;
    PERFORM check_name('tenant', tenant, CASE WHEN limits.require_tenant THEN 1 ELSE 0 END, 255);
    PERFORM check_name('namespace', namespace, 1, 255);
    PERFORM check_name('content_type', content_type, 1, 255);
    PERFORM check_name('order_key', order_key, 1, 255);
    PERFORM check_name('dedupe_key', dedupe_key, 1, 255);
    PERFORM check_headers(headers);
    IF octet_length(payload) > limits.payload_bytes THEN
        RAISE 'payload: has % bytes, at most % are allowed', octet_length(payload), limits.payload_bytes USING ERRCODE = 'P7006';
    ELSIF delay < interval '0' OR delay > farthest THEN
        RAISE 'delay: must be between zero and ten years' USING ERRCODE = 'P7006';
    ELSIF deliver_in <= coalesce(delay, interval '0') OR deliver_in > farthest THEN
        RAISE 'deliver_in: must be longer than the delay and at most ten years' USING ERRCODE = 'P7006';
    ELSIF max_attempts NOT BETWEEN 1 AND 1000 THEN
        RAISE 'max_attempts: must be between 1 and 1000' USING ERRCODE = 'P7006';
    ELSIF on_duplicate NOT IN ('refuse', 'keep') OR on_duplicate IS NULL THEN
        RAISE 'on_duplicate: must be refuse or keep' USING ERRCODE = 'P7006';
    ELSIF on_dead NOT IN ('pass', 'block') OR on_dead IS NULL THEN
        RAISE 'on_dead: must be pass or block' USING ERRCODE = 'P7006';
    ELSIF ordering NOT IN ('strict', 'relaxed') OR ordering IS NULL THEN
        RAISE 'ordering: must be strict or relaxed' USING ERRCODE = 'P7006';
    END IF;
    twins := enqueue_many(
        ARRAY[own], ARRAY[tenant], ARRAY[namespace], ARRAY[topic], ARRAY[content_type], ARRAY[payload],
        ARRAY[digest(content_type, payload)],
        CASE WHEN order_key IS NOT NULL THEN ARRAY[order_key] END,
        CASE WHEN dedupe_key IS NOT NULL THEN ARRAY[dedupe_key] END,
        CASE WHEN headers <> '{}' THEN ARRAY[headers::text] END,
        CASE WHEN delay > interval '0' THEN ARRAY[(extract(epoch FROM delay) * 1000)::bigint] END,
        CASE WHEN deliver_in IS NOT NULL THEN ARRAY[(extract(epoch FROM deliver_in) * 1000)::bigint] END,
        CASE WHEN max_attempts IS NOT NULL THEN ARRAY[max_attempts::bigint] END,
        ARRAY[on_dead = 'block'], ARRAY[on_duplicate = 'keep'], ARRAY[ordering = 'relaxed'],
        NULL, NULL, NULL, id IS NOT NULL);
    RETURN coalesce(twins[1], own);
END $$;

-- Enqueues one JSON message.
CREATE OR REPLACE FUNCTION posthouse.enqueue(
    topic text, payload jsonb, tenant text DEFAULT '', namespace text DEFAULT 'default', order_key text DEFAULT NULL,
    dedupe_key text DEFAULT NULL, headers jsonb DEFAULT NULL, delay interval DEFAULT NULL, deliver_in interval DEFAULT NULL,
    id uuid DEFAULT NULL, on_duplicate text DEFAULT 'refuse', max_attempts int DEFAULT NULL, on_dead text DEFAULT 'pass',
    ordering text DEFAULT 'strict')
RETURNS uuid
LANGUAGE sql SECURITY DEFINER SET search_path = posthouse, pg_temp AS $$
    SELECT enqueue_bytes(topic, convert_to(payload::text, 'UTF8'), 'application/json', tenant, namespace, order_key, dedupe_key,
                         headers, delay, deliver_in, id, on_duplicate, max_attempts, on_dead, ordering)
$$;

-- Enqueues a JSON array of messages, each an object with the names of enqueue's arguments (`delay` and `deliver_in` as
-- interval texts). Answers their ids in order.
CREATE OR REPLACE FUNCTION posthouse.enqueue_batch(messages jsonb) RETURNS SETOF uuid
LANGUAGE plpgsql SECURITY DEFINER SET search_path = posthouse, pg_temp AS $$
#variable_conflict use_column
DECLARE
    known CONSTANT text[] := ARRAY['topic', 'payload', 'tenant', 'namespace', 'order_key', 'dedupe_key', 'headers', 'delay', 'deliver_in',
                                   'id', 'on_duplicate', 'max_attempts', 'on_dead', 'ordering'];
    m jsonb;
    at int := 0;
    odd text;
BEGIN
    IF jsonb_typeof(messages) IS DISTINCT FROM 'array' THEN
        RAISE 'messages: is not a JSON array' USING ERRCODE = 'P7006';
    END IF;
    FOR m IN SELECT e FROM jsonb_array_elements(messages) e LOOP
        at := at + 1;
        IF jsonb_typeof(m) <> 'object' THEN
            RAISE 'messages[%]: is not a JSON object', at USING ERRCODE = 'P7006';
        END IF;
        SELECT k INTO odd FROM jsonb_object_keys(m) k WHERE k <> ALL (known) LIMIT 1;
        IF FOUND THEN
            RAISE 'messages[%]: there is no field "%"', at, left(odd, 64) USING ERRCODE = 'P7006', HINT = 'known fields: ' || array_to_string(known, ', ');
        END IF;
    END LOOP;
    -- Keys in one order for the whole batch, before any of them draws a number.
    PERFORM take_turns(array_agg(coalesce(e ->> 'namespace', 'default')), array_agg(coalesce(e ->> 'tenant', '')),
                       array_agg(e ->> 'order_key'), array_agg(e ->> 'ordering' = 'relaxed'))
    FROM jsonb_array_elements(messages) e;
    RETURN QUERY
    SELECT enqueue(e ->> 'topic', e -> 'payload', coalesce(e ->> 'tenant', ''), coalesce(e ->> 'namespace', 'default'),
                   e ->> 'order_key', e ->> 'dedupe_key', e -> 'headers', (e ->> 'delay')::interval, (e ->> 'deliver_in')::interval,
                   (e ->> 'id')::uuid, coalesce(e ->> 'on_duplicate', 'refuse'), (e ->> 'max_attempts')::int,
                   coalesce(e ->> 'on_dead', 'pass'), coalesce(e ->> 'ordering', 'strict'))
    FROM jsonb_array_elements(messages) e;
END $$;
