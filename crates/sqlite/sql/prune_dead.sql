-- Dead letters that ended at ?1 or before, by number, at most ?2. One that blocks its order key stays, and so does one of a saga that
-- has not ended: an operator has to decide first.
SELECT d.seq
FROM posthouse_dead AS d
JOIN posthouse_message AS m ON m.seq = d.seq
WHERE d.state = 'dead' AND d.blocks = 0 AND d.ended_at <= ?1
    AND NOT EXISTS (SELECT 1 FROM posthouse_saga AS s WHERE s.id = m.parent AND s.finished_at IS NULL)
ORDER BY d.seq
LIMIT ?2;
