-- The run of a key, whole.
INSERT INTO posthouse_leased (
    seq, token, deadline, granted_at, worker, lane, key, pos, bytes, attempts, max_attempts, epoch, generation, releases,
    deliver_by, deduped
)
SELECT
    seq, ?5, ?6, ?7, ?8, lane, key, pos, bytes, attempts + 1, max_attempts, epoch + 1, generation, releases,
    deliver_by, deduped
FROM posthouse_keyed
WHERE lane = ?1 AND key = ?2 AND pos BETWEEN ?3 AND ?4;
