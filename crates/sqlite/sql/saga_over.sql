SELECT seq FROM posthouse_saga WHERE finished_at <= ?1 ORDER BY finished_at LIMIT ?2;
