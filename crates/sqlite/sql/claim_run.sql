-- A key's line from above ?3, as far as the first message that is dead and blocks. The last two columns: its topic is
-- left, and its death would block the key.
SELECT
    pos, seq, bytes, deliver_by, attempts, max_attempts, epoch, generation, releases, due_at,
    ?5 IS NOT NULL
    AND (SELECT topic FROM posthouse_message AS m WHERE m.seq = k.seq) IN (SELECT value FROM json_each(?5)),
    deliver_by IS NOT NULL AND (SELECT on_dead FROM posthouse_message AS m WHERE m.seq = k.seq) = 'block'
FROM posthouse_keyed AS k
WHERE lane = ?1
    AND key = ?2
    AND pos > ?3
    AND NOT EXISTS (
        SELECT 1
        FROM posthouse_dead AS d
        WHERE d.lane = ?1 AND d.key = ?2 AND d.blocks = 1 AND d.pos < k.pos
    )
ORDER BY pos
LIMIT ?4;
