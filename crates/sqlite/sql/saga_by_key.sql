SELECT id, digest FROM posthouse_saga WHERE namespace = ?1 AND tenant = ?2 AND name = ?3 AND key = ?4;
