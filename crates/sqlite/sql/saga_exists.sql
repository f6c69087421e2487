SELECT 1 FROM posthouse_saga WHERE id = ?1;
