-- What must end before the message ?1: the first of its key that is in flight, or else the first that waits or blocks.
SELECT seq
FROM (
    SELECT *
    FROM (
        SELECT l.seq, 0 AS waits, l.pos
        FROM posthouse_message AS m
        CROSS JOIN posthouse_leased AS l ON l.lane = m.lane AND l.key = m.order_key
        WHERE m.seq = ?1
        ORDER BY l.pos
        LIMIT 1
    )
    UNION ALL
    SELECT *
    FROM (
        SELECT k.seq, 1, k.pos
        FROM posthouse_message AS m
        CROSS JOIN posthouse_keyed AS k ON k.lane = m.lane AND k.key = m.order_key
        WHERE m.seq = ?1
        ORDER BY k.pos
        LIMIT 1
    )
    UNION ALL
    SELECT *
    FROM (
        SELECT d.seq, 1, d.pos
        FROM posthouse_message AS m
        CROSS JOIN posthouse_dead AS d ON d.lane = m.lane AND d.key = m.order_key AND d.blocks = 1
        WHERE m.seq = ?1
        ORDER BY d.pos
        LIMIT 1
    )
)
ORDER BY waits, pos
LIMIT 1;
