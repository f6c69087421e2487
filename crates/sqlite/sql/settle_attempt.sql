INSERT INTO posthouse_attempt (
    seq, epoch, generation, attempt, max_attempts, worker, token, outcome, code, error, receipt, started_at, finished_at
)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13);
