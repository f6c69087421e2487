-- Retention. `prune` is the public function; it hands on to one of two that different roles may call:
--   prune_done    removes messages that are done, with old dedupe keys, entries, inbox rows and sagas; relays may
--   prune_states  removes dead letters too; operators may, relays get 42501

-- Removes old messages of the state, 'done', 'dead' or 'all', at most p_max_rows of each state; unless only dead letters go, also dedupe
-- keys whose lifetime is over, ledger entries past their retention, inbox rows of messages that are not here any more, and sagas that
-- ended at the cutoff or before, at most p_max_rows of each. A dedupe key keeps the time its message ended.
--
-- Messages that are done are found by number, from where the last call stopped, to where all are too young: a hundred in a row. There
-- the next walk starts again from the beginning. A few young ones before that, or any number from the future, had their time from a
-- clock that was wrong, and are passed. Many old messages that must stay would make each walk long, so it stops after looking at a
-- bounded number, and says that there is more. Dead letters are found in their own table, by number, with a mark of their own. A dry
-- run begins at the beginning.
--
-- Locks: messages by number, then dead letters, then dedupe keys by hash; rows that another session has locked are skipped.
CREATE OR REPLACE FUNCTION posthouse.prune_work(
    p_now timestamptz, p_cutoff timestamptz, p_max_rows int, p_state text, p_dry_run boolean,
    OUT done bigint, OUT dead bigint, OUT dedupe_keys bigint, OUT entries bigint, OUT inbox bigint, OUT sagas bigint, OUT more boolean)
LANGUAGE plpgsql SET search_path = posthouse, pg_temp
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off AS $$
#variable_conflict use_column
DECLARE
    looks CONSTANT bigint := 100 + 10 * p_max_rows::bigint;
    looked bigint := 0;
    young int := 0;
    place bigint := 0;
    place_dead bigint := 0;
    more_done boolean := false;
    more_dead boolean := false;
    m record;
    old bigint[] := '{}';
    seqs bigint[] := '{}';
    buried bigint[];
    steps bigint := 0;
BEGIN
    IF p_state <> 'dead' THEN
        FOR m IN
            SELECT m.seq, m.created_at > p_cutoff AND m.created_at <= p_now AS young, v.state = 'done' AND v.finished_at <= p_cutoff AS over
            FROM (SELECT m.seq, m.created_at FROM message m WHERE m.seq >= (SELECT CASE WHEN p_dry_run THEN 0 ELSE r.next END FROM retention r) ORDER BY m.seq LIMIT looks) m
            CROSS JOIN LATERAL (SELECT v.state, v.finished_at FROM messages v WHERE v.seq = m.seq OFFSET 0) v
            ORDER BY m.seq
        LOOP
            young := CASE WHEN m.young THEN young + 1 ELSE 0 END;
            IF young = 100 THEN more_done := false; EXIT; END IF;
            looked := looked + 1;
            more_done := looked = looks OR cardinality(old) = p_max_rows;
            place := m.seq;
            EXIT WHEN cardinality(old) = p_max_rows;
            IF m.over THEN old := old || m.seq; END IF;
            place := m.seq + 1;
        END LOOP;
        seqs := old;
    END IF;
    IF p_state <> 'done' THEN
        old := '{}';
        looked := 0;
        FOR m IN
            SELECT d.seq, d.reason <> 0 AND d.at <= p_cutoff AND NOT d.blocking AND NOT is_held_for_saga(d.seq) AS over
            FROM dead d WHERE d.seq >= (SELECT CASE WHEN p_dry_run THEN 0 ELSE r.next_dead END FROM retention r) ORDER BY d.seq LIMIT looks
        LOOP
            looked := looked + 1;
            more_dead := looked = looks OR cardinality(old) = p_max_rows;
            place_dead := m.seq;
            EXIT WHEN cardinality(old) = p_max_rows;
            IF m.over THEN old := old || m.seq; END IF;
            place_dead := m.seq + 1;
        END LOOP;
        seqs := seqs || old;
    END IF;
    more := more_done OR more_dead;
    -- Another pruner may have them, an operator may be replaying one: lock, then look again.
    seqs := ARRAY(SELECT m.seq FROM message m WHERE m.seq = ANY (seqs) ORDER BY m.seq FOR UPDATE SKIP LOCKED);
    -- Not waited for: an operator's verb takes what is dead before the message.
    buried := ARRAY(SELECT d.seq FROM dead d WHERE d.seq = ANY (seqs) ORDER BY d.seq FOR UPDATE SKIP LOCKED);
    seqs := ARRAY(
        SELECT s FROM unnest(seqs) s
        CROSS JOIN LATERAL (SELECT v.state FROM messages v WHERE v.seq = s AND v.finished_at <= p_cutoff OFFSET 0) v
        LEFT JOIN LATERAL (SELECT d.blocking, is_held_for_saga(d.seq) AS letter FROM dead d WHERE d.seq = s OFFSET 0) d ON true
        WHERE v.state = 'done' AND p_state <> 'dead' OR v.state = 'dead' AND p_state <> 'done' AND s = ANY (buried) AND NOT d.blocking AND NOT d.letter);
    -- In the order in which producers lock them.
    PERFORM FROM dedupe d WHERE d.id = ANY (ARRAY(SELECT m.id FROM message m WHERE m.seq = ANY (seqs) AND m.dedupe_key IS NOT NULL)) ORDER BY d.key_hash FOR UPDATE;
    UPDATE dedupe d SET ended_at = v.finished_at
    FROM unnest(seqs) s CROSS JOIN LATERAL (SELECT v.id, v.finished_at FROM messages v WHERE v.seq = s AND v.dedupe_key IS NOT NULL OFFSET 0) v
    WHERE d.id = ANY (ARRAY[v.id]);
    DELETE FROM dead d WHERE d.seq = ANY (seqs);
    GET DIAGNOSTICS prune_work.dead = ROW_COUNT;
    DELETE FROM receipt r WHERE r.seq = ANY (seqs);
    DELETE FROM resolved r WHERE r.seq = ANY (seqs);
    DELETE FROM attempt a WHERE a.seq = ANY (seqs);
    DELETE FROM message m WHERE m.seq = ANY (seqs);
    GET DIAGNOSTICS prune_work.done = ROW_COUNT;
    prune_work.done := prune_work.done - prune_work.dead;
    prune_work.dedupe_keys := 0; prune_work.entries := 0; prune_work.inbox := 0; prune_work.sagas := 0;
    IF p_state <> 'dead' THEN
        DELETE FROM dedupe d WHERE d.ctid = ANY (ARRAY(
            SELECT q.ctid FROM dedupe q WHERE q.ended_at <= p_now - (SELECT s.dedupe_lifetime FROM settings s) ORDER BY q.ended_at LIMIT p_max_rows FOR UPDATE SKIP LOCKED));
        GET DIAGNOSTICS prune_work.dedupe_keys = ROW_COUNT;
        prune_work.entries := prune_entries(p_max_rows);
        prune_work.inbox := prune_inbox(p_cutoff, p_max_rows);
        steps := prune_steps(p_cutoff, p_max_rows);
        prune_work.sagas := prune_sagas(p_cutoff, p_max_rows);
        more := more OR p_max_rows IN (prune_work.dedupe_keys, prune_work.entries, prune_work.inbox, steps, prune_work.sagas);
        prune_work.inbox := prune_work.inbox + steps;
    END IF;
    -- Last, so that two pruners wait for each other as briefly as can be.
    UPDATE retention SET
        next = CASE WHEN p_state = 'dead' THEN next WHEN more_done THEN place ELSE 0 END,
        next_dead = CASE WHEN p_state = 'done' THEN next_dead WHEN more_dead THEN place_dead ELSE 0 END;
END $$;

-- One call of a prune, of any state. It adds its counts to the audit row whose number is given, if that is of a prune of the same
-- states by the same actor; else it writes a row, unless it removed nothing. A dry run is rolled back: it counts what the same call would remove.
CREATE OR REPLACE FUNCTION posthouse.prune_states(
    older_than interval, max_rows int, state text, actor text, note text, dry_run boolean, INOUT audit bigint,
    OUT done bigint, OUT dead bigint, OUT dedupe_keys bigint, OUT entries bigint, OUT inbox bigint, OUT sagas bigint, OUT more boolean)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = posthouse, pg_temp AS $$
#variable_conflict use_column
DECLARE
    t CONSTANT timestamptz := clock();
    cutoff timestamptz;
    removed jsonb;
BEGIN
    IF older_than IS NULL OR older_than NOT BETWEEN interval '0' AND interval '1000 years' THEN
        RAISE 'older_than: must be between zero and 1000 years' USING ERRCODE = 'P7006';
    ELSIF max_rows IS NULL OR max_rows < 1 THEN
        RAISE 'max_rows: must be one or more' USING ERRCODE = 'P7006';
    ELSIF prune_states.state IS NULL OR prune_states.state NOT IN ('done', 'dead', 'all') THEN
        RAISE 'state: must be done, dead or all' USING ERRCODE = 'P7006';
    ELSIF coalesce(prune_states.actor, '') = '' THEN
        RAISE 'actor: is empty' USING ERRCODE = 'P7006';
    ELSIF dry_run IS NULL THEN
        RAISE 'dry_run: must not be NULL' USING ERRCODE = 'P7006';
    END IF;
    cutoff := t - older_than;
    IF dry_run THEN
        BEGIN
            SELECT w.* INTO done, dead, dedupe_keys, entries, inbox, sagas, more FROM prune_work(t, cutoff, max_rows, prune_states.state, true) w;
            RAISE 'this was a dry run' USING ERRCODE = 'P7099';
        EXCEPTION WHEN SQLSTATE 'P7099' THEN
            prune_states.audit := NULL;
            RETURN;
        END;
    END IF;
    SELECT w.* INTO done, dead, dedupe_keys, entries, inbox, sagas, more FROM prune_work(t, cutoff, max_rows, prune_states.state, false) w;
    IF done + dead + dedupe_keys + entries + inbox + sagas = 0 THEN
        prune_states.audit := NULL;
        RETURN;
    END IF;
    removed := jsonb_build_object('states', prune_states.state, 'cutoff', to_char(cutoff AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'),
        'done', done, 'dead', dead, 'dedupe_keys', dedupe_keys, 'entries', entries, 'inbox', inbox, 'sagas', sagas);
    UPDATE audit a SET pruned = (
        SELECT jsonb_object_agg(e.key, CASE jsonb_typeof(e.value) WHEN 'number' THEN to_jsonb((a.pruned ->> e.key)::bigint + e.value::bigint) ELSE e.value END)
        FROM jsonb_each(removed) e)
    WHERE a.n = prune_states.audit AND a.action = 'prune' AND a.actor = clean(prune_states.actor, 512) AND a.pruned ->> 'states' = prune_states.state;
    IF NOT FOUND THEN
        INSERT INTO audit AS a (at, actor, action, note, pruned)
        VALUES (t, clean(prune_states.actor, 512), 'prune', coalesce(clean(prune_states.note, 512), ''), removed)
        RETURNING a.n INTO prune_states.audit;
    END IF;
END $$;

-- The same for messages that are done: relays may call it.
CREATE OR REPLACE FUNCTION posthouse.prune_done(
    older_than interval, max_rows int, actor text, note text, dry_run boolean, INOUT audit bigint,
    OUT done bigint, OUT dead bigint, OUT dedupe_keys bigint, OUT entries bigint, OUT inbox bigint, OUT sagas bigint, OUT more boolean)
LANGUAGE sql SECURITY DEFINER SET search_path = posthouse, pg_temp AS $$
    SELECT * FROM prune_states(older_than, max_rows, 'done', actor, note, dry_run, audit)
$$;

-- Removes messages that ended longer than older_than ago, with their attempts: by default those that are done. With the caller's own
-- rights, so that the database refuses dead letters to a role that may not remove them.
CREATE OR REPLACE FUNCTION posthouse.prune(
    older_than interval, max_rows int, state text DEFAULT 'done', actor text DEFAULT session_user::text, note text DEFAULT '', dry_run boolean DEFAULT false,
    INOUT audit bigint DEFAULT NULL,
    OUT done bigint, OUT dead bigint, OUT dedupe_keys bigint, OUT entries bigint, OUT inbox bigint, OUT sagas bigint, OUT more boolean)
LANGUAGE plpgsql SET search_path = posthouse, pg_temp AS $$
#variable_conflict use_variable
BEGIN
    IF state IS NULL THEN
        RAISE 'state: must be done, dead or all' USING ERRCODE = 'P7006';
    ELSIF state = 'done' THEN
        SELECT p.* INTO audit, done, dead, dedupe_keys, entries, inbox, sagas, more FROM prune_done(older_than, max_rows, actor, note, dry_run, audit) p;
    ELSE
        SELECT p.* INTO audit, done, dead, dedupe_keys, entries, inbox, sagas, more FROM prune_states(older_than, max_rows, state, actor, note, dry_run, audit) p;
    END IF;
END $$;
