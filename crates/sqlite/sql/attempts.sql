SELECT
    epoch, generation, attempt, worker, token, outcome, code, error, receipt, started_at, finished_at
FROM posthouse_attempt
WHERE seq = (SELECT seq FROM posthouse_message WHERE id = ?1)
ORDER BY epoch;
