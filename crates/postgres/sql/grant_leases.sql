-- Claiming. The planner is pinned in each function: a generic plan made on empty tables, or a hash join over a million
-- pending messages, costs more than any choice of tables. Nothing is pinned on the caller's connection.
--
-- A table is looked up for the rows of a list by LATERAL (... OFFSET 0), never by a plain join: while its statistics say that
-- it is nearly empty, a plain join may walk the whole table and look into the list for each of its rows, and that plan stays
-- when the table has grown (seen: 39 seconds for a claim).

-- Grants leases: what the relay calls. p_lanes (sorted) and p_floors are what this claimer knows of lanes with work and of
-- the places it has passed in each; both may be empty. p_lo and p_hi bound where it looks for more lanes. NULL namespaces,
-- tenant and bytes mean any. Tenants are left by the halves of their lanes: two of one half wait together. With p_bell,
-- nobody rings for this worker any more once it is granted more than one message, or all that it asked for. With p_lot, leases of
-- messages that are granted for the first time stand together in one record, from so many on: not for whoever settles one of them in a
-- transaction of its own, which would keep the others waiting. p_keys is the floor of the keys (`sample_floor`); 0 is always right.
-- p_server is the start time of the server that the floors were sampled on (`sample_floor`). The claim ignores the floors of another server: after a failover that lost
-- commits, new messages get numbers below those floors, and the claim would grant the later messages of a key first.
--
-- The clock is read three times. `t`, before anything is locked, judges what is due. `granted_at`, after a statement has locked what it picked, is when its leases begin: an
-- earlier time would shorten the leases by every wait for a lock or a disk, and `started_at` would lie before the `finished_at` of the attempt before. At the end it is read again: if less than
-- half of a lease is left, the function raises P7012. The transaction rolls back, so nothing is granted and no attempt is counted. A block with EXCEPTION would give the same
-- answer without an error, but costs each claim a subtransaction.
--
-- A row without a number is no message, but a remark, told apart by `kind`: 1 free ones may be left, so look again; 2 from this place on this claim kept others away from messages that
-- it did not take, and they may have passed them; 3 there may be more lanes with work than it found; 4 `blocks` says whether leases may have run out; 5 the floors
-- were sampled on another server and were ignored.
CREATE OR REPLACE FUNCTION posthouse.grant_leases(
    p_batch int, p_worker text, p_token uuid, p_lease_ms bigint, p_max_bytes bigint, p_namespaces text[], p_tenant text,
    p_not_topics text[], p_lanes bigint[], p_floors bigint[], p_lo bigint, p_hi bigint, p_not_tenants text[] DEFAULT '{}', p_bell uuid DEFAULT NULL,
    p_lot int DEFAULT NULL, p_keys bigint DEFAULT 0, p_server timestamptz DEFAULT NULL)
RETURNS TABLE (
    seq bigint, lane bigint, pos bigint, id uuid, epoch int, attempt int, generation int, max_attempts int, releases int, blocks boolean,
    tenant text, namespace text, topic text, order_key text, content_type text, payload bytea, headers jsonb, deliver_ms bigint,
    kind smallint, parent uuid, destination text)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = posthouse, pg_temp
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET enable_sort = off SET jit = off AS $$
#variable_conflict use_column
DECLARE
    t CONSTANT timestamptz := clock();
    lease CONSTANT interval := p_lease_ms * interval '1 millisecond';
    granted_at timestamptz;
    until timestamptz;
    -- The earliest deadline that this claim grants.
    first_until timestamptz;
    -- The earliest deliver-by among the picks.
    first_lapse timestamptz;
    left_rows int := p_batch;
    left_bytes bigint := coalesce(p_max_bytes, 9223372036854775807);
    picks tid[];
    picked_bytes bigint;
    half CONSTANT int := (p_batch + 1) / 2;
    granted int;
    lapsed int := 0;
    truncated boolean := false;
    -- Free ones may be behind what was put out of the way, or too large.
    hidden boolean := false;
    any_due boolean := true;
    any_parked boolean := true;
    any_keys boolean := true;
    -- So few messages with keys are visited that all of them are looked at.
    near boolean;
    keyless boolean;
    -- Leases may stand together.
    lots boolean := false;
    ranges record;
    own bigint[];
    unparked tid[] := '{}';
    parked_ones boolean := false;
    strangers boolean := false;
    kept_lanes bigint[];
    kept_places bigint[];
    left_halves CONSTANT bigint[] := CASE WHEN p_tenant IS NOT NULL OR p_not_tenants = '{}' THEN '{}' ELSE ARRAY(SELECT DISTINCT tenant_half(n) FROM unnest(p_not_tenants) n) END;
BEGIN
    -- A key is taken under a lock, and then read afresh; an old snapshot would read what was there before the lock.
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE 'transaction: a claim must run under READ COMMITTED' USING ERRCODE = 'P7006';
    END IF;
    IF p_tenant = ANY (p_not_tenants) THEN RETURN; END IF;
    IF p_server IS DISTINCT FROM pg_postmaster_start_time() THEN
        p_floors := array_fill(0::bigint, ARRAY[cardinality(p_floors)]);
        p_keys := 0;
    END IF;
    SELECT r.los, r.his INTO ranges FROM lane_ranges(p_namespaces) r;
    IF p_tenant IS NOT NULL THEN
        own := tenant_lanes(p_namespaces, p_tenant);
    END IF;
    -- Mostly nothing waits for its time, was parked, or has a key. One look at all of it costs less than to ask those who would deal with it.
    -- An order names the index: another one would do, and hold much else. Of EXISTS the planner would drop it.
    IF p_tenant IS NULL AND p_namespaces IS NULL THEN
        SELECT EXISTS (SELECT FROM sched s WHERE least(s.due_at, s.deliver_by) <= t) OR EXISTS (SELECT FROM keyed k WHERE k.wait = 1 AND least(k.due_at, k.deliver_by) <= t),
               (SELECT true FROM parked p ORDER BY p.lane, p.topic, p.seq LIMIT 1) IS NOT NULL OR (SELECT true FROM keyed k WHERE k.wait = 3 ORDER BY k.lane, k.topic, k.seq LIMIT 1) IS NOT NULL,
               (SELECT true FROM keyed k WHERE k.wait = 0 AND k.line > p_keys ORDER BY k.line LIMIT 1) IS NOT NULL
        INTO any_due, any_parked, any_keys;
    END IF;
    IF any_due THEN PERFORM promote(t, p_batch, own, ranges.los, ranges.his); END IF;
    IF any_parked THEN unparked := unpark(p_batch, p_not_topics, own, ranges.los, ranges.his, left_halves); END IF;
    keyless := NOT (any_due OR any_parked OR any_keys);
    IF NOT keyless THEN
        near := (SELECT true FROM keyed k WHERE k.wait = 0 AND k.line > p_keys ORDER BY k.line OFFSET 1024 LIMIT 1) IS NULL;
    END IF;
    -- Keyed and unkeyed messages share a batch evenly; what one leaves, the other takes. Messages that lapsed take up no
    -- room: the unkeyed ones are asked for again, a few times.
    -- Keys are asked for runs of some length first, because a key costs more than a message; then for whatever there is. Where all keys can be looked at, that is
    -- one look.
    FOR round IN 1..8 LOOP
        EXIT WHEN left_rows = 0;
        IF left_bytes <= 0 THEN hidden := true; EXIT; END IF;
        EXIT WHEN round = 7 AND keyless OR round = 8 AND near;
        CONTINUE WHEN round = 1 AND keyless;
        IF round IN (1, 7, 8) THEN
            SELECT k.picks, k.bytes, k.first_lapse, hidden OR k.more INTO picks, picked_bytes, first_lapse, hidden
            FROM pick_keyed(CASE round WHEN 1 THEN half ELSE left_rows END, CASE round WHEN 8 THEN 1 ELSE 8 END, p_token, t, left_bytes, left_rows = p_batch, p_namespaces, p_tenant, p_not_topics, own, ranges.los, ranges.his, round = 1, left_halves, p_keys, near) k;
            granted_at := clock();
            until := granted_at + lease;
            IF first_lapse <= granted_at THEN
                -- A deliver-by passed after the pick. The run ends before that message; the next claim ends the message.
                SELECT array_agg(x.c), sum(x.bytes) INTO picks, picked_bytes FROM (
                    SELECT k.ctid AS c, k.bytes, bool_and((k.deliver_by <= granted_at) IS NOT TRUE) OVER (PARTITION BY k.lane, k.key_hash, k.key ORDER BY k.pos ROWS UNBOUNDED PRECEDING) AS run
                    FROM keyed k WHERE k.ctid = ANY (picks)) x
                WHERE x.run;
                hidden := true;
            END IF;
            -- Without a free key at first, there is none to come back to.
            EXIT WHEN picks IS NULL AND round > 1;
            keyless := picks IS NULL;
            CONTINUE WHEN keyless;
            RETURN QUERY
            WITH d AS (DELETE FROM keyed k WHERE k.ctid = ANY (picks) RETURNING k.*),
            -- What is behind the run is visited again.
            n AS (
                UPDATE keyed k SET wait = 0, line = nextval('message_seq_seq') WHERE k.ctid = ANY (ARRAY(
                    SELECT n.c FROM (SELECT d.lane, d.key_hash, d.key, max(d.pos) AS pos FROM d GROUP BY 1, 2, 3) e
                    CROSS JOIN LATERAL (SELECT n.ctid AS c, n.wait, n.due_at FROM keyed n WHERE n.lane = e.lane AND n.key_hash = e.key_hash AND n.key = e.key AND n.pos > e.pos
                                        ORDER BY n.lane, n.key_hash, n.key, n.pos LIMIT 1) n
                    WHERE n.wait = 2 OR n.wait = 1 AND n.due_at <= t))),
            -- What was not visited when it was granted, behind the head, may stand below the floor: it is as if it came back.
            l AS (
                INSERT INTO leased (seq, token, until, started_at, lane, deliver_by, pos, line, epoch, attempts, generation, bytes, key_hash, max_attempts, releases, blocks, worker, key)
                SELECT d.seq, p_token, until, granted_at, d.lane, d.deliver_by, d.pos, CASE WHEN d.wait = 0 THEN d.line ELSE 0 END, d.epoch + 1, d.attempts + 1, d.generation, d.bytes, d.key_hash, d.max_attempts, d.releases, d.blocks, p_worker, d.key FROM d),
            h AS (INSERT INTO deadline (until, token, half, seqs) SELECT until, p_token, tenant_half(p_tenant), array_agg(d.seq) FROM d HAVING count(*) > 0)
            SELECT d.seq, d.lane, d.pos, m.id, d.epoch + 1, d.attempts + 1, d.generation, d.max_attempts::int, d.releases::int, d.blocks,
                   m.tenant, m.namespace, m.topic, m.order_key, m.content_type, m.payload, m.headers, ms_between(granted_at, d.deliver_by), m.kind, m.parent, m.destination
            FROM d CROSS JOIN LATERAL (SELECT m.* FROM message m WHERE m.seq = d.seq OFFSET 0) m ORDER BY d.pos;
        ELSIF round = 2 OR lapsed > 0 OR parked_ones THEN
            -- What was parked has waited longest, and another claimer would park it again before it is at the front.
            parked_ones := round = 2 AND unparked <> '{}';
            IF parked_ones THEN
                lots := false;
                SELECT array_agg(x.c), sum(x.bytes) INTO picks, picked_bytes FROM (
                    SELECT r.ctid AS c, r.bytes, sum(r.bytes) OVER w AS weight, row_number() OVER w AS n FROM ready r
                    WHERE r.ctid = ANY (unparked) WINDOW w AS (ORDER BY r.pos ROWS UNBOUNDED PRECEDING)) x
                WHERE x.n <= least(half, left_rows) AND (x.weight <= left_bytes OR x.n = 1 AND left_rows = p_batch);
            ELSE
                SELECT k.picks, k.bytes, hidden OR k.more, round = 2 AND k.few AND cardinality(k.picks) >= p_lot, strangers OR k.others, kept_lanes || k.left_lanes, kept_places || k.left_places
                INTO picks, picked_bytes, hidden, lots, strangers, kept_lanes, kept_places
                FROM pick_ready(left_rows, left_bytes, left_rows = p_batch, p_namespaces, p_tenant, p_not_topics, own, ranges.los, ranges.his, p_lanes, p_floors, p_lo, p_hi, left_halves) k;
            END IF;
            IF picks IS NULL THEN lapsed := 0; CONTINUE; END IF;
            granted_at := clock();
            until := granted_at + lease;
            -- The place of one that was parked says nothing about those before it in its line, so the claimer is told none.
            RETURN QUERY
            WITH d AS (
                DELETE FROM ready r WHERE r.ctid = ANY (picks)
                RETURNING r.*, lots IS TRUE AND r.epoch = 0 AND r.attempts = 0 AND r.generation = 1 AND r.releases = 0 AND r.deliver_by IS NULL AS together),
            -- Past its deliver-by: it ends here, unsent and without a grant. The live row of a step of a saga has no deliver-by: the step is granted with the time that is
            -- left, which may be negative, and its saga decides.
            x AS (
                INSERT INTO dead (seq, at, epoch, attempts, generation, max_attempts, reason, on_dead, blocking)
                SELECT d.seq, granted_at, d.epoch, d.attempts, d.generation, d.max_attempts, 3, false, false FROM d WHERE d.deliver_by <= granted_at),
            l AS (
                INSERT INTO leased (seq, token, until, started_at, lane, deliver_by, epoch, attempts, generation, bytes, max_attempts, releases, worker)
                SELECT d.seq, p_token, until, granted_at, d.lane, d.deliver_by, d.epoch + 1, d.attempts + 1, d.generation, d.bytes, d.max_attempts, d.releases, p_worker
                FROM d WHERE (d.deliver_by <= granted_at) IS NOT TRUE AND NOT d.together),
            b AS (
                INSERT INTO lot (token, n, until, started_at, lane, half, max_attempts, worker, span, seqs)
                SELECT p_token, row_number() OVER (), until, granted_at, d.lane, tenant_half(p_tenant), d.max_attempts, p_worker, int8range(min(d.seq), max(d.seq), '[]'), range_agg(int8range(d.seq, d.seq + 1))
                FROM d WHERE d.together GROUP BY d.lane, d.max_attempts),
            h AS (INSERT INTO deadline (until, token, half, seqs) SELECT until, p_token, tenant_half(p_tenant), array_agg(d.seq) FROM d WHERE (d.deliver_by <= granted_at) IS NOT TRUE AND NOT d.together HAVING count(*) > 0)
            SELECT d.seq, d.lane, CASE WHEN parked_ones THEN 0 ELSE d.pos END, m.id, d.epoch + 1, d.attempts + 1, d.generation, d.max_attempts::int, d.releases::int, false,
                   m.tenant, m.namespace, m.topic, m.order_key, m.content_type, m.payload, m.headers, ms_between(granted_at, CASE WHEN m.kind = 2 THEN m.deliver_by ELSE d.deliver_by END), m.kind, m.parent, m.destination
            FROM d CROSS JOIN LATERAL (SELECT m.* FROM message m WHERE m.seq = d.seq OFFSET 0) m WHERE (d.deliver_by <= granted_at) IS NOT TRUE ORDER BY d.pos;
        ELSE
            CONTINUE;
        END IF;
        GET DIAGNOSTICS granted = ROW_COUNT;
        IF granted > 0 THEN
            first_until := coalesce(first_until, until);
        END IF;
        lapsed := cardinality(picks) - granted;
        truncated := round BETWEEN 2 AND 6 AND lapsed > 0;
        left_rows := left_rows - granted;
        left_bytes := left_bytes - picked_bytes;
        EXIT WHEN truncated AND round = 6;
    END LOOP;
    IF truncated OR hidden THEN
        -- So many lapsed, or were put out of the way, that free messages may be behind them, or they were too large.
        kind := 1;
        RETURN NEXT;
    END IF;
    kind := 2;
    FOR lane, pos IN SELECT u.l, u.p FROM unnest(kept_lanes, kept_places) u(l, p) LOOP
        RETURN NEXT;
    END LOOP;
    IF strangers THEN
        kind := 3;
        RETURN NEXT;
    END IF;
    IF p_server <> pg_postmaster_start_time() THEN
        kind := 5;
        RETURN NEXT;
    END IF;
    IF left_rows = p_batch THEN
        -- Idle claimers are told whether leases may have run out, so that they need not ask for that by themselves. Not in a busy
        -- one: the index holds the hints of the past until they are cleaned up.
        kind := 4;
        blocks := EXISTS (SELECT FROM deadline d WHERE d.until <= t) OR EXISTS (SELECT FROM lot l WHERE l.until <= t);
        RETURN NEXT;
    ELSIF p_bell IS NOT NULL AND (left_rows < p_batch - 1 OR left_rows = 0) THEN
        DELETE FROM sleeper s WHERE s.bell = p_bell AND s.worker = p_worker;
    END IF;
    -- Last, after everything that may wait. The commit may still wait for the disk or a standby: the caller counts the lease from before its call.
    IF first_until - clock() < lease / 2 THEN
        RAISE 'the claim took longer than half of its lease, and grants nothing' USING ERRCODE = 'P7012';
    END IF;
END $$;

CREATE OR REPLACE FUNCTION posthouse.ms_between(p_from timestamptz, p_to timestamptz) RETURNS bigint
LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN (extract(epoch FROM p_to - p_from) * 1000)::bigint;
