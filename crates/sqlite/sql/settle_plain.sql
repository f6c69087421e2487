-- The fence and the evidence in one: for messages that end here, without an order key or a dedupe key to look after.
INSERT INTO posthouse_attempt (
    seq, epoch, generation, attempt, max_attempts, worker, token, outcome, code, error, receipt, started_at, finished_at
)
SELECT seq, epoch, generation, attempts, ?5, worker, token, ?6, ?7, ?8, ?9, granted_at, ?4
FROM posthouse_leased
WHERE seq BETWEEN ?1 AND ?2 AND token = ?3 AND deadline > ?4 AND key IS NULL AND deduped = 0;
