-- Gives messages of sagas back, unsent and due, behind all others: a relay that looks finds them.
CREATE OR REPLACE FUNCTION posthouse.leave_to_relays(p_seq bigint[], p_token uuid) RETURNS void
LANGUAGE plpgsql SET search_path = posthouse, pg_temp AS $$
DECLARE
    n CONSTANT int := cardinality(p_seq);
    own CONSTANT bigint[] := ARRAY(SELECT s FROM unnest(p_seq) s ORDER BY s);
BEGIN
    -- Without its lease a message cannot be released, and its attempt would count.
    IF 'settled' <> ANY (settle(own, array_fill(p_token, ARRAY[n]), array_fill(0::bigint, ARRAY[n]), array_fill(0::bigint, ARRAY[n]), array_fill(2::bigint, ARRAY[n]), NULL,
                   array_fill(0::bigint, ARRAY[n]),
                   ARRAY(SELECT l.max_attempts::bigint FROM unnest(own) WITH ORDINALITY s(seq, o) CROSS JOIN LATERAL (SELECT v.max_attempts FROM live v WHERE v.seq = s.seq OFFSET 0) l ORDER BY s.o),
                   NULL, NULL, NULL)) THEN
        RAISE 'the claim took longer than half of its lease, and grants nothing' USING ERRCODE = 'P7012';
    END IF;
END $$;

-- Claims for workers in any language: settles what ran out, then grants up to batch_size leases under one fresh token. With a
-- tenant, it neither settles nor moves anything of another's. Each lease has at least half of lease_seconds left when the function returns: a claim that takes longer raises
-- P7012, and its caller claims again.
CREATE OR REPLACE FUNCTION posthouse.claim_outbox_batch(
    batch_size int, worker_id text, lease_seconds double precision, namespaces text[] DEFAULT NULL, tenant text DEFAULT NULL,
    max_bytes bigint DEFAULT NULL, not_topics text[] DEFAULT '{}')
RETURNS SETOF posthouse.claimed
LANGUAGE plpgsql SECURITY DEFINER SET search_path = posthouse, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    token CONSTANT uuid := gen_random_uuid();
    again boolean := true;
    granted boolean := false;
    sagas bigint[] := '{}';
    -- Before the look that granted: its leases began no earlier.
    began timestamptz;
    g record;
BEGIN
    IF batch_size IS NULL OR batch_size NOT BETWEEN 1 AND 10000 THEN
        RAISE 'batch_size: must be between 1 and 10000' USING ERRCODE = 'P7006';
    ELSIF lease_seconds IS NULL OR NOT (lease_seconds >= 0.001 AND lease_seconds <= 86400) THEN
        RAISE 'lease_seconds: must be between 0.001 and 86400' USING ERRCODE = 'P7006';
    ELSIF max_bytes < 1 THEN
        RAISE 'max_bytes: must be at least 1' USING ERRCODE = 'P7006';
    ELSIF array_ndims(namespaces) > 1 THEN
        RAISE 'namespaces: must be a plain list' USING ERRCODE = 'P7006';
    ELSIF array_ndims(not_topics) > 1 THEN
        RAISE 'not_topics: must be a plain list' USING ERRCODE = 'P7006';
    ELSIF array_position(namespaces, NULL) IS NOT NULL THEN
        RAISE 'namespaces: holds a NULL' USING ERRCODE = 'P7006';
    ELSIF array_position(not_topics, NULL) IS NOT NULL THEN
        RAISE 'not_topics: holds a NULL' USING ERRCODE = 'P7006';
    ELSIF worker_id IS NULL THEN
        RAISE 'worker_id: must not be NULL' USING ERRCODE = 'P7006';
    END IF;
    PERFORM check_name('worker_id', worker_id, 1, 255);
    PERFORM repair_expired_leases(batch_size, claim_outbox_batch.tenant);
    -- A look that was cut short goes on, a few times: an empty answer sends a worker to sleep.
    FOR look IN 1..8 LOOP
        EXIT WHEN NOT again;
        again := false;
        began := clock();
        FOR g IN SELECT * FROM grant_leases(
            batch_size, worker_id, token, (lease_seconds * 1000)::bigint, max_bytes, CASE WHEN namespaces = '{}' THEN NULL ELSE namespaces END,
            claim_outbox_batch.tenant, coalesce(not_topics, '{}'), '{}', '{}', -9223372036854775808, 9223372036854775807)
        LOOP
            IF g.seq IS NULL THEN
                again := again OR g.kind = 1 AND NOT granted;
            ELSIF g.kind >= 2 THEN
                -- A message of a saga is for relays, which decide what becomes of it.
                sagas := sagas || g.seq;
            ELSE
                granted := true;
                RETURN NEXT (g.id, token, g.epoch::bigint, g.attempt, g.tenant, g.namespace, g.topic, g.order_key, g.content_type, g.payload,
                             coalesce(g.headers - 'posthouse-ledger', '{}'), g.generation, g.max_attempts, g.deliver_ms * interval '1 millisecond', g.parent)::claimed;
            END IF;
        END LOOP;
        again := again OR cardinality(sagas) > 0 AND NOT granted;
    END LOOP;
    IF sagas <> '{}' THEN
        PERFORM leave_to_relays(sagas, token);
        IF granted AND clock() > began + make_interval(secs => lease_seconds / 2) THEN
            RAISE 'the claim took longer than half of its lease, and grants nothing' USING ERRCODE = 'P7012';
        END IF;
    END IF;
END $$;
