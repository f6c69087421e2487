-- The same for some lanes only: a claim for one tenant moves nothing of another's.
-- CROSS JOIN, so that the lanes are read first and each is one look into (lane, wake_at).
DELETE FROM posthouse_sched
WHERE seq IN (
    SELECT s.seq
    FROM posthouse_lane AS l
    CROSS JOIN posthouse_sched AS s ON s.lane = l.lane AND s.wake_at <= ?1
    WHERE (?3 IS NULL OR l.namespace IN (SELECT value FROM json_each(?3)))
        AND (?4 IS NULL OR l.tenant = ?4)
    LIMIT ?2
)
RETURNING
    seq, lane, bytes, attempts, max_attempts, epoch, generation, releases, deliver_by, deduped, due_at, changed_at,
    released_by;
