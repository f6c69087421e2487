-- What is due, or has lapsed, leaves sched. The inner SELECT carries the limit, which DELETE has not.
DELETE FROM posthouse_sched
WHERE seq IN (SELECT seq FROM posthouse_sched WHERE wake_at <= ?1 ORDER BY wake_at, seq LIMIT ?2)
RETURNING
    seq, lane, bytes, attempts, max_attempts, epoch, generation, releases, deliver_by, deduped, due_at, changed_at,
    released_by;
