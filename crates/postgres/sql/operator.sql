-- The operator's verbs. Each takes the message's live record out under a lock, or refuses; puts it where it belongs now;
-- and writes the actor and the note into the audit. A leased message is never touched: it has a holder.

-- Takes the live record of a message out of its table. One look at all tables tells where it is; if it moved before the
-- lock was there, look again. Its key is taken first, so that no claim has it meanwhile.
CREATE OR REPLACE FUNCTION posthouse.take_out(
    p_id uuid, p_verb text, p_actor text, p_allowed text[],
    OUT message posthouse.message, OUT state text, OUT pos bigint, OUT epoch int, OUT attempts int, OUT generation int, OUT max_attempts smallint,
    OUT blocks boolean, OUT blocking boolean)
LANGUAGE plpgsql SET search_path = posthouse, pg_temp
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off AS $$
#variable_conflict use_column
DECLARE
    v record;
BEGIN
    IF p_id IS NULL THEN
        RAISE 'id: must not be NULL' USING ERRCODE = 'P7006';
    ELSIF coalesce(p_actor, '') = '' THEN
        RAISE 'actor: is empty' USING ERRCODE = 'P7006';
    -- An old snapshot would show the key as it was before its lock was there, and what is behind its head could stand for ever.
    ELSIF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE 'transaction: an operator''s verb must run under READ COMMITTED' USING ERRCODE = 'P7006';
    END IF;
    -- Ends: a message that moves twenty times while we look is being worked on; the caller may ask again.
    FOR round IN 1..20 LOOP
        SELECT m.* INTO take_out.message FROM message m WHERE m.id = p_id;
        IF NOT FOUND THEN
            RAISE 'there is no message %', p_id USING ERRCODE = 'P7005';
        END IF;
        IF (take_out.message).kind >= 2 AND (take_out.message).parent IS NOT NULL THEN
            RAISE 'cannot % message %: it belongs to saga %', p_verb, p_id, (take_out.message).parent USING ERRCODE = 'P7011', DETAIL = (take_out.message).parent::text, HINT = p_verb;
        END IF;
        IF (take_out.message).order_key IS NOT NULL THEN
            PERFORM pg_advisory_xact_lock(key_lock(key_hash((take_out.message).namespace, (take_out.message).tenant, (take_out.message).order_key)));
        END IF;
        SELECT l.* INTO v FROM live l WHERE l.seq = (take_out.message).seq;
        take_out.state := coalesce(v.state, 'done');
        IF take_out.state <> ALL (p_allowed) THEN
            RAISE 'cannot % message %: it is %', p_verb, p_id, take_out.state USING ERRCODE = 'P7003', DETAIL = take_out.state, HINT = p_verb;
        END IF;
        take_out.epoch := v.epoch; take_out.attempts := v.attempts; take_out.generation := v.generation; take_out.max_attempts := v.max_attempts;
        take_out.blocks := false; take_out.blocking := false; take_out.pos := NULL;
        CASE v.place
            WHEN 'ready' THEN DELETE FROM ready x WHERE x.ctid = v.c AND x.seq = v.seq;
            WHEN 'sched' THEN DELETE FROM sched x WHERE x.ctid = v.c AND x.seq = v.seq;
            WHEN 'parked' THEN DELETE FROM parked x WHERE x.ctid = v.c AND x.seq = v.seq;
            WHEN 'keyed' THEN
                DELETE FROM keyed x WHERE x.ctid = v.c AND x.seq = v.seq RETURNING x.pos, x.blocks, x.blocks INTO take_out.pos, take_out.blocks, take_out.blocking;
            WHEN 'dead' THEN
                DELETE FROM dead x WHERE x.ctid = v.c AND x.seq = v.seq RETURNING x.on_dead, x.blocking INTO take_out.blocks, take_out.blocking;
        END CASE;
        IF FOUND THEN
            IF v.place = 'dead' AND take_out.blocking THEN
                DELETE FROM keyed k
                WHERE k.lane = lane((take_out.message).namespace, (take_out.message).tenant) AND k.key_hash = key_hash((take_out.message).namespace, (take_out.message).tenant, (take_out.message).order_key)
                  AND k.key = (take_out.message).order_key AND k.seq = v.seq
                RETURNING k.pos INTO take_out.pos;
            END IF;
            IF (take_out.message).order_key IS NOT NULL THEN
                PERFORM rouse(lane((take_out.message).namespace, (take_out.message).tenant),
                              key_hash((take_out.message).namespace, (take_out.message).tenant, (take_out.message).order_key), (take_out.message).order_key);
            END IF;
            RETURN;
        END IF;
    END LOOP;
    RAISE 'message % moves too fast; try again', p_id USING ERRCODE = '40001';
END $$;

CREATE OR REPLACE FUNCTION posthouse.write_audit(p_id uuid, p_actor text, p_action text, p_note text, p_destination text DEFAULT NULL) RETURNS void
LANGUAGE sql SET search_path = posthouse, pg_temp AS $$
    INSERT INTO audit (at, message_id, destination, actor, action, note)
    VALUES (clock(), p_id, p_destination, clean(p_actor, 512), p_action, coalesce(clean(p_note, 512), ''))
$$;

-- Puts a record back into its key, in its own place.
CREATE OR REPLACE FUNCTION posthouse.put_keyed(m posthouse.message, p_pos bigint, p_due timestamptz, p_deliver_by timestamptz, p_epoch int, p_attempts int, p_generation int, p_max_attempts smallint, p_blocks boolean) RETURNS void
LANGUAGE sql SET search_path = posthouse, pg_temp AS $$
    INSERT INTO keyed (lane, key_hash, key, pos, seq, line, due_at, wait, deliver_by, epoch, attempts, generation, bytes, max_attempts, blocks)
    VALUES (lane(m.namespace, m.tenant), key_hash(m.namespace, m.tenant, m.order_key), m.order_key, p_pos, m.seq, nextval('message_seq_seq'), p_due, (p_due = 'infinity')::int, p_deliver_by, p_epoch, p_attempts, p_generation, octet_length(m.payload), p_max_attempts, p_blocks)
$$;

-- Sends a dead or quarantined message round again. A keyed one goes to the tail of its key, under the producers' turn, or a
-- claim that has just locked the head could be overtaken; one that still blocks its key goes back to its own place.
CREATE OR REPLACE FUNCTION posthouse.replay(id uuid, actor text, note text DEFAULT '', deliver_in interval DEFAULT NULL) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = posthouse, pg_temp
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off AS $$
#variable_conflict use_column
DECLARE
    m message;
    x record;
    t timestamptz;
    deadline timestamptz;
BEGIN
    IF deliver_in <= interval '0' OR deliver_in > interval '3660 days' THEN
        RAISE 'deliver_in: must be more than zero and at most ten years' USING ERRCODE = 'P7006';
    END IF;
    SELECT q.* INTO m FROM message q WHERE q.id = replay.id;
    PERFORM take_turns(ARRAY[m.namespace], ARRAY[m.tenant], ARRAY[m.order_key], NULL);
    PERFORM pg_current_xact_id();
    SELECT * INTO x FROM take_out(replay.id, 'replay', actor, ARRAY['dead', 'quarantined']);
    t := clock();
    deadline := coalesce(t + deliver_in, CASE WHEN m.deliver_by > t THEN m.deliver_by END);
    IF m.order_key IS NULL THEN
        INSERT INTO ready (lane, pos, seq, due_at, deliver_by, epoch, generation, bytes, max_attempts)
        VALUES (lane(m.namespace, m.tenant), nextval('message_seq_seq'), m.seq, t, deadline, x.epoch, x.generation + 1, octet_length(m.payload), x.max_attempts);
    ELSE
        PERFORM put_keyed(m, coalesce(x.pos, nextval('message_seq_seq')), t, deadline, x.epoch, 0, x.generation + 1, x.max_attempts, x.blocks);
    END IF;
    PERFORM reopen_entry(m);
    PERFORM write_audit(m.id, actor, 'replay', replay.note);
    PERFORM ring(t);
    RETURN 'pending';
END $$;

-- Holds a pending or dead message. One of a key with on_dead = block goes on holding its place.
CREATE OR REPLACE FUNCTION posthouse.quarantine(id uuid, actor text, note text DEFAULT '') RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = posthouse, pg_temp
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off AS $$
#variable_conflict use_column
DECLARE
    x record;
BEGIN
    SELECT * INTO x FROM take_out(quarantine.id, 'quarantine', actor, ARRAY['pending', 'dead']);
    IF x.blocking THEN
        PERFORM put_keyed(x.message, x.pos, 'infinity', NULL, x.epoch, x.attempts, x.generation, x.max_attempts, x.blocks);
    END IF;
    INSERT INTO dead (seq, at, epoch, attempts, generation, max_attempts, reason, on_dead, blocking, note)
    VALUES ((x.message).seq, clock(), x.epoch, x.attempts, x.generation, x.max_attempts, 0, x.blocks, x.blocking, clean(quarantine.note, 512));
    PERFORM write_audit(quarantine.id, actor, 'quarantine', quarantine.note);
    RETURN 'quarantined';
END $$;

-- Gives up a pending or quarantined message. It frees its key: a person has decided.
CREATE OR REPLACE FUNCTION posthouse.cancel(id uuid, actor text, note text DEFAULT '') RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = posthouse, pg_temp
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off AS $$
#variable_conflict use_column
DECLARE
    x record;
BEGIN
    SELECT * INTO x FROM take_out(cancel.id, 'cancel', actor, ARRAY['pending', 'quarantined']);
    INSERT INTO dead (seq, at, epoch, attempts, generation, max_attempts, reason, on_dead, blocking)
    VALUES ((x.message).seq, clock(), x.epoch, x.attempts, x.generation, x.max_attempts, 5, x.blocks, false);
    PERFORM write_audit(cancel.id, actor, 'cancel', cancel.note);
    RETURN 'dead';
END $$;

-- States that a message was delivered. The receipt is the answer of its ledger entry; the audit keeps it behind the note.
CREATE OR REPLACE FUNCTION posthouse.resolve(id uuid, actor text, note text DEFAULT '', receipt text DEFAULT '') RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = posthouse, pg_temp
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off AS $$
DECLARE
    x record;
BEGIN
    SELECT * INTO x FROM take_out(resolve.id, 'resolve', actor, ARRAY['pending', 'dead', 'quarantined']);
    INSERT INTO resolved (seq, at, epoch, attempts, generation, max_attempts)
    VALUES ((x.message).seq, clock(), x.epoch, x.attempts, x.generation, x.max_attempts);
    PERFORM end_entry_by_receipt(x.message, clean(receipt, 512));
    PERFORM write_audit(resolve.id, actor, 'resolve', concat_ws('; ', nullif(resolve.note, ''), 'receipt: ' || nullif(resolve.receipt, '')));
    RETURN 'done';
END $$;

-- Removes a dead or quarantined message with its evidence, and frees its dedupe key. The audit remembers.
CREATE OR REPLACE FUNCTION posthouse.discard(id uuid, actor text, note text DEFAULT '') RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = posthouse, pg_temp
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off AS $$
#variable_conflict use_column
DECLARE
    x record;
BEGIN
    SELECT * INTO x FROM take_out(discard.id, 'discard', actor, ARRAY['dead', 'quarantined']);
    -- A dead one has ended its entry.
    IF x.state = 'quarantined' THEN PERFORM end_entry(x.message, false, status_of_death(5, NULL), NULL, NULL, NULL, reason_word(5::smallint)); END IF;
    DELETE FROM receipt r WHERE r.seq = (x.message).seq;
    DELETE FROM attempt a WHERE a.seq = (x.message).seq;
    DELETE FROM dedupe d WHERE d.id = discard.id;
    DELETE FROM message m WHERE m.seq = (x.message).seq;
    PERFORM write_audit(discard.id, actor, 'discard', discard.note);
END $$;
