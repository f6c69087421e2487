-- Retention: removes messages that ended longer than older_than ago, with their evidence, dedupe keys whose lifetime is
-- over, entries of the ledger past their retention, what consumers had longer ago than that of messages that are not here any more, and sagas that ended longer ago than that; at most max_rows of each. What lives, is held or blocks its key stays. A dedupe key keeps the time its message ended.
--
-- It walks by number, from where the last call stopped, to where all are too young: a hundred in a row. There the next walk starts
-- again from the beginning. A few young ones before that, or any number from the future, had their time from a clock that was
-- wrong, and are passed. Many old messages that must stay would make each walk long, so it stops after looking at a bounded
-- number, and says that there is more.
CREATE OR REPLACE FUNCTION posthouse.prune(older_than interval, max_rows int, OUT messages bigint, OUT dedupe_keys bigint, OUT entries bigint, OUT inbox bigint, OUT sagas bigint, OUT more boolean)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = posthouse, pg_temp
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off AS $$
#variable_conflict use_column
DECLARE
    t CONSTANT timestamptz := clock();
    looks CONSTANT bigint := 100 + 10 * max_rows::bigint;
    cutoff timestamptz;
    looked bigint := 0;
    young int := 0;
    place bigint := 0;
    m record;
    seqs bigint[] := '{}';
    buried bigint[];
    steps bigint;
BEGIN
    IF older_than IS NULL OR older_than NOT BETWEEN interval '0' AND interval '1000 years' THEN
        RAISE 'older_than: must be between zero and 1000 years' USING ERRCODE = 'P7006';
    ELSIF max_rows IS NULL OR max_rows < 1 THEN
        RAISE 'max_rows: must be one or more' USING ERRCODE = 'P7006';
    END IF;
    cutoff := t - older_than;
    more := false;
    FOR m IN
        SELECT m.seq, m.created_at > cutoff AND m.created_at <= t AS young,
               v.state IN ('done', 'dead') AND v.finished_at <= cutoff AND NOT coalesce(d.blocking, false) AND NOT coalesce(d.letter, false) AS over
        FROM (SELECT m.seq, m.created_at FROM message m WHERE m.seq >= (SELECT r.next FROM retention r) ORDER BY m.seq LIMIT looks) m
        CROSS JOIN LATERAL (SELECT v.state, v.finished_at FROM messages v WHERE v.seq = m.seq OFFSET 0) v
        LEFT JOIN LATERAL (SELECT d.blocking, is_held_for_saga(d.seq) AS letter FROM dead d WHERE d.seq = m.seq OFFSET 0) d ON true
        ORDER BY m.seq
    LOOP
        young := CASE WHEN m.young THEN young + 1 ELSE 0 END;
        IF young = 100 THEN more := false; EXIT; END IF;
        looked := looked + 1;
        more := looked = looks OR cardinality(seqs) = max_rows;
        place := m.seq;
        EXIT WHEN cardinality(seqs) = max_rows;
        IF m.over THEN seqs := seqs || m.seq; END IF;
        place := m.seq + 1;
    END LOOP;
    -- Another pruner may have them, an operator may be replaying one: lock, then look again.
    seqs := ARRAY(SELECT m.seq FROM message m WHERE m.seq = ANY (seqs) ORDER BY m.seq FOR UPDATE SKIP LOCKED);
    -- Not waited for: an operator's verb takes what is dead before the message.
    buried := ARRAY(SELECT d.seq FROM dead d WHERE d.seq = ANY (seqs) ORDER BY d.seq FOR UPDATE SKIP LOCKED);
    seqs := ARRAY(
        SELECT s FROM unnest(seqs) s
        CROSS JOIN LATERAL (SELECT v.state FROM messages v WHERE v.seq = s AND v.finished_at <= cutoff OFFSET 0) v
        LEFT JOIN LATERAL (SELECT d.blocking, is_held_for_saga(d.seq) AS letter FROM dead d WHERE d.seq = s OFFSET 0) d ON true
        WHERE v.state = 'done' OR v.state = 'dead' AND s = ANY (buried) AND NOT d.blocking AND NOT d.letter);
    -- In the order in which producers lock them.
    PERFORM FROM dedupe d WHERE d.id = ANY (ARRAY(SELECT m.id FROM message m WHERE m.seq = ANY (seqs) AND m.dedupe_key IS NOT NULL)) ORDER BY d.key_hash FOR UPDATE;
    UPDATE dedupe d SET ended_at = v.finished_at
    FROM unnest(seqs) s CROSS JOIN LATERAL (SELECT v.id, v.finished_at FROM messages v WHERE v.seq = s AND v.dedupe_key IS NOT NULL OFFSET 0) v
    WHERE d.id = ANY (ARRAY[v.id]);
    DELETE FROM dead d WHERE d.seq = ANY (seqs);
    DELETE FROM receipt r WHERE r.seq = ANY (seqs);
    DELETE FROM resolved r WHERE r.seq = ANY (seqs);
    DELETE FROM attempt a WHERE a.seq = ANY (seqs);
    DELETE FROM message m WHERE m.seq = ANY (seqs);
    GET DIAGNOSTICS prune.messages = ROW_COUNT;
    DELETE FROM dedupe d WHERE d.ctid = ANY (ARRAY(
        SELECT q.ctid FROM dedupe q WHERE q.ended_at <= t - (SELECT s.dedupe_lifetime FROM settings s) ORDER BY q.ended_at LIMIT max_rows FOR UPDATE SKIP LOCKED));
    GET DIAGNOSTICS prune.dedupe_keys = ROW_COUNT;
    prune.entries := prune_entries(max_rows);
    prune.inbox := prune_inbox(cutoff, max_rows);
    steps := prune_steps(cutoff, max_rows);
    prune.sagas := prune_sagas(cutoff, max_rows);
    more := more OR max_rows IN (prune.dedupe_keys, prune.entries, prune.inbox, steps, prune.sagas);
    prune.inbox := prune.inbox + steps;
    -- Last, so that two pruners wait for each other as briefly as can be.
    UPDATE retention SET next = CASE WHEN more THEN place ELSE 0 END;
END $$;
