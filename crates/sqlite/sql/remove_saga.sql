DELETE FROM posthouse_saga WHERE seq = ?1;
