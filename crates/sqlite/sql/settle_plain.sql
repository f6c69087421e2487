-- The fence and the evidence in one: for a message that ends here, without an order key or a dedupe key to look after.
INSERT INTO posthouse_attempt (
    seq, epoch, generation, attempt, max_attempts, worker, token, outcome, code, error, receipt, started_at, finished_at
)
SELECT seq, epoch, generation, attempts, ?4, worker, token, ?5, ?6, ?7, ?8, granted_at, ?3
FROM posthouse_leased
WHERE seq = ?1 AND token = ?2 AND deadline > ?3 AND key IS NULL AND deduped = 0;
