-- The evidence of one message, oldest first; through the view, which is what operators may read.
SELECT a.epoch, a.generation, a.attempt, a.worker, a.token, a.outcome, a.code, a.error, a.receipt, a.started_at, a.finished_at
FROM posthouse.attempts a
WHERE a.message_id = $1
ORDER BY a.epoch
