SELECT seq FROM posthouse_saga WHERE id = ?1 AND revision = ?2;
