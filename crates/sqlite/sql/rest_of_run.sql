-- The later messages of a key that the same claim still holds.
SELECT m.id, l.seq, l.token, l.attempts, l.max_attempts, l.epoch, l.generation, l.releases, m.on_dead
FROM posthouse_leased AS l
JOIN posthouse_message AS m ON m.seq = l.seq
WHERE l.lane = ?1 AND l.key = ?2 AND l.pos > ?3 AND l.token = ?4
ORDER BY l.pos;
