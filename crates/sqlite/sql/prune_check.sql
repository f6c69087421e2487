-- Whether a message that was found to be done (?3), or dead and free to go, since ?2 or before is still so.
SELECT 1
FROM posthouse_messages AS v
WHERE v.seq = ?1 AND v.state = ?3 AND v.blocks = 0 AND v.finished_at <= ?2
    AND NOT EXISTS (
        SELECT 1
        FROM posthouse_message AS m
        JOIN posthouse_saga AS s ON s.id = m.parent
        WHERE v.state = 'dead' AND m.seq = v.seq AND s.finished_at IS NULL
    );
