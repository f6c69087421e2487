-- Retention: removes messages that ended longer than older_than ago, with their evidence, and dedupe keys whose lifetime is
-- over; at most max_rows of each. What lives, is held or blocks its key stays. A dedupe key keeps the time its message ended.
CREATE OR REPLACE FUNCTION posthouse.prune(older_than interval, max_rows int, OUT messages bigint, OUT dedupe_keys bigint)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = posthouse, pg_temp AS $$
#variable_conflict use_column
DECLARE
    t CONSTANT timestamptz := clock();
    seqs bigint[];
BEGIN
    IF older_than IS NULL OR older_than NOT BETWEEN interval '0' AND interval '1000 years' THEN
        RAISE 'older_than: must be between zero and 1000 years' USING ERRCODE = 'P7006';
    ELSIF max_rows IS NULL OR max_rows < 0 THEN
        RAISE 'max_rows: must be zero or more' USING ERRCODE = 'P7006';
    END IF;
    seqs := ARRAY(
        SELECT m.seq FROM message m JOIN messages v ON v.seq = m.seq LEFT JOIN dead d ON d.seq = m.seq
        WHERE m.created_at <= t - older_than AND v.state IN ('done', 'dead') AND v.finished_at <= t - older_than AND NOT coalesce(d.blocking, false)
        ORDER BY m.seq LIMIT max_rows FOR UPDATE OF m SKIP LOCKED);
    -- An operator may be replaying one: lock what is dead, then look again.
    PERFORM FROM dead d WHERE d.seq = ANY (seqs) ORDER BY d.seq FOR UPDATE;
    seqs := ARRAY(
        SELECT v.seq FROM messages v LEFT JOIN dead d ON d.seq = v.seq
        WHERE v.seq = ANY (seqs) AND v.state IN ('done', 'dead') AND NOT coalesce(d.blocking, false));
    UPDATE dedupe d SET ended_at = v.finished_at FROM messages v WHERE v.seq = ANY (seqs) AND v.dedupe_key IS NOT NULL AND d.id = v.id;
    DELETE FROM dead d WHERE d.seq = ANY (seqs);
    DELETE FROM receipt r WHERE r.seq = ANY (seqs);
    DELETE FROM resolved r WHERE r.seq = ANY (seqs);
    DELETE FROM attempt a WHERE a.seq = ANY (seqs);
    DELETE FROM message m WHERE m.seq = ANY (seqs);
    GET DIAGNOSTICS prune.messages = ROW_COUNT;
    DELETE FROM dedupe d WHERE d.ctid = ANY (ARRAY(
        SELECT q.ctid FROM dedupe q, settings s WHERE q.ended_at + s.dedupe_lifetime <= t LIMIT max_rows FOR UPDATE OF q SKIP LOCKED));
    GET DIAGNOSTICS prune.dedupe_keys = ROW_COUNT;
END $$;

