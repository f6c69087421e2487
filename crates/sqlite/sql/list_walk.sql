-- Messages one by one in the order of the list, and whether the filter takes each. What is in braces is filled in by the program.
-- CASE, because it looks at no more than it needs: at other tables only for what passed the rest.
SELECT
    c.seq,
    CASE
        WHEN n.namespace <> ?2 OR n.tenant <> ?3 OR m.topic <> ?4 OR m.created_at < ?6 OR m.created_at >= ?7 THEN 0
        WHEN ?5 IS NOT NULL AND m.order_key IS NOT ?5 THEN 0
        WHEN ?8 IN ('dead', 'quarantined') AND NOT EXISTS (
            SELECT 1 FROM posthouse_dead AS d WHERE d.seq = c.seq AND d.state = ?8 AND (?9 IS NULL OR d.reason = ?9)
        ) THEN 0
        WHEN ?10 IS NOT NULL AND ?10 IS NOT (
            SELECT a.code FROM posthouse_attempt AS a WHERE a.seq = c.seq ORDER BY a.epoch DESC LIMIT 1
        ) THEN 0
        WHEN ?8 = 'done' AND (
            EXISTS (SELECT 1 FROM posthouse_dead AS d WHERE d.seq = c.seq)
            OR EXISTS (SELECT 1 FROM posthouse_leased AS l WHERE l.seq = c.seq)
        ) THEN 0
        WHEN ?8 IN ('done', 'pending') AND (?8 = 'pending') <> CASE
            WHEN EXISTS (SELECT 1 FROM posthouse_ready AS r WHERE r.lane = m.lane AND r.pos = c.seq) THEN 1
            WHEN EXISTS (SELECT 1 FROM posthouse_sched AS s WHERE s.seq = c.seq) THEN 1
            WHEN m.order_key IS NULL
                THEN EXISTS (SELECT 1 FROM posthouse_ready AS r WHERE r.seq = c.seq AND r.pos > r.seq)
            WHEN EXISTS (
                SELECT 1 FROM posthouse_keyed AS k WHERE k.lane = m.lane AND k.key = m.order_key AND k.pos = c.seq
            ) THEN 1
            ELSE EXISTS (SELECT 1 FROM posthouse_keyed AS k WHERE k.seq = c.seq AND k.pos > k.seq)
        END THEN 0
        ELSE 1
    END
FROM {source} AS c
CROSS JOIN posthouse_message AS m ON m.seq = c.seq
CROSS JOIN posthouse_lane AS n ON n.lane = m.lane
WHERE c.seq {beyond} ?1
{only}
ORDER BY c.seq {order};
