SELECT n, hash FROM posthouse_saga_definition WHERE namespace = ?1 AND name = ?2 AND version = ?3;
