-- Refuses what no store may accept, naming the field. The Rust library refuses the same before it sends anything.
CREATE OR REPLACE FUNCTION posthouse.check_name(p_field text, p_value text, p_least int, p_most int) RETURNS void
LANGUAGE plpgsql IMMUTABLE SET search_path = posthouse, pg_temp AS $$
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

CREATE OR REPLACE FUNCTION posthouse.check_headers(p_field text, p_headers jsonb) RETURNS void
LANGUAGE plpgsql IMMUTABLE SET search_path = posthouse, pg_temp AS $$
DECLARE
    h record;
BEGIN
    IF p_headers IS NULL THEN RETURN; END IF;
    IF jsonb_typeof(p_headers) <> 'object' THEN
        RAISE '%: is not a JSON object of texts', p_field USING ERRCODE = 'P7006';
    END IF;
    IF (SELECT count(*) FROM jsonb_object_keys(p_headers)) > 64 THEN
        RAISE '%: at most 64 are allowed', p_field USING ERRCODE = 'P7006';
    END IF;
    FOR h IN SELECT e.key, e.value, e.value #>> '{}' AS text FROM jsonb_each(p_headers) e LOOP
        IF h.key !~ '^[A-Za-z0-9!#$%&''*+.^_`|~-]{1,255}$' THEN
            RAISE '%: "%" is not a header name', p_field, left(h.key, 64) USING ERRCODE = 'P7006';
        ELSIF lower(h.key) ~ '^(posthouse-|webhook-)' OR lower(h.key) IN ('content-type', 'content-length', 'host', 'authorization', 'idempotency-key') THEN
            RAISE '%: "%" is reserved for the relay', p_field, h.key USING ERRCODE = 'P7006';
        ELSIF jsonb_typeof(h.value) <> 'string' OR octet_length(h.text) > 4096 OR h.text ~ '[\x01-\x08\x0a-\x1f\x7f-\x9f]' THEN
            RAISE '%: the value of "%" must be a text of at most 4096 bytes without control characters', p_field, h.key USING ERRCODE = 'P7006';
        END IF;
    END LOOP;
END $$;

-- All of a message. `p_in` stands before the name of a field: nothing, or the place in a batch.
CREATE OR REPLACE FUNCTION posthouse.check_message(
    p_in text, limits posthouse.settings, topic text, payload bytea, content_type text, tenant text, namespace text, order_key text,
    dedupe_key text, headers jsonb, delay interval, deliver_in interval, on_duplicate text, max_attempts int, on_dead text, ordering text)
RETURNS void
LANGUAGE plpgsql STABLE SET search_path = posthouse, pg_temp AS $$
DECLARE
    farthest CONSTANT interval := '3660 days';
BEGIN
    IF topic IS NULL OR payload IS NULL OR tenant IS NULL OR namespace IS NULL OR content_type IS NULL THEN
        RAISE '%: must not be NULL', p_in || CASE WHEN topic IS NULL THEN 'topic' WHEN payload IS NULL THEN 'payload' WHEN tenant IS NULL THEN 'tenant'
            WHEN namespace IS NULL THEN 'namespace' ELSE 'content_type' END USING ERRCODE = 'P7006';
    END IF;
    PERFORM check_name(p_in || 'topic', topic, 1, CASE WHEN topic ~ '^(http|bus|fn|custom):' THEN 2048 ELSE 255 END);
    IF topic ~ '^http:[^/]*//[^/?#]*@' THEN
        RAISE '%topic: holds a user name or password in its URL', p_in USING ERRCODE = 'P7006';
    END IF;
    PERFORM check_name(p_in || 'tenant', tenant, CASE WHEN limits.require_tenant THEN 1 ELSE 0 END, 255);
    PERFORM check_name(p_in || 'namespace', namespace, 1, 255);
    PERFORM check_name(p_in || 'content_type', content_type, 1, 255);
    PERFORM check_name(p_in || 'order_key', order_key, 1, 255);
    PERFORM check_name(p_in || 'dedupe_key', dedupe_key, 1, 255);
    PERFORM check_headers(p_in || 'headers', headers);
    IF octet_length(payload) > limits.payload_bytes THEN
        RAISE '%payload: has % bytes, at most % are allowed', p_in, octet_length(payload), limits.payload_bytes USING ERRCODE = 'P7006';
    ELSIF delay < interval '0' OR delay > farthest THEN
        RAISE '%delay: must be between zero and ten years', p_in USING ERRCODE = 'P7006';
    ELSIF deliver_in <= coalesce(delay, interval '0') OR deliver_in > farthest THEN
        RAISE '%deliver_in: must be longer than the delay and at most ten years', p_in USING ERRCODE = 'P7006';
    ELSIF max_attempts NOT BETWEEN 1 AND 1000 THEN
        RAISE '%max_attempts: must be between 1 and 1000', p_in USING ERRCODE = 'P7006';
    ELSIF on_duplicate NOT IN ('refuse', 'keep') OR on_duplicate IS NULL THEN
        RAISE '%on_duplicate: must be refuse or keep', p_in USING ERRCODE = 'P7006';
    ELSIF on_dead NOT IN ('pass', 'block') OR on_dead IS NULL THEN
        RAISE '%on_dead: must be pass or block', p_in USING ERRCODE = 'P7006';
    ELSIF ordering NOT IN ('strict', 'relaxed') OR ordering IS NULL THEN
        RAISE '%ordering: must be strict or relaxed', p_in USING ERRCODE = 'P7006';
    END IF;
END $$;

-- A new id: a UUID of version 7, as the library makes them. By our clock to the microsecond, so that what is enqueued together
-- stands together in the index.
CREATE OR REPLACE FUNCTION posthouse.new_id() RETURNS uuid
LANGUAGE sql VOLATILE
BEGIN ATOMIC
    SELECT encode(substr(int8send(t.us / 1000), 3) || substr(int4send((28672 + t.us % 1000 * 4096 / 1000)::int), 3) || substr(uuid_send(gen_random_uuid()), 9), 'hex')::uuid
    FROM (SELECT (extract(epoch FROM posthouse.clock()) * 1000000)::bigint AS us) t;
END;

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
    own CONSTANT uuid := coalesce(id, new_id());
    twins uuid[];
BEGIN
    SELECT * INTO limits FROM settings;
    PERFORM check_message('', limits, topic, payload, content_type, tenant, namespace, order_key, dedupe_key, headers, delay, deliver_in,
                          on_duplicate, max_attempts, on_dead, ordering);
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

-- One field of a message in a batch, which must be a text if it is there. What is null is not there.
CREATE OR REPLACE FUNCTION posthouse.text_field(p_in text, p_message jsonb, p_field text) RETURNS text
LANGUAGE plpgsql IMMUTABLE SET search_path = posthouse, pg_temp AS $$
BEGIN
    IF jsonb_typeof(p_message -> p_field) NOT IN ('string', 'null') THEN
        RAISE '%: must be a text', p_in || p_field USING ERRCODE = 'P7006';
    END IF;
    RETURN p_message ->> p_field;
END $$;

CREATE OR REPLACE FUNCTION posthouse.interval_field(p_in text, p_message jsonb, p_field text) RETURNS interval
LANGUAGE plpgsql STABLE SET search_path = posthouse, pg_temp AS $$
BEGIN
    IF p_message -> p_field IS NULL THEN RETURN NULL; END IF;
    RETURN text_field(p_in, p_message, p_field)::interval;
EXCEPTION WHEN data_exception THEN
    RAISE '%: is not an interval; write it as in "90 seconds"', p_in || p_field USING ERRCODE = 'P7006';
END $$;

CREATE OR REPLACE FUNCTION posthouse.uuid_field(p_in text, p_message jsonb, p_field text) RETURNS uuid
LANGUAGE plpgsql IMMUTABLE SET search_path = posthouse, pg_temp AS $$
BEGIN
    IF p_message -> p_field IS NULL THEN RETURN NULL; END IF;
    RETURN text_field(p_in, p_message, p_field)::uuid;
EXCEPTION WHEN data_exception THEN
    RAISE '%: is not a UUID', p_in || p_field USING ERRCODE = 'P7006';
END $$;

CREATE OR REPLACE FUNCTION posthouse.int_field(p_in text, p_message jsonb, p_field text) RETURNS int
LANGUAGE plpgsql IMMUTABLE SET search_path = posthouse, pg_temp AS $$
DECLARE
    kind CONSTANT text := jsonb_typeof(p_message -> p_field);
    n numeric;
BEGIN
    IF kind = 'number' THEN n := (p_message ->> p_field)::numeric; END IF;
    IF kind NOT IN ('number', 'null') OR n <> trunc(n) OR n NOT BETWEEN -2147483648 AND 2147483647 THEN
        RAISE '%: must be a whole number', p_in || p_field USING ERRCODE = 'P7006';
    END IF;
    RETURN n;
END $$;

-- An element of a list is an object, and has no field but the known ones.
CREATE OR REPLACE FUNCTION posthouse.check_fields(p_list text, p_at bigint, p_object jsonb, p_known text[]) RETURNS void
LANGUAGE plpgsql IMMUTABLE SET search_path = posthouse, pg_temp AS $$
DECLARE
    odd text;
BEGIN
    IF jsonb_typeof(p_object) <> 'object' THEN
        RAISE '%[%]: is not a JSON object', p_list, p_at USING ERRCODE = 'P7006';
    END IF;
    SELECT k INTO odd FROM jsonb_object_keys(p_object) k WHERE k <> ALL (p_known) LIMIT 1;
    IF FOUND THEN
        RAISE '%[%]: there is no field "%"', p_list, p_at, left(odd, 64) USING ERRCODE = 'P7006', HINT = 'known fields: ' || array_to_string(p_known, ', ');
    END IF;
END $$;

-- One message of a batch, as enqueue takes it, checked.
CREATE OR REPLACE FUNCTION posthouse.read_message(
    p_at bigint, p_message jsonb, limits posthouse.settings,
    OUT topic text, OUT payload bytea, OUT tenant text, OUT namespace text, OUT order_key text, OUT dedupe_key text, OUT headers jsonb,
    OUT delay interval, OUT deliver_in interval, OUT id uuid, OUT on_duplicate text, OUT max_attempts int, OUT on_dead text, OUT ordering text)
LANGUAGE plpgsql STABLE SET search_path = posthouse, pg_temp AS $$
DECLARE
    known CONSTANT text[] := ARRAY['topic', 'payload', 'tenant', 'namespace', 'order_key', 'dedupe_key', 'headers', 'delay', 'deliver_in',
                                   'id', 'on_duplicate', 'max_attempts', 'on_dead', 'ordering'];
    inside CONSTANT text := format('messages[%s].', p_at);
BEGIN
    PERFORM check_fields('messages', p_at, p_message, known);
    topic := text_field(inside, p_message, 'topic');
    payload := convert_to((p_message -> 'payload')::text, 'UTF8');
    tenant := coalesce(text_field(inside, p_message, 'tenant'), '');
    namespace := coalesce(text_field(inside, p_message, 'namespace'), 'default');
    order_key := text_field(inside, p_message, 'order_key');
    dedupe_key := text_field(inside, p_message, 'dedupe_key');
    headers := nullif(p_message -> 'headers', 'null');
    delay := interval_field(inside, p_message, 'delay');
    deliver_in := interval_field(inside, p_message, 'deliver_in');
    id := uuid_field(inside, p_message, 'id');
    on_duplicate := coalesce(text_field(inside, p_message, 'on_duplicate'), 'refuse');
    max_attempts := int_field(inside, p_message, 'max_attempts');
    on_dead := coalesce(text_field(inside, p_message, 'on_dead'), 'pass');
    ordering := coalesce(text_field(inside, p_message, 'ordering'), 'strict');
    PERFORM check_message(inside, limits, topic, payload, 'application/json', tenant, namespace, order_key, dedupe_key, headers, delay, deliver_in,
                          on_duplicate, max_attempts, on_dead, ordering);
END $$;

-- Enqueues a JSON array of messages, each an object with the names of enqueue's arguments (`delay` and `deliver_in` as
-- interval texts). Answers their ids in order. One call of enqueue_many, which takes all locks in one order.
CREATE OR REPLACE FUNCTION posthouse.enqueue_batch(messages jsonb) RETURNS SETOF uuid
LANGUAGE plpgsql SECURITY DEFINER SET search_path = posthouse, pg_temp AS $$
#variable_conflict use_column
DECLARE
    limits settings;
    m record;
    twins uuid[];
BEGIN
    IF jsonb_typeof(messages) IS DISTINCT FROM 'array' THEN
        RAISE 'messages: is not a JSON array' USING ERRCODE = 'P7006';
    ELSIF jsonb_array_length(messages) > 10000 THEN
        RAISE 'messages: has % elements, at most 10000 are allowed', jsonb_array_length(messages) USING ERRCODE = 'P7006';
    ELSIF messages = '[]' THEN
        RETURN;
    END IF;
    SELECT * INTO limits FROM settings;
    WITH u AS MATERIALIZED (
        SELECT g.*, e.o FROM jsonb_array_elements(messages) WITH ORDINALITY e(message, o) CROSS JOIN LATERAL read_message(e.o - 1, e.message, limits) g)
    SELECT array_agg(coalesce(u.id, new_id()) ORDER BY u.o) AS ids, bool_or(u.id IS NOT NULL) AS own_ids,
           array_agg(u.tenant ORDER BY u.o) AS tenants, array_agg(u.namespace ORDER BY u.o) AS namespaces, array_agg(u.topic ORDER BY u.o) AS topics,
           array_agg(u.payload ORDER BY u.o) AS payloads, array_agg(digest('application/json', u.payload) ORDER BY u.o) AS digests,
           CASE WHEN count(u.order_key) > 0 THEN array_agg(u.order_key ORDER BY u.o) END AS order_keys,
           CASE WHEN count(u.dedupe_key) > 0 THEN array_agg(u.dedupe_key ORDER BY u.o) END AS dedupe_keys,
           CASE WHEN count(u.headers) > 0 THEN array_agg(nullif(u.headers, '{}')::text ORDER BY u.o) END AS headers,
           CASE WHEN count(u.delay) > 0 THEN array_agg((extract(epoch FROM u.delay) * 1000)::bigint ORDER BY u.o) END AS delays,
           CASE WHEN count(u.deliver_in) > 0 THEN array_agg((extract(epoch FROM u.deliver_in) * 1000)::bigint ORDER BY u.o) END AS deadlines,
           CASE WHEN count(u.max_attempts) > 0 THEN array_agg(u.max_attempts::bigint ORDER BY u.o) END AS budgets,
           array_agg(u.on_dead = 'block' ORDER BY u.o) AS blocks, array_agg(u.on_duplicate = 'keep' ORDER BY u.o) AS keeps,
           array_agg(u.ordering = 'relaxed' ORDER BY u.o) AS relaxed
    INTO m FROM u;
    twins := enqueue_many(m.ids, m.tenants, m.namespaces, m.topics, array_fill('application/json'::text, ARRAY[cardinality(m.ids)]), m.payloads,
                          m.digests, m.order_keys, m.dedupe_keys, m.headers, m.delays, m.deadlines, m.budgets, m.blocks, m.keeps, m.relaxed,
                          NULL, NULL, NULL, m.own_ids);
    RETURN QUERY SELECT coalesce(a.twin, a.id) FROM unnest(m.ids, twins) WITH ORDINALITY a(id, twin, o) ORDER BY a.o;
END $$;
