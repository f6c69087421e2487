-- What was not granted stays in line.
DELETE FROM posthouse_ready
WHERE lane = ?1
    AND pos BETWEEN ?2 AND ?3
    AND EXISTS (SELECT 1 FROM posthouse_leased AS l WHERE l.seq = posthouse_ready.seq);
