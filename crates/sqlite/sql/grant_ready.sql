-- One statement for all that a lane gives. What lapsed in between has left already.
INSERT INTO posthouse_leased (
    seq, token, deadline, granted_at, worker, lane, key, pos, bytes, attempts, max_attempts, epoch, generation, releases,
    deliver_by, deduped
)
SELECT
    seq, ?4, ?5, ?6, ?7, lane, NULL, pos, bytes, attempts + 1, max_attempts, epoch + 1, generation, releases,
    deliver_by, deduped
FROM posthouse_ready
WHERE lane = ?1 AND pos BETWEEN ?2 AND ?3;
