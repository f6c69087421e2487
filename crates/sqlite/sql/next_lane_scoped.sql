-- The next lane above ?1 of these namespaces and this tenant that has something to claim.
SELECT l.lane
FROM posthouse_lane AS l
WHERE l.lane > ?1
    AND (?2 IS NULL OR l.namespace IN (SELECT value FROM json_each(?2)))
    AND (?3 IS NULL OR l.tenant = ?3)
    AND (
        EXISTS (SELECT 1 FROM posthouse_ready AS r WHERE r.lane = l.lane)
        OR EXISTS (SELECT 1 FROM posthouse_keyed AS k WHERE k.lane = l.lane AND k.free = 1)
    )
ORDER BY l.lane
LIMIT 1;
