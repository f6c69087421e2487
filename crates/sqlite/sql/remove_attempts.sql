DELETE FROM posthouse_attempt WHERE seq = ?1;
