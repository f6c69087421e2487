-- The evidence of one message, oldest first.
SELECT a.epoch::bigint AS epoch, a.generation, a.attempt, a.worker, a.token, posthouse.outcome_word(a.outcome) AS outcome,
       a.code, a.error, a.receipt, a.started_at, a.finished_at
FROM posthouse.attempt a JOIN posthouse.message m ON m.seq = a.seq
WHERE m.id = $1
ORDER BY a.epoch
