-- Ends leases: with `settle_delivered` the only way out of `leased`. What becomes of each message was decided before; this performs it, fenced by
-- the token and the deadline, and answers for each: settled, repeated (it had been, by this very lease) or lost.
--
-- The numbers: p_outcome 0 released, else the evidence (1 delivered, 2 duplicate, 3 expanded, 4 retry, 5 rejected,
-- 6 lease expired, 7 lapsed); p_next 1 done, 2 pending, 3 dead. p_blocks is what a death does to the order key; NULL as before. The lists come sorted by p_seq, so that locks are taken in
-- one order. `l.seq = ANY (ARRAY[i.seq])` is an equality that the planner can only use to look each lease up: a plain one lets
-- it walk the whole table instead while its statistics say that it is nearly empty.
CREATE OR REPLACE FUNCTION posthouse.settle(
    p_seq bigint[], p_token uuid[], p_epoch bigint[], p_outcome bigint[], p_next bigint[], p_reason bigint[], p_delay_ms bigint[],
    p_max_attempts bigint[], p_code text[], p_error text[], p_receipt text[], p_keeps bytea[] DEFAULT NULL, p_blocks boolean[] DEFAULT NULL)
RETURNS text[]
LANGUAGE plpgsql SECURITY DEFINER SET search_path = posthouse, pg_temp
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET enable_sort = off SET jit = off AS $$
#variable_conflict use_column
DECLARE
    t CONSTANT timestamptz := clock();
    n CONSTANT int := cardinality(p_seq);
    won bigint[];
    first_deadline timestamptz;
    ours boolean[];
    lanes bigint[]; hashes bigint[]; keys text[]; tokens uuid[]; places bigint[];
BEGIN
    PERFORM open_lots(p_seq, p_token, 6 = ANY (p_outcome));
    IF p_next = array_fill(1::bigint, ARRAY[n]) AND p_outcome <@ '{1,2,3}'::bigint[] THEN
        WITH d AS (
            DELETE FROM leased l USING unnest(p_seq, p_token, p_outcome, p_code, p_receipt) WITH ORDINALITY i(seq, token, outcome, code, receipt, o)
            WHERE l.seq = ANY (ARRAY[i.seq]) AND l.token = i.token AND l.until > t
            RETURNING l.seq, l.epoch, l.attempts, l.generation, l.max_attempts, l.worker, l.token, l.started_at, l.until, i.outcome, i.code, i.receipt, i.o),
        a AS (
            INSERT INTO attempt (seq, epoch, generation, attempt, outcome, max_attempts, worker, token, code, receipt, started_at, finished_at)
            SELECT d.seq, d.epoch, d.generation, d.attempts, d.outcome, d.max_attempts, d.worker, d.token, d.code, d.receipt, d.started_at, t FROM d)
        SELECT array_agg(d.o), min(d.until) INTO won, first_deadline FROM d;
    ELSE
        PERFORM pg_current_xact_id();
        PERFORM lock_runs(p_seq, p_token, p_outcome, p_next, p_blocks);
        IF 6 = ANY (p_outcome) THEN ours := ran_out(p_seq, p_token, p_outcome, p_next, t); END IF;
        WITH d AS (
            DELETE FROM leased l
            USING unnest(p_seq, p_token, p_outcome, p_next, p_reason, p_delay_ms, p_max_attempts, p_code, p_error, p_receipt, ours, p_blocks) WITH ORDINALITY
                  i(seq, token, outcome, next, reason, delay, budget, code, error, receipt, ours, blocks, o)
            WHERE l.seq = ANY (ARRAY[i.seq]) AND l.token = i.token AND CASE WHEN i.outcome = 6 THEN i.ours ELSE l.until > t END
            RETURNING l.*, i.outcome, i.next, i.reason, i.budget, i.code, i.error, i.receipt, i.o,
                      t + i.delay * interval '1 millisecond' AS due_at, l.key IS NOT NULL AND coalesce(i.blocks, l.blocks) AS stamped,
                      l.key IS NOT NULL AND coalesce(i.blocks, l.blocks) AND i.next = 3 AND i.reason <> 5 AS blocking,
                      CASE WHEN i.outcome = 0 THEN l.attempts - 1 ELSE l.attempts END AS counted,
                      CASE WHEN i.outcome = 0 THEN least(l.releases + 1, 100) ELSE 0 END AS let_go,
                      CASE WHEN i.outcome = 0 THEN l.token END AS let_go_by),
        a AS (
            INSERT INTO attempt (seq, epoch, generation, attempt, outcome, max_attempts, worker, token, code, error, receipt, started_at, finished_at)
            SELECT d.seq, d.epoch, d.generation, d.attempts, d.outcome, d.budget, d.worker, d.token, d.code, d.error, d.receipt, d.started_at, t FROM d WHERE d.outcome <> 0),
        r AS (
            INSERT INTO ready (lane, pos, seq, due_at, deliver_by, released, epoch, attempts, generation, bytes, max_attempts, releases)
            SELECT d.lane, nextval('message_seq_seq'), d.seq, d.due_at, d.deliver_by, d.let_go_by, d.epoch, d.counted, d.generation, d.bytes, d.budget, d.let_go
            FROM d WHERE d.next = 2 AND d.key IS NULL AND d.due_at <= t),
        s AS (
            INSERT INTO sched (seq, due_at, lane, deliver_by, released, epoch, attempts, generation, bytes, max_attempts, releases)
            SELECT d.seq, d.due_at, d.lane, d.deliver_by, d.let_go_by, d.epoch, d.counted, d.generation, d.bytes, d.budget, d.let_go
            FROM d WHERE d.next = 2 AND d.key IS NULL AND d.due_at > t),
        -- Back to its own place in its key: pending again, or dead and in the way of the later ones.
        k AS (
            INSERT INTO keyed (lane, key_hash, key, pos, seq, line, due_at, wait, deliver_by, released, epoch, attempts, generation, bytes, max_attempts, releases, blocks)
            SELECT d.lane, d.key_hash, d.key, d.pos, d.seq, nextval('message_seq_seq'), CASE WHEN d.blocking THEN 'infinity' ELSE d.due_at END, (d.blocking OR d.due_at > t)::int, CASE WHEN NOT d.blocking THEN d.deliver_by END, d.let_go_by,
                   d.epoch, d.counted, d.generation, d.bytes, d.budget, d.let_go, d.stamped
            FROM d WHERE d.key IS NOT NULL AND (d.next = 2 OR d.blocking)),
        x AS (
            INSERT INTO dead (seq, at, epoch, attempts, generation, max_attempts, reason, on_dead, blocking)
            SELECT d.seq, t, d.epoch, d.attempts, d.generation, d.budget, d.reason, d.stamped, d.blocking FROM d WHERE d.next = 3)
        SELECT array_agg(d.o), min(d.until) FILTER (WHERE d.outcome <> 6), array_agg(d.lane) FILTER (WHERE d.back), array_agg(d.key_hash) FILTER (WHERE d.back),
               array_agg(d.key) FILTER (WHERE d.back), array_agg(d.token) FILTER (WHERE d.back), array_agg(d.pos) FILTER (WHERE d.back)
        INTO won, first_deadline, lanes, hashes, keys, tokens, places
        FROM (SELECT d.*, d.key IS NOT NULL AND (d.next = 2 OR d.blocking) AS back FROM d) d;
        IF lanes IS NOT NULL THEN PERFORM release_rest(lanes, hashes, keys, tokens, places, t); END IF;
    END IF;
    -- The deadline is judged after the locks: if one passed while we waited for them, all is undone and judged again.
    IF first_deadline <= clock() THEN
        RAISE 'a deadline passed while its message was being locked' USING ERRCODE = 'P7010';
    END IF;
    -- Kept for later messages of the same effect; an empty one keeps nothing.
    IF p_keeps IS NOT NULL THEN
        INSERT INTO receipt (effect, seq, receipt)
        SELECT p_keeps[w.o], p_seq[w.o], p_receipt[w.o] FROM unnest(won) w(o) WHERE p_outcome[w.o] = 1 AND p_keeps[w.o] <> '';
    END IF;
    IF cardinality(won) = n THEN RETURN array_fill('settled'::text, ARRAY[n]); END IF;
    RETURN settle_answers(p_seq, p_token, p_epoch, p_outcome, coalesce(won, '{}'));
END $$;

-- The common case, lean: messages that were all delivered, and nothing to say about them. p_seq has those of one claim after those of
-- another: p_count of each, under its p_token; the tokens come sorted, because lots are locked by token. Answers how many it ended; if that is not all of them, the caller asks `settle`, which
-- knows what to tell each.
CREATE OR REPLACE FUNCTION posthouse.settle_delivered(p_seq bigint[], p_token uuid[], p_count int[]) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = posthouse, pg_temp
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET enable_sort = off SET jit = off AS $$
DECLARE
    t CONSTANT timestamptz := clock();
    here int := 0;
    won bigint := 0;
    more bigint;
    first_deadline timestamptz;
    deadline timestamptz;
    -- How many of each claim have records of their own, or none.
    alone bigint[];
BEGIN
    -- Those that stand together first, as everywhere, so that nobody waits in a circle.
    FOR i IN 1..cardinality(p_token) LOOP
        more := settle_lots(p_seq[here + 1 : here + p_count[i]], p_token[i], t);
        here := here + p_count[i];
        alone[i] := p_count[i] - more;
        won := won + more;
    END LOOP;
    here := 0;
    FOR i IN 1..cardinality(p_token) LOOP
        IF alone[i] > 0 THEN
            WITH d AS (
                DELETE FROM leased l WHERE l.seq = ANY (p_seq[here + 1 : here + p_count[i]]) AND l.token = p_token[i] AND l.until > t
                RETURNING l.seq, l.epoch, l.attempts, l.generation, l.max_attempts, l.worker, l.token, l.started_at, l.until),
            a AS (
                INSERT INTO attempt (seq, epoch, generation, attempt, outcome, max_attempts, worker, token, started_at, finished_at)
                SELECT d.seq, d.epoch, d.generation, d.attempts, 1, d.max_attempts, d.worker, d.token, d.started_at, t FROM d)
            SELECT count(*), min(d.until) INTO more, deadline FROM d;
            won := won + more;
            first_deadline := least(first_deadline, deadline);
        END IF;
        here := here + p_count[i];
    END LOOP;
    IF first_deadline <= clock() THEN
        RAISE 'a deadline passed while its message was being locked' USING ERRCODE = 'P7010';
    END IF;
    RETURN won;
END $$;

-- What to tell those that did not win: this very lease may have won before.
CREATE OR REPLACE FUNCTION posthouse.settle_answers(p_seq bigint[], p_token uuid[], p_epoch bigint[], p_outcome bigint[], p_won bigint[]) RETURNS text[]
LANGUAGE plpgsql SET search_path = posthouse, pg_temp AS $$
BEGIN
    RETURN ARRAY(
        SELECT CASE
            WHEN i.o = ANY (p_won) THEN 'settled'
            WHEN EXISTS (SELECT FROM attempt a WHERE a.seq = i.seq AND a.epoch = i.epoch AND a.token = i.token AND a.outcome = i.outcome) THEN 'repeated'
            WHEN i.outcome = 0 AND EXISTS (
                SELECT FROM live v WHERE v.seq = i.seq AND v.released = i.token) THEN 'repeated'
            ELSE 'lost' END
        FROM unnest(p_seq, p_token, p_epoch, p_outcome) WITH ORDINALITY i(seq, token, epoch, outcome, o) ORDER BY i.o);
END $$;

-- What became of leases, as far as it is committed: held still, or the evidence of the end, or NULL for neither. It changes nothing and
-- waits for nobody, so it can be asked while a transaction that settles is open, or when nobody knows whether its commit arrived.
CREATE OR REPLACE FUNCTION posthouse.fates(p_seq bigint[], p_token uuid[], p_epoch bigint[]) RETURNS text[]
LANGUAGE plpgsql SECURITY DEFINER SET search_path = posthouse, pg_temp
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off AS $$
BEGIN
    RETURN ARRAY(
        SELECT CASE
            WHEN EXISTS (SELECT FROM leased l WHERE l.seq = i.seq AND l.token = i.token)
              OR EXISTS (SELECT FROM lot l WHERE l.token = i.token AND l.seqs @> i.seq) THEN 'held'
            ELSE (SELECT outcome_word(a.outcome) FROM attempt a WHERE a.seq = i.seq AND a.epoch = i.epoch AND a.token = i.token) END
        FROM unnest(p_seq, p_token, p_epoch) WITH ORDINALITY i(seq, token, epoch, o) ORDER BY i.o);
END $$;

-- What goes back to its key takes the later ones of its run with it (release_rest). All of them are locked by number here, first:
-- one of them may have a lower number (it was replayed), and somebody who settles them all has it locked already. Expiries are
-- not waited for: `ran_out` locks theirs.
CREATE OR REPLACE FUNCTION posthouse.lock_runs(p_seq bigint[], p_token uuid[], p_outcome bigint[], p_next bigint[], p_blocks boolean[]) RETURNS void
LANGUAGE plpgsql SET search_path = posthouse, pg_temp
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off AS $$
DECLARE
    rest bigint[];
BEGIN
    rest := ARRAY(
        SELECT l.seq
        FROM (SELECT h.lane, h.key_hash, h.key, h.token, min(h.pos) AS pos
              FROM unnest(p_seq, p_token, p_outcome, p_next, p_blocks) i(seq, token, outcome, next, blocks)
              CROSS JOIN LATERAL (SELECT h.* FROM leased h WHERE h.seq = i.seq AND h.token = i.token AND h.key IS NOT NULL AND (i.next = 2 OR i.next = 3 AND coalesce(i.blocks, h.blocks)) OFFSET 0) h
              WHERE i.outcome <> 6 GROUP BY 1, 2, 3, 4) r
        CROSS JOIN LATERAL (SELECT l.seq FROM leased l WHERE l.lane = r.lane AND l.key_hash = r.key_hash AND l.key = r.key AND l.key IS NOT NULL AND l.token = r.token AND l.pos > r.pos OFFSET 0) l);
    IF rest = '{}' THEN RETURN; END IF;
    rest := rest || ARRAY(SELECT i.seq FROM unnest(p_seq, p_outcome) i(seq, outcome) WHERE i.outcome <> 6);
    PERFORM FROM leased l WHERE l.seq = ANY (rest) AND l.token = ANY (p_token) ORDER BY l.seq FOR UPDATE;
END $$;

-- For each settlement whether it is an expiry that can be written now. A repairer waits for nobody: it leaves a lease that somebody
-- has locked; and a run in which somebody has a later, live lease locked, because that would have to go back with what ran out.
-- What it answers with true is locked, and so is the rest of its run.
CREATE OR REPLACE FUNCTION posthouse.ran_out(p_seq bigint[], p_token uuid[], p_outcome bigint[], p_next bigint[], p_now timestamptz) RETURNS boolean[]
LANGUAGE plpgsql SET search_path = posthouse, pg_temp
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off AS $$
DECLARE
    answers boolean[] := array_fill(false, ARRAY[cardinality(p_seq)]);
    mine bigint[]; seqs bigint[]; busy bigint[];
    at bigint;
BEGIN
    SELECT array_agg(x.o), array_agg(x.seq) INTO mine, seqs FROM (
        SELECT i.o, l.seq FROM leased l JOIN unnest(p_seq, p_token, p_outcome) WITH ORDINALITY i(seq, token, outcome, o) ON l.seq = ANY (ARRAY[i.seq]) AND l.token = i.token
        WHERE i.outcome = 6 AND l.until <= p_now FOR UPDATE OF l SKIP LOCKED) x;
    IF mine IS NULL THEN RETURN answers; END IF;
    -- One look at each run, not at each of its leases.
    WITH runs AS (
        SELECT h.lane, h.key_hash, h.key, h.token, min(h.pos) AS pos, array_agg(m.o) AS mine
        FROM unnest(mine, seqs) m(o, seq)
        CROSS JOIN LATERAL (SELECT h.* FROM leased h WHERE h.seq = m.seq AND h.key IS NOT NULL AND (p_next[m.o] = 2 OR h.blocks) OFFSET 0) h
        GROUP BY 1, 2, 3, 4)
    SELECT array_agg(x.o) INTO busy FROM (
        SELECT r.mine FROM runs r
        WHERE (SELECT count(*) FROM leased l WHERE l.lane = r.lane AND l.key_hash = r.key_hash AND l.key = r.key AND l.key IS NOT NULL AND l.token = r.token AND l.pos > r.pos AND l.until > p_now)
            > (SELECT count(*) FROM (SELECT FROM leased l WHERE l.lane = r.lane AND l.key_hash = r.key_hash AND l.key = r.key AND l.key IS NOT NULL AND l.token = r.token AND l.pos > r.pos AND l.until > p_now
                                     FOR UPDATE SKIP LOCKED) l)
        OFFSET 0) r CROSS JOIN LATERAL unnest(r.mine) x(o);
    FOREACH at IN ARRAY mine LOOP answers[at] := true; END LOOP;
    FOREACH at IN ARRAY coalesce(busy, '{}') LOOP answers[at] := false; END LOOP;
    RETURN answers;
END $$;

-- After messages went back to their keys, or died in their way, the later ones of the same runs must not be sent: those that are
-- still held go back too, uncounted, in the same transaction. What ran out is left to the repairer.
CREATE OR REPLACE FUNCTION posthouse.release_rest(p_lane bigint[], p_hash bigint[], p_key text[], p_token uuid[], p_pos bigint[], p_now timestamptz) RETURNS void
LANGUAGE plpgsql SET search_path = posthouse, pg_temp
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off AS $$
BEGIN
    WITH heads AS (
        SELECT i.lane, i.key_hash, i.key, i.token, min(i.pos) AS pos
        FROM unnest(p_lane, p_hash, p_key, p_token, p_pos) i(lane, key_hash, key, token, pos) GROUP BY 1, 2, 3, 4),
    d AS (
        DELETE FROM leased l USING heads h
        WHERE l.lane = ANY (ARRAY[h.lane]) AND l.key_hash = ANY (ARRAY[h.key_hash]) AND l.key = ANY (ARRAY[h.key]) AND l.key IS NOT NULL AND l.token = h.token AND l.pos > h.pos AND l.until > p_now
        RETURNING l.*)
    INSERT INTO keyed (lane, key_hash, key, pos, seq, line, due_at, deliver_by, released, epoch, attempts, generation, bytes, max_attempts, releases, blocks)
    SELECT d.lane, d.key_hash, d.key, d.pos, d.seq, nextval('message_seq_seq'), p_now, d.deliver_by, d.token, d.epoch, d.attempts - 1, d.generation, d.bytes, d.max_attempts, least(d.releases + 1, 100), d.blocks FROM d;
END $$;
