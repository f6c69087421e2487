SELECT m.id, l.seq, l.token, l.attempts, l.max_attempts, l.epoch, l.generation, l.releases, m.on_dead,
    coalesce(json_valid(m.headers) AND json_type(m.headers, '$."posthouse-ledger"') = 'text', 0), m.kind, m.parent
FROM posthouse_leased AS l
JOIN posthouse_message AS m ON m.seq = l.seq
WHERE l.seq > ?1 AND l.deadline <= (SELECT now FROM posthouse_clock)
ORDER BY l.seq
LIMIT ?2;
