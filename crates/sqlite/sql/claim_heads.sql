-- The free heads of a lane's keys from above ?2.
SELECT pos, key
FROM posthouse_keyed AS k
WHERE lane = ?1
    AND free = 1
    AND pos > ?2
    AND (
        ?4 IS NULL
        OR (SELECT topic FROM posthouse_message AS m WHERE m.seq = k.seq) NOT IN (SELECT value FROM json_each(?4))
    )
ORDER BY pos
LIMIT ?3;
