SELECT 1 FROM posthouse_attempt WHERE seq = ?1 AND epoch = ?2 AND token = ?3 AND outcome = ?4;
