-- The first message of a key becomes claimable, at once or at its time, when nothing of the key is leased and nothing
-- that ended before it blocks.
UPDATE posthouse_keyed
SET
    free = CASE WHEN due_at <= ?3 THEN 1 END,
    wake_at = CASE WHEN due_at > ?3 THEN min(due_at, coalesce(deliver_by, due_at)) END
WHERE lane = ?1
    AND key = CAST(?2 AS TEXT)
    AND pos = (SELECT min(pos) FROM posthouse_keyed WHERE lane = ?1 AND key = CAST(?2 AS TEXT))
    AND NOT EXISTS (SELECT 1 FROM posthouse_leased AS l WHERE l.lane = ?1 AND l.key = CAST(?2 AS TEXT))
    AND NOT EXISTS (
        SELECT 1
        FROM posthouse_dead AS d
        WHERE d.lane = ?1 AND d.key = CAST(?2 AS TEXT) AND d.blocks = 1 AND d.pos < posthouse_keyed.pos
    );
