-- Since when the first of each line waits, as far as ?1 lanes; ?2 is the time.
WITH RECURSIVE
ready (lane) AS (
    SELECT min(lane) FROM posthouse_ready
    UNION ALL
    SELECT (SELECT min(lane) FROM posthouse_ready AS r WHERE r.lane > ready.lane)
    FROM ready
    WHERE ready.lane IS NOT NULL
    LIMIT ?1
),
heads (lane) AS (
    SELECT min(lane) FROM posthouse_keyed WHERE free = 1
    UNION ALL
    SELECT (SELECT min(lane) FROM posthouse_keyed AS k WHERE k.free = 1 AND k.lane > heads.lane)
    FROM heads
    WHERE heads.lane IS NOT NULL
    LIMIT ?1
)
SELECT min(due_at)
FROM (
    SELECT coalesce(r.due_at, (SELECT m.due_at FROM posthouse_message AS m WHERE m.seq = r.seq)) AS due_at
    FROM ready
    CROSS JOIN posthouse_ready AS r
        ON r.lane = ready.lane AND r.pos = (SELECT min(pos) FROM posthouse_ready AS f WHERE f.lane = ready.lane)
    UNION ALL
    SELECT (
        SELECT k.due_at FROM posthouse_keyed AS k WHERE k.lane = heads.lane AND k.free = 1 ORDER BY k.pos LIMIT 1
    )
    FROM heads
    UNION ALL
    SELECT * FROM (SELECT due_at FROM posthouse_keyed WHERE wake_at IS NOT NULL ORDER BY wake_at LIMIT 1)
)
WHERE due_at <= ?2;
