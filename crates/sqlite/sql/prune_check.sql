-- Whether a message that was found to have ended before ?2 is still so.
SELECT 1
FROM posthouse_messages
WHERE seq = ?1 AND state IN ('done', 'dead') AND blocks = 0 AND finished_at <= ?2;
