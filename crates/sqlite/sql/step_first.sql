INSERT INTO posthouse_step (consumer, key, undone, at) VALUES (?1, ?2, ?3, (SELECT now FROM posthouse_clock))
ON CONFLICT DO NOTHING
RETURNING 1;
