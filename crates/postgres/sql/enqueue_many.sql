-- Enqueues many messages in the caller's transaction; every adapter calls it. Returns NULL when all are new, else for
-- each message the id of the one that was there already, or NULL. An array that is NULL means the default for every message.
--
-- Ordinary messages only. The engine's messages have a kind, a parent or a destination; functions that a producer may not call write them.
CREATE OR REPLACE FUNCTION posthouse.enqueue_many(
    p_id uuid[], p_tenant text[], p_namespace text[], p_topic text[], p_content_type text[], p_payload bytea[], p_digest bytea[],
    p_order_key text[], p_dedupe_key text[], p_headers text[], p_delay_ms bigint[], p_deliver_ms bigint[],
    p_max_attempts bigint[], p_block boolean[], p_keep boolean[], p_relaxed boolean[],
    p_kind bigint[], p_parent uuid[], p_destination text[], p_check_ids boolean)
RETURNS uuid[]
LANGUAGE plpgsql SECURITY DEFINER SET search_path = posthouse, pg_temp AS $$
BEGIN
    RETURN write_messages(NULL, 'library', p_id, p_tenant, p_namespace, p_topic, p_content_type, p_payload, p_digest, p_order_key, p_dedupe_key, p_headers,
                          p_delay_ms, p_deliver_ms, p_max_attempts, p_block, p_keep, p_relaxed, p_kind, p_parent, p_destination, p_check_ids);
END $$;

-- The same for messages that follow from a settlement, which have a parent and may be for one destination.
CREATE OR REPLACE FUNCTION posthouse.enqueue_follow_ups(
    p_id uuid[], p_tenant text[], p_namespace text[], p_topic text[], p_content_type text[], p_payload bytea[], p_digest bytea[],
    p_order_key text[], p_dedupe_key text[], p_headers text[], p_delay_ms bigint[], p_deliver_ms bigint[],
    p_max_attempts bigint[], p_block boolean[], p_keep boolean[], p_relaxed boolean[],
    p_kind bigint[], p_parent uuid[], p_destination text[], p_check_ids boolean)
RETURNS uuid[]
LANGUAGE plpgsql SECURITY DEFINER SET search_path = posthouse, pg_temp AS $$
BEGIN
    RETURN write_messages(NULL, 'relay', p_id, p_tenant, p_namespace, p_topic, p_content_type, p_payload, p_digest, p_order_key, p_dedupe_key, p_headers,
                          p_delay_ms, p_deliver_ms, p_max_attempts, p_block, p_keep, p_relaxed, p_kind, p_parent, p_destination, p_check_ids);
END $$;

-- Checks messages and writes them. Every way of enqueueing calls it. `p_list` and `p_writer` are those of check_message.
--
-- The caller's own transaction id is drawn before any number of the sequence, because the safe floor of the claims (sample_floor) relies on it.
CREATE OR REPLACE FUNCTION posthouse.write_messages(
    p_list text, p_writer text, p_id uuid[], p_tenant text[], p_namespace text[], p_topic text[], p_content_type text[], p_payload bytea[], p_digest bytea[],
    p_order_key text[], p_dedupe_key text[], p_headers text[], p_delay_ms bigint[], p_deliver_ms bigint[],
    p_max_attempts bigint[], p_block boolean[], p_keep boolean[], p_relaxed boolean[],
    p_kind bigint[], p_parent uuid[], p_destination text[], p_check_ids boolean)
RETURNS uuid[]
LANGUAGE plpgsql SET search_path = posthouse, pg_temp AS $$
DECLARE
    t timestamptz;
    twins uuid[];
BEGIN
    PERFORM check_message(p_list, p_writer, p_id, p_tenant, p_namespace, p_topic, p_content_type, p_payload, p_digest, p_order_key, p_dedupe_key, p_headers,
                          p_delay_ms, p_deliver_ms, p_max_attempts, p_block, p_keep, p_relaxed, p_kind, p_parent, p_destination);
    IF p_order_key IS NOT NULL THEN
        PERFORM take_turns(p_namespace, p_tenant, p_order_key, p_relaxed);
    END IF;
    PERFORM pg_current_xact_id();
    t := clock();
    IF p_check_ids OR p_dedupe_key IS NOT NULL THEN
        twins := find_twins(p_id, p_namespace, p_tenant, p_topic, p_dedupe_key, p_digest, p_keep, p_check_ids, t);
        IF array_remove(twins, NULL) = '{}' THEN twins := NULL; END IF;
    END IF;
    IF twins IS NULL AND p_order_key IS NULL AND p_deliver_ms IS NULL AND NOT EXISTS (SELECT FROM unnest(p_delay_ms) d WHERE d > 0)
       AND (p_max_attempts IS NULL OR p_max_attempts[1] = ALL (p_max_attempts)) THEN
        PERFORM place_plain(p_id, p_tenant, p_namespace, p_topic, p_content_type, p_payload, p_digest, p_dedupe_key, p_headers,
                            p_kind, p_parent, p_destination, t, p_max_attempts[1]);
    ELSE
        PERFORM place(p_id, p_tenant, p_namespace, p_topic, p_content_type, p_payload, p_digest, p_order_key, p_dedupe_key, p_headers,
                      p_delay_ms, p_deliver_ms, p_max_attempts, p_block, p_kind, p_parent, p_destination, twins, t);
    END IF;
    PERFORM ring(t);
    RETURN twins;
END $$;

-- The common case: new, due now, no key, the same budget for all. Two inserts, no join.
CREATE OR REPLACE FUNCTION posthouse.place_plain(
    p_id uuid[], p_tenant text[], p_namespace text[], p_topic text[], p_content_type text[], p_payload bytea[], p_digest bytea[],
    p_dedupe_key text[], p_headers text[], p_kind bigint[], p_parent uuid[], p_destination text[], p_now timestamptz, p_budget bigint)
RETURNS void
LANGUAGE plpgsql SET search_path = posthouse, pg_temp SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    budget smallint;
BEGIN
    SELECT coalesce(p_budget::smallint, s.max_attempts) INTO budget FROM settings s;
    WITH m AS (
        INSERT INTO message (id, created_at, tenant, namespace, topic, dedupe_key, content_type, payload, digest, headers, kind, parent, destination)
        SELECT u.id, p_now, u.te, u.ns, u.topic, u.dk, u.ct, u.p, u.dg, u.h::jsonb, coalesce(u.kind, 0), u.parent, u.dest
        FROM unnest(p_id, p_tenant, p_namespace, p_topic, p_dedupe_key, p_content_type, p_payload, p_digest, p_headers, p_kind, p_parent, p_destination)
             u(id, te, ns, topic, dk, ct, p, dg, h, kind, parent, dest)
        RETURNING message.seq, message.namespace, message.tenant, octet_length(message.payload) AS bytes)
    INSERT INTO ready (lane, pos, seq, due_at, bytes, max_attempts)
    SELECT lane(m.namespace, m.tenant), m.seq, m.seq, p_now, m.bytes, budget FROM m;
END $$;

-- The general case. The nested loop is off: a join of two lists of unknown length must not become quadratic.
CREATE OR REPLACE FUNCTION posthouse.place(
    p_id uuid[], p_tenant text[], p_namespace text[], p_topic text[], p_content_type text[], p_payload bytea[], p_digest bytea[],
    p_order_key text[], p_dedupe_key text[], p_headers text[], p_delay_ms bigint[], p_deliver_ms bigint[],
    p_max_attempts bigint[], p_block boolean[], p_kind bigint[], p_parent uuid[], p_destination text[],
    p_twins uuid[], p_now timestamptz)
RETURNS void
LANGUAGE plpgsql SET search_path = posthouse, pg_temp
SET plan_cache_mode = force_generic_plan SET enable_nestloop = off SET enable_mergejoin = off AS $$
DECLARE
    budget smallint;
BEGIN
    SELECT s.max_attempts INTO budget FROM settings s;
    WITH u AS MATERIALIZED (
        SELECT u.*, p_now + greatest(u.delay, 0) * interval '1 millisecond' AS due_at,
               p_now + CASE WHEN u.deliver < 0 THEN 0 ELSE u.deliver END * interval '1 millisecond' AS deliver_by,
               coalesce(u.tries::smallint, budget) AS budget
        FROM unnest(p_id, p_tenant, p_namespace, p_topic, p_order_key, p_dedupe_key, p_content_type, p_payload, p_digest, p_headers,
                    p_delay_ms, p_deliver_ms, p_max_attempts, p_block, p_kind, p_parent, p_destination, p_twins) WITH ORDINALITY
             u(id, te, ns, topic, ok, dk, ct, p, dg, h, delay, deliver, tries, block, kind, parent, dest, twin, o)
        WHERE u.twin IS NULL),
    -- Sorted by the caller's order: the numbers of one key must be drawn in it.
    m AS (
        INSERT INTO message (id, created_at, tenant, namespace, topic, order_key, dedupe_key, content_type, payload, digest, headers, deliver_by, kind, parent, destination)
        SELECT u.id, p_now, u.te, u.ns, u.topic, u.ok, u.dk, u.ct, u.p, u.dg, u.h::jsonb, u.deliver_by, coalesce(u.kind, 0), u.parent, u.dest
        FROM u ORDER BY u.o
        RETURNING message.seq, message.id),
    -- A step of a saga does not lapse in the store: a claim grants it, and its saga decides.
    d AS (
        SELECT m.seq, lane(u.ns, u.te) AS lane, u.ns, u.te, u.ok, u.due_at, CASE WHEN u.kind IS DISTINCT FROM 2 THEN u.deliver_by END AS deliver_by, u.budget, octet_length(u.p) AS bytes,
               coalesce(u.block, false) AS block
        FROM m JOIN u ON u.id = m.id),
    k AS (
        INSERT INTO keyed (lane, key_hash, key, pos, seq, line, due_at, wait, deliver_by, bytes, max_attempts, blocks)
        SELECT d.lane, key_hash(d.ns, d.te, d.ok), d.ok, d.seq, d.seq, d.seq, d.due_at, (d.due_at > p_now)::int, d.deliver_by, d.bytes, d.budget, d.block FROM d WHERE d.ok IS NOT NULL),
    s AS (
        INSERT INTO sched (seq, due_at, lane, deliver_by, bytes, max_attempts)
        SELECT d.seq, d.due_at, d.lane, d.deliver_by, d.bytes, d.budget FROM d WHERE d.ok IS NULL AND d.due_at > p_now)
    INSERT INTO ready (lane, pos, seq, due_at, deliver_by, bytes, max_attempts)
    SELECT d.lane, d.seq, d.seq, d.due_at, d.deliver_by, d.bytes, d.budget FROM d WHERE d.ok IS NULL AND d.due_at <= p_now;
END $$;
