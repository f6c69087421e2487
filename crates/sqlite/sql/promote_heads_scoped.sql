-- The same for some lanes only.
UPDATE posthouse_keyed
SET free = 1, wake_at = NULL
WHERE (lane, key, pos) IN (
    SELECT k.lane, k.key, k.pos
    FROM posthouse_lane AS l
    CROSS JOIN posthouse_keyed AS k ON k.lane = l.lane AND k.wake_at IS NOT NULL AND k.wake_at <= ?1
    WHERE (?3 IS NULL OR l.namespace IN (SELECT value FROM json_each(?3)))
        AND (?4 IS NULL OR l.tenant = ?4)
    LIMIT ?2
);
