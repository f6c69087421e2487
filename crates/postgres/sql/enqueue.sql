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

-- Checks messages before they are written, and refuses the first that no store may accept (P7006). Every way of enqueueing comes through here. The
-- rules are those of the library (`Message::check`), in one statement for all messages: one call per message would double the cost of a bulk enqueue.
--
-- `p_list` is the name of the argument that the messages came in, and then the text begins with `messages[4].topic`. NULL: they came as arrays, and it
-- begins with `topic[5]`, or with `topic` if there is one message.
-- `p_writer` says who wrote them. 'sql': no header may have a reserved name. 'library': the header of an entry in the ledger is allowed. 'relay': also
-- children, with a parent and a destination. 'saga': messages of sagas alone, which are exempt from `require_tenant`, because a saga under way goes on.
CREATE OR REPLACE FUNCTION posthouse.check_message(
    p_list text, p_writer text, p_id uuid[], p_tenant text[], p_namespace text[], p_topic text[], p_content_type text[], p_payload bytea[], p_digest bytea[],
    p_order_key text[], p_dedupe_key text[], p_headers text[], p_delay_ms bigint[], p_deliver_ms bigint[], p_max_attempts bigint[],
    p_block boolean[], p_keep boolean[], p_relaxed boolean[], p_kind bigint[], p_parent uuid[], p_destination text[])
RETURNS void
LANGUAGE plpgsql STABLE SET search_path = posthouse, pg_temp AS $$
#variable_conflict use_column
DECLARE
    n CONSTANT int := cardinality(p_id);
    shape CONSTANT text := coalesce(array_dims(p_id), '');
    -- Ten years: a longer time in milliseconds is a mistake, and could leave the calendar.
    farthest CONSTANT bigint := 316224000000;
    limits settings;
    field text;
    bad record;
BEGIN
    IF p_id IS NULL THEN
        RAISE 'id: must not be NULL' USING ERRCODE = 'P7006';
    ELSIF n > 0 AND shape <> '[1:' || n || ']' THEN
        RAISE 'id: must be an array of one dimension that begins at 1' USING ERRCODE = 'P7006';
    END IF;
    IF NOT (
        coalesce(array_dims(p_tenant), '') = shape AND coalesce(array_dims(p_namespace), '') = shape AND
        coalesce(array_dims(p_topic), '') = shape AND coalesce(array_dims(p_content_type), '') = shape AND
        coalesce(array_dims(p_payload), '') = shape AND coalesce(array_dims(p_digest), '') = shape AND
        (p_order_key IS NULL OR coalesce(array_dims(p_order_key), '') = shape) AND
        (p_dedupe_key IS NULL OR coalesce(array_dims(p_dedupe_key), '') = shape) AND
        (p_headers IS NULL OR coalesce(array_dims(p_headers), '') = shape) AND
        (p_delay_ms IS NULL OR coalesce(array_dims(p_delay_ms), '') = shape) AND
        (p_deliver_ms IS NULL OR coalesce(array_dims(p_deliver_ms), '') = shape) AND
        (p_max_attempts IS NULL OR coalesce(array_dims(p_max_attempts), '') = shape) AND
        (p_block IS NULL OR coalesce(array_dims(p_block), '') = shape) AND (p_keep IS NULL OR coalesce(array_dims(p_keep), '') = shape) AND
        (p_relaxed IS NULL OR coalesce(array_dims(p_relaxed), '') = shape) AND (p_kind IS NULL OR coalesce(array_dims(p_kind), '') = shape) AND
        (p_parent IS NULL OR coalesce(array_dims(p_parent), '') = shape) AND
        (p_destination IS NULL OR coalesce(array_dims(p_destination), '') = shape)) THEN
        SELECT a.field INTO field FROM (VALUES
            ('tenant', coalesce(array_dims(p_tenant), '') = shape), ('namespace', coalesce(array_dims(p_namespace), '') = shape),
            ('topic', coalesce(array_dims(p_topic), '') = shape), ('content_type', coalesce(array_dims(p_content_type), '') = shape),
            ('payload', coalesce(array_dims(p_payload), '') = shape), ('digest', coalesce(array_dims(p_digest), '') = shape),
            ('order_key', (p_order_key IS NULL OR coalesce(array_dims(p_order_key), '') = shape)),
            ('dedupe_key', (p_dedupe_key IS NULL OR coalesce(array_dims(p_dedupe_key), '') = shape)),
            ('headers', (p_headers IS NULL OR coalesce(array_dims(p_headers), '') = shape)),
            ('delay', (p_delay_ms IS NULL OR coalesce(array_dims(p_delay_ms), '') = shape)),
            ('deliver_in', (p_deliver_ms IS NULL OR coalesce(array_dims(p_deliver_ms), '') = shape)),
            ('max_attempts', (p_max_attempts IS NULL OR coalesce(array_dims(p_max_attempts), '') = shape)),
            ('on_dead', (p_block IS NULL OR coalesce(array_dims(p_block), '') = shape)),
            ('on_duplicate', (p_keep IS NULL OR coalesce(array_dims(p_keep), '') = shape)),
            ('ordering', (p_relaxed IS NULL OR coalesce(array_dims(p_relaxed), '') = shape)),
            ('kind', (p_kind IS NULL OR coalesce(array_dims(p_kind), '') = shape)),
            ('parent', (p_parent IS NULL OR coalesce(array_dims(p_parent), '') = shape)),
            ('destination', (p_destination IS NULL OR coalesce(array_dims(p_destination), '') = shape))) a(field, fits)
        WHERE NOT a.fits;
        RAISE '%: must be an array of % elements, one for each id', field, n USING ERRCODE = 'P7006';
    END IF;
    SELECT * INTO limits FROM settings;
    SELECT q.o, q.problem INTO bad FROM (
        SELECT u.o, CASE
            WHEN u.id IS NULL THEN 'id: must not be NULL'
            WHEN u.topic IS NULL THEN 'topic: must not be NULL'
            WHEN u.payload IS NULL THEN 'payload: must not be NULL'
            WHEN u.tenant IS NULL THEN 'tenant: must not be NULL'
            WHEN u.namespace IS NULL THEN 'namespace: must not be NULL'
            WHEN u.content_type IS NULL THEN 'content_type: must not be NULL'
            WHEN u.topic = '' THEN 'topic: is empty'
            WHEN octet_length(u.topic) > 255 AND (octet_length(u.topic) > 2048 OR u.topic !~ '^(http|bus|fn|custom):')
                THEN format('topic: has %s bytes, at most %s are allowed', octet_length(u.topic), CASE WHEN u.topic ~ '^(http|bus|fn|custom):' THEN 2048 ELSE 255 END)
            WHEN u.tenant = '' AND limits.require_tenant AND p_writer <> 'saga' THEN 'tenant: is empty, and this store requires one'
            WHEN octet_length(u.tenant) > 255 THEN format('tenant: has %s bytes, at most 255 are allowed', octet_length(u.tenant))
            WHEN u.namespace = '' THEN 'namespace: is empty'
            WHEN octet_length(u.namespace) > 255 THEN format('namespace: has %s bytes, at most 255 are allowed', octet_length(u.namespace))
            WHEN u.content_type = '' THEN 'content_type: is empty'
            WHEN octet_length(u.content_type) > 255 THEN format('content_type: has %s bytes, at most 255 are allowed', octet_length(u.content_type))
            WHEN u.order_key = '' THEN 'order_key: is empty'
            WHEN octet_length(u.order_key) > 255 THEN format('order_key: has %s bytes, at most 255 are allowed', octet_length(u.order_key))
            WHEN u.dedupe_key = '' THEN 'dedupe_key: is empty'
            WHEN octet_length(u.dedupe_key) > 255 THEN format('dedupe_key: has %s bytes, at most 255 are allowed', octet_length(u.dedupe_key))
            WHEN u.destination = '' THEN 'destination: is empty'
            WHEN octet_length(u.destination) > 2048 THEN format('destination: has %s bytes, at most 2048 are allowed', octet_length(u.destination))
            -- One regular expression for all names together: it costs more than all the rest.
            WHEN concat(u.topic, u.tenant, u.namespace, u.content_type, u.order_key, u.dedupe_key, u.destination) ~ '[\x01-\x1f\x7f-\x9f]'
                THEN CASE WHEN u.topic ~ '[\x01-\x1f\x7f-\x9f]' THEN 'topic' WHEN u.tenant ~ '[\x01-\x1f\x7f-\x9f]' THEN 'tenant'
                    WHEN u.namespace ~ '[\x01-\x1f\x7f-\x9f]' THEN 'namespace' WHEN u.content_type ~ '[\x01-\x1f\x7f-\x9f]' THEN 'content_type'
                    WHEN u.order_key ~ '[\x01-\x1f\x7f-\x9f]' THEN 'order_key' WHEN u.dedupe_key ~ '[\x01-\x1f\x7f-\x9f]' THEN 'dedupe_key'
                    ELSE 'destination' END || ': holds a control character'
            WHEN u.topic IN ('http:', 'bus:', 'fn:', 'custom:') THEN 'topic: names no destination after the colon'
            WHEN starts_with(u.topic, 'http:') AND u.topic ~ '^http:[^/]*//[^/?#]*@' THEN 'topic: holds a user name or password in its URL'
            WHEN u.payload > limits.payload_bytes
                THEN format('payload: has %s bytes, at most %s are allowed; keep large objects elsewhere and send a reference', u.payload, limits.payload_bytes)
            WHEN u.digest IS NULL THEN 'digest: must not be NULL'
            WHEN u.digest <> 32 THEN format('digest: has %s bytes, and must have 32', u.digest)
            WHEN u.delay < 0 OR u.delay > farthest THEN 'delay: must be between zero and ten years'
            -- A message of a saga may be past its deadline when it is written; then it lapses.
            WHEN u.deliver <= coalesce(u.delay, 0) AND p_writer <> 'saga' OR u.deliver > farthest THEN 'deliver_in: must be longer than the delay and at most ten years'
            WHEN u.max_attempts NOT BETWEEN 1 AND 1000 THEN 'max_attempts: must be between 1 and 1000'
            WHEN CASE p_writer WHEN 'saga' THEN coalesce(u.kind, 0) NOT BETWEEN 2 AND 4 WHEN 'relay' THEN u.kind NOT BETWEEN 0 AND 1 ELSE u.kind <> 0 END
                THEN format('kind: %s is not for the caller to set; leave it out', coalesce(u.kind, 0))
            WHEN u.parent IS NOT NULL AND coalesce(u.kind, 0) = 0 THEN 'parent: is not for the caller to set; leave it out'
            WHEN u.parent IS NULL AND u.kind > 0 THEN format('parent: must not be NULL where kind is %s', u.kind)
            WHEN u.destination IS NOT NULL AND p_writer IN ('sql', 'library') THEN 'destination: is not for the caller to set; leave it out'
        END AS problem
        FROM (SELECT unnest(p_id) AS id, unnest(p_tenant) AS tenant, unnest(p_namespace) AS namespace, unnest(p_topic) AS topic, unnest(p_content_type) AS content_type,
                     octet_length(unnest(p_payload)) AS payload, octet_length(unnest(p_digest)) AS digest, unnest(p_order_key) AS order_key,
                     unnest(p_dedupe_key) AS dedupe_key, unnest(p_delay_ms) AS delay, unnest(p_deliver_ms) AS deliver, unnest(p_max_attempts) AS max_attempts,
                     unnest(p_kind) AS kind, unnest(p_parent) AS parent, unnest(p_destination) AS destination, generate_series(1, n) AS o) u
        OFFSET 0) q
    WHERE q.problem IS NOT NULL LIMIT 1;
    IF bad.o IS NULL AND p_headers IS NOT NULL THEN
        BEGIN
            SELECT q.o, 'headers: ' || q.problem INTO bad.o, bad.problem FROM (
                SELECT x.o, CASE
                    WHEN jsonb_typeof(x.h) <> 'object' THEN 'is not a JSON object of texts'
                    -- Those of the engine do not count. Fewer bytes than this cannot be 65 headers.
                    WHEN pg_column_size(x.h) > 500 AND (SELECT count(*) FROM jsonb_object_keys(x.h) k WHERE k NOT IN ('posthouse-ledger', 'posthouse-step')) > 64 THEN 'at most 64 are allowed'
                    ELSE (SELECT y.problem FROM (
                        SELECT CASE
                            -- A bound in the expression ({1,255}) would cost 10 times as much.
                            WHEN e.key !~ '^[A-Za-z0-9!#$%&''*+.^_`|~-]+$' OR octet_length(e.key) > 255 THEN format('"%s" is not a header name', left(e.key, 64))
                            WHEN lower(e.key) LIKE 'posthouse-%' AND CASE p_writer WHEN 'sql' THEN true WHEN 'saga' THEN e.key <> 'posthouse-step' ELSE e.key <> 'posthouse-ledger' END
                                 OR lower(e.key) LIKE 'webhook-%' OR lower(e.key) IN ('content-type', 'content-length', 'host', 'authorization', 'idempotency-key')
                                THEN format('"%s" is reserved for the relay', left(e.key, 64))
                            WHEN jsonb_typeof(e.value) <> 'string' OR octet_length(e.value #>> '{}') > 4096 OR e.value #>> '{}' ~ '[\x01-\x08\x0a-\x1f\x7f-\x9f]'
                                THEN format('the value of "%s" must be a text of at most 4096 bytes without control characters', left(e.key, 64))
                            WHEN e.key = 'posthouse-ledger' AND binding(x.h) IS NULL THEN '"posthouse-ledger" is not an entry of the ledger (scope, key, fingerprint)'
                        END AS problem FROM jsonb_each(x.h) e OFFSET 0) y
                        WHERE y.problem IS NOT NULL LIMIT 1)
                END AS problem
                -- Short, plain headers without a reserved name pass by their text: parsing them costs 4 times as much.
                FROM (SELECT t.h::jsonb AS h, t.o FROM (SELECT unnest(p_headers) COLLATE "C" AS h, generate_series(1, n) AS o) t
                      WHERE NOT (octet_length(t.h) <= 255
                        AND t.h ~ '^\{"[A-Za-z0-9!#$%&''*+.^_`|~-]+": ?"[^"\\\x01-\x1f\x7f-\x9f]*"(, ?"[A-Za-z0-9!#$%&''*+.^_`|~-]+": ?"[^"\\\x01-\x1f\x7f-\x9f]*")*\}$'
                        AND strpos(lower(t.h), '"posthouse-') = 0 AND strpos(lower(t.h), '"webhook-') = 0 AND strpos(lower(t.h), '"content-') = 0
                        AND strpos(lower(t.h), '"host"') = 0 AND strpos(lower(t.h), '"authorization"') = 0 AND strpos(lower(t.h), '"idempotency-') = 0)
                      OFFSET 0) x
                OFFSET 0) q
            WHERE q.problem IS NOT NULL LIMIT 1;
        EXCEPTION WHEN data_exception THEN
            PERFORM check_json(p_list, p_headers);
            RAISE;
        END;
    END IF;
    IF bad.o IS NOT NULL THEN
        field := split_part(bad.problem, ':', 1);
        RAISE '%', field_of(p_list, field, bad.o, n) || substr(bad.problem, length(field) + 1) USING ERRCODE = 'P7006';
    END IF;
END $$;

-- Names the first message whose headers are no JSON, or JSON that cannot be stored (`\u0000`).
CREATE OR REPLACE FUNCTION posthouse.check_json(p_list text, p_headers text[]) RETURNS void
LANGUAGE plpgsql IMMUTABLE SET search_path = posthouse, pg_temp AS $$
BEGIN
    FOR at IN 1..cardinality(p_headers) LOOP
        BEGIN
            PERFORM p_headers[at]::jsonb;
        EXCEPTION WHEN data_exception THEN
            RAISE '%: is not JSON that can be stored: %', field_of(p_list, 'headers', at, cardinality(p_headers)), sqlerrm USING ERRCODE = 'P7006';
        END;
    END LOOP;
END $$;

-- How an error names a field of the message at this place, counted from one, of n.
CREATE OR REPLACE FUNCTION posthouse.field_of(p_list text, p_field text, p_at int, p_n int) RETURNS text
LANGUAGE sql IMMUTABLE SET search_path = posthouse, pg_temp AS $$
    SELECT CASE WHEN p_list IS NOT NULL THEN format('%s[%s].%s', p_list, p_at - 1, p_field) WHEN p_n = 1 THEN p_field ELSE format('%s[%s]', p_field, p_at) END
$$;

-- The words that enqueue takes. `p_in` stands before the name of a field: nothing, or the place in a batch.
CREATE OR REPLACE FUNCTION posthouse.check_words(p_in text, on_duplicate text, on_dead text, ordering text) RETURNS void
LANGUAGE plpgsql IMMUTABLE SET search_path = posthouse, pg_temp AS $$
BEGIN
    IF on_duplicate NOT IN ('refuse', 'keep') OR on_duplicate IS NULL THEN
        RAISE '%on_duplicate: must be refuse or keep', p_in USING ERRCODE = 'P7006';
    ELSIF on_dead NOT IN ('pass', 'block') OR on_dead IS NULL THEN
        RAISE '%on_dead: must be pass or block', p_in USING ERRCODE = 'P7006';
    ELSIF ordering NOT IN ('strict', 'relaxed') OR ordering IS NULL THEN
        RAISE '%ordering: must be strict or relaxed', p_in USING ERRCODE = 'P7006';
    END IF;
END $$;

-- An interval in milliseconds, rounded up. Intervals below zero or above 20 years are cut, so that the number always fits and is still refused.
CREATE OR REPLACE FUNCTION posthouse.interval_ms(p_interval interval) RETURNS bigint
LANGUAGE sql IMMUTABLE PARALLEL SAFE
    -- greatest and least pass over NULL.
    RETURN CASE WHEN p_interval IS NOT NULL THEN ceil(extract(epoch FROM least(greatest(p_interval, interval '-1 day'), interval '7320 days')) * 1000)::bigint END;

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
    own CONSTANT uuid := coalesce(id, new_id());
    twins uuid[];
BEGIN
    PERFORM check_words('', on_duplicate, on_dead, ordering);
    twins := write_messages(
        NULL, 'sql', ARRAY[own], ARRAY[tenant], ARRAY[namespace], ARRAY[topic], ARRAY[content_type], ARRAY[payload],
        ARRAY[digest(content_type, payload)],
        CASE WHEN order_key IS NOT NULL THEN ARRAY[order_key] END,
        CASE WHEN dedupe_key IS NOT NULL THEN ARRAY[dedupe_key] END,
        CASE WHEN headers <> '{}' THEN ARRAY[headers::text] END,
        CASE WHEN delay <> interval '0' THEN ARRAY[interval_ms(delay)] END,
        CASE WHEN deliver_in IS NOT NULL THEN ARRAY[interval_ms(deliver_in)] END,
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

-- One message of a batch, as enqueue takes it, read.
CREATE OR REPLACE FUNCTION posthouse.read_message(
    p_at bigint, p_message jsonb,
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
    PERFORM check_words(inside, on_duplicate, on_dead, ordering);
END $$;

-- Enqueues a JSON array of messages, each an object with the names of enqueue's arguments (`delay` and `deliver_in` as
-- interval texts). Answers their ids in order. They are written in one call, which takes all locks in one order.
CREATE OR REPLACE FUNCTION posthouse.enqueue_batch(messages jsonb) RETURNS SETOF uuid
LANGUAGE plpgsql SECURITY DEFINER SET search_path = posthouse, pg_temp AS $$
#variable_conflict use_column
DECLARE
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
    WITH u AS MATERIALIZED (
        SELECT g.*, e.o FROM jsonb_array_elements(messages) WITH ORDINALITY e(message, o) CROSS JOIN LATERAL read_message(e.o - 1, e.message) g)
    SELECT array_agg(coalesce(u.id, new_id()) ORDER BY u.o) AS ids, bool_or(u.id IS NOT NULL) AS own_ids,
           array_agg(u.tenant ORDER BY u.o) AS tenants, array_agg(u.namespace ORDER BY u.o) AS namespaces, array_agg(u.topic ORDER BY u.o) AS topics,
           array_agg(u.payload ORDER BY u.o) AS payloads, array_agg(digest('application/json', u.payload) ORDER BY u.o) AS digests,
           CASE WHEN count(u.order_key) > 0 THEN array_agg(u.order_key ORDER BY u.o) END AS order_keys,
           CASE WHEN count(u.dedupe_key) > 0 THEN array_agg(u.dedupe_key ORDER BY u.o) END AS dedupe_keys,
           CASE WHEN count(u.headers) > 0 THEN array_agg(nullif(u.headers, '{}')::text ORDER BY u.o) END AS headers,
           CASE WHEN count(u.delay) > 0 THEN array_agg(interval_ms(u.delay) ORDER BY u.o) END AS delays,
           CASE WHEN count(u.deliver_in) > 0 THEN array_agg(interval_ms(u.deliver_in) ORDER BY u.o) END AS deadlines,
           CASE WHEN count(u.max_attempts) > 0 THEN array_agg(u.max_attempts::bigint ORDER BY u.o) END AS budgets,
           array_agg(u.on_dead = 'block' ORDER BY u.o) AS blocks, array_agg(u.on_duplicate = 'keep' ORDER BY u.o) AS keeps,
           array_agg(u.ordering = 'relaxed' ORDER BY u.o) AS relaxed
    INTO m FROM u;
    twins := write_messages('messages', 'sql', m.ids, m.tenants, m.namespaces, m.topics, array_fill('application/json'::text, ARRAY[cardinality(m.ids)]), m.payloads,
                            m.digests, m.order_keys, m.dedupe_keys, m.headers, m.delays, m.deadlines, m.budgets, m.blocks, m.keeps, m.relaxed,
                            NULL, NULL, NULL, m.own_ids);
    RETURN QUERY SELECT coalesce(a.twin, a.id) FROM unnest(m.ids, twins) WITH ORDINALITY a(id, twin, o) ORDER BY a.o;
END $$;
