-- The next numbers, in either direction, of what a page may hold: of dead or leased messages, which are few, or of all.
CREATE OR REPLACE FUNCTION posthouse.next_numbers(p_source text, p_oldest_first boolean, p_beyond bigint, p_most int) RETURNS bigint[]
LANGUAGE plpgsql SET search_path = posthouse, pg_temp SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $$
BEGIN
    IF p_oldest_first THEN
        CASE p_source
            WHEN 'dead' THEN RETURN ARRAY(SELECT d.seq FROM dead d WHERE d.seq > coalesce(p_beyond, 0) ORDER BY d.seq LIMIT p_most);
            WHEN 'leased' THEN RETURN ARRAY(SELECT l.seq FROM leased l WHERE l.seq > coalesce(p_beyond, 0) ORDER BY l.seq LIMIT p_most);
            ELSE RETURN ARRAY(SELECT m.seq FROM message m WHERE m.seq > coalesce(p_beyond, 0) ORDER BY m.seq LIMIT p_most);
        END CASE;
    END IF;
    CASE p_source
        WHEN 'dead' THEN RETURN ARRAY(SELECT d.seq FROM dead d WHERE d.seq < coalesce(p_beyond, 9223372036854775807) ORDER BY d.seq DESC LIMIT p_most);
        WHEN 'leased' THEN RETURN ARRAY(SELECT l.seq FROM leased l WHERE l.seq < coalesce(p_beyond, 9223372036854775807) ORDER BY l.seq DESC LIMIT p_most);
        ELSE RETURN ARRAY(SELECT m.seq FROM message m WHERE m.seq < coalesce(p_beyond, 9223372036854775807) ORDER BY m.seq DESC LIMIT p_most);
    END CASE;
END $$;

-- The numbers of pending messages beyond one, if there are no more than p_most of them in all: they are not kept by number.
CREATE OR REPLACE FUNCTION posthouse.few_pending(p_oldest_first boolean, p_beyond bigint, p_most int) RETURNS bigint[]
LANGUAGE plpgsql SET search_path = posthouse, pg_temp AS $$
DECLARE
    few bigint[] := ARRAY(
        SELECT q.seq FROM (
            SELECT r.seq FROM ready r UNION ALL SELECT s.seq FROM sched s UNION ALL SELECT p.seq FROM parked p
            UNION ALL SELECT k.seq FROM keyed k WHERE k.due_at < 'infinity') q
        LIMIT p_most + 1);
BEGIN
    IF cardinality(few) > p_most THEN RETURN NULL; END IF;
    RETURN ARRAY(SELECT f.seq FROM unnest(few) f(seq)
                 WHERE p_beyond IS NULL OR CASE WHEN p_oldest_first THEN f.seq > p_beyond ELSE f.seq < p_beyond END
                 ORDER BY CASE WHEN p_oldest_first THEN f.seq ELSE -f.seq END);
END $$;

-- The numbers of one page of messages by filter, and, when it stopped before the end, the last one that was looked at; p_look are
-- looked at, more or less.
CREATE OR REPLACE FUNCTION posthouse.find_messages(
    p_namespace text, p_tenant text, p_topic text, p_state text, p_order_key text, p_reason text, p_code text, p_since timestamptz, p_until timestamptz,
    p_oldest_first boolean, p_beyond bigint, p_most int, p_look int, OUT seqs bigint[], OUT looked_to bigint)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = posthouse, pg_temp
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off AS $$
#variable_conflict use_column
DECLARE
    source CONSTANT text := CASE WHEN p_reason IS NOT NULL OR p_state IN ('dead', 'quarantined') THEN 'dead' WHEN p_state = 'leased' THEN 'leased' ELSE 'message' END;
    few CONSTANT bigint[] := CASE WHEN p_state = 'pending' THEN few_pending(p_oldest_first, p_beyond, p_look / 5) END;
    width int := 4 * p_most;
    looked int := 0;
    chunk bigint[];
BEGIN
    seqs := '{}';
    looked_to := p_beyond;
    LOOP
        chunk := coalesce(few, next_numbers(source, p_oldest_first, looked_to, width));
        seqs := seqs || ARRAY(
            SELECT m.seq FROM unnest(chunk) WITH ORDINALITY c(seq, o)
            CROSS JOIN LATERAL (SELECT m.* FROM message m WHERE m.seq = c.seq OFFSET 0) m
            WHERE (p_namespace IS NULL OR m.namespace = p_namespace) AND (p_tenant IS NULL OR m.tenant = p_tenant) AND (p_topic IS NULL OR m.topic = p_topic)
              AND (p_order_key IS NULL OR m.order_key = p_order_key) AND (p_since IS NULL OR m.created_at >= p_since) AND (p_until IS NULL OR m.created_at < p_until)
              AND (p_state IS NULL OR p_state = coalesce((SELECT l.state FROM live l WHERE l.seq = m.seq), 'done'))
              AND (p_reason IS NULL OR p_reason = (SELECT reason_word(d.reason) FROM dead d WHERE d.seq = m.seq))
              AND (p_code IS NULL OR p_code = (SELECT a.code FROM attempt a WHERE a.seq = m.seq ORDER BY a.epoch DESC LIMIT 1))
            ORDER BY c.o LIMIT p_most - cardinality(seqs));
        looked := looked + cardinality(chunk);
        looked_to := chunk[cardinality(chunk)];
        IF few IS NOT NULL OR cardinality(seqs) >= p_most OR cardinality(chunk) < width THEN
            looked_to := NULL;
            RETURN;
        END IF;
        EXIT WHEN looked >= p_look;
        width := least(4 * width, 20000, p_look - looked);
    END LOOP;
END $$;
