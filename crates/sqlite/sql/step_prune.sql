DELETE FROM posthouse_step WHERE (consumer, key) IN (SELECT consumer, key FROM posthouse_step WHERE at <= ?1 ORDER BY at LIMIT ?2);
