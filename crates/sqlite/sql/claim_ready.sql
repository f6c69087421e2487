-- The line of a lane from above ?2. The message itself is only looked at when topics are to be left (?4).
SELECT pos, seq, bytes, deliver_by, attempts, max_attempts, epoch, generation, releases
FROM posthouse_ready AS r
WHERE lane = ?1
    AND pos > ?2
    AND (
        ?4 IS NULL
        OR (SELECT topic FROM posthouse_message AS m WHERE m.seq = r.seq) NOT IN (SELECT value FROM json_each(?4))
    )
ORDER BY pos
LIMIT ?3;
