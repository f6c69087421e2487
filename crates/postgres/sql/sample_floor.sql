-- The safe floor: (S, X). Once no transaction older than X is open, none can still commit a place of S or below. X is an
-- own transaction id, not pg_snapshot_xmax: a running writer may be above that.
CREATE OR REPLACE FUNCTION posthouse.sample_floor(OUT s bigint, OUT x bigint, OUT oldest bigint)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = posthouse, pg_temp AS $$
BEGIN
    -- Before the first number is drawn, the sequence shows it as its last.
    SELECT q.last_value - (NOT q.is_called)::int INTO s FROM message_seq_seq q;
    x := pg_current_xact_id()::text::bigint;
    oldest := pg_snapshot_xmin(pg_current_snapshot())::text::bigint;
END $$;
