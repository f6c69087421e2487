-- The first number of a time. Numbers and times rise together, but for what was imported, which is passed over here; what a clock that
-- was set back upset is between its neighbours, so whoever asks leaves an hour for it.
CREATE OR REPLACE FUNCTION posthouse.number_at(p_at timestamptz) RETURNS bigint
LANGUAGE plpgsql SET search_path = posthouse, pg_temp SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $$
#variable_conflict use_column
DECLARE
    low bigint;
    high bigint;
    middle bigint;
    found_at record;
    imported record;
BEGIN
    IF p_at IS NULL THEN RETURN NULL; END IF;
    SELECT s.imported_from, s.imported_to INTO imported FROM settings s;
    SELECT coalesce(min(m.seq), 0), coalesce(max(m.seq), -1) + 1 INTO low, high FROM message m;
    WHILE low < high LOOP
        middle := low + (high - low) / 2;
        SELECT m.seq, m.created_at INTO found_at FROM message m
        WHERE m.seq >= CASE WHEN middle BETWEEN imported.imported_from AND imported.imported_to THEN imported.imported_to + 1 ELSE middle END
        ORDER BY m.seq LIMIT 1;
        IF found_at.seq IS NULL OR found_at.created_at >= p_at THEN high := middle; ELSE low := found_at.seq + 1; END IF;
    END LOOP;
    RETURN low;
END $$;

-- The next numbers between two, in either direction, of what a page may hold: of dead or leased messages, which are few.
CREATE OR REPLACE FUNCTION posthouse.next_numbers(p_source text, p_oldest_first boolean, p_low bigint, p_high bigint, p_most int) RETURNS bigint[]
LANGUAGE plpgsql SET search_path = posthouse, pg_temp SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $$
BEGIN
    IF p_source = 'dead' AND p_oldest_first THEN
        RETURN ARRAY(SELECT d.seq FROM dead d WHERE d.seq > p_low AND d.seq < p_high ORDER BY d.seq LIMIT p_most);
    ELSIF p_source = 'dead' THEN
        RETURN ARRAY(SELECT d.seq FROM dead d WHERE d.seq > p_low AND d.seq < p_high ORDER BY d.seq DESC LIMIT p_most);
    ELSIF p_oldest_first THEN
        RETURN ARRAY(
            SELECT x.seq FROM (
                (SELECT l.seq FROM leased l WHERE l.seq > p_low AND l.seq < p_high ORDER BY l.seq LIMIT p_most)
                UNION ALL
                SELECT s FROM lot l CROSS JOIN LATERAL numbers(l.seqs) s WHERE s > p_low AND s < p_high) x(seq)
            ORDER BY x.seq LIMIT p_most);
    END IF;
    RETURN ARRAY(
        SELECT x.seq FROM (
            (SELECT l.seq FROM leased l WHERE l.seq > p_low AND l.seq < p_high ORDER BY l.seq DESC LIMIT p_most)
            UNION ALL
            SELECT s FROM lot l CROSS JOIN LATERAL numbers(l.seqs) s WHERE s > p_low AND s < p_high) x(seq)
        ORDER BY x.seq DESC LIMIT p_most);
END $$;

-- The same of pending messages, which are not kept by number: their tables are read whole.
CREATE OR REPLACE FUNCTION posthouse.next_pending(p_oldest_first boolean, p_low bigint, p_high bigint, p_most int) RETURNS bigint[]
LANGUAGE sql SET search_path = posthouse, pg_temp SET enable_seqscan = on SET jit = off AS $$
    SELECT ARRAY(
        SELECT q.seq FROM (
            SELECT r.seq FROM ready r UNION ALL SELECT s.seq FROM sched s UNION ALL SELECT p.seq FROM parked p
            UNION ALL SELECT k.seq FROM keyed k WHERE k.due_at < 'infinity') q
        WHERE q.seq > p_low AND q.seq < p_high
        ORDER BY CASE WHEN p_oldest_first THEN q.seq ELSE -q.seq END LIMIT p_most)
$$;

-- Whether that is cheap: it costs what the tables are large.
CREATE OR REPLACE FUNCTION posthouse.pending_is_small() RETURNS boolean
LANGUAGE sql STABLE SET search_path = posthouse, pg_temp AS $$
    SELECT pg_table_size('ready') + pg_table_size('sched') + pg_table_size('parked') + pg_table_size('keyed') < 134217728
$$;

-- Of the next p_most messages, the numbers of those that have these attributes, at most p_limit of them; and the last number that was
-- looked at, or NULL when there were no more.
CREATE OR REPLACE FUNCTION posthouse.walk_messages(
    p_namespace text, p_tenant text, p_topic text, p_order_key text, p_since timestamptz, p_until timestamptz,
    p_oldest_first boolean, p_low bigint, p_high bigint, p_most int, p_limit int, OUT numbers bigint[], OUT edge bigint)
LANGUAGE plpgsql SET search_path = posthouse, pg_temp
SET plan_cache_mode = force_custom_plan SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $$
DECLARE
    low bigint := p_low;
    high bigint := p_high;
BEGIN
    IF p_oldest_first THEN
        edge := (SELECT m.seq FROM message m WHERE m.seq > p_low AND m.seq < p_high ORDER BY m.seq OFFSET p_most - 1 LIMIT 1);
        high := coalesce(edge + 1, p_high);
    ELSE
        edge := (SELECT m.seq FROM message m WHERE m.seq > p_low AND m.seq < p_high ORDER BY m.seq DESC OFFSET p_most - 1 LIMIT 1);
        low := coalesce(edge - 1, p_low);
    END IF;
    numbers := ARRAY(
        SELECT m.seq FROM message m
        WHERE m.seq > low AND m.seq < high AND (p_namespace IS NULL OR m.namespace = p_namespace) AND (p_tenant IS NULL OR m.tenant = p_tenant)
          AND (p_topic IS NULL OR m.topic = p_topic) AND (p_order_key IS NULL OR m.order_key = p_order_key)
          AND (p_since IS NULL OR m.created_at >= p_since) AND (p_until IS NULL OR m.created_at < p_until)
        ORDER BY CASE WHEN p_oldest_first THEN m.seq ELSE -m.seq END LIMIT p_limit);
END $$;

-- The numbers between two of messages of a rare tenant or topic, by the summaries of the table's pages (message_rare): what it costs
-- depends on how many pages may hold one. The planner has only bitmaps to choose from, and sees the values.
CREATE OR REPLACE FUNCTION posthouse.rare_messages(p_tenant text, p_topic text, p_oldest_first boolean, p_low bigint, p_high bigint) RETURNS bigint[]
LANGUAGE plpgsql SET search_path = posthouse, pg_temp
SET plan_cache_mode = force_custom_plan SET enable_bitmapscan = on SET enable_seqscan = off SET enable_indexscan = off SET enable_indexonlyscan = off SET jit = off AS $$
BEGIN
    RETURN ARRAY(
        SELECT m.seq FROM message m
        WHERE m.seq > p_low AND m.seq < p_high AND (p_tenant IS NULL OR m.tenant = p_tenant) AND (p_topic IS NULL OR m.topic = p_topic)
        ORDER BY CASE WHEN p_oldest_first THEN m.seq ELSE -m.seq END);
END $$;

-- The numbers of one page of messages by filter, and, when it stopped before the end, the last one that was looked at; p_look are
-- looked at, more or less. When the next ten thousand do not fill a page of a tenant or topic, it goes on by the summaries,
-- in steps that grow while they are quick, and for a moment only.
CREATE OR REPLACE FUNCTION posthouse.find_messages(
    p_namespace text, p_tenant text, p_topic text, p_state text, p_order_key text, p_reason text, p_code text, p_since timestamptz, p_until timestamptz,
    p_oldest_first boolean, p_beyond bigint, p_most int, p_look int, OUT seqs bigint[], OUT looked_to bigint)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = posthouse, pg_temp
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off AS $$
#variable_conflict use_column
DECLARE
    source CONSTANT text := CASE
        WHEN p_reason IS NOT NULL OR p_state IN ('dead', 'quarantined') THEN 'dead' WHEN p_state = 'leased' THEN 'leased'
        WHEN p_state = 'pending' AND pending_is_small() THEN 'pending' ELSE 'message' END;
    rare CONSTANT boolean := source = 'message' AND (p_tenant IS NOT NULL OR p_topic IS NOT NULL);
    imported CONSTANT settings := (SELECT s FROM settings s);
    -- What is looked for is between these, without them.
    low bigint := greatest(0, least(number_at(p_since - interval '1 hour') - 1, CASE WHEN p_since IS NOT NULL THEN imported.imported_from - 1 END), CASE WHEN p_oldest_first THEN p_beyond END);
    high bigint := least(9223372036854775807, greatest(number_at(p_until + interval '1 hour'), CASE WHEN p_until IS NOT NULL THEN imported.imported_to + 1 END), CASE WHEN NOT p_oldest_first THEN p_beyond END);
    begun CONSTANT timestamptz := clock_timestamp();
    step bigint := 500000;
    last_step timestamptz;
    width int := 4 * p_most;
    looked int := 0;
    pool bigint[] := '{}';
    no_more boolean;
    chunk bigint[];
    edge bigint;
    ended boolean;
BEGIN
    seqs := '{}';
    LOOP
        IF rare AND looked > 10000 THEN
            last_step := clock_timestamp();
            -- Beyond the last message there is none.
            high := least(high, (SELECT max(m.seq) + 1 FROM message m));
            edge := CASE WHEN p_oldest_first THEN least(low + step, high) ELSE greatest(high - step, low) END;
            chunk := rare_messages(p_tenant, p_topic, p_oldest_first,
                                   CASE WHEN p_oldest_first THEN low ELSE greatest(edge - 1, low) END, CASE WHEN p_oldest_first THEN least(edge + 1, high) ELSE high END);
            ended := edge <= low OR edge >= high;
        ELSIF source = 'message' THEN
            SELECT w.numbers, w.edge INTO chunk, edge
            FROM walk_messages(p_namespace, p_tenant, p_topic, p_order_key, p_since, p_until, p_oldest_first, low, high, width,
                               CASE WHEN p_state IS NULL AND p_code IS NULL THEN p_most - cardinality(seqs) END) w;
            ended := edge IS NULL;
        ELSE
            IF cardinality(pool) = 0 THEN
                pool := CASE source WHEN 'pending' THEN next_pending(p_oldest_first, low, high, p_look) ELSE next_numbers(source, p_oldest_first, low, high, width) END;
                no_more := cardinality(pool) < CASE source WHEN 'pending' THEN p_look ELSE width END;
            END IF;
            chunk := pool[:width];
            pool := pool[width + 1:];
            edge := chunk[cardinality(chunk)];
            ended := no_more AND cardinality(pool) = 0;
        END IF;
        seqs := seqs || ARRAY(
            SELECT m.seq FROM unnest(chunk) WITH ORDINALITY c(seq, o)
            CROSS JOIN LATERAL (SELECT m.* FROM message m WHERE m.seq = c.seq OFFSET 0) m
            WHERE (p_namespace IS NULL OR m.namespace = p_namespace) AND (p_tenant IS NULL OR m.tenant = p_tenant) AND (p_topic IS NULL OR m.topic = p_topic)
              AND (p_order_key IS NULL OR m.order_key = p_order_key) AND (p_since IS NULL OR m.created_at >= p_since) AND (p_until IS NULL OR m.created_at < p_until)
              AND (p_state IS NULL OR p_state = coalesce((SELECT l.state FROM live l WHERE l.seq = m.seq), 'done'))
              AND (p_reason IS NULL OR p_reason = (SELECT reason_word(d.reason) FROM dead d WHERE d.seq = m.seq))
              AND (p_code IS NULL OR p_code = (SELECT a.code FROM attempt a WHERE a.seq = m.seq ORDER BY a.epoch DESC LIMIT 1))
            ORDER BY c.o LIMIT p_most - cardinality(seqs));
        IF ended OR cardinality(seqs) >= p_most THEN
            looked_to := NULL;
            RETURN;
        END IF;
        looked_to := edge;
        IF p_oldest_first THEN low := edge; ELSE high := edge; END IF;
        looked := looked + width;
        IF last_step IS NOT NULL THEN
            EXIT WHEN clock_timestamp() - begun > interval '300 milliseconds';
            step := CASE WHEN clock_timestamp() - last_step < interval '50 milliseconds' THEN 4 * step ELSE step END;
        ELSIF NOT rare THEN
            EXIT WHEN looked >= p_look;
        END IF;
        width := greatest(1, least(4 * width, 20000, p_look - looked));
    END LOOP;
END $$;
