DELETE FROM posthouse_resolved WHERE seq = ?1;
