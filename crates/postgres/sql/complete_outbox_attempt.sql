-- The state machine for workers that have no library: what an outcome makes of a leased message. The suite compares it
-- with the pure function, over a table of cases.
CREATE OR REPLACE FUNCTION posthouse.decide(
    outcome text, attempts int, max_attempts int, releases int, retry_after interval, roll double precision,
    OUT evidence smallint, OUT next smallint, OUT reason smallint, OUT delay_ms bigint)
LANGUAGE plpgsql STABLE SET search_path = posthouse, pg_temp AS $$
DECLARE
    s settings;
    own_ms double precision;
BEGIN
    delay_ms := 0;
    CASE outcome
        WHEN 'delivered' THEN evidence := 1; next := 1;
        WHEN 'duplicate' THEN evidence := 2; next := 1;
        WHEN 'rejected' THEN evidence := 5; next := 3; reason := 2;
        WHEN 'lease_expired' THEN evidence := 6; next := 2;
        WHEN 'released' THEN
            evidence := CASE WHEN releases >= 100 THEN 4 ELSE 0 END; next := 2;
            delay_ms := greatest(0, least(coalesce(extract(epoch FROM retry_after), 0), extract(epoch FROM interval '3660 days'))) * 1000;
        WHEN 'retry' THEN
            evidence := 4; next := 2;
            SELECT * INTO s FROM settings;
            own_ms := least(extract(epoch FROM s.backoff_base) * power(s.backoff_factor, least(attempts - 1, 1000)), extract(epoch FROM s.backoff_cap))
                      * (1 + (2 * least(greatest(roll, 0), 1) - 1) * s.backoff_jitter) * 1000;
            own_ms := greatest(floor(own_ms + 0.5), extract(epoch FROM s.backoff_floor) * 1000, 0);
            delay_ms := own_ms;
            IF retry_after IS NOT NULL THEN
                delay_ms := greatest(own_ms, least(extract(epoch FROM retry_after), extract(epoch FROM s.longest_wish)) * 1000);
            END IF;
        ELSE
            RAISE 'outcome: must be delivered, duplicate, retry, rejected or released' USING ERRCODE = 'P7006';
    END CASE;
    IF next = 2 AND evidence <> 0 AND attempts >= max_attempts THEN
        next := 3; reason := 1; delay_ms := 0;
    END IF;
END $$;

-- Error text as it is recorded: no control characters, at most so many characters.
CREATE OR REPLACE FUNCTION posthouse.clean(p_text text, p_most int) RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN regexp_replace(left(p_text, p_most), '[\x01-\x1f\x7f-\x9f]', ' ', 'g');

-- A receipt as it is recorded: at most 1 KiB, whatever its characters take.
CREATE OR REPLACE FUNCTION posthouse.clean_receipt(p_text text) RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN CASE WHEN octet_length(left(p_text, 1024)) > 1024 THEN posthouse.clean(p_text, 256) ELSE posthouse.clean(p_text, 1024) END;

-- What whoever speaks of a lease must say. The worker's name is a label, but the evidence should have one.
CREATE OR REPLACE FUNCTION posthouse.check_lease(p_id uuid, p_token uuid, p_worker text) RETURNS void
LANGUAGE plpgsql IMMUTABLE SET search_path = posthouse, pg_temp AS $$
BEGIN
    IF p_id IS NULL OR p_token IS NULL OR p_worker IS NULL THEN
        RAISE '%: must not be NULL', CASE WHEN p_id IS NULL THEN 'id' WHEN p_token IS NULL THEN 'lease_token' ELSE 'worker_id' END USING ERRCODE = 'P7006';
    END IF;
END $$;

-- Finishes one attempt. Answers the new state; raises P7002 when the lease is lost. The worker's name is a label: the token
-- is what is checked.
CREATE OR REPLACE FUNCTION posthouse.complete_outbox_attempt(
    id uuid, lease_token uuid, worker_id text, outcome text, error text DEFAULT NULL, retry_after interval DEFAULT NULL,
    receipt text DEFAULT NULL, code text DEFAULT NULL, keep_receipt boolean DEFAULT false,
    roll double precision DEFAULT NULL, destination text DEFAULT '')
RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = posthouse, pg_temp
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off AS $$
#variable_conflict use_column
DECLARE
    number bigint;
    own leased;
    d record;
    answer text := 'lost';
    keeps bytea[];
BEGIN
    PERFORM check_lease(complete_outbox_attempt.id, lease_token, worker_id);
    -- A mistake in the call is told first: it must not read as a lost lease.
    IF complete_outbox_attempt.outcome IS NULL OR complete_outbox_attempt.outcome NOT IN ('delivered', 'duplicate', 'retry', 'rejected', 'released') THEN
        RAISE 'outcome: must be delivered, duplicate, retry, rejected or released' USING ERRCODE = 'P7006';
    ELSIF complete_outbox_attempt.destination IS NULL THEN
        RAISE 'destination: must not be NULL' USING ERRCODE = 'P7006';
    END IF;
    SELECT m.seq INTO number FROM message m WHERE m.id = complete_outbox_attempt.id;
    IF EXISTS (SELECT FROM message m WHERE m.seq = number AND m.kind >= 2) THEN
        RAISE 'cannot complete message %: what becomes of a message of a saga is decided by relays', complete_outbox_attempt.id USING ERRCODE = 'P7006';
    END IF;
    PERFORM open_lots(ARRAY[number], ARRAY[lease_token], false);
    -- Not locked here: `settle` locks it with the rest of its run, in the order that everybody keeps. What is read of it does not
    -- change under one token.
    SELECT l.* INTO own FROM leased l WHERE l.seq = number AND l.token = lease_token;
    IF FOUND THEN
        SELECT * INTO d FROM decide(complete_outbox_attempt.outcome, own.attempts, own.max_attempts, own.releases, retry_after, coalesce(roll, random()));
        IF complete_outbox_attempt.keep_receipt AND d.evidence = 1 THEN
            keeps := ARRAY(SELECT effect_hash(m.tenant, m.namespace, m.topic, m.digest, complete_outbox_attempt.destination) FROM message m WHERE m.seq = number);
        END IF;
        BEGIN
            SELECT (settle(ARRAY[own.seq], ARRAY[own.token], ARRAY[own.epoch::bigint], ARRAY[d.evidence::bigint], ARRAY[d.next::bigint], ARRAY[d.reason::bigint], ARRAY[d.delay_ms],
                           ARRAY[own.max_attempts::bigint],
                           ARRAY[CASE WHEN complete_outbox_attempt.outcome = 'released' THEN 'released_too_often' ELSE clean(complete_outbox_attempt.code, 64) END], ARRAY[clean(complete_outbox_attempt.error, 512)],
                           ARRAY[clean_receipt(complete_outbox_attempt.receipt)], keeps))[1] INTO answer;
        EXCEPTION WHEN SQLSTATE 'P7010' THEN
            -- The deadline passed in this very moment: nothing was ended.
            answer := 'lost';
        END;
    END IF;
    IF answer <> 'settled' THEN
        RETURN repeated_completion(number, complete_outbox_attempt.id, lease_token, complete_outbox_attempt.outcome);
    END IF;
    IF d.next = 1 THEN
        PERFORM end_entry_by_receipt(m, clean_receipt(complete_outbox_attempt.receipt)) FROM message m WHERE m.seq = number AND m.headers ? 'posthouse-ledger';
    END IF;
    RETURN CASE d.next WHEN 1 THEN 'done' WHEN 2 THEN 'pending' ELSE 'dead' END;
END $$;

-- The lease is gone. If this very completion ended it (its reply was lost), say so again; else the lease is lost.
CREATE OR REPLACE FUNCTION posthouse.repeated_completion(p_seq bigint, p_id uuid, p_token uuid, p_outcome text) RETURNS text
LANGUAGE plpgsql SET search_path = posthouse, pg_temp
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off AS $$
BEGIN
    -- A release that counted is on record as a retry, with a code of its own.
    IF EXISTS (SELECT FROM attempt a WHERE a.seq = p_seq AND a.token = p_token
               AND p_outcome = CASE a.code WHEN 'released_too_often' THEN 'released' ELSE outcome_word(a.outcome) END)
       OR p_outcome = 'released' AND EXISTS (SELECT FROM live v WHERE v.seq = p_seq AND v.released = p_token) THEN
        RETURN (SELECT v.state FROM messages v WHERE v.seq = p_seq);
    END IF;
    RAISE 'the lease on message % is lost', p_id USING ERRCODE = 'P7002',
        HINT = 'somebody else may finish it now; forget it, and call record_conflict if you want it on record';
END $$;
