-- The safe floor: (S, X). Once no transaction older than X is open, none can still commit a place of S or below. X is an
-- own transaction id, not pg_snapshot_xmax: a running writer may be above that. `server` changes when another server takes over, or this
-- one starts again.
--
-- And the floor of the keys: no record of `keyed` that claims visit stands in its line at `keys` or below, and no lease of one that was
-- granted in its first place, now or later. p_safe is an S that has become safe before this was asked, p_keys what was answered before, or 0.
-- One statement: a message moves from `keyed` to `leased`, and must be seen in one of them.
CREATE OR REPLACE FUNCTION posthouse.sample_floor(p_safe bigint DEFAULT 0, p_keys bigint DEFAULT 0, OUT s bigint, OUT x bigint, OUT oldest bigint, OUT keys bigint, OUT server timestamptz)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = posthouse, pg_temp
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET jit = off AS $$
BEGIN
    -- Before the first number is drawn, the sequence shows it as its last.
    SELECT q.last_value - (NOT q.is_called)::int INTO s FROM message_seq_seq q;
    x := pg_current_xact_id()::text::bigint;
    oldest := pg_snapshot_xmin(pg_current_snapshot())::text::bigint;
    server := pg_postmaster_start_time();
    keys := p_keys;
    IF p_safe > p_keys THEN
        SELECT least(v.v, (SELECT l.seq - 1 FROM leased l WHERE l.seq > p_keys AND l.line = l.pos AND l.seq <= v.v ORDER BY l.seq LIMIT 1))
        FROM (SELECT least(p_safe, (SELECT k.line - 1 FROM keyed k WHERE k.wait = 0 AND k.line > p_keys AND k.line <= p_safe ORDER BY k.line LIMIT 1)) AS v OFFSET 0) v
        INTO keys;
    END IF;
END $$;
