-- Leases that stand together in one record (lot), and how one of them gets a record of its own. Lots are locked before records of `leased`,
-- and by token, so that nobody waits in a circle.

-- Gives these leases, as far as they stand in lots, records of their own. What ran out is somebody else's to take back, who may have it
-- locked for as long as he likes: only whoever takes it back himself (p_over) waits for that.
CREATE OR REPLACE FUNCTION posthouse.open_lots(p_seq bigint[], p_token uuid[], p_over boolean) RETURNS void
LANGUAGE plpgsql SET search_path = posthouse, pg_temp
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off AS $$
#variable_conflict use_column
DECLARE
    t CONSTANT timestamptz := clock();
    g record;
BEGIN
    IF NOT EXISTS (SELECT FROM lot l WHERE l.token = ANY (p_token)) THEN RETURN; END IF;
    FOR g IN
        SELECT x.given, l.c, l.seqs FROM (SELECT i.token, ranges(array_agg(i.seq)) AS given FROM unnest(p_seq, p_token) i(seq, token) GROUP BY 1 ORDER BY 1) x
        CROSS JOIN LATERAL (SELECT l.ctid AS c, l.seqs FROM lot l WHERE l.token = x.token AND l.seqs && x.given AND (p_over OR l.until > t) ORDER BY l.n FOR UPDATE) l
    LOOP
        PERFORM open_lot(g.c, g.seqs * g.given);
    END LOOP;
END $$;

-- The same for a part of one lot, which the caller has locked.
CREATE OR REPLACE FUNCTION posthouse.open_lot(p_at tid, p_part int8multirange) RETURNS void
LANGUAGE plpgsql SET search_path = posthouse, pg_temp
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off AS $$
#variable_conflict use_column
DECLARE
    l lot;
BEGIN
    IF isempty(p_part) THEN RETURN; END IF;
    SELECT x.* INTO l FROM lot x WHERE x.ctid = p_at;
    PERFORM take_from_lot(p_at, l.seqs, p_part);
    INSERT INTO leased (seq, token, until, started_at, lane, epoch, attempts, generation, bytes, max_attempts, releases, worker)
    SELECT s, l.token, l.until, l.started_at, l.lane, 1, 1, 1, octet_length(m.payload), l.max_attempts, 0, l.worker
    FROM numbers(p_part) s CROSS JOIN LATERAL (SELECT m.payload FROM message m WHERE m.seq = s OFFSET 0) m;
    INSERT INTO deadline (until, token, half, seqs)
    SELECT l.until, l.token, l.half, array_agg(s) FROM numbers(p_part) s;
END $$;

-- Takes numbers out of a lot, which the caller has locked.
CREATE OR REPLACE FUNCTION posthouse.take_from_lot(p_at tid, p_all int8multirange, p_part int8multirange) RETURNS void
LANGUAGE plpgsql SET search_path = posthouse, pg_temp AS $$
BEGIN
    IF p_all = p_part THEN
        DELETE FROM lot x WHERE x.ctid = p_at;
    ELSE
        UPDATE lot x SET seqs = x.seqs - p_part WHERE x.ctid = p_at;
    END IF;
    -- Whoever ends a lease that stays where it was ends it twice.
    IF NOT FOUND THEN RAISE 'a record of leases that was locked is not there' USING ERRCODE = 'P7010'; END IF;
END $$;

-- Ends messages of one claim that were delivered, as far as they stand in lots. Answers how many.
CREATE OR REPLACE FUNCTION posthouse.settle_lots(p_seq bigint[], p_token uuid, p_now timestamptz) RETURNS bigint
LANGUAGE plpgsql SET search_path = posthouse, pg_temp
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off AS $$
#variable_conflict use_column
DECLARE
    g record;
    given int8multirange;
    part int8multirange;
    won bigint := 0;
    more bigint;
BEGIN
    FOR g IN SELECT l.ctid AS c, l.* FROM lot l WHERE l.token = p_token AND l.until > p_now ORDER BY l.n FOR UPDATE LOOP
        -- The deadline is judged after the lock.
        CONTINUE WHEN g.until <= clock();
        IF given IS NULL THEN
            given := ranges(p_seq);
        END IF;
        part := g.seqs * given;
        CONTINUE WHEN isempty(part);
        PERFORM take_from_lot(g.c, g.seqs, part);
        INSERT INTO attempt (seq, epoch, generation, attempt, outcome, max_attempts, worker, token, started_at, finished_at)
        SELECT s, 1, 1, 1, 1, g.max_attempts, g.worker, g.token, g.started_at, p_now FROM numbers(part) s;
        GET DIAGNOSTICS more = ROW_COUNT;
        won := won + more;
    END LOOP;
    RETURN won;
END $$;

-- Moves the deadlines of lots all of whose leases are to be renewed, and opens those of which only some are. Answers which leases it
-- has renewed. Like `renew` it never waits.
CREATE OR REPLACE FUNCTION posthouse.renew_lots(p_seq bigint[], p_token uuid[], p_lease_ms bigint) RETURNS int8multirange
LANGUAGE plpgsql SET search_path = posthouse, pg_temp
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off AS $$
#variable_conflict use_column
DECLARE
    g record;
    t timestamptz;
    renewed int8multirange := '{}';
BEGIN
    IF NOT EXISTS (SELECT FROM lot l WHERE l.token = ANY (p_token)) THEN RETURN renewed; END IF;
    FOR g IN
        SELECT x.given, l.c, l.seqs, l.until FROM (SELECT i.token, ranges(array_agg(i.seq)) AS given FROM unnest(p_seq, p_token) i(seq, token) GROUP BY 1 ORDER BY 1) x
        CROSS JOIN LATERAL (SELECT l.ctid AS c, l.seqs, l.until FROM lot l WHERE l.token = x.token AND l.seqs && x.given ORDER BY l.n FOR UPDATE SKIP LOCKED) l
    LOOP
        t := clock();
        CONTINUE WHEN g.until <= t;
        IF g.seqs <@ g.given THEN
            UPDATE lot l SET until = greatest(l.until, t + p_lease_ms * interval '1 millisecond') WHERE l.ctid = g.c;
            renewed := renewed + g.seqs;
        ELSE
            PERFORM open_lot(g.c, g.seqs * g.given);
        END IF;
    END LOOP;
    RETURN renewed;
END $$;

-- Opens lots that ran out, of one tenant or of all: a bounded number of leases above p_after. What somebody has locked is left.
CREATE OR REPLACE FUNCTION posthouse.open_over(p_now timestamptz, p_after bigint, p_most int, p_half bigint) RETURNS void
LANGUAGE plpgsql SET search_path = posthouse, pg_temp
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off AS $$
#variable_conflict use_column
DECLARE
    g record;
    opened bigint := 0;
BEGIN
    FOR g IN
        SELECT l.ctid AS c, l.seqs FROM lot l WHERE l.until <= p_now AND (p_half IS NULL OR l.lane & 4294967295 = p_half) AND upper(l.span) - 1 > p_after ORDER BY l.until FOR UPDATE SKIP LOCKED
    LOOP
        PERFORM open_lot(g.c, g.seqs);
        opened := opened + (SELECT count(*) FROM numbers(g.seqs) s WHERE s > p_after);
        EXIT WHEN opened >= p_most;
    END LOOP;
END $$;
