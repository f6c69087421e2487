-- The next lane above ?1 that has something to claim: a loose scan, so idle lanes cost nothing.
SELECT min(lane)
FROM (
    SELECT (SELECT lane FROM posthouse_ready WHERE lane > ?1 ORDER BY lane LIMIT 1) AS lane
    UNION ALL
    SELECT (SELECT lane FROM posthouse_keyed WHERE free = 1 AND lane > ?1 ORDER BY lane LIMIT 1)
);
